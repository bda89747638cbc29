//! Totals per pod, for the dashboard and `wornpath top`; the Prometheus page has the series.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use wornpath_routing::Name;

use crate::observe::metrics::histogram::{Cumulative, FINE, quantile};
use crate::observe::metrics::{Metrics, PodCounters, PodSeriesKey, pod_label};
use crate::observe::summary::RequestEnd;
use wornpath_config::OFFLINE;

/// Figures by the pod that answered, under the empty name if none did.
pub type Totals = BTreeMap<String, Figures>;

/// The figures of a pod since the router started, or between two samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Finished requests.
    pub requests: u64,
    /// Requests that ended with a status of 500 or above, or with a broken response.
    pub failed: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Times to first byte, without batch requests, whose first byte no client waits for.
    pub first_byte: Cumulative,
    /// Prompt tokens, as counted by the engine.
    pub prompt_tokens: u64,
    /// Generated tokens: the engine's count, or the router's own where the engine reported none.
    pub output_tokens: u64,
    /// Prompt tokens of the responses that reported cached tokens.
    pub reported_tokens: u64,
    /// Of `reported_tokens`, those served from a prefix cache.
    pub cached_tokens: u64,
    /// Predicted cached tokens, over the checked predictions.
    pub predicted: u64,
    /// Actual cached tokens, over the checked predictions.
    pub actual: u64,
    /// Predictions that were compared with the engine's report.
    pub checked: u64,
    /// Responses that were not compared, because the prediction was speculative.
    pub speculative: u64,
    /// Requests that ended with a status from 400 to 499.
    pub client_errors: u64,
    /// Requests that ended with a status of 500 or above.
    pub server_errors: u64,
    /// Times between two generated tokens.
    pub gaps: u64,
    /// Their sum in nanoseconds.
    pub gap_nanos: u64,
    /// Cached tokens that another pod held beyond the chosen one.
    pub given_away: u64,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            requests: 0,
            failed: 0,
            retries: 0,
            first_byte: [0; FINE.len() + 1],
            prompt_tokens: 0,
            output_tokens: 0,
            reported_tokens: 0,
            cached_tokens: 0,
            predicted: 0,
            actual: 0,
            checked: 0,
            speculative: 0,
            client_errors: 0,
            server_errors: 0,
            gaps: 0,
            gap_nanos: 0,
            given_away: 0,
        }
    }
}

impl Figures {
    /// Adds requests that ended alike.
    pub(super) fn add_ends(&mut self, status: u16, end: RequestEnd, count: u64) {
        self.requests += count;
        match status {
            400..500 => self.client_errors += count,
            500.. => self.server_errors += count,
            _ => {}
        }
        if status >= 500 || end == RequestEnd::Broken {
            self.failed += count;
        }
    }

    /// Combines each figure of both.
    fn with(mut self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        for (own, other) in self.first_byte.iter_mut().zip(other.first_byte) {
            *own = join(*own, other);
        }
        let figures: [(&mut u64, u64); 16] = [
            (&mut self.requests, other.requests),
            (&mut self.failed, other.failed),
            (&mut self.retries, other.retries),
            (&mut self.prompt_tokens, other.prompt_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.reported_tokens, other.reported_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.predicted, other.predicted),
            (&mut self.actual, other.actual),
            (&mut self.checked, other.checked),
            (&mut self.speculative, other.speculative),
            (&mut self.client_errors, other.client_errors),
            (&mut self.server_errors, other.server_errors),
            (&mut self.gaps, other.gaps),
            (&mut self.gap_nanos, other.gap_nanos),
            (&mut self.given_away, other.given_away),
        ];
        for (own, other) in figures {
            *own = join(*own, other);
        }
        self
    }

    /// The sum of both.
    pub fn and(self, other: &Self) -> Self {
        self.with(other, |one, other| one.saturating_add(other))
    }

    /// The growth since `earlier`; zero if a pod was removed and added again in between.
    pub fn since(self, earlier: &Self) -> Self {
        self.with(earlier, |now, before| now.saturating_sub(before))
    }

    /// The share of cached prompt tokens, over the responses that reported it.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.reported_tokens > 0).then(|| self.cached_tokens as f64 / self.reported_tokens as f64)
    }

    /// The mean time between two tokens of a stream.
    pub fn inter_token(&self) -> Option<Duration> {
        (self.gaps > 0).then(|| Duration::from_nanos(self.gap_nanos / self.gaps))
    }

    /// The quantile `share` of the time to first byte in seconds.
    pub fn first_byte_quantile(&self, share: f64) -> Option<f64> {
        quantile(&self.first_byte, share)
    }
}

