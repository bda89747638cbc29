//! Chart history: what the dashboard's charts show of the time before it was opened.
//!
//! A background task takes one sample per second of the fleet as a whole. An hour of them is kept,
//! and a day of one per minute, in rings of a fixed size, so that a page that is opened after an
//! incident shows it. Beside them are the times of every pod ([`pods`]), and a list of what changed:
//! reloads, and pods that came, went, failed, recovered or became slow.

pub(crate) mod pods;

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use wornpath_gateway::observe::metrics::pod_times::PodTimes;
use wornpath_gateway::observe::metrics::totals::Figures;

use pods::PodHistory;

/// Seconds between two samples.
const SECOND: u64 = 1;
/// Seconds between two samples of the longer ring.
const MINUTE: u64 = 60;
/// Samples of one second each: an hour.
const SECONDS: usize = 3600;
/// Samples of one minute each: a day.
const MINUTES: usize = 1440;
/// Changes that are remembered.
const MAX_CHANGES: usize = 512;
/// The window of the rates of a second, as on the live page.
const WINDOW: usize = 5;

/// The figures of the fleet at one time. All of them together are below 512 KiB, with the changes.
#[derive(Clone, Copy, PartialEq, Debug)]
struct ChartSample {
    /// Seconds since 1970; in the longer ring, of the end of the minute.
    at: u64,
    values: [f32; SERIES.len()],
}

/// The names of the series. Times are in seconds, rates per second.
const SERIES: [&str; 10] = [
    "requests",
    "failed",
    "prompt_tokens",
    "saved_tokens",
    "output_tokens",
    "hit_rate",
    "p50",
    "p90",
    "p99",
    "waiting",
];

/// What happened to the router or to a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    /// Seconds since 1970.
    pub(crate) at: u64,
    pub(crate) kind: ChangeKind,
    /// The pod, if it is about one.
    pub(crate) pod: Option<String>,
    /// What a reload changed, or how slow a pod is.
    pub(crate) detail: Option<String>,
}

impl Change {
    fn json(&self) -> Value {
        let Self { at, kind, pod, detail } = self;
        json!({"at": at, "kind": kind.word(), "pod": pod, "detail": detail})
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChangeKind {
    RouterStarted,
    ReloadApplied,
    ReloadRefused,
    PodAdded,
    PodRemoved,
    PodUp,
    PodDown,
    PodDraining,
    PodRestarted,
    PodSlow,
    PodNoLongerSlow,
}

impl ChangeKind {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::RouterStarted => "router_started",
            Self::ReloadApplied => "reload_applied",
            Self::ReloadRefused => "reload_refused",
            Self::PodAdded => "pod_added",
            Self::PodRemoved => "pod_removed",
            Self::PodUp => "pod_up",
            Self::PodDown => "pod_down",
            Self::PodDraining => "pod_draining",
            Self::PodRestarted => "pod_restarted",
            Self::PodSlow => "pod_slow",
            Self::PodNoLongerSlow => "pod_no_longer_slow",
        }
    }
}

/// What is known of the fleet at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observation {
    /// Seconds since 1970.
    pub(crate) at: u64,
    /// Since the start.
    pub(crate) figures: Figures,
    /// Requests in the wait queue.
    pub(crate) waiting: usize,
    /// Health by pod.
    pub(crate) health: BTreeMap<String, &'static str>,
    /// Restarts by pod, as its events tell.
    pub(crate) restarts: BTreeMap<String, u64>,
    /// The slow pods, with what is known of them.
    pub(crate) slow: BTreeMap<String, String>,
    /// The times of all pods since the start, at the end of a step.
    pub(crate) times: Option<BTreeMap<String, PodTimes>>,
    /// Applied and refused reloads since the start.
    pub(crate) reloads: [u64; 2],
    /// What the last of them changed, by the number of the reload.
    pub(crate) changed: BTreeMap<u64, String>,
}

/// The samples and changes of the last day.
#[derive(Default)]
pub(crate) struct ChartHistory(Mutex<HistoryState>);

struct HistoryState {
    seconds: SampleRing,
    minutes: SampleRing,
    changes: VecDeque<Change>,
    pods: PodHistory,
    /// The figures of the last seconds, with their times.
    window: VecDeque<(u64, Figures)>,
    /// The figures at the start of this minute.
    minute: Option<(u64, Figures)>,
    /// The times of the first and of the last sample.
    started: Option<u64>,
    sampled: Option<u64>,
    last: Option<Observation>,
}

