//! Times of every pod over the last day, for charts and `/history`: to the first token, and between
//! tokens.
//!
//! A sample every ten seconds is kept for an hour, and one every five minutes for a day, where a pod
//! has answered anything. That is at most 12 KiB for each pod, also for those that were removed, and
//! at most 256 pods.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};
use wornpath_gateway::observe::metrics::pod_times::PodTimes;

use super::rounded;

/// Seconds between two samples within an hour.
pub(crate) const STEP: u64 = 10;
/// Seconds between two samples of the longer range.
const LONG_STEP: u64 = 300;
/// Samples of an hour.
const STEPS: usize = 360;
/// Samples of a day.
const LONG_STEPS: usize = 288;
/// Pods that are remembered.
const MAX_PODS: usize = 256;
/// Pods in one answer: those with the longest times to the first token.
const MAX_SHOWN: usize = 32;

type Times = BTreeMap<String, PodTimes>;

/// The samples of all pods.
#[derive(Default)]
pub(super) struct PodHistory {
    pods: BTreeMap<String, PodSeries>,
    /// The times at the start of the steps in progress.
    before: Option<Times>,
    long_before: Option<Times>,
}

#[derive(Default)]
struct PodSeries {
    steps: VecDeque<PodSample>,
    long_steps: VecDeque<PodSample>,
}

/// Times in seconds; NaN where nothing was counted.
#[derive(Clone, Copy)]
struct PodSample {
    /// The end of the step, in seconds since 1970.
    at: u64,
    first_token: f32,
    inter_token: f32,
}

impl PodHistory {
    /// Adds what all pods have counted since the start, at the end of a step.
    pub(super) fn add(&mut self, at: u64, times: Times) {
        let end = at / STEP * STEP;
        if let Some(before) = &self.before {
            for (pod, sample) in samples(end, before, &times) {
                self.push(pod, sample, |series| (&mut series.steps, STEPS));
            }
        }
        if at / LONG_STEP > at.saturating_sub(STEP) / LONG_STEP || self.long_before.is_none() {
            let end = at / LONG_STEP * LONG_STEP;
            if let Some(before) = self.long_before.replace(times.clone()) {
                for (pod, sample) in samples(end, &before, &times) {
                    self.push(pod, sample, |series| (&mut series.long_steps, LONG_STEPS));
                }
            }
        }
        self.before = Some(times);
    }

    fn push(
        &mut self,
        pod: &str,
        sample: PodSample,
        ring: fn(&mut PodSeries) -> (&mut VecDeque<PodSample>, usize),
    ) {
        if !self.pods.contains_key(pod) {
            if self.pods.len() >= MAX_PODS && !self.forget(sample.at) {
                return;
            }
            self.pods.insert(pod.to_owned(), PodSeries::default());
        }
        let Some(series) = self.pods.get_mut(pod) else { return };
        let (ring, length) = ring(series);
        if ring.len() == length {
            ring.pop_front();
        }
        ring.reserve_exact(length - ring.len());
        ring.push_back(sample);
    }

    /// Makes room by the pod that has answered nothing for the longest time; whether there is one.
    fn forget(&mut self, now: u64) -> bool {
        let last = |series: &PodSeries| series.steps.back().map_or(0, |sample| sample.at);
        let oldest = self.pods.iter().min_by_key(|(_, series)| last(series));
        let oldest = oldest.filter(|(_, series)| last(series) + STEP < now);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else { return false };
        self.pods.remove(&name).is_some()
    }

    /// The times of the last `wanted` seconds, of one pod or of those with the longest ones.
    pub(super) fn json(&self, now: u64, wanted: u64, only: Option<&str>) -> Value {
        let is_fine = wanted <= STEP * STEPS as u64;
        let (step, most) =
            if is_fine { (STEP, STEPS as u64) } else { (LONG_STEP, LONG_STEPS as u64) };
        let count = wanted.div_ceil(step).clamp(1, most);
        let until = now / step * step;
        let from = until.saturating_sub(count * step);
        let mut shown = Vec::new();
        for (pod, series) in
            self.pods.iter().filter(|(pod, _)| only.is_none_or(|only| only == *pod))
        {
            let ring = if is_fine { &series.steps } else { &series.long_steps };
            let within: Vec<_> =
                ring.iter().filter(|sample| sample.at > from && sample.at <= until).collect();
            if within.is_empty() {
                continue;
            }
            let column = |read: fn(&PodSample) -> f32| {
                let mut values = vec![Value::Null; count as usize];
                for sample in &within {
                    values[((sample.at - from - 1) / step) as usize] = rounded(read(sample));
                }
                values
            };
            let longest = within.iter().map(|sample| sample.first_token).fold(0.0, f32::max);
            let first_token = column(|sample| sample.first_token);
            let inter_token = column(|sample| sample.inter_token);
            let told = json!({"pod": pod, "first_token": first_token, "inter_token": inter_token});
            shown.push((longest, told));
        }
        shown.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let left_out = shown.len().saturating_sub(MAX_SHOWN);
        let series: Vec<_> = shown.into_iter().take(MAX_SHOWN).map(|(_, told)| told).collect();
        json!({"from": from, "step": step, "left_out": left_out, "series": series})
    }
}

