//! Virtual time derived from the real clock, at its speed or faster.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Virtual time since an engine's start.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineClock {
    start: Instant,
    /// Virtual seconds per real second.
    speed: f64,
}

impl EngineClock {
    pub(super) fn start(speed: f64) -> Self {
        Self { start: Instant::now(), speed }
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed().mul_f64(self.speed)
    }

    /// The real time at which virtual time is `time`.
    pub(super) fn when(&self, time: Duration) -> Instant {
        self.start + time.div_f64(self.speed)
    }
}

/// The wall clock, for timestamps: `created`, event times, the process's start.
#[allow(clippy::disallowed_methods, reason = "a served engine does I/O, and no decision uses this")]
pub(super) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
