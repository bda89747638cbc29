//! What is counted, and the page that tells it to Prometheus.
//!
//! A registry of our own, because it is small: what requests count is a few relaxed additions on a line that
//! is found without a lock ([`series`]), and everything else is read from where it lives when somebody asks
//! for the page ([`gauges`]). Every metric is declared once ([`family`]); the reference page is written from
//! the declarations.

pub(crate) mod accuracy;
pub mod family;
mod histogram;
mod series;
pub(crate) mod text;
pub mod totals;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use wornpath_index::Moment;
use wornpath_routing::Name;

pub use accuracy::{AccuracyMeter, AccuracyVerdict, PredictionTally};
pub use family::{FAMILIES, Family, MetricKind, reference};
pub use histogram::{BOUNDS, Histogram};
pub use totals::{Figures, Totals};

use crate::dialect::Api;
use crate::observe::summary::{RequestEnd, RequestSummary, SummaryObserver, Usage};
use crate::observe::telemetry::SpanCounts;
use series::SeriesTable;
use text::MetricsPage;

/// Everything that is counted while requests are served.
#[derive(Default)]
pub struct Metrics {
    ends: SeriesTable<EndKey, AtomicU64>,
    lines: SeriesTable<LineKey, LineCounters>,
    dropped: AtomicU64,
    judges: Mutex<HashMap<Name, AccuracyMeter>>,
    scrapes: SeriesTable<Name, [AtomicU64; 2]>,
    reloads: [AtomicU64; 2],
    /// Pods that should send events and never did.
    silent: Mutex<HashSet<Name>>,
    /// What was counted for pods that have gone and are forgotten.
    gone: Mutex<Figures>,
    /// Pods that have gone, and maybe come again.
    past: Mutex<HashMap<Name, RemovedPods>>,
    spans: OnceLock<Arc<SpanCounts>>,
}

/// What the number of requests is told by.
#[derive(Clone, PartialEq, Eq, Hash)]
struct EndKey {
    api: Api,
    profile: Name,
    pod: Option<Name>,
    status: u16,
    ended: RequestEnd,
}

/// What everything else is told by.
#[derive(Clone, PartialEq, Eq, Hash)]
struct LineKey {
    profile: Name,
    pod: Option<Name>,
}

/// How long what was counted for a pod is told after it has gone: longer than anybody waits between two looks at the page.
const TOLD_AFTERWARDS: Duration = Duration::from_secs(600);

/// A pod that has gone.
#[derive(Clone, Copy, Default)]
struct RemovedPods {
    /// Since when, unless there is one of its name again.
    since: Option<Moment>,
    /// How often it had answered by then.
    answers: u64,
}

type Counter = fn(&LineCounters) -> &AtomicU64;

#[derive(Default)]
struct LineCounters {
    total: Histogram,
    first_byte: Histogram,
    prompt_tokens: AtomicU64,
    output_tokens: AtomicU64,
    told: AtomicU64,
    cached: AtomicU64,
    predicted: AtomicU64,
    actual: AtomicU64,
    misjudged: AtomicU64,
    checked: AtomicU64,
    wrong: AtomicU64,
    speculative: AtomicU64,
    retries: AtomicU64,
    degraded: AtomicU64,
}

/// What became of a reading of an engine's own metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scrape {
    /// It told what was wanted.
    Read,
    /// It did not answer, or not what was wanted.
    Missed,
}

/// What became of a configuration that was to replace the present one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reload {
    /// It runs.
    Applied,
    /// It was bad, and the old one stays.
    Refused,
}

impl SummaryObserver for Metrics {
    fn ended(&self, record: &RequestSummary) {
        let pod = record.pod.as_ref().map(|(_, name)| name.clone());
        let line = LineKey { profile: record.profile.clone(), pod: pod.clone() };
        let (computed_by, usage) = record.computed();
        let end = EndKey {
            api: record.api,
            profile: record.profile.clone(),
            pod,
            status: record.status,
            ended: record.ended,
        };
        let counted = self.ends.with(&end, |count| add(count, 1));
        let is_alone = computed_by == line.pod.as_ref();
        let counts = |line: &LineCounters| {
            line.count(record);
            if is_alone {
                line.compare(record, usage);
            }
        };
        let counted = self.lines.with(&line, counts) && counted;
        if !is_alone && usage.cached_tokens.is_some() {
            let line = LineKey { profile: line.profile, pod: computed_by.cloned() };
            self.lines.with(&line, |line| line.compare(record, usage));
        }
        if !counted {
            add(&self.dropped, 1);
        }
    }
}

impl Metrics {
    /// The engine's own metrics were read, or could not be.
    pub fn scraped(&self, pod: &Name, scrape: Scrape) {
        self.scrapes.with(pod, |counts| add(&counts[scrape as usize], 1));
    }

    /// A configuration was to replace the present one.
    pub fn reloaded(&self, reload: Reload) {
        add(&self.reloads[reload as usize], 1);
    }

