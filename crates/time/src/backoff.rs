//! Exponential backoff: the delay before the next attempt doubles with every failure in a row, up
//! to a limit.
//!
//! Circuit breakers, offline runs, feeds, transports and relays share this type. It reads no clock,
//! so that simulations use it in virtual time; callers add the delay to their own time. Jitter
//! keeps peers apart that lost the same engine or broker at the same moment.

use std::time::Duration;

/// Counts failures in a row, and says how long to wait after them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// Added to every delay, in 1024ths of it; below a quarter.
    jitter: u32,
    failures: u32,
}

impl Backoff {
    /// Delays from `first` to `longest`, or always `first` if that is longer.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, jitter: 0, failures: 0 }
    }

    /// Lengthens every delay by up to a quarter, the same share for the same seed.
    #[must_use]
    pub const fn with_jitter(self, seed: u64) -> Self {
        Self { jitter: (seed % 256) as u32, ..self }
    }

    /// Changes the limits and keeps the count of failures.
    pub fn set_limits(&mut self, first: Duration, longest: Duration) {
        self.first = first;
        self.longest = longest;
    }

    /// The delay after the first failure.
    #[must_use]
    pub const fn first(&self) -> Duration {
        self.first
    }

    /// The limit of all delays, without jitter.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// The delay after so many failures in a row, whatever was counted.
    #[must_use]
    pub fn delay_after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let delay = self.first.saturating_mul(factor).min(self.longest.max(self.first));
        delay.saturating_add(delay.saturating_mul(self.jitter) / 1024)
    }

    /// The delay if the attempt that is being made fails too.
    #[must_use]
    pub fn next_delay(&self) -> Duration {
        self.delay_after(self.failures.saturating_add(1))
    }

    /// Counts a failure, and returns how long to wait before the next attempt.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.delay_after(self.failures)
    }

    /// Ends the row of failures.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Failures in a row so far.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_delay_doubles_with_every_failure_up_to_the_limit_and_starts_over_after_a_success() {
        let mut backoff = Backoff::new(SECOND, SECOND * 5);
        let delays = [(); 4].map(|()| backoff.failed());
        assert_eq!(delays, [SECOND, SECOND * 2, SECOND * 4, SECOND * 5]);
        for _ in 0..100 {
            backoff.failed();
        }
        assert_eq!(backoff.failures(), 104);
        assert_eq!(backoff.next_delay(), SECOND * 5);
        backoff.succeeded();
        assert_eq!(backoff.failures(), 0);
        assert_eq!(backoff.next_delay(), SECOND);
    }

    #[test]
    fn the_delay_after_a_number_of_failures_is_that_of_the_last_of_them() {
        let plain = Backoff::new(Duration::from_millis(250), SECOND * 30);
        let delays = [0, 1, 2, 3, 50].map(|failures| plain.delay_after(failures).as_millis());
        assert_eq!(delays, [250, 250, 500, 1000, 30_000]);
    }

    #[test]
    fn jitter_lengthens_a_delay_by_less_than_a_quarter() {
        let delay = |seed| Backoff::new(SECOND, SECOND).with_jitter(seed).next_delay();
        assert_eq!(delay(0), SECOND);
        assert_eq!(delay(128), SECOND + SECOND / 8);
        assert!((0..512).all(|seed| (SECOND..SECOND * 5 / 4).contains(&delay(seed))));
    }

    #[test]
    fn a_limit_below_the_first_delay_has_no_effect() {
        let mut backoff = Backoff::new(SECOND, SECOND * 5);
        backoff.set_limits(SECOND * 2, SECOND);
        assert_eq!([backoff.failed(), backoff.failed()], [SECOND * 2, SECOND * 2]);
    }
}
