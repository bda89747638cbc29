//! Processor time that the machine's host gave to others.

use std::fs;
use std::time::{Duration, Instant};

/// A measurement that lost more than this share of the processors is made again, while there is patience.
pub(crate) const MOST: f64 = 0.05;
/// Others come and go in seconds.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);

/// How long measurements may be made again, all together.
pub(crate) struct Patience {
    left: Duration,
    /// How often one was.
    pub(crate) used: usize,
}

impl Patience {
    pub(crate) const fn of(left: Duration) -> Self {
        Self { left, used: 0 }
    }

    /// Whether there is some left for what was begun at `start` and is to be made again.
    pub(crate) fn allows(&mut self, start: Instant) -> bool {
        let left = self.left.checked_sub(start.elapsed() + PAUSE);
        self.left = left.unwrap_or_default();
        self.used += usize::from(left.is_some());
        left.is_some()
    }
}

/// Ticks of all processors since the machine started: those that others had, and all.
#[derive(Clone, Copy)]
pub(crate) struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    pub(crate) fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
        let words = stat.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1);
        let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
        Self { stolen: ticks.get(7).copied().unwrap_or_default(), all: ticks.iter().sum() }
    }

    /// The share of the processors that others have had since.
    pub(crate) fn share_since(self) -> f64 {
        let now = Self::now();
        let gone = |now: u64, before: u64| now.saturating_sub(before) as f64;
        gone(now.stolen, self.stolen) / gone(now.all, self.all).max(1.0)
    }
}
