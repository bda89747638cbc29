//! Metrics: counters of finished requests, and the Prometheus page.
//!
//! A small registry of our own: a request costs a few relaxed additions to a series that is found
//! without a lock ([`series`]), and all gauges are read from their owners when the page is
//! rendered. Every metric is declared once ([`family`]); the reference page is generated from the
//! declarations.

pub(crate) mod accuracy;
pub(crate) mod exemplar;
pub mod family;
pub mod given_away;
mod histogram;
pub(crate) mod openmetrics;
pub(crate) mod page;
pub mod pod_times;
pub(crate) mod process;
pub mod slow_pods;
pub(crate) mod text;
pub mod totals;
mod traffic;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wornpath_config::MetricLimits;
use wornpath_index::Moment;
use wornpath_routing::{Name, Untokenized};

pub use crate::observe::buckets::BOUNDS;
pub use accuracy::{AccuracyMeter, AccuracyVerdict, PredictionTally};
pub use family::{FAMILIES, Family, MetricKind, reference};
pub use histogram::Histogram;
pub use totals::{Figures, Totals};
pub use traffic::{ByOrigin, Origin};

use crate::dialect::Api;
use crate::observe::export_counts::ExportCounts;
use crate::observe::summary::{RequestEnd, RequestSummary, SeriesIndex, SummaryObserver, Usage};
use given_away::{ByReason, GivenAway};
use histogram::SeriesTable;
use page::{FamilySamples, MetricsPage};
use pod_times::{PodTimes, TimesByPod};
use slow_pods::{PodSpeed, PodSpeeds, SlowPod};
use traffic::TrafficMetrics;

/// The counters of the gateway.
#[derive(Default)]
pub struct Metrics {
    ends: SeriesTable<EndKey, AtomicU64>,
    pods: SeriesTable<PodSeriesKey, PodCounters>,
    dropped: AtomicU64,
    meters: Mutex<HashMap<Name, AccuracyMeter>>,
    scrapes: SeriesTable<Name, [AtomicU64; 2]>,
    reloads: [AtomicU64; 2],
    untokenized: [AtomicU64; Untokenized::ALL.len()],
    /// By model and tenant.
    traffic: TrafficMetrics,
    times: TimesByPod,
    speeds: Mutex<PodSpeeds>,
    /// Pods that should send events and never sent one.
    silent: Mutex<HashSet<Name>>,
    /// The sum over removed pods whose series were pruned.
    pruned: Mutex<Figures>,
    /// Pods that were removed, and maybe added again.
    removed: Mutex<HashMap<Name, RemovedPod>>,
    given_away: GivenAway,
    /// Of traced requests.
    pub(crate) traces: Arc<ExportCounts>,
    /// Of lines of the access log.
    pub(crate) access_log: Arc<ExportCounts>,
    /// Of all metrics, by OTLP.
    pub(crate) exports: Arc<ExportCounts>,
}

/// The labels of the request counter.
#[derive(Clone, PartialEq, Eq, Hash)]
struct EndKey {
    api: Api,
    profile: Name,
    pod: Option<Name>,
    status: u16,
    ended: RequestEnd,
}

/// The labels of all other request metrics.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PodSeriesKey {
    profile: Name,
    pod: Option<Name>,
}

/// How long the series of a removed pod are exported: longer than any scrape interval.
const RETENTION: Duration = Duration::from_secs(600);

/// A pod that was removed.
#[derive(Clone, Copy, Default)]
struct RemovedPod {
    /// When; none if a pod of its name was added again.
    since: Option<Moment>,
    /// Its responses up to then.
    responses: u64,
}

type Counter = fn(&PodCounters) -> &AtomicU64;

/// The counters of one profile and pod.
#[derive(Default)]
struct PodCounters {
    total: Histogram,
    first_byte: Histogram,
    prompt_tokens: AtomicU64,
    output_tokens: AtomicU64,
    /// Where the engine reported none.
    own_prompt_tokens: AtomicU64,
    own_output_tokens: AtomicU64,
    /// Prompt tokens of the responses that reported cached tokens.
    reported: AtomicU64,
    cached: AtomicU64,
    unique: AtomicU64,
    predicted: AtomicU64,
    actual: AtomicU64,
    misjudged: AtomicU64,
    checked: AtomicU64,
    wrong: AtomicU64,
    speculative: AtomicU64,
    retries: AtomicU64,
    degraded: AtomicU64,
    /// Times between two tokens, and their sum.
    gaps: AtomicU64,
    gap_nanos: AtomicU64,
    given_away: AtomicU64,
}

/// The result of a scrape of an engine's metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scrape {
    /// The load was read.
    Read,
    /// The engine did not answer, or its page was not understood.
    Missed,
}