/// The last samples, oldest first from `next` on once it is full.
struct SampleRing {
    samples: Vec<ChartSample>,
    next: usize,
    length: usize,
}

impl SampleRing {
    fn new(length: usize) -> Self {
        Self { samples: Vec::with_capacity(length), next: 0, length }
    }

    fn push(&mut self, sample: ChartSample) {
        if self.samples.len() < self.length {
            self.samples.push(sample);
            return;
        }
        self.samples[self.next] = sample;
        self.next = (self.next + 1) % self.length;
    }
}

impl Default for HistoryState {
    fn default() -> Self {
        Self {
            seconds: SampleRing::new(SECONDS),
            minutes: SampleRing::new(MINUTES),
            changes: VecDeque::new(),
            pods: PodHistory::default(),
            window: VecDeque::new(),
            minute: None,
            started: None,
            sampled: None,
            last: None,
        }
    }
}

impl ChartHistory {
    /// Adds what is observed, once per second. `observe` gets the restarts that are known.
    ///
    /// It is called with the state locked, so that an older observation never follows a newer one.
    pub(crate) fn sample(
        &self,
        observe: impl FnOnce(Option<&BTreeMap<String, u64>>) -> Observation,
    ) {
        let mut state = self.state();
        let mut seen = observe(state.last.as_ref().map(|last| &last.restarts));
        match state.sampled.map(|sampled| seen.at.cmp(&sampled)) {
            Some(Ordering::Equal) => return,
            // The clock was set back: what is known has times that are still to come.
            Some(Ordering::Less) => *state = HistoryState::default(),
            Some(Ordering::Greater) | None => {}
        }
        state.note_changes(&seen);
        state.sample(&seen);
        if let Some(times) = seen.times.take() {
            state.pods.add(seen.at, times);
        }
        state.started.get_or_insert(seen.at);
        state.sampled = Some(seen.at);
        state.last = Some(seen);
    }

    /// Notes what has changed since the last sample, before the next one is due.
    pub(crate) fn look(&self, observe: impl FnOnce() -> Observation) {
        let mut state = self.state();
        let seen = observe();
        // The clock was set back: the next sample starts anew.
        if state.last.as_ref().is_some_and(|last| seen.at < last.at) {
            return;
        }
        state.note_changes(&seen);
        state.last = Some(seen);
    }

    /// The last `most` changes, as JSON.
    pub(crate) fn changes(&self, most: usize) -> Value {
        let state = self.state();
        let left_out = state.changes.len().saturating_sub(most);
        state.changes.iter().skip(left_out).map(Change::json).collect()
    }

    /// The series of the last `wanted` time and what changed, as JSON: one value per second if all
    /// of it is within an hour, else one per minute; null where nothing is known. The times are of
    /// all pods, or of one.
    pub(crate) fn json(&self, now: u64, wanted: Duration, pod: Option<&str>) -> Value {
        let state = self.state();
        let hour = SECONDS as u64 * SECOND;
        let is_fine = wanted.as_secs() <= hour;
        let (ring, step) =
            if is_fine { (&state.seconds, SECOND) } else { (&state.minutes, MINUTE) };
        let most = ring.length as u64;
        let count = wanted.as_secs().div_ceil(step).clamp(1, most);
        // The end of the last whole step, so that the values of two calls are of the same times.
        let until = now / step * step;
        let from = until.saturating_sub(count * step);
        let mut columns = vec![vec![Value::Null; count as usize]; SERIES.len()];
        let within = ring.samples.iter().filter(|sample| sample.at > from && sample.at <= until);
        for sample in within {
            let place = ((sample.at - from - 1) / step) as usize;
            for (column, value) in columns.iter_mut().zip(sample.values) {
                column[place] = rounded(value);
            }
        }
        let names = SERIES.iter().map(|name| (*name).to_owned());
        let series: Map<_, _> = names.zip(columns.into_iter().map(Value::from)).collect();
        let changes = state.changes.iter().filter(|change| change.at > from);
        json!({
            "now": now, "from": from, "step": step, "started": state.started, "series": series,
            "pods": state.pods.json(now, wanted.as_secs(), pod),
            "changes": changes.map(Change::json).collect::<Value>(),
        })
    }