    /// Looks at the predictions of every pod that is there. Those whose verdict changed.
    pub fn judge(&self) -> Vec<(Name, AccuracyVerdict)> {
        let mut changed = Vec::new();
        let tallies = self.tallies();
        let (past, mut judges) = (self.past(), self.judges());
        for (pod, tally) in tallies {
            if past.get(&pod).is_some_and(|past| past.since.is_some()) {
                // Another of its name would be judged by what comes then.
                judges.insert(pod, AccuracyMeter::from(tally));
                continue;
            }
            if let Some(verdict) = judges.entry(pod.clone()).or_default().look(tally) {
                changed.push((pod, verdict));
            }
        }
        changed
    }

    /// The last verdict about a pod's predictions.
    #[must_use]
    pub fn verdict(&self, pod: &Name) -> AccuracyVerdict {
        self.judges().get(pod).map(AccuracyMeter::verdict).unwrap_or_default()
    }

    /// Whether a pod should send events and never did, though it answered often enough.
    #[must_use]
    pub fn is_silent(&self, pod: &Name) -> bool {
        self.silent().contains(pod)
    }

    /// What became of traced requests is counted there; before the first request comes.
    pub fn count_spans(&self, counts: Arc<SpanCounts>) {
        // Set once, when the server is put together.
        let _ = self.spans.set(counts);
    }