/// The result of a configuration reload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reload {
    /// The new configuration is in force.
    Applied,
    /// It was invalid; the old one stays in force.
    Refused,
}

impl SummaryObserver for Metrics {
    fn ended(&self, record: &RequestSummary) {
        self.given_away.count(record);
        self.times.count(record);
        let pod = record.pod.as_ref().map(|(_, name)| name.clone());
        let key = PodSeriesKey { profile: record.profile.clone(), pod: pod.clone() };
        let (computed_by, usage) = record.computed();
        let end = EndKey {
            api: record.api,
            profile: record.profile.clone(),
            pod,
            status: record.status,
            ended: record.ended,
        };
        let counted = self.ends.with(&end, |count| add(count, 1));
        let is_one_pod = computed_by == key.pod.as_ref();
        let count = |counters: &PodCounters| {
            counters.count(record);
            if is_one_pod {
                counters.compare(record, usage);
            }
        };
        let counted = self.pods.with(&key, count) && counted && self.traffic.count(record);
        if !is_one_pod && usage.cached_tokens.is_some() {
            let key = PodSeriesKey { profile: key.profile, pod: computed_by.cloned() };
            self.pods.with(&key, |counters| counters.compare(record, usage));
        }
        if !counted {
            add(&self.dropped, 1);
        }
    }
}

impl Metrics {
    /// Sets how many models and tenants get series of their own, from now on.
    pub fn set_limits(&self, limits: MetricLimits) {
        self.traffic.set_limits(limits);
    }

    /// The series of a request whose profile, model and tenant are known.
    pub(crate) fn series_of(&self, record: &RequestSummary) -> Option<SeriesIndex> {
        self.traffic.index(&record.profile, &record.model, record.tenant.as_ref())
    }

    /// Applied and refused reloads since the start.
    #[must_use]
    pub fn reloads(&self) -> [u64; 2] {
        [Reload::Applied, Reload::Refused].map(|it| self.reloads[it as usize].load(Relaxed))
    }

    /// Cached tokens that pods other than the chosen ones held, by the reason why they were passed
    /// over.
    #[must_use]
    pub fn given_away(&self) -> ByReason {
        self.given_away.total()
    }

    /// Figures by model and tenant.
    #[must_use]
    pub fn by_origin(&self) -> ByOrigin {
        self.traffic.by_origin()
    }

    /// Counts a scrape of a pod's engine.
    pub fn scraped(&self, pod: &Name, scrape: Scrape) {
        self.scrapes.with(pod, |counts| add(&counts[scrape as usize], 1));
    }

    /// Counts a configuration reload.
    pub fn reloaded(&self, reload: Reload) {
        add(&self.reloads[reload as usize], 1);
    }

    /// Counts a long prompt that is routed without its tokens.
    pub fn untokenized(&self, reason: Untokenized) {
        add(&self.untokenized[reason as usize], 1);
    }

    /// Judges the predictions of every present pod, and returns the verdicts that changed.
    pub fn update_verdicts(&self) -> Vec<(Name, AccuracyVerdict)> {
        let mut changed = Vec::new();
        let tallies = self.tallies();
        let removed = self.removed();
        let mut meters = self.meters();
        for (pod, tally) in tallies {
            if removed.get(&pod).is_some_and(|removed| removed.since.is_some()) {
                // A new pod of its name is judged only by its own responses.
                meters.insert(pod, AccuracyMeter::from(tally));
                continue;
            }
            if let Some(verdict) = meters.entry(pod.clone()).or_default().update(tally) {
                changed.push((pod, verdict));
            }
        }
        changed
    }

    /// The last verdict about a pod's predictions.
    #[must_use]
    pub fn verdict(&self, pod: &Name) -> AccuracyVerdict {
        self.meters().get(pod).map(AccuracyMeter::verdict).unwrap_or_default()
    }

    /// The times of all pods that are present or were removed recently, since the start.
    #[must_use]
    pub fn times_by_pod(&self) -> BTreeMap<String, PodTimes> {
        self.times.all()
    }

    /// Measures the pods of the fleet, each given with its models and roles, and returns those that
    /// became slow, or are no longer.
    pub fn update_speeds(
        &self,
        now: Moment,
        kinds: &BTreeMap<String, String>,
    ) -> Vec<(String, Option<SlowPod>)> {
        self.speeds().update(now, &self.times.all(), kinds)
    }

    /// The speed of a pod by its last measurement.
    #[must_use]
    pub fn speed(&self, pod: &Name) -> PodSpeed {
        self.speeds().of(pod.as_str())
    }

    fn speeds(&self) -> MutexGuard<'_, PodSpeeds> {
        self.speeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a pod should send events and never sent one, though it has answered enough requests.
    #[must_use]
    pub fn is_silent(&self, pod: &Name) -> bool {
        self.silent().contains(pod)
    }

