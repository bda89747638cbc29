//! Watches for failures that would only make routing silently worse: predictions that are nearly
//! always wrong, and pods whose cache events never arrive.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use wornpath_routing::{EventTrust, Name};

use crate::fleet::registry::PodRegistry;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::accuracy::AccuracyVerdict;

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
