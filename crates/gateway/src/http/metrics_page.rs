//! The metrics page, in Prometheus' text format.
//!
//! Counters are kept as requests end; gauges (pods, index, events, wait queue) are read from their
//! owners when the page is requested, so they cost nothing in between. While a thread is stuck the
//! page has only the counters, because reading a gauge may take a lock that the stuck thread holds.

use std::collections::BTreeMap;

use hyper::header::{ACCEPT, HeaderMap};
use wornpath_events::{FeedCounters, FeedState, FeedStatus, PodStatus, Resumed};
use wornpath_routing::{BreakerState, EventTrust, FleetPod, Health, Name, PodState, Profile};

use crate::observe::metrics::family::Family;
use crate::observe::metrics::openmetrics::openmetrics;
use crate::observe::metrics::page::MetricsPage;
use crate::observe::metrics::slow_pods::PodTime;
use crate::observe::metrics::text::text;
use crate::observe::metrics::{Metrics, family, process};
use crate::proxy::body_budget::RefusedBodies;
use crate::proxy::gateway::Gateway;
use crate::proxy::shadow::Comparison;
use crate::routes::tokenizes;

type PodGauge = fn(&FleetPod) -> f64;
type ReadState = fn(&FleetPod) -> &'static str;
type FeedCounter = fn(&FeedCounters) -> u64;
type FeedGauge = fn(&FeedStatus) -> Option<f64>;

/// The format of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageFormat {
    /// Prometheus' text format.
    Text,
    /// OpenMetrics, which has exemplars.
    OpenMetrics,
}

impl PageFormat {
    /// The format that a scrape asks for by its `accept` header.
    #[must_use]
    pub fn wanted(headers: &HeaderMap) -> Self {
        let all = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut choices = all.flat_map(|value| value.split(','));
        let is_openmetrics = |choice: &str| {
            let mut parts = choice.split(';').map(str::trim);
            let is_type = parts.next() == Some("application/openmetrics-text");
            // The versions that differ in nothing that the page has.
            let is_version = |part: &str| ["version=0.0.1", "version=1.0.0"].contains(&part);
            is_type && parts.all(|part| !part.starts_with("version=") || is_version(part))
        };
        if choices.any(is_openmetrics) { Self::OpenMetrics } else { Self::Text }
    }