    pub(crate) fn silent(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what was counted for pods that have long gone, so that names that come and go do not add up; but for their
    /// sum. What ends on a pod after it has gone is told like all else for a while.
    pub fn forget(&self, now: Moment, is_there: impl Fn(&Name) -> bool) {
        // Nobody else may count the same meanwhile.
        let mut gone = self.gone();
        let answers = self.answers_ever();
        let mut past = self.past();
        for pod in self.counted_pods() {
            if is_there(&pod) {
                past.entry(pod).and_modify(|past| past.since = None);
            } else {
                let answers = answers.get(&pod).copied().unwrap_or(0);
                let since = past.get(&pod).and_then(|past| past.since);
                past.insert(pod, RemovedPods { since: since.or(Some(now)), answers });
            }
        }
        past.retain(|pod, it| {
            is_there(pod) || it.since.is_some_and(|since| now < since + TOLD_AFTERWARDS)
        });
        let is_told = |pod: &Name| is_there(pod) || past.contains_key(pod);
        self.add_gone(&mut gone, is_told);
        self.ends.retain(|key| key.pod.as_ref().is_none_or(&is_told));
        self.lines.retain(|key| key.pod.as_ref().is_none_or(&is_told));
        self.scrapes.retain(&is_there);
        self.judges().retain(|pod, _| is_told(pod));
        self.silent().retain(&is_there);
    }

    fn counted_pods(&self) -> HashSet<Name> {
        let ends = self.ends.all().into_iter().filter_map(|(key, _)| key.pod);
        ends.chain(self.lines.all().into_iter().filter_map(|(key, _)| key.pod)).collect()
    }

    fn past(&self) -> MutexGuard<'_, HashMap<Name, RemovedPods>> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often each pod answered since it came, with something that it computed.
    pub(crate) fn answers(&self) -> HashMap<Name, u64> {
        let (mut answers, past) = (self.answers_ever(), self.past());
        for (pod, count) in &mut answers {
            *count = count.saturating_sub(past.get(pod).map_or(0, |past| past.answers));
        }
        answers
    }

    /// The same, also by pods of its name that have gone.
    fn answers_ever(&self) -> HashMap<Name, u64> {
        let mut answers = HashMap::new();
        for (key, count) in self.ends.all() {
            if let (Some(pod), 200, true) = (key.pod, key.status, key.api.generates()) {
                *answers.entry(pod).or_default() += count.load(Relaxed);
            }
        }
        answers
    }

    fn tallies(&self) -> HashMap<Name, PredictionTally> {
        let mut tallies = HashMap::<Name, PredictionTally>::new();
        for (key, line) in self.lines.all() {
            let Some(pod) = key.pod else { continue };
            let tally = tallies.entry(pod).or_default();
            *tally = tally.and(line.tally());
        }
        tallies
    }

    fn judges(&self) -> MutexGuard<'_, HashMap<Name, AccuracyMeter>> {
        self.judges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What requests counted, in a stable order.
    pub(crate) fn counted(&self, page: &mut MetricsPage) {
        let mut ends = self.ends.all();
        ends.sort_by_cached_key(|(key, _)| {
            (key.profile.to_string(), word(key.pod.as_ref()), key.api.name(), key.status)
        });
        let mut family = page.family(family::REQUESTS);
        for (key, count) in &ends {
            let pod = word(key.pod.as_ref());
            let status = key.status.to_string();
            let labels = [key.api.name(), key.profile.as_str(), &pod, &status, key.ended.word()];
            family.value(&labels, count.load(Relaxed));
        }
        let mut lines = self.lines.all();
        lines.sort_by_cached_key(|(key, _)| (key.profile.to_string(), word(key.pod.as_ref())));
        let each =
            |page: &mut MetricsPage,
             family,
             show: &dyn Fn(&mut text::MetricLines<'_>, &[&str], &LineCounters)| {
                let mut family = page.family(family);
                for (key, line) in &lines {
                    show(&mut family, &[key.profile.as_str(), &word(key.pod.as_ref())], line);
                }
            };
        each(page, family::REQUEST_SECONDS, &|family, labels, line| {
            family.histogram(labels, &line.total);
        });
        each(page, family::FIRST_BYTE_SECONDS, &|family, labels, line| {
            family.histogram(labels, &line.first_byte);
        });
        let counters: [(Family, Counter); 12] = [
            (family::PROMPT_TOKENS, |line| &line.prompt_tokens),
            (family::OUTPUT_TOKENS, |line| &line.output_tokens),
            (family::TOLD_TOKENS, |line| &line.told),
            (family::CACHED_TOKENS, |line| &line.cached),
            (family::PREDICTED_TOKENS, |line| &line.predicted),
            (family::ACTUAL_TOKENS, |line| &line.actual),
            (family::MISJUDGED_TOKENS, |line| &line.misjudged),
            (family::CHECKED_PREDICTIONS, |line| &line.checked),
            (family::WRONG_PREDICTIONS, |line| &line.wrong),
            (family::SPECULATIVE_PREDICTIONS, |line| &line.speculative),
            (family::DEGRADED, |line| &line.degraded),
            (family::RETRIES, |line| &line.retries),
        ];
        for (family, counter) in counters {
            each(page, family, &|family, labels, line| {
                family.value(labels, counter(line).load(Relaxed));
            });
        }
        page.family(family::SERIES_DROPPED).value(&[], self.dropped.load(Relaxed));
        let mut scrapes = self.scrapes.all();
        scrapes.sort_by_cached_key(|(pod, _)| pod.to_string());
        let mut family = page.family(family::SCRAPES);
        for (pod, scrapes) in &scrapes {
            family.value(&[pod.as_str(), "read"], scrapes[Scrape::Read as usize].load(Relaxed));
            family.value(&[pod.as_str(), "missed"], scrapes[Scrape::Missed as usize].load(Relaxed));
        }
        let mut family = page.family(family::RELOADS);
        for (result, reload) in [("applied", Reload::Applied), ("refused", Reload::Refused)] {
            family.value(&[result], self.reloads[reload as usize].load(Relaxed));
        }
        let none = SpanCounts::default();
        let spans = self.spans.get().map_or(&none, |spans| spans);
        let mut family = page.family(family::TRACES);
        for (fate, count) in
            [("exported", &spans.exported), ("failed", &spans.failed), ("dropped", &spans.dropped)]
        {
            family.value(&[fate], count.load(Relaxed));
        }
        page.family(family::BUILD).value(&[env!("CARGO_PKG_VERSION")], 1);
    }
}

impl LineCounters {
    fn count(&self, record: &RequestSummary) {
        self.total.record(record.total);
        if let Some(first_byte) = record.first_byte {
            self.first_byte.record(first_byte);
        }
        let usage = record.usage;
        add(&self.prompt_tokens, usage.prompt_tokens.unwrap_or(0));
        add(&self.output_tokens, usage.output_tokens.unwrap_or(0));
        add(&self.retries, u64::from(record.retries));
        add(&self.degraded, u64::from(record.is_degraded));
    }

    /// Compares what was predicted to be cached with what was, by the count of the pod that computed the prompt.
    fn compare(&self, record: &RequestSummary, usage: Usage) {
        if let (Some(prompt), Some(cached)) = (usage.prompt_tokens, usage.cached_tokens) {
            add(&self.told, prompt);
            add(&self.cached, cached);
        }
        if let (Some(prompt), Some(predicted), Some(actual)) =
            (usage.prompt_tokens, record.predicted_tokens, usage.cached_tokens)
        {
            if record.speculative.is_some() {
                add(&self.speculative, 1);
                return;
            }
            add(&self.checked, 1);
            add(&self.predicted, predicted);
            add(&self.actual, actual);
            add(&self.misjudged, predicted.abs_diff(actual));
            add(&self.wrong, u64::from(accuracy::is_wrong(prompt, predicted, actual)));
        }
    }

    fn tally(&self) -> PredictionTally {
        PredictionTally {
            checked: self.checked.load(Relaxed),
            wrong: self.wrong.load(Relaxed),
            predicted: self.predicted.load(Relaxed),
            actual: self.actual.load(Relaxed),
        }
    }
}

/// Most requests count nothing here, and a cache line that is not written stays with everybody.
fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Relaxed);
    }
}

fn word(pod: Option<&Name>) -> String {
    pod.map(Name::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests;
