//! Fault injection for tests of the watchdog: threads that hang.
//!
//! Only debug builds contain it, and it acts only if `WORNPATH_TEST_FAULTS` is set.

use crate::proxy::gateway::Gateway;
use crate::proxy::worker::Worker;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::named;
use hyper::HeaderMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use wornpath_index::{CacheEvent, EngineHash, Tier};

/// The request header that names the fault.
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
        _ => tracing::warn!(?fault, "unknown test fault"),
    }
}

/// Blocks the accept thread forever, once that fault is injected.
pub(crate) fn stick_accept() {
    if ACCEPT_STICKS.load(Relaxed) {
        stick();
    }
}

/// Blocks the thread forever, as a deadlock would.
fn stick() {
    loop {
        std::thread::park();
    }
}

/// Keeps the background thread busy for minutes while it holds the lock on the first pod's ledger:
/// a huge batch that removes blocks that the pod never held.
fn stick_events(gateway: &Arc<Gateway>) {
    let snapshot = gateway.snapshot();
    let Some(entry) = snapshot.entries().first() else { return };
    let pod = entry.pod.id();
    let gateway = Arc::clone(gateway);
    let background = gateway.pods().background().clone();
    let task = TaskName::new(&format!("cache events of {}", entry.pod.facts().name));
    background.spawn(named(task, async move {
        let unknown: Vec<EngineHash> = (0..1 << 16).map(|at| EngineHash(u64::MAX - at)).collect();
        let removed = CacheEvent::Removed { tier: Tier::Gpu, blocks: &unknown };
        // It fails only if the pod has been removed; then nothing hangs.
        let _ = gateway.pods().index().writer().apply(pod, None, &vec![removed; 1 << 20]);
    }));
}