    fn state(&self) -> MutexGuard<'_, HistoryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistoryState {
    fn sample(&mut self, seen: &Observation) {
        if let Some((then, before)) = self.window.front()
            && seen.at > *then
        {
            let sample = sample(seen, *then, before);
            self.seconds.push(sample);
        }
        self.window.push_back((seen.at, seen.figures));
        while self.window.len() > WINDOW {
            self.window.pop_front();
        }
        let (then, before) = *self.minute.get_or_insert((seen.at, seen.figures));
        if seen.at / MINUTE > then / MINUTE {
            let end = seen.at / MINUTE * MINUTE;
            self.minutes.push(ChartSample { at: end, ..sample(seen, then, &before) });
            self.minute = Some((seen.at, seen.figures));
        }
    }

    fn note_changes(&mut self, seen: &Observation) {
        let Some(last) = self.last.take() else {
            self.note(seen.at, ChangeKind::RouterStarted, None);
            return;
        };
        for reload in last.reloads[0]..seen.reloads[0] {
            let detail = seen.changed.get(&(reload + 1)).cloned();
            self.push(Change { at: seen.at, kind: ChangeKind::ReloadApplied, pod: None, detail });
        }
        if seen.reloads[1] > last.reloads[1] {
            self.note(seen.at, ChangeKind::ReloadRefused, None);
        }
        for pod in last.health.keys().filter(|pod| !seen.health.contains_key(*pod)) {
            self.note(seen.at, ChangeKind::PodRemoved, Some(pod));
        }
        for (pod, health) in &seen.health {
            let before = last.health.get(pod);
            if before.is_none() {
                self.note(seen.at, ChangeKind::PodAdded, Some(pod));
            }
            if before != Some(health) {
                let kind = match *health {
                    "up" => ChangeKind::PodUp,
                    "draining" => ChangeKind::PodDraining,
                    // A new pod is down until it has answered, which is no failure.
                    _ if before.is_none() => continue,
                    _ => ChangeKind::PodDown,
                };
                self.note(seen.at, kind, Some(pod));
            }
        }
        for (pod, restarts) in &seen.restarts {
            if last.restarts.get(pod).is_some_and(|before| restarts > before) {
                self.note(seen.at, ChangeKind::PodRestarted, Some(pod));
            }
        }
        for (pod, reason) in seen.slow.iter().filter(|(pod, _)| !last.slow.contains_key(*pod)) {
            let kind = ChangeKind::PodSlow;
            let detail = Some(reason.clone());
            self.push(Change { at: seen.at, kind, pod: Some(pod.clone()), detail });
        }
        let is_present = |pod: &&String| seen.health.contains_key(*pod);
        for pod in last.slow.keys().filter(|pod| !seen.slow.contains_key(*pod)).filter(is_present) {
            self.note(seen.at, ChangeKind::PodNoLongerSlow, Some(pod));
        }
    }

    fn note(&mut self, at: u64, kind: ChangeKind, pod: Option<&String>) {
        self.push(Change { at, kind, pod: pod.cloned(), detail: None });
    }

    fn push(&mut self, change: Change) {
        self.changes.push_back(change);
        while self.changes.len() > MAX_CHANGES {
            self.changes.pop_front();
        }
    }
}

/// The rates since an earlier time.
fn sample(seen: &Observation, then: u64, before: &Figures) -> ChartSample {
    let seconds = seen.at.saturating_sub(then).max(1) as f64;
    let figures = seen.figures.since(before);
    let rate = |count: u64| Some(count as f64 / seconds);
    let values: [Option<f64>; SERIES.len()] = [
        rate(figures.requests),
        rate(figures.failed),
        rate(figures.prompt_tokens),
        rate(figures.cached_tokens),
        rate(figures.output_tokens),
        figures.hit_rate(),
        figures.first_byte_quantile(0.5),
        figures.first_byte_quantile(0.9),
        figures.first_byte_quantile(0.99),
        Some(seen.waiting as f64),
    ];
    ChartSample { at: seen.at, values: values.map(|value| value.map_or(f32::NAN, |it| it as f32)) }
}

/// With four decimals, which is more than a chart can show.
fn rounded(value: f32) -> Value {
    if value.is_nan() { Value::Null } else { json!((f64::from(value) * 1e4).round() / 1e4) }
}

#[cfg(test)]
mod tests;
