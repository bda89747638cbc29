//! The lease on KV cache that one engine holds for another while a plan of several steps runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use wornpath_index::Moment;

/// Shared by the plan and the task that waits for its client.
#[derive(Debug, Default)]
pub(crate) struct KvLease {
    /// Nanoseconds until which an engine may hold what it computed for another.
    until: AtomicU64,
    has_client_left: AtomicBool,
}

impl KvLease {
    /// Sets when the lease expires; none if no engine holds anything.
    pub(crate) fn set_until(&self, until: Option<Moment>) {
        let nanos = until.map_or(0, |until| u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        self.until.store(nanos, Relaxed);
    }

    /// The client disconnected: the plan starts nothing new.
    pub(crate) fn set_client_left(&self) {
        self.has_client_left.store(true, Relaxed);
    }

    pub(crate) fn has_client_left(&self) -> bool {
        self.has_client_left.load(Relaxed)
    }

    /// When the lease expires.
    pub(crate) fn until(&self) -> Moment {
        Duration::from_nanos(self.until.load(Relaxed))
    }
}
