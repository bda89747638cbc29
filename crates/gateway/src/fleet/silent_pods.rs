//! Says loudly what would otherwise only make routing quietly worse.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use wornpath_routing::{EventTrust, Name};

use crate::fleet::registry::PodRegistry;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::accuracy::AccuracyVerdict;

const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Answers after which a pod that stores blocks must have said so.
const ENOUGH: u64 = 20;

/// Looks at every pod's predictions and events, for as long as it is polled.
pub async fn watch(registry: Arc<PodRegistry>, metrics: Arc<Metrics>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        // Whether or not anybody reads the page.
        let snapshot = registry.snapshot();
        metrics.forget(registry.now(), |pod| snapshot.named(pod.as_str()).is_some());
        for (pod, verdict) in metrics.judge() {
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

/// Pods that should send events, have answered often enough to have something to say, and never did.
fn silent_pods(registry: &PodRegistry, metrics: &Metrics) -> Vec<Name> {
    let feeds = registry.events().status(registry.now());
    let answered = metrics.answers();
    let snapshot = registry.snapshot();
    let pods = snapshot.fleet().pods().iter();
    let should = pods.filter(|pod| pod.vitals().trust() != EventTrust::Guessed);
    let names = should.map(|pod| pod.facts().name.clone());
    let never_said = |name: &Name| {
        let feed = feeds.iter().find(|feed| *feed.pod == *name.as_str());
        feed.is_some_and(|feed| feed.status.counters.batches == 0)
    };
    names
        .filter(|name| answered.get(name).is_some_and(|count| *count >= ENOUGH) && never_said(name))
        .collect()
}
