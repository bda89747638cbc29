//! What clients get, by model and tenant: requests, tokens and times.
//!
//! These series are apart from those by pod, because pods × tenants × models would be far more
//! series than Prometheus should store. The first names that appear get series of their own, and all later
//! ones share `other`, so that neither many tenants nor renamed ones can fill Prometheus. The
//! labels of a request are looked up once, when it is parsed ([`TrafficMetrics::index`]): from then
//! on it carries the number of its series, and is counted by relaxed additions.

mod figures;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use wornpath_config::MetricLimits;
use wornpath_routing::Name;

use crate::observe::metrics::family::{self, Family};
use crate::observe::metrics::histogram::Histogram;
use crate::observe::metrics::page::MetricsPage;
use crate::observe::summary::{RequestEnd, RequestSummary, SeriesIndex};

pub use figures::{ByOrigin, Origin};

/// The label of all names beyond the limit.
pub(crate) const OTHER: &str = "other";
/// Series of all profiles, models and tenants; each takes about 5 KiB.
const MAX_SERIES: usize = 4096;
/// Combinations of names whose series is found without a lock.
const MAX_KNOWN: usize = 16_384;
/// Pairs of status and end that a series counts separately.
const MAX_ENDS: usize = 24;

/// The labels of a series.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct TrafficLabels {
    profile: Name,
    model: Name,
    /// Empty if there is none.
    tenant: Name,
}

/// The counters of one profile, model and tenant.
#[derive(Default)]
struct TrafficCounters {
    ends: EndCounts,
    prompt_tokens: AtomicU64,
    output_tokens: AtomicU64,
    /// Where the engine reported none.
    own_prompt_tokens: AtomicU64,
    own_output_tokens: AtomicU64,
    /// Prompt tokens of the responses that reported cached tokens.
    reported: AtomicU64,
    cached: AtomicU64,
    /// Tokens that another pod held beyond the chosen one.
    given_away: AtomicU64,
    first_token: Histogram,
    inter_token: Histogram,
    waited: Histogram,
    total: Histogram,
}

struct TrafficSeries {
    labels: TrafficLabels,
    counters: TrafficCounters,
}

/// The series of all profiles, models and tenants.
pub(crate) struct TrafficMetrics {
    /// By number; filled from the front.
    series: Box<[OnceLock<Box<TrafficSeries>>]>,
    known: ArcSwap<HashMap<TrafficLabels, SeriesIndex>>,
    named: Mutex<NamedSeries>,
    limits: ArcSwap<MetricLimits>,
}

/// What has a name of its own.
#[derive(Default)]
struct NamedSeries {
    models: HashSet<Name>,
    tenants: HashSet<Name>,
    by_labels: HashMap<TrafficLabels, SeriesIndex>,
}

impl Default for TrafficMetrics {
    fn default() -> Self {
        Self {
            series: (0..MAX_SERIES).map(|_| OnceLock::new()).collect(),
            known: ArcSwap::default(),
            named: Mutex::default(),
            limits: ArcSwap::default(),
        }
    }
}

impl TrafficMetrics {
    /// Sets the limits for names that appear from now on.
    pub(crate) fn set_limits(&self, limits: MetricLimits) {
        self.limits.store(limits.into());
    }

    /// The series of these names; none if there is no room for another one.
    pub(crate) fn index(
        &self,
        profile: &Name,
        model: &Name,
        tenant: Option<&Name>,
    ) -> Option<SeriesIndex> {
        let tenant = tenant.cloned().unwrap_or_else(|| NO_TENANT.clone());
        let names = TrafficLabels { profile: profile.clone(), model: model.clone(), tenant };
        if let Some(index) = self.known.load().get(&names) {
            return Some(*index);
        }
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = self.limits.load();
        let labels = TrafficLabels {
            profile: names.profile.clone(),
            model: bounded(&mut named.models, &names.model, limits.models),
            tenant: bounded(&mut named.tenants, &names.tenant, limits.tenants),
        };
        let index = self.find_or_add(&mut named, labels)?;
        let known = self.known.load_full();
        if known.len() < MAX_KNOWN {
            let mut grown = HashMap::clone(&known);
            grown.insert(names, index);
            self.known.store(grown.into());
        }
        Some(index)
    }

    fn find_or_add(&self, named: &mut NamedSeries, labels: TrafficLabels) -> Option<SeriesIndex> {
        if let Some(index) = named.by_labels.get(&labels) {
            return Some(*index);
        }
        let index = SeriesIndex(u16::try_from(named.by_labels.len()).ok()?);
        let place = self.series.get(usize::from(index.0))?;
        place.get_or_init(|| {
            Box::new(TrafficSeries { labels: labels.clone(), counters: TrafficCounters::default() })
        });
        named.by_labels.insert(labels, index);
        Some(index)
    }

    /// Counts a finished request. Returns whether it has a series.
    pub(crate) fn count(&self, record: &RequestSummary) -> bool {
        // A request that was refused before it was routed was not looked up yet.
        let find = || self.index(&record.profile, &record.model, record.tenant.as_ref());
        let index = record.series.or_else(find);
        let series = index.and_then(|index| self.series.get(usize::from(index.0))?.get());
        if let Some(series) = series {
            series.counters.count(record);
        }
        series.is_some()
    }