    /// Its content type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The page as text.
#[must_use]
pub fn page(gateway: &Gateway, metrics: &Metrics, format: PageFormat) -> String {
    let page = collect(gateway, metrics);
    match format {
        PageFormat::Text => text(&page),
        PageFormat::OpenMetrics => openmetrics(&page),
    }
}

/// Collects the page, and prunes the counters of pods that have left the fleet.
pub(crate) fn collect(gateway: &Gateway, metrics: &Metrics) -> MetricsPage {
    let mut page = MetricsPage::default();
    process::write(&mut page);
    let stuck = gateway.threads().stuck().len();
    page.family(family::THREADS_STUCK).value(&[], stuck);
    page.family(family::THREAD_STALLS).value(&[], gateway.threads().stalls());
    if stuck > 0 {
        metrics.write_counters(&mut page);
        return page;
    }
    let snapshot = gateway.snapshot();
    let pods = snapshot.fleet().pods();
    metrics.prune(gateway.now(), |name| snapshot.named(name.as_str()).is_some());
    metrics.write_counters(&mut page);
    loads(&mut page, pods);
    states(&mut page, pods);
    let broken = page.family(family::PREDICTIONS_BROKEN);
    for pod in pods {
        let name = &pod.facts().name;
        broken.value(&[name.as_str()], u8::from(metrics.verdict(name).is_broken()));
    }
    let slow = page.family(family::POD_SLOW);
    for pod in pods {
        let name = &pod.facts().name;
        let found = metrics.speed(name).slow.map(|slow| slow.time);
        for time in PodTime::ALL {
            slow.value(&[name.as_str(), time.word()], u8::from(found == Some(time)));
        }
    }
    let exactness = page.family(family::POD_MODE);
    for entry in snapshot.entries() {
        let is_exact = gateway.pods().why_approximate(entry).is_empty();
        let mode = if is_exact { "exact" } else { "approximate" };
        exactness.state(entry.pod.facts().name.as_str(), &["exact", "approximate"], mode);
    }
    let silent = page.family(family::EVENTS_SILENT);
    for pod in pods {
        let name = &pod.facts().name;
        silent.value(&[name.as_str()], u8::from(metrics.is_silent(name)));
    }
    index(&mut page, gateway, pods);
    events(&mut page, &gateway.pods().events().status(gateway.now()));
    modes(&mut page, gateway, pods);
    checkpoint(&mut page, gateway);
    page.family(family::STRANGERS).value(&[], gateway.pods().events().unknown_pod_messages());
    let (spent, refused) = gateway.retries();
    let budget = page.family(family::RETRY_BUDGET);
    budget.value(&["spent"], spent);
    budget.value(&["refused"], refused);
    page.family(family::POISON_REFUSED).value(&[], gateway.poison_refused());
    continuations(&mut page, gateway);
    bodies(&mut page, gateway);
    page.family(family::WAITING).value(&[], gateway.waiting());
    page.family(family::EXCHANGE_ROUTERS).value(&[], gateway.pods().known_routers());
    models(&mut page, gateway, pods);
    shadows(&mut page, gateway);
    page
}

fn shadows(page: &mut MetricsPage, gateway: &Gateway) {
    let all = gateway.shadow_comparisons();
    let decisions = page.family(family::SHADOW_DECISIONS);
    for ((profile, shadow), counts) in &all {
        let Comparison { agreed, differed, held, refused, .. } = *counts;
        let results =
            [("agreed", agreed), ("differed", differed), ("held", held), ("refused", refused)];
        for (result, count) in results {
            decisions.value(&[profile, shadow, result], count);
        }
    }
    let tokens = page.family(family::SHADOW_TOKENS);
    for ((profile, shadow), counts) in &all {
        tokens.value(&[profile, shadow, "chosen"], counts.chosen_tokens);
        tokens.value(&[profile, shadow, "shadow"], counts.shadow_tokens);
    }
    let times = page.family(family::SHADOW_FIRST_TOKEN);
    for ((profile, shadow), counts) in &all {
        times.value(&[profile, shadow, "chosen"], counts.chosen_first_token.as_secs_f64());
        times.value(&[profile, shadow, "shadow"], counts.shadow_first_token.as_secs_f64());
    }
}

/// The signals for autoscalers, by model.
fn models(page: &mut MetricsPage, gateway: &Gateway, pods: &[FleetPod]) {
    let settings = gateway.settings();
    let configured = settings.models.iter().map(|model| Name::from(model.name.as_str()));
    let served = pods.iter().flat_map(|pod| pod.facts().models.iter().cloned());
    let names = configured.chain(served).map(|name| (name.to_string(), name));
    let names: BTreeMap<String, Name> = names.collect();
    let now = gateway.now();
    let of = |model: &Name| {
        let is_up =
            |pod: &&FleetPod| health(pod.state()) == "up" && pod.facts().models.contains(model);
        let up: Vec<_> = pods.iter().filter(is_up).map(FleetPod::state).collect();
        let waiting = gateway.model_waits.of(model, now);
        let usage: f64 = up.iter().map(|state| state.kv_usage()).sum();
        [
            waiting.requests as f64,
            waiting.longest.as_secs_f64(),
            up.len() as f64,
            up.iter().map(|state| state.own_load().prefill_tokens).sum::<u64>() as f64,
            usage / (up.len().max(1)) as f64,
        ]
    };
    let families = [
        family::MODEL_WAITING,
        family::MODEL_WAITING_SECONDS,
        family::MODEL_PODS,
        family::MODEL_PREFILL,
        family::MODEL_KV_USAGE,
    ];
    let all: Vec<_> = names.values().map(|model| (model, of(model))).collect();
    for (at, family) in families.into_iter().enumerate() {
        let lines = page.family(family);
        for (model, values) in &all {
            lines.value(&[model.as_str()], values[at]);
        }
    }
}

fn continuations(page: &mut MetricsPage, gateway: &Gateway) {
    let counts = page.family(family::CONTINUATIONS);
    for (labels, count) in gateway.continuations.counts() {
        counts.value(&labels, count);
    }
    let kept = gateway.continuations.kept_bytes();
    page.family(family::CONTINUATION_BYTES).value(&[], kept);
    let limit = gateway.settings().continuation.memory;
    page.family(family::CONTINUATION_BYTES_LIMIT).value(&[], limit);
}

fn bodies(page: &mut MetricsPage, gateway: &Gateway) {
    let bodies = gateway.bodies();
    page.family(family::BODY_BYTES).value(&[], bodies.held());
    page.family(family::BODY_BYTES_LIMIT).value(&[], gateway.settings().limits.body_budget());
    let RefusedBodies { budget, share, slow } = bodies.refused();
    let refused = page.family(family::BODIES_REFUSED);
    for (reason, count) in [("budget", budget), ("share", share), ("slow", slow)] {
        refused.value(&[reason], count);
    }
}

fn loads(page: &mut MetricsPage, pods: &[FleetPod]) {
    let gauges: [(Family, PodGauge); 5] = [
        (family::POD_REQUESTS, |pod| f64::from(pod.state().own_load().requests)),
        (family::POD_PREFILL, |pod| pod.state().own_load().prefill_tokens as f64),
        (family::POD_DECODE, |pod| pod.state().own_load().decode_tokens as f64),
        (family::POD_WAITING, |pod| f64::from(pod.state().waiting())),
        (family::POD_KV_USAGE, |pod| pod.state().kv_usage()),
    ];
    for (family, gauge) in gauges {
        let lines = page.family(family);
        for pod in pods {
            lines.value(&[pod.facts().name.as_str()], gauge(pod));
        }
    }
}

fn states(page: &mut MetricsPage, pods: &[FleetPod]) {
    let states: [(Family, &[&str], ReadState); 3] = [
        (family::POD_HEALTH, &["up", "draining", "down"], |pod| health(pod.state())),
        (family::POD_BREAKER, &["closed", "half_open", "open", "resting", "avoided"], |pod| {
            breaker(pod.state().breaker())
        }),
        (family::POD_TRUST, &["exact", "unsure", "partial", "guessed"], |pod| {
            trust(pod.state().trust())
        }),
    ];
    for (family, all, state) in states {
        let lines = page.family(family);
        for pod in pods {
            lines.state(pod.facts().name.as_str(), all, state(pod));
        }
    }
}

fn index(page: &mut MetricsPage, gateway: &Gateway, pods: &[FleetPod]) {
    let stats = gateway.pods().index().stats();
    for (family, value) in [
        (family::INDEX_PODS, stats.pods),
        (family::INDEX_BLOCKS, stats.blocks),
        (family::INDEX_ENTRIES, stats.entries),
        (family::INDEX_ENTRIES_LIMIT, gateway.pods().index().limits().blocks),
        (family::INDEX_SETS, stats.sets),
        (family::INDEX_BYTES, stats.table_bytes),
        (family::INDEX_SUSPECTS, stats.suspects),
    ] {
        page.family(family).value(&[], value);
    }
    // A pod that is just leaving has no stats any more.
    let pod_stats = |pod: &FleetPod| {
        let stats = gateway.pods().index().pod_stats(pod.id()).ok()?;
        Some((pod.facts().name.clone(), stats))
    };
    let pod_stats: Vec<_> = pods.iter().filter_map(pod_stats).collect();
    let lines = page.family(family::POD_BLOCKS);
    for (name, stats) in &pod_stats {
        lines.value(&[name.as_str()], stats.blocks);
    }
    let lines = page.family(family::INDEX_REFUSED);
    for (name, stats) in &pod_stats {
        lines.value(&[name.as_str()], stats.counters.refused);
    }
}

fn events(page: &mut MetricsPage, all: &[PodStatus]) {
    let lines = page.family(family::EVENT_SOURCES);
    for pod in all {
        for source in &pod.sources {
            lines.value(&[&*pod.pod, source], 1_u8);
        }
    }
    let states = ["waiting", "live", "unsure", "partial", "stale", "quarantined"];
    let lines = page.family(family::EVENT_STATE);
    for pod in all {
        lines.state(&pod.pod, &states, feed_state(pod.status.state));
    }
    for (family, gauge) in FEED_GAUGES {
        let lines = page.family(family);
        for pod in all {
            if let Some(value) = gauge(&pod.status) {
                lines.value(&[&*pod.pod], value);
            }
        }
    }
    let lines = page.family(family::EVENT_BATCHES);
    for pod in all {
        let FeedCounters { batches, repeated, outdated, unnumbered, malformed, dropped, .. } =
            pod.status.counters;
        for (fate, count) in [
            ("applied", batches),
            ("repeated", repeated),
            ("outdated", outdated),
            ("unnumbered", unnumbered),
            ("malformed", malformed),
            ("dropped", dropped),
        ] {
            lines.value(&[&*pod.pod, fate], count);
        }
    }
    let counters: [(Family, FeedCounter); 6] = [
        (family::EVENT_GAPS, |counters| counters.gaps),
        (family::EVENT_REPLAYS, |counters| counters.replays),
        (family::EVENT_RESYNCS, |counters| counters.snapshots + counters.rebuilds),
        (family::EVENT_RESTARTS, |counters| counters.restarts),
        (family::EVENT_DISAGREEMENTS, |counters| counters.disagreements),
        (family::EVENT_THROTTLED, |counters| counters.throttled),
    ];
    for (family, counter) in counters {
        let lines = page.family(family);
        for pod in all {
            lines.value(&[&*pod.pod], counter(&pod.status.counters));
        }
    }
}

fn modes(page: &mut MetricsPage, gateway: &Gateway, pods: &[FleetPod]) {
    let routes = gateway.routes();
    let lines = page.family(family::CACHE_MODE);
    for (name, profile) in routes.profiles() {
        if let Some(without_events) = profile.without_events() {
            lines.value(&[name.as_str(), cache_mode(profile, pods), without_events.word()], 1_u8);
        }
    }
}

/// The source of a profile's cache knowledge: events, approximation, a mix of both, or none.
pub fn cache_mode(profile: &Profile, pods: &[FleetPod]) -> &'static str {
    let guessed = pods.iter().filter(|pod| pod.state().trust() == EventTrust::Guessed).count();
    match guessed {
        _ if !profile.looks_up() => "none",
        // Prompts that are compared by their text match no event.
        _ if !tokenizes(profile) => "approximate",
        0 => "events",
        some if some < pods.len() => "mixed",
        _ => "approximate",
    }
}

