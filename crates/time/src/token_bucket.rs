//! A token bucket: a rate limit that allows bursts.

use crate::Moment;
use std::time::Duration;

/// A token bucket. Tokens are refilled at a fixed rate, up to the burst. More can be taken than
/// there are: the debt is paid by waiting.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    refilled: Moment,
}

impl TokenBucket {
    /// A full bucket.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let burst = f64::from(burst);
        Self { per_second: f64::from(per_second), burst, tokens: burst, refilled: Moment::ZERO }
    }

    /// Takes tokens, and returns how long to wait until the debt is paid: zero if there is none.
    pub fn take(&mut self, tokens: u64, now: Moment) -> Duration {
        let refill = now.since(self.refilled).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + refill).min(self.burst) - tokens as f64;
        self.refilled = self.refilled.max(now);
        let debt = (-self.tokens).max(0.0);
        Duration::try_from_secs_f64(debt / self.per_second).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_what_follows_at_the_rate() {
        let mut bucket = TokenBucket::new(10, 100);
        let now = Moment::from_secs(50);
        assert_eq!(bucket.take(100, now), Duration::ZERO);
        assert_eq!(bucket.take(1, now), Duration::from_millis(100));
        assert_eq!(bucket.take(0, now + Duration::from_millis(100)), Duration::ZERO);
        assert_eq!(bucket.take(5, now + Duration::from_millis(100)), Duration::from_millis(500));
    }

    #[test]
    fn no_more_than_the_burst_is_saved_up_and_a_clock_that_steps_back_refills_nothing() {
        let mut bucket = TokenBucket::new(10, 100);
        assert_eq!(bucket.take(110, Moment::from_secs(1_000)), Duration::from_secs(1));
        assert_eq!(bucket.take(0, Moment::ZERO), Duration::from_secs(1));
        assert_eq!(bucket.take(110, Moment::from_secs(2_000)), Duration::from_secs(1));
    }
}