    /// Writes all series to the page, in the order in which they appeared.
    pub(crate) fn write(&self, page: &mut MetricsPage) {
        let all: Vec<_> = self.series.iter().map_while(|series| series.get()).collect();
        let requests = page.family(family::TRAFFIC_REQUESTS);
        for series in &all {
            for (status, end, count) in series.counters.ends.all() {
                requests.value(&[&series.labels.values()[..], &[&status, end]].concat(), count);
            }
        }
        let sources: [(Family, TrafficCounter, TrafficCounter); 2] = [
            (family::TRAFFIC_PROMPT_TOKENS, |it| &it.prompt_tokens, |it| &it.own_prompt_tokens),
            (family::TRAFFIC_OUTPUT_TOKENS, |it| &it.output_tokens, |it| &it.own_output_tokens),
        ];
        for (family, engine, router) in sources {
            let lines = page.family(family);
            for series in &all {
                for (source, counter) in [("engine", engine), ("router", router)] {
                    let count = counter(&series.counters).load(Relaxed);
                    lines.value(&[&series.labels.values()[..], &[source]].concat(), count);
                }
            }
        }
        let counters: [(Family, TrafficCounter); 2] = [
            (family::TRAFFIC_TOLD_TOKENS, |counters| &counters.reported),
            (family::TRAFFIC_CACHED_TOKENS, |counters| &counters.cached),
        ];
        for (family, counter) in counters {
            let lines = page.family(family);
            for series in &all {
                lines.value(&series.labels.values(), counter(&series.counters).load(Relaxed));
            }
        }
        let histograms: [(Family, TrafficHistogram); 4] = [
            (family::TRAFFIC_FIRST_TOKEN_SECONDS, |counters| &counters.first_token),
            (family::TRAFFIC_INTER_TOKEN_SECONDS, |counters| &counters.inter_token),
            (family::TRAFFIC_QUEUE_SECONDS, |counters| &counters.waited),
            (family::TRAFFIC_REQUEST_SECONDS, |counters| &counters.total),
        ];
        for (family, histogram) in histograms {
            let lines = page.family(family);
            for series in &all {
                lines.histogram(&series.labels.values(), histogram(&series.counters));
            }
        }
    }
}

type TrafficCounter = fn(&TrafficCounters) -> &AtomicU64;
type TrafficHistogram = fn(&TrafficCounters) -> &Histogram;

static NO_TENANT: LazyLock<Name> = LazyLock::new(|| Name::from(""));

/// The name itself if it is empty, known, or below the limit; otherwise [`OTHER`].
fn bounded(known: &mut HashSet<Name>, name: &Name, limit: usize) -> Name {
    if name.as_str().is_empty() || known.contains(name) {
        return name.clone();
    }
    if known.len() >= limit {
        return Name::from(OTHER);
    }
    known.insert(name.clone());
    name.clone()
}

impl TrafficLabels {
    fn values(&self) -> [&str; 3] {
        [self.profile.as_str(), self.model.as_str(), self.tenant.as_str()]
    }
}

impl TrafficCounters {
    fn count(&self, record: &RequestSummary) {
        let trace = record.trace_id();
        self.ends.count(record.status, record.ended);
        self.total.record_traced(record.total, trace);
        if let Some(first_token) = record.first_token {
            self.first_token.record_traced(first_token, trace);
        }
        if !record.decided.is_zero() || !record.waited.is_zero() {
            self.waited.record_traced(record.waited, trace);
        }
        self.inter_token.add(&record.gaps);
        let own = record.counted();
        let (_, computed) = record.computed();
        let is_reported = computed.cached_tokens.is_some();
        let reported = computed.prompt_tokens.filter(|_| is_reported);
        for (counter, count) in [
            (&self.prompt_tokens, record.usage.prompt_tokens),
            (&self.output_tokens, record.usage.output_tokens),
            (&self.own_prompt_tokens, own.prompt_tokens),
            (&self.own_output_tokens, own.output_tokens),
            (&self.reported, reported),
            (&self.cached, computed.cached_tokens.filter(|_| reported.is_some())),
            (&self.given_away, record.given_away().map(|(tokens, _)| tokens)),
        ] {
            if let Some(count @ 1..) = count {
                counter.fetch_add(count, Relaxed);
            }
        }
    }
}

/// Counts by status and end, found by a short search and without a lock.
#[derive(Default)]
struct EndCounts {
    /// Status and end, plus one; 0 while the place is free.
    keys: [AtomicU32; MAX_ENDS],
    counts: [AtomicU64; MAX_ENDS],
    /// Of the pairs that found no place.
    other: AtomicU64,
}

impl EndCounts {
    fn count(&self, status: u16, end: RequestEnd) {
        let key = (u32::from(status) << 2 | end as u32) + 1;
        for (known, count) in self.keys.iter().zip(&self.counts) {
            let found = match known.load(Relaxed) {
                0 => known.compare_exchange(0, key, Relaxed, Relaxed).err().unwrap_or(key),
                found => found,
            };
            if found == key {
                count.fetch_add(1, Relaxed);
                return;
            }
        }
        self.other.fetch_add(1, Relaxed);
    }

    /// Counts by status and end, without those that found no place.
    fn pairs(&self) -> impl Iterator<Item = (u16, RequestEnd, u64)> {
        let keys = self.keys.iter().map_while(|key| key.load(Relaxed).checked_sub(1));
        keys.zip(&self.counts).map(|(key, count)| {
            let status = u16::try_from(key >> 2).unwrap_or_default();
            (status, RequestEnd::ALL[(key & 3) as usize], count.load(Relaxed))
        })
    }

    fn all(&self) -> Vec<(String, &'static str, u64)> {
        let pairs =
            self.pairs().map(|(status, end, count)| (status.to_string(), end.word(), count));
        let other = self.other.load(Relaxed);
        let rest = (other > 0).then(|| (OTHER.to_owned(), OTHER, other));
        let mut all: Vec<_> = pairs.chain(rest).collect();
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests;
