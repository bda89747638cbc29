//! Steal time: CPU time that the hypervisor gave to other machines.

use std::fs;
use std::time::{Duration, Instant};

/// A measurement with a higher steal share is repeated, while the retry budget lasts.
pub(crate) const MAX_SHARE: f64 = 0.05;
/// The pause before a repetition: steal changes within seconds.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// The total time for repeated measurements.
pub(crate) struct RetryBudget {
    left: Duration,
    /// Repetitions so far.
    pub(crate) used: usize,
}

impl RetryBudget {
    pub(crate) const fn of(left: Duration) -> Self {
        Self { left, used: 0 }
    }

    /// Whether the budget allows to repeat the measurement that began at `start`.
    pub(crate) fn allows(&mut self, start: Instant) -> bool {
        let left = self.left.checked_sub(start.elapsed() + RETRY_PAUSE);
        self.left = left.unwrap_or_default();
        self.used += usize::from(left.is_some());
        left.is_some()
    }
}

/// Clock ticks of all CPUs since boot: stolen ones, and all.
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

    /// The steal share since then.
    pub(crate) fn share_since(self) -> f64 {
        let now = Self::now();
        let gone = |now: u64, before: u64| now.saturating_sub(before) as f64;
        gone(now.stolen, self.stolen) / gone(now.all, self.all).max(1.0)
    }
}