/// Without a checkpoint, or before the first write, the families have no lines.
fn checkpoint(page: &mut MetricsPage, gateway: &Gateway) {
    let history = gateway.checkpoint.as_ref().map(|checkpoint| checkpoint.history());
    let writes = page.family(family::CHECKPOINT_WRITES);
    if let Some(history) = history {
        writes.value(&["written"], history.written);
        writes.value(&["failed"], history.failed);
    }
    let last = history.and_then(|history| history.last);
    let age = page.family(family::CHECKPOINT_AGE);
    if let Some((at, _)) = last {
        age.value(&[], gateway.now().since(at).as_secs_f64());
    }
    let bytes = page.family(family::CHECKPOINT_BYTES);
    if let Some((_, written)) = last {
        bytes.value(&[], written.bytes);
    }
    let pods = page.family(family::CHECKPOINT_PODS);
    if let Some((_, written)) = last {
        pods.value(&["kept"], written.pods);
        pods.value(&["left_out"], written.left_out);
    }
    let lines = page.family(family::CHECKPOINT_RECALLED);
    if history.is_some() {
        let all = gateway.pods().events().status(gateway.now());
        for state in [Resumed::Waiting, Resumed::Confirmed, Resumed::Dropped] {
            let count = all.iter().filter(|pod| pod.status.resumed == Some(state)).count();
            lines.value(&[recalled(state)], count);
        }
    }
}

