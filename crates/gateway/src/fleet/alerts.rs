//! Alerts: log lines about event sources, circuit breakers, predictions, slow pods and pods without
//! events, one per change of state.
//!
//! The probe loop looks at every pod many times a second; an alert remembers what it has logged, so
//! that a failure that persists is logged once.

use crate::fleet::registry::PodRegistry;
use crate::fleet::snapshot::{FleetSnapshot, PodEntry};
use crate::observe::metrics::Metrics;
use crate::observe::metrics::accuracy::AccuracyVerdict;
use std::collections::HashSet;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use wornpath_events::{FeedState, FeedStatus, PodStatus};
use wornpath_index::Moment;
use wornpath_routing::BreakerState;
use wornpath_routing::{EventTrust, Name};

/// A failure that recurs after this long without it is logged again.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// How long a feed is unsure or silent before that is logged: gaps are usually closed sooner.
const UNSURE_LOGGED_AFTER: Duration = Duration::from_secs(5);

/// The failures of event sources that were logged.
#[derive(Debug, Default)]
pub(crate) struct EventAlerts {
    /// By source.
    unreachable: AlertState,
    /// By pod.
    quarantined: AlertState,
    /// By pod.
    throttled: AlertState,
    /// Per pod, how often it had been throttled at the last call.
    throttles: HashMap<Arc<str>, u64>,
    /// The pods whose feed is unsure or silent.
    unsure: HashMap<Arc<str>, UnsureFeed>,
}

#[derive(Debug)]
struct UnsureFeed {
    since: Moment,
    is_logged: bool,
}

/// A failure to log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EventAlert<'a> {
    /// A source is unreachable.
    Unreachable { pod: &'a str, source: &'a str, reason: &'a str },
    /// A pod's events are malformed and ignored for a while.
    Quarantined { pod: &'a str, reason: &'a str },
    /// Reading a pod's events is paused again and again.
    Throttled { pod: &'a str },
    /// A pod's events are missing or its source is silent; `age` is the time since the last message.
    Unsure { pod: &'a str, age: Option<Duration> },
    /// They are complete again.
    Sure { pod: &'a str },
}

impl EventAlerts {
    /// The failures that are new since the last call. If pods share a source, the first is named.
    pub(crate) fn update<'a>(&mut self, pods: &'a [PodStatus], now: Moment) -> Vec<EventAlert<'a>> {
        self.unreachable.forget(now);
        self.quarantined.forget(now);
        self.throttled.forget(now);
        let before = std::mem::take(&mut self.throttles);
        let mut alerts = Vec::new();
        for PodStatus { pod, errors, status, .. } in pods {
            for trouble in errors {
                let source = &trouble.source;
                let reason = trouble.reason.as_str();
                if self.unreachable.is_new(source, reason, now) {
                    alerts.push(EventAlert::Unreachable { pod, source, reason });
                }
            }
            let reason = status.last_malformed.as_deref().unwrap_or_default();
            let is_quarantined = status.state == FeedState::Quarantined;
            if is_quarantined && self.quarantined.is_new(pod, reason, now) {
                alerts.push(EventAlert::Quarantined { pod, reason });
            }
            let throttles = status.counters.throttled;
            self.throttles.insert(Arc::clone(pod), throttles);
            let is_throttled = throttles > before.get(pod).copied().unwrap_or(0);
            if is_throttled && self.throttled.is_new(pod, "", now) {
                alerts.push(EventAlert::Throttled { pod });
            }
            alerts.extend(self.sureness(pod, status, now));
        }
        self.unsure.retain(|known, _| pods.iter().any(|PodStatus { pod, .. }| pod == known));
        alerts
    }

    fn sureness<'a>(
        &mut self,
        pod: &'a Arc<str>,
        status: &FeedStatus,
        now: Moment,
    ) -> Option<EventAlert<'a>> {
        if !matches!(status.state, FeedState::Unsure | FeedState::Stale) {
            let was = self.unsure.remove(pod)?;
            return was.is_logged.then_some(EventAlert::Sure { pod });
        }
        let fresh = UnsureFeed { since: now, is_logged: false };
        let feed = self.unsure.entry(Arc::clone(pod)).or_insert(fresh);
        if feed.is_logged || now.since(feed.since) < UNSURE_LOGGED_AFTER {
            return None;
        }
        feed.is_logged = true;
        Some(EventAlert::Unsure { pod, age: status.age })
    }
}

