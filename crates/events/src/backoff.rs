//! Exponential backoff: the delay before the next attempt doubles with every failure, up to a
//! bound.
//!
//! Feeds (between queries), transports (between connection attempts) and relays (between publish
//! attempts) share this type. It reads no clock, so that feeds can use it in virtual time; callers
//! add the delay to their own time. Jitter keeps peers apart that lost the same engine or broker at
//! the same moment.

use std::time::Duration;

/// Counts failures in a row, and says how long to wait after them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    /// Added to every delay, in 1024ths of it; below a quarter.
    jitter: u32,
    failures: u32,
}

impl Backoff {
    pub(crate) const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, jitter: 0, failures: 0 }
    }

    /// Lengthens every delay by up to a quarter, the same share for the same seed.
    pub(crate) const fn with_jitter(self, seed: u64) -> Self {
        Self { jitter: (seed % 256) as u32, ..self }
    }

    /// Changes the bounds and keeps the count of failures.
    pub(crate) fn set_bounds(&mut self, min: Duration, max: Duration) {
        self.min = min;
        self.max = max;
    }

    /// The delay after the failures so far: `min` after none.
    pub(crate) fn delay(&self) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let delay = self.min.saturating_mul(factor).min(self.max.max(self.min));
        delay + delay * self.jitter / 1024
    }

    /// Counts a failure, and returns how long to wait before the next attempt.
    pub(crate) fn failed(&mut self) -> Duration {
        let delay = self.delay();
        self.failures = self.failures.saturating_add(1);
        delay
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_delay_doubles_with_every_failure_up_to_the_bound_and_starts_over_after_a_success() {
        let mut backoff = Backoff::new(SECOND, SECOND * 5);
        let delays = [(); 4].map(|()| backoff.failed());
        assert_eq!(delays, [SECOND, SECOND * 2, SECOND * 4, SECOND * 5]);
        for _ in 0..100 {
            backoff.failed();
        }
        assert_eq!((backoff.delay(), backoff.failures()), (SECOND * 5, 104));
        backoff.succeeded();
        assert_eq!((backoff.delay(), backoff.failures()), (SECOND, 0));
    }

    #[test]
    fn jitter_lengthens_a_delay_by_less_than_a_quarter() {
        let delay = |seed| Backoff::new(SECOND, SECOND).with_jitter(seed).delay();
        assert_eq!((delay(0), delay(128)), (SECOND, SECOND + SECOND / 8));
        assert!((0..512).all(|seed| (SECOND..SECOND * 5 / 4).contains(&delay(seed))));
    }

    #[test]
    fn a_bound_below_the_first_delay_has_no_effect() {
        let mut backoff = Backoff::new(SECOND, SECOND * 5);
        backoff.set_bounds(SECOND * 2, SECOND);
        assert_eq!((backoff.failed(), backoff.failed()), (SECOND * 2, SECOND * 2));
    }
}