/// The state of a pod's restored checkpoint, as metrics and JSON spell it.
pub const fn recalled(recalled: Resumed) -> &'static str {
    match recalled {
        Resumed::Waiting => "waiting",
        Resumed::Confirmed => "confirmed",
        Resumed::Dropped => "dropped",
    }
}

/// Gauges with one value per pod; none while the value is unknown.
const FEED_GAUGES: [(Family, FeedGauge); 6] = [
    (family::EVENT_SEQUENCE, |status| status.last_sequence.map(|last| last as f64)),
    (family::EVENT_LAG, |status| Some(status.lag as f64)),
    (family::EVENT_AGE, |status| status.age.map(|age| age.as_secs_f64())),
    (family::EVENT_RATE, |status| Some(status.rate)),
    (family::EVENT_PHANTOM, |status| Some(status.phantom as f64)),
    (family::EVENT_MISSING, |status| Some(status.missing as f64)),
];

/// The state of a pod's event feed, as metrics and JSON spell it.
pub const fn feed_state(state: FeedState) -> &'static str {
    match state {
        FeedState::Waiting => "waiting",
        FeedState::Live => "live",
        FeedState::Unsure => "unsure",
        FeedState::Partial => "partial",
        FeedState::Stale => "stale",
        FeedState::Quarantined => "quarantined",
    }
}

/// The health of a pod, as metrics and JSON spell it. A pod that once answered its probe counts as
/// down while its breaker is open.
pub fn health(pod_state: &PodState) -> &'static str {
    match (pod_state.health(), pod_state.breaker()) {
        // An operator often stops a pod after draining it, and it gets no requests either way.
        (Health::Draining, _) => "draining",
        (Health::Down, _) | (_, BreakerState::Open) => "down",
        (Health::Up, _) => "up",
    }
}

/// The state of a pod's circuit breaker, as metrics and JSON spell it.
pub const fn breaker(breaker: BreakerState) -> &'static str {
    match breaker {
        BreakerState::Closed => "closed",
        BreakerState::HalfOpen => "half_open",
        BreakerState::Open => "open",
        BreakerState::Resting => "resting",
        BreakerState::Avoided => "avoided",
    }
}

/// How far a pod's cache events are trusted, as metrics and JSON spell it.
pub const fn trust(trust: EventTrust) -> &'static str {
    match trust {
        EventTrust::Exact => "exact",
        EventTrust::Unsure => "unsure",
        EventTrust::Partial => "partial",
        EventTrust::Guessed => "guessed",
    }
}