impl EventAlert<'_> {
    pub(crate) fn log(self) {
        match self {
            Self::Unreachable { pod, source, reason } => {
                tracing::warn!(pod, source, reason, "event source unreachable");
            }
            Self::Quarantined { pod, reason } => {
                tracing::warn!(pod, reason, "cache events quarantined");
            }
            Self::Throttled { pod } => {
                tracing::warn!(
                    pod,
                    reason = "more than 10,000 messages per second that name no blocks",
                    "cache events throttled"
                );
            }
            Self::Unsure { pod, age } => {
                let last_event_seconds = age.map_or(f64::NAN, |age| age.as_secs_f64().round());
                tracing::warn!(
                    pod,
                    last_event_seconds,
                    reason =
                        "an event is missing, or the engine publishes none and answers no replay",
                    "cache events unsure: what the pod holds counts less"
                );
            }
            Self::Sure { pod } => tracing::info!(pod, "cache events complete again"),
        }
    }
}

/// The last reason for each source or pod, and when it was last seen.
#[derive(Debug, Default)]
struct AlertState(BTreeMap<Arc<str>, (String, Moment)>);

impl AlertState {
    fn forget(&mut self, now: Moment) {
        self.0.retain(|_, (_, seen)| now.since(*seen) < REPEAT_AFTER);
    }

    fn is_new(&mut self, key: &Arc<str>, reason: &str, now: Moment) -> bool {
        match self.0.get_mut(key) {
            Some((last, seen)) if *last == reason => {
                *seen = now;
                false
            }
            _ => {
                self.0.insert(Arc::clone(key), (reason.to_owned(), now));
                true
            }
        }
    }
}

/// The breaker states that were logged, by address. Pods at one address share one breaker.
#[derive(Debug, Default)]
pub(crate) struct BreakerAlerts(HashMap<String, BreakerState>);

impl BreakerAlerts {
    /// Logs the changes since the last call.
    pub(crate) fn update(&mut self, snapshot: &FleetSnapshot) {
        for entry in snapshot.entries() {
            let now = entry.pod.state().breaker();
            let url = entry.endpoint.url();
            let before = self.0.get(url).copied().unwrap_or(BreakerState::Closed);
            if now == before {
                continue;
            }
            self.0.insert(url.to_owned(), now);
            let pod = &entry.pod.facts().name;
            match (before, now) {
                (BreakerState::HalfOpen, BreakerState::Open) => {
                    tracing::info!(%pod, url, reason = "trial request failed", "pod down");
                }
                (_, BreakerState::Open) => {
                    tracing::warn!(%pod, url, reason = "unreachable, connection broken or repeated failures", "pod down");
                }
                (_, BreakerState::HalfOpen) => {
                    tracing::info!(%pod, url, "pod half-open: trying one request at a time");
                }
                // A pod at its limit may back off several times a second.
                (_, BreakerState::Resting | BreakerState::Avoided) => {
                    tracing::debug!(%pod, url, "pod overloaded; backing off");
                }
                (BreakerState::Resting | BreakerState::Avoided, BreakerState::Closed) => {
                    tracing::debug!(%pod, url, "pod backoff over");
                }
                (_, BreakerState::Closed) => tracing::info!(%pod, url, "pod up"),
            }
        }
        self.0.retain(|url, _| snapshot.entries().iter().any(|entry| entry.endpoint.url() == url));
    }
}

const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Responses after which a pod must have sent an event about the blocks that it stored.
const MIN_RESPONSES: u64 = 20;

/// Checks every pod's predictions and events periodically; never returns.
pub async fn watch(registry: Arc<PodRegistry>, metrics: Arc<Metrics>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        // Here too, since the metrics page may never be scraped.
        let snapshot = registry.snapshot();
        metrics.prune(registry.now(), |pod| snapshot.named(pod.as_str()).is_some());
        for (pod, verdict) in metrics.update_verdicts() {
            match verdict {
                AccuracyVerdict::Optimistic | AccuracyVerdict::Pessimistic => {
                    tracing::error!(%pod, reason = verdict.to_string(), "cache predictions unreliable");
                }
                AccuracyVerdict::Good | AccuracyVerdict::Unknown => {
                    tracing::info!(%pod, "cache predictions reliable");
                }
            }
        }
        for (pod, slow) in metrics.update_speeds(registry.now(), &kinds(&snapshot)) {
            match slow {
                Some(slow) => tracing::warn!(pod, reason = slow.to_string(), "pod slow"),
                None => tracing::info!(pod, "pod no longer slow"),
            }
        }
        let now: HashSet<_> = silent_pods(&registry, &metrics).into_iter().collect();
        let mut silent = metrics.silent();
        for pod in now.difference(&silent) {
            tracing::error!(
                %pod,
                "no cache events received from a pod that answers requests; check that the engine publishes KV \
                 events and that `events` names their address"
            );
        }
        *silent = now;
    }
}

/// The models and roles of every pod: a pod is compared with those that have the same.
fn kinds(snapshot: &FleetSnapshot) -> BTreeMap<String, String> {
    let kind = |entry: &PodEntry| {
        let facts = entry.pod.facts();
        (facts.name.to_string(), format!("{:?} {:?}", facts.models, facts.roles))
    };
    snapshot.entries().iter().map(kind).collect()
}

