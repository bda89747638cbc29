//! Faults that tests inject: a thread that never comes back. Only debug builds have them, and only where
//! `WORNPATH_TEST_FAULTS` is set.

use crate::proxy::gateway::Gateway;
use crate::proxy::worker::Worker;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::named;
use hyper::HeaderMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use wornpath_index::{CacheEvent, EngineHash, Tier};

/// Names the fault in a request.
const HEADER: &str = "x-wornpath-test-fault";

static ACCEPT_STICKS: AtomicBool = AtomicBool::new(false);

/// Injects the fault that a request names, if it names one.
pub(crate) fn inject(worker: &Worker, headers: &HeaderMap) {
    let Some(fault) = headers.get(HEADER) else { return };
    if std::env::var_os("WORNPATH_TEST_FAULTS").is_none() {
        return;
    }
    match fault.as_bytes() {
        b"stick-worker" => stick(),
        b"stick-accept" => ACCEPT_STICKS.store(true, Relaxed),
        b"stick-events" => stick_events(&worker.gateway),
        _ => tracing::warn!(?fault, "unknown fault"),
    }
}

/// Sticks the thread that accepts connections, once that fault was injected.
pub(crate) fn stick_accept() {
    if ACCEPT_STICKS.load(Relaxed) {
        stick();
    }
}

/// As a deadlock would.
fn stick() {
    loop {
        std::thread::park();
    }
}

/// Keeps the thread that takes events in at work for minutes, with the ledger of the first pod locked: a batch of
/// removals of blocks that it never held.
fn stick_events(gateway: &Arc<Gateway>) {
    let snapshot = gateway.snapshot();
    let Some(entry) = snapshot.entries().first() else { return };
    let (pod, gateway) = (entry.pod.id(), Arc::clone(gateway));
    let background = gateway.pods().background().clone();
    let task = TaskName::new(&format!("cache events of {}", entry.pod.facts().name));
    background.spawn(named(task, async move {
        let unknown: Vec<EngineHash> = (0..1 << 16).map(|at| EngineHash(u64::MAX - at)).collect();
        let removed = CacheEvent::Removed { tier: Tier::Gpu, blocks: &unknown };
        // An error says that the pod has gone: then nothing sticks.
        let _ = gateway.pods().index().writer().apply(pod, None, &vec![removed; 1 << 20]);
    }));
}