impl Metrics {
    /// The sum over all pods since start, including removed ones.
    #[must_use]
    pub fn total(&self) -> Figures {
        let mut sum = *self.pruned();
        for (key, count) in self.ends.all() {
            sum.add_ends(key.status, key.ended, count.load(Relaxed));
        }
        let pods = self.pods.all();
        pods.iter().fold(sum, |sum, (key, counters)| sum.and(&counters.figures(key)))
    }

    /// Adds the figures of the pods whose series are about to be pruned.
    pub(super) fn add_pruned(&self, sum: &mut Figures, is_exported: impl Fn(&Name) -> bool) {
        let is_pruned = |pod: &str| !pod.is_empty() && !is_exported(&pod.into());
        for (_, figures) in self.totals().iter().filter(|(pod, _)| is_pruned(pod)) {
            *sum = sum.and(figures);
        }
    }

    pub(super) fn pruned(&self) -> MutexGuard<'_, Figures> {
        self.pruned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The figures of all pods that are present or were removed recently.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::new();
        for (key, count) in self.ends.all() {
            let figures = totals.entry(pod_label(key.pod.as_ref())).or_default();
            figures.add_ends(key.status, key.ended, count.load(Relaxed));
        }
        for (key, counters) in self.pods.all() {
            let figures = totals.entry(pod_label(key.pod.as_ref())).or_default();
            *figures = figures.and(&counters.figures(&key));
        }
        totals
    }
}

impl PodCounters {
    fn figures(&self, key: &PodSeriesKey) -> Figures {
        let none = Figures::default();
        let is_online = key.profile.as_str() != OFFLINE;
        let output = self.output_tokens.load(Relaxed);
        Figures {
            retries: self.retries.load(Relaxed),
            first_byte: if is_online { self.first_byte.fine() } else { none.first_byte },
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            output_tokens: output.saturating_add(self.own_output_tokens.load(Relaxed)),
            reported_tokens: self.reported.load(Relaxed),
            cached_tokens: self.cached.load(Relaxed),
            predicted: self.predicted.load(Relaxed),
            actual: self.actual.load(Relaxed),
            checked: self.checked.load(Relaxed),
            speculative: self.speculative.load(Relaxed),
            gaps: self.gaps.load(Relaxed),
            gap_nanos: self.gap_nanos.load(Relaxed),
            given_away: self.given_away.load(Relaxed),
            ..none
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::histogram::Histogram;

    fn times(all: &[(u64, u64)]) -> Figures {
        let histogram = Histogram::default();
        for (millis, count) in all {
            (0..*count).for_each(|_| histogram.record(Duration::from_millis(*millis)));
        }
        Figures { first_byte: histogram.fine(), ..Figures::default() }
    }

    #[test]
    fn a_quantile_lies_within_its_bucket_and_never_beyond_the_last_bound() {
        // A hundred times between 45 and 50 ms.
        let figures = times(&[(47, 100)]);
        assert_eq!(figures.first_byte_quantile(1.0), Some(0.05));
        let half = figures.first_byte_quantile(0.5).unwrap();
        assert!((half - 0.0475).abs() < 1e-9, "{half}");
        assert!(times(&[(1, 90), (900, 10)]).first_byte_quantile(0.5).unwrap() < 0.001);
        assert_eq!(times(&[(400_000, 3)]).first_byte_quantile(0.5), Some(300.0));
        assert_eq!(Figures::default().first_byte_quantile(0.5), None);
    }

    #[test]
    fn percentiles_are_off_by_an_eighth_at_most() {
        let close = [(62, 126), (63, 50), (64, 50), (65, 22), (66, 3)];
        let wide = [(3, 500), (40, 400), (900, 90), (7_000, 10)];
        for (all, truth) in [(&close[..], [62.0, 64.0, 65.0]), (&wide[..], [3.0, 40.0, 900.0])] {
            let figures = times(all);
            for (share, truth) in [0.5, 0.9, 0.99].into_iter().zip(truth) {
                let quantile = figures.first_byte_quantile(share).unwrap() * 1e3;
                let error: f64 = quantile / truth - 1.0;
                assert!(error.abs() <= 0.125, "p{share} of {all:?}: {quantile}, not {truth}");
            }
        }
    }

    #[test]
    fn figures_of_a_pod_that_was_added_again_are_never_negative() {
        let before =
            Figures { requests: 10, cached_tokens: 5, reported_tokens: 9, ..times(&[(8, 10)]) };
        let after = Figures { requests: 4, ..times(&[(8, 4)]) };
        assert_eq!(after.since(&before), Figures::default());
        assert_eq!(before.and(&after).since(&after), before);
        assert_eq!((before.hit_rate(), after.hit_rate()), (Some(5.0 / 9.0), None));
    }
}
