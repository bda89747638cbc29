//! Samples the fleet for the chart history and the rates, once per second, on background threads.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use wornpath_events::PodStatus;
use wornpath_gateway::http::metrics_page::health;
use wornpath_gateway::observe::timestamp::Timestamp;
use wornpath_routing::FleetPod;

use crate::admin::Admin;
use crate::history::{Observation, pods};

/// How long after the start of a second it is sampled: timers never fire early.
const AFTER: u64 = 5;
/// Seconds between two looks at the restarts of engines, which lock one event ledger after another.
const RESTARTS_EVERY: u64 = 5;
/// Reloads of one second whose changes are told.
const RELOADS: u64 = 4;

/// Samples for ever.
pub(crate) async fn run(admin: Arc<Admin>) -> Infallible {
    loop {
        let source = Arc::clone(&admin);
        // It visits every pod, so it runs on a blocking thread. The next sample comes in any case.
        let _ = tokio::task::spawn_blocking(move || sample(&source)).await;
        let millis = Timestamp::now().0;
        // With the wall clock, so that there is one sample for each of its seconds.
        let pause = 1000 - millis % 1000 + AFTER;
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

fn sample(admin: &Admin) {
    let gateway = &admin.gateway;
    let metrics = admin.running.metrics();
    admin.rates.add(gateway.now(), metrics.totals(), metrics.by_origin());
    admin.history.sample(|known| {
        let is_due = (Timestamp::now().0 / 1000).is_multiple_of(RESTARTS_EVERY);
        let known = known.filter(|_| !is_due).cloned();
        let look = || restarts(&gateway.pods().events().status(gateway.now()));
        let seen = observe(admin, known.unwrap_or_else(look));
        let times = seen.at.is_multiple_of(pods::STEP).then(|| metrics.times_by_pod());
        Observation { times, ..seen }
    });
}

/// Restarts by pod, as its events tell.
pub(crate) fn restarts(events: &[PodStatus]) -> BTreeMap<String, u64> {
    let restarts = |pod: &PodStatus| (pod.pod.to_string(), pod.status.counters.restarts);
    events.iter().map(restarts).collect()
}

/// What is known of the fleet now.
pub(crate) fn observe(admin: &Admin, restarts: BTreeMap<String, u64>) -> Observation {
    let at = Timestamp::now().0 / 1000;
    let gateway = &admin.gateway;
    let metrics = admin.running.metrics();
    let snapshot = gateway.snapshot();
    let pods = snapshot.fleet().pods().iter();
    let reloads = metrics.reloads();
    let last = reloads[0].saturating_sub(RELOADS);
    let changed = (last..=reloads[0])
        .filter_map(|reload| Some((reload, admin.running.changed_by(reload)?)))
        .collect();
    let slow = |pod: &FleetPod| {
        let name = &pod.facts().name;
        Some((name.to_string(), metrics.speed(name).slow?.to_string()))
    };
    Observation {
        at,
        slow: snapshot.fleet().pods().iter().filter_map(slow).collect(),
        times: None,
        figures: metrics.total(),
        waiting: gateway.waiting(),
        health: pods.map(|pod| (pod.facts().name.to_string(), health(pod.state()))).collect(),
        restarts,
        reloads,
        changed,
    }
}
