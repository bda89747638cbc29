//! Samples the fleet for the chart history, once per second, on background threads.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use wornpath_events::PodStatus;
use wornpath_gateway::http::metrics_page::health;
use wornpath_gateway::observe::timestamp::Timestamp;

use crate::admin::Admin;
use crate::history::Observation;

/// How long after the start of a second it is sampled: timers never fire early.
const AFTER: u64 = 5;
/// Seconds between two looks at the restarts of engines, which lock one event ledger after another.
const RESTARTS_EVERY: u64 = 5;
/// Reloads of one second whose changes are told.
const RELOADS: u64 = 4;

/// Samples for ever.
pub(crate) async fn run(admin: Arc<Admin>) -> Infallible {
    let mut restarts = BTreeMap::new();
    loop {
        let millis = Timestamp::now().0;
        // With the wall clock, so that there is one sample for each of its seconds.
        let pause = 1000 - millis % 1000 + AFTER;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let source = Arc::clone(&admin);
        let known = std::mem::take(&mut restarts);
        // It visits every pod, so it runs on a blocking thread.
        let seen = tokio::task::spawn_blocking(move || observe(&source, known)).await;
        let Ok(seen) = seen else { continue };
        restarts.clone_from(&seen.restarts);
        admin.history.add(seen);
    }
}

fn observe(admin: &Admin, known: BTreeMap<String, u64>) -> Observation {
    let at = Timestamp::now().0 / 1000;
    let gateway = &admin.gateway;
    let metrics = admin.running.metrics();
    let snapshot = gateway.snapshot();
    let pods = snapshot.fleet().pods().iter();
    let restarts = if at.is_multiple_of(RESTARTS_EVERY) || known.is_empty() {
        let all = gateway.pods().events().status(gateway.now());
        let restarts = |pod: PodStatus| (pod.pod.to_string(), pod.status.counters.restarts);
        all.into_iter().map(restarts).collect()
    } else {
        known
    };
    let reloads = metrics.reloads();
    let last = reloads[0].saturating_sub(RELOADS);
    let changed = (last..=reloads[0])
        .filter_map(|reload| Some((reload, admin.running.changed_by(reload)?)))
        .collect();
    Observation {
        at,
        figures: metrics.total(),
        waiting: gateway.waiting(),
        health: pods.map(|pod| (pod.facts().name.to_string(), health(pod.state()))).collect(),
        restarts,
        reloads,
        changed,
    }
}