    pub(crate) fn silent(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the series of pods that were removed long ago, so that pod names do not accumulate,
    /// and keeps their sum. Requests that finish after the removal of their pod are exported until
    /// then.
    pub fn prune(&self, now: Moment, is_present: impl Fn(&Name) -> bool) {
        // Held throughout, so that two calls do not add the same series twice.
        let mut pruned = self.pruned();
        let responses = self.responses_by_name();
        let mut removed = self.removed();
        for pod in self.counted_pods() {
            if is_present(&pod) {
                removed.entry(pod).and_modify(|removed| removed.since = None);
            } else {
                let responses = responses.get(&pod).copied().unwrap_or(0);
                let since = removed.get(&pod).and_then(|removed| removed.since);
                removed.insert(pod, RemovedPod { since: since.or(Some(now)), responses });
            }
        }
        removed.retain(|pod, removed| {
            is_present(pod) || removed.since.is_some_and(|since| now < since + RETENTION)
        });
        let is_exported = |pod: &Name| is_present(pod) || removed.contains_key(pod);
        self.add_pruned(&mut pruned, is_exported);
        self.ends.retain(|key| key.pod.as_ref().is_none_or(&is_exported));
        self.pods.retain(|key| key.pod.as_ref().is_none_or(&is_exported));
        self.times.retain(is_exported);
        self.scrapes.retain(&is_present);
        self.meters().retain(|pod, _| is_exported(pod));
        self.silent().retain(&is_present);
    }

    fn counted_pods(&self) -> HashSet<Name> {
        let ends = self.ends.all().into_iter().filter_map(|(key, _)| key.pod);
        ends.chain(self.pods.all().into_iter().filter_map(|(key, _)| key.pod)).collect()
    }

    fn removed(&self) -> MutexGuard<'_, HashMap<Name, RemovedPod>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Successful responses with generated tokens of each pod since it was added.
    pub(crate) fn responses(&self) -> HashMap<Name, u64> {
        let mut responses = self.responses_by_name();
        let removed = self.removed();
        for (pod, count) in &mut responses {
            *count = count.saturating_sub(removed.get(pod).map_or(0, |removed| removed.responses));
        }
        responses
    }

    /// Like [`Self::responses`], with those of removed pods of the same name.
    fn responses_by_name(&self) -> HashMap<Name, u64> {
        let mut responses = HashMap::new();
        for (key, count) in self.ends.all() {
            if let (Some(pod), 200, true) = (key.pod, key.status, key.api.generates()) {
                *responses.entry(pod).or_default() += count.load(Relaxed);
            }
        }
        responses
    }

    fn tallies(&self) -> HashMap<Name, PredictionTally> {
        let mut tallies = HashMap::<Name, PredictionTally>::new();
        for (key, counters) in self.pods.all() {
            let Some(pod) = key.pod else { continue };
            let tally = tallies.entry(pod).or_default();
            *tally = tally.and(counters.tally());
        }
        tallies
    }

    fn meters(&self) -> MutexGuard<'_, HashMap<Name, AccuracyMeter>> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all counters to the page, in a stable order.
    pub(crate) fn write_counters(&self, page: &mut MetricsPage) {
        let mut ends = self.ends.all();
        ends.sort_by_cached_key(|(key, _)| {
            (key.profile.to_string(), pod_label(key.pod.as_ref()), key.api.name(), key.status)
        });
        let family = page.family(family::REQUESTS);
        for (key, count) in &ends {
            let pod = pod_label(key.pod.as_ref());
            let status = key.status.to_string();
            let labels = [key.api.name(), key.profile.as_str(), &pod, &status, key.ended.word()];
            family.value(&labels, count.load(Relaxed));
        }
        let mut pods = self.pods.all();
        pods.sort_by_cached_key(|(key, _)| (key.profile.to_string(), pod_label(key.pod.as_ref())));
        let each = |page: &mut MetricsPage,
                    family,
                    write: &dyn Fn(&mut FamilySamples, &[&str], &PodCounters)| {
            let family = page.family(family);
            for (key, counters) in &pods {
                write(family, &[key.profile.as_str(), &pod_label(key.pod.as_ref())], counters);
            }
        };
        each(page, family::REQUEST_SECONDS, &|family, labels, counters| {
            family.histogram(labels, &counters.total);
        });
        each(page, family::FIRST_BYTE_SECONDS, &|family, labels, counters| {
            family.histogram(labels, &counters.first_byte);
        });
        let tokens: [(Family, Counter, Counter); 2] = [
            (family::PROMPT_TOKENS, |all| &all.prompt_tokens, |all| &all.own_prompt_tokens),
            (family::OUTPUT_TOKENS, |all| &all.output_tokens, |all| &all.own_output_tokens),
        ];
        for (family, engine, router) in tokens {
            each(page, family, &|family, labels, counters| {
                for (source, counter) in [("engine", engine), ("router", router)] {
                    family.value(&[labels, &[source]].concat(), counter(counters).load(Relaxed));
                }
            });
        }
        let counters: [(Family, Counter); 11] = [
            (family::TOLD_TOKENS, |counters| &counters.reported),
            (family::CACHED_TOKENS, |counters| &counters.cached),
            (family::UNIQUE_TOKENS, |counters| &counters.unique),
            (family::PREDICTED_TOKENS, |counters| &counters.predicted),
            (family::ACTUAL_TOKENS, |counters| &counters.actual),
            (family::MISJUDGED_TOKENS, |counters| &counters.misjudged),
            (family::CHECKED_PREDICTIONS, |counters| &counters.checked),
            (family::WRONG_PREDICTIONS, |counters| &counters.wrong),
            (family::SPECULATIVE_PREDICTIONS, |counters| &counters.speculative),
            (family::DEGRADED, |counters| &counters.degraded),
            (family::RETRIES, |counters| &counters.retries),
        ];
        for (family, counter) in counters {
            each(page, family, &|family, labels, counters| {
                family.value(labels, counter(counters).load(Relaxed));
            });
        }
        self.traffic.write(page);
        self.times.write(page);
        self.given_away.write(page);
        page.family(family::SERIES_DROPPED).value(&[], self.dropped.load(Relaxed));
        let mut scrapes = self.scrapes.all();
        scrapes.sort_by_cached_key(|(pod, _)| pod.to_string());
        let family = page.family(family::SCRAPES);
        for (pod, scrapes) in &scrapes {
            family.value(&[pod.as_str(), "read"], scrapes[Scrape::Read as usize].load(Relaxed));
            family.value(&[pod.as_str(), "missed"], scrapes[Scrape::Missed as usize].load(Relaxed));
        }
        let family = page.family(family::RELOADS);
        for (result, reload) in [("applied", Reload::Applied), ("refused", Reload::Refused)] {
            family.value(&[result], self.reloads[reload as usize].load(Relaxed));
        }
        let family = page.family(family::UNTOKENIZED);
        for reason in Untokenized::ALL {
            family.value(&[reason.word()], self.untokenized[reason as usize].load(Relaxed));
        }
        let family = page.family(family::TRACES);
        let traces = &self.traces;
        for (fate, count) in [
            ("exported", &traces.exported),
            ("failed", &traces.failed),
            ("dropped", &traces.dropped),
        ] {
            family.value(&[fate], count.load(Relaxed));
        }
        let family = page.family(family::ACCESS_LOG_LINES);
        let lines = &self.access_log;
        for (fate, count) in
            [("written", &lines.exported), ("failed", &lines.failed), ("dropped", &lines.dropped)]
        {
            family.value(&[fate], count.load(Relaxed));
        }
        let family = page.family(family::METRIC_EXPORTS);
        family.value(&["exported"], self.exports.exported.load(Relaxed));
        family.value(&["failed"], self.exports.failed.load(Relaxed));
        let revision = option_env!("WORNPATH_REVISION").unwrap_or_default();
        page.family(family::BUILD).value(&[env!("CARGO_PKG_VERSION"), revision], 1_u8);
    }
}

impl PodCounters {
    fn count(&self, record: &RequestSummary) {
        let trace = record.trace_id();
        self.total.record_traced(record.total, trace);
        if let Some(first_byte) = record.first_byte {
            self.first_byte.record_traced(first_byte, trace);
        }
        let usage = record.usage;
        add(&self.prompt_tokens, usage.prompt_tokens.unwrap_or(0));
        add(&self.output_tokens, usage.output_tokens.unwrap_or(0));
        let own = record.counted();
        add(&self.own_prompt_tokens, own.prompt_tokens.unwrap_or(0));
        add(&self.own_output_tokens, own.output_tokens.unwrap_or(0));
        add(&self.retries, u64::from(record.retries));
        add(&self.degraded, u64::from(record.is_degraded));
        add(&self.given_away, record.given_away().map_or(0, |(tokens, _)| tokens));
        add(&self.gaps, record.gaps.total());
        add(&self.gap_nanos, record.gaps.nanos);
    }

    /// Compares the predicted cached tokens with those reported by the pod that computed the
    /// prompt.
    fn compare(&self, record: &RequestSummary, usage: Usage) {
        if let (Some(prompt), Some(cached)) = (usage.prompt_tokens, usage.cached_tokens) {
            add(&self.reported, prompt);
            add(&self.cached, cached);
            add(&self.unique, record.unique_tokens.min(cached));
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

/// Skips the write for zero, the common case: an unwritten cache line stays shared by all threads.
fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Relaxed);
    }
}

fn pod_label(pod: Option<&Name>) -> String {
    pod.map(Name::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests;
