//! What one engine holds for another while a plan of several steps runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use wornpath_index::Moment;

/// What is between two engines, and whom for.
#[derive(Debug, Default)]
pub(crate) struct KvLease {
    /// Nanoseconds until which one may hold what it computed for the other.
    until: AtomicU64,
    has_client_left: AtomicBool,
}

impl KvLease {
    /// What is said later counts.
    pub(crate) fn is_held(&self, until: Option<Moment>) {
        let nanos = until.map_or(0, |until| u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        self.until.store(nanos, Relaxed);
    }

    /// From now on nothing new is started.
    pub(crate) fn client_left(&self) {
        self.has_client_left.store(true, Relaxed);
    }

    /// Whether nothing is to be begun any more.
    pub(crate) fn has_client_left(&self) -> bool {
        self.has_client_left.load(Relaxed)
    }

    /// When the lease ends.
    pub(crate) fn until(&self) -> Moment {
        Duration::from_nanos(self.until.load(Relaxed))
    }
}
