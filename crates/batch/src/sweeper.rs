//! Removes expired files and batches now and then, if the clock is plausible.

use crate::batches::Batches;
use crate::retention::{ClockReading, Retention, RetentionClock};
use std::sync::Arc;
use std::time::Duration;
use wornpath_gateway::proxy::unix_time;
use wornpath_index::Moment;

/// Interval between removals of expired files and batches.
pub(crate) const SWEEP: Duration = Duration::from_secs(60);

/// When it swept last, and which clock it believes.
pub(crate) struct Sweeper {
    clock: RetentionClock,
    /// Whether the clock was compared with the store.
    is_compared: bool,
    last: Option<Moment>,
}

fn reading(batches: &Batches) -> ClockReading {
    ClockReading { monotonic: batches.worker.gateway().now(), wall: unix_time() }
}

impl Sweeper {
    pub(crate) fn new(batches: &Batches) -> Self {
        Self { clock: RetentionClock::new(reading(batches)), is_compared: false, last: None }
    }

    /// Removes what has expired, unless it has just done so.
    pub(crate) async fn sweep(&mut self, batches: &Arc<Batches>) {
        let now = reading(batches);
        if self.last.is_some_and(|last| now.monotonic.since(last) < SWEEP) {
            return;
        }
        self.last = Some(now.monotonic);
        match self.decide(batches, now).await {
            Some(Retention::Sweep) => {}
            Some(Retention::Jumped(seconds)) => {
                tracing::warn!(
                    seconds,
                    "implausible wall clock: expired files and batches are kept for a day"
                );
                return;
            }
            Some(Retention::Hold) | None => return,
        }
        let keep = batches.rules.keep.as_secs();
        match batches.with_store(move |store| store.sweep(now.wall, keep)).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "expired files and batches removed"),
            Err(error) => tracing::warn!(%error, "cannot remove expired files and batches"),
        }
    }

    /// The decision for a reading; none while the store cannot be asked for its newest time.
    async fn decide(&mut self, batches: &Arc<Batches>, now: ClockReading) -> Option<Retention> {
        if self.is_compared {
            return Some(self.clock.decide(now));
        }
        match batches.with_store(|store| store.newest()).await {
            Ok(newest) => {
                self.is_compared = true;
                Some(self.clock.compare(newest))
            }
            Err(error) => {
                tracing::warn!(%error, "cannot remove expired files and batches");
                None
            }
        }
    }
}