/// A sample for every pod that has counted anything since.
fn samples<'t>(at: u64, before: &Times, times: &'t Times) -> Vec<(&'t str, PodSample)> {
    let none = PodTimes::default();
    let sample = |(pod, times): (&'t String, &PodTimes)| {
        let own = times.since(before.get(pod).unwrap_or(&none));
        let known = |value: Option<f64>| value.map_or(f32::NAN, |seconds| seconds as f32);
        let first_token = known(own.first_token());
        let inter_token = known(own.inter_token());
        let is_known = !(first_token.is_nan() && inter_token.is_nan());
        is_known.then_some((pod.as_str(), PodSample { at, first_token, inter_token }))
    };
    times.iter().filter_map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use wornpath_gateway::Api;
    use wornpath_gateway::observe::metrics::Metrics;
    use wornpath_gateway::observe::summary::{RequestSummary, SummaryObserver};
    use wornpath_index::{Index, IndexLimits};

    /// Counts a stream of a pod.
    fn stream(metrics: &Metrics, pod: &str, first_token: u64) {
        let id = Index::new(IndexLimits::default(), 1).add_pod().unwrap();
        metrics.ended(&RequestSummary {
            pod: Some((id, pod.into())),
            first_token: Some(Duration::from_millis(first_token)),
            ..RequestSummary::new("r", Api::CHAT)
        });
    }

    fn near(value: &Value, seconds: f64) -> bool {
        value.as_f64().is_some_and(|value| (value / seconds - 1.0).abs() < 0.13)
    }

    #[test]
    fn every_step_has_the_times_of_each_pod_and_null_where_it_answered_nothing() {
        let metrics = Metrics::default();
        let mut history = PodHistory::default();
        history.add(1000, metrics.times_by_pod());
        for (at, fast, slow) in [(1010, 100, 1300), (1020, 100, 0), (1030, 0, 0), (1040, 50, 1300)]
        {
            for (pod, time) in [("fast", fast), ("slow", slow)] {
                (0..time.min(5)).for_each(|_| stream(&metrics, pod, time));
            }
            history.add(at, metrics.times_by_pod());
        }
        let told = history.json(1044, 50, None);
        assert_eq!(
            (&told["from"], &told["step"], &told["left_out"]),
            (&json!(990), &json!(10), &json!(0))
        );
        let names: Vec<_> = [0, 1].map(|at| told["series"][at]["pod"].clone()).into();
        assert_eq!(names, ["slow", "fast"], "the slowest first");
        for (at, expected) in [
            (0, [None, Some(1.3), None, None, Some(1.3)]),
            (1, [None, Some(0.1), Some(0.1), None, Some(0.05)]),
        ] {
            let values = told["series"][at]["first_token"].as_array().unwrap();
            assert_eq!(values.len(), 5);
            for (value, expected) in values.iter().zip(expected) {
                match expected {
                    Some(seconds) => assert!(near(value, seconds), "{value}, not {seconds}"),
                    None => assert_eq!(*value, Value::Null),
                }
            }
        }
        let one = history.json(1044, 50, Some("fast"));
        assert_eq!(one["series"].as_array().unwrap().len(), 1);
        assert_eq!(history.json(1044, 50, Some("no"))["series"], json!([]));
    }

    #[test]
    fn five_minutes_have_the_times_of_the_whole_five() {
        let metrics = Metrics::default();
        let mut history = PodHistory::default();
        for at in (30_000..=30_600).step_by(10) {
            history.add(at, metrics.times_by_pod());
            stream(&metrics, "a", if at < 30_300 { 100 } else { 1300 });
        }
        let told = history.json(30_600, 7200, None);
        let values = told["series"][0]["first_token"].as_array().unwrap();
        assert_eq!((told["step"].as_u64(), values.len()), (Some(300), 24));
        assert!(near(&values[22], 0.1) && near(&values[23], 1.3), "{values:?}");
    }

    #[test]
    fn a_day_of_more_pods_than_are_kept_is_bounded_and_the_latest_pods_are_kept() {
        let metrics = Metrics::default();
        let mut history = PodHistory::default();
        history.add(0, metrics.times_by_pod());
        for round in 0..400 {
            let pod = format!("pod-{}", if round < 300 { round } else { 299 });
            stream(&metrics, &pod, 100);
            history.add((round + 1) * 10, metrics.times_by_pod());
        }
        assert_eq!(history.pods.len(), MAX_PODS);
        assert!(history.pods.contains_key("pod-299") && !history.pods.contains_key("pod-0"));
        let told = history.json(4000, 3600, None);
        assert_eq!(
            (told["series"].as_array().unwrap().len(), &told["left_out"]),
            (32, &json!(224))
        );
        let series = &history.pods["pod-299"];
        let bytes = (series.steps.capacity() + STEPS.max(series.long_steps.capacity()))
            * size_of::<PodSample>();
        assert!(bytes <= 12 << 10, "{bytes}");
    }
}