/// The pods that should send events, have answered enough requests to store blocks, and never sent
/// one.
fn silent_pods(registry: &PodRegistry, metrics: &Metrics) -> Vec<Name> {
    let feeds = registry.events().status(registry.now());
    let answered = metrics.responses();
    let snapshot = registry.snapshot();
    let pods = snapshot.fleet().pods().iter();
    let should = pods.filter(|pod| pod.state().trust() != EventTrust::Guessed);
    let names = should.map(|pod| pod.facts().name.clone());
    let is_silent = |name: &Name| {
        let feed = feeds.iter().find(|feed| *feed.pod == *name.as_str());
        feed.is_some_and(|feed| feed.status.counters.batches == 0)
    };
    names
        .filter(|name| {
            answered.get(name).is_some_and(|count| *count >= MIN_RESPONSES) && is_silent(name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_events::{Feed, FeedRules, SourceError};

    fn status(pod: &str, reason: &str) -> PodStatus {
        let trouble = SourceError { source: "redis://there".into(), reason: reason.to_owned() };
        PodStatus {
            pod: pod.into(),
            sources: Vec::new(),
            errors: vec![trouble],
            status: Feed::new(FeedRules::default()).status(Moment::ZERO),
        }
    }

    #[test]
    fn a_reason_is_logged_once_for_a_source_until_it_changes_or_recurs_much_later() {
        let mut alerts = EventAlerts::default();
        let mut logged =
            |reason, now| alerts.update(&[status("a", reason), status("b", reason)], now).len();
        assert_eq!(logged("refused", Moment::from_secs(0)), 1);
        assert_eq!(logged("refused", Moment::from_secs(50)), 0);
        assert_eq!(logged("refused", Moment::from_secs(100)), 0, "it still fails");
        assert_eq!(logged("wrong password", Moment::from_secs(101)), 1);
        assert_eq!(logged("wrong password", Moment::from_secs(200)), 1, "it worked in between");
    }

    #[test]
    fn a_quarantined_pod_is_logged_once_with_the_reason() {
        let mut quarantined = status("a", "");
        quarantined.errors.clear();
        quarantined.status.last_malformed = Some("block_size".to_owned());
        let mut alerts = EventAlerts::default();
        let now = Moment::ZERO;
        assert_eq!(alerts.update(&[quarantined.clone()], now), []);
        quarantined.status.state = FeedState::Quarantined;
        let alert = EventAlert::Quarantined { pod: "a", reason: "block_size" };
        assert_eq!(alerts.update(&[quarantined.clone()], now), [alert]);
        assert_eq!(alerts.update(&[quarantined], now), []);
    }

    #[test]
    fn a_feed_that_stays_unsure_is_logged_once_and_so_is_its_recovery() {
        let mut alerts = EventAlerts::default();
        let mut logged = |state, at| {
            let mut pod = status("a", "");
            pod.errors.clear();
            pod.status.state = state;
            let pods = [pod];
            let found = alerts.update(&pods, Moment::from_secs(at));
            let words = found.iter().map(|alert| match alert {
                EventAlert::Unsure { .. } => "unsure",
                EventAlert::Sure { .. } => "sure",
                _ => "other",
            });
            words.collect::<Vec<_>>()
        };
        assert_eq!(logged(FeedState::Unsure, 0), [""; 0]);
        assert_eq!(logged(FeedState::Live, 2), [""; 0], "a gap that was closed soon");
        assert_eq!(logged(FeedState::Unsure, 3), [""; 0]);
        assert_eq!(logged(FeedState::Stale, 7), [""; 0]);
        assert_eq!(logged(FeedState::Stale, 8), ["unsure"]);
        assert_eq!(logged(FeedState::Stale, 100), [""; 0]);
        assert_eq!(logged(FeedState::Live, 101), ["sure"]);
        assert_eq!(logged(FeedState::Live, 102), [""; 0]);
    }

    #[test]
    fn a_throttled_pod_is_logged_once_until_it_recurs_much_later() {
        let mut throttled = status("a", "");
        throttled.errors.clear();
        let mut alerts = EventAlerts::default();
        let mut logged = |throttles, second| {
            throttled.status.counters.throttled = throttles;
            alerts.update(std::slice::from_ref(&throttled), Moment::from_secs(second)).len()
        };
        assert_eq!(logged(0, 0), 0);
        assert_eq!(logged(3, 1), 1);
        assert_eq!(logged(9, 2), 0, "it goes on");
        assert_eq!(logged(9, 100), 0, "it is over");
        assert_eq!(logged(10, 200), 1);
    }
}
