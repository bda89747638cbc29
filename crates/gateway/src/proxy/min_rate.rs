//! A minimum rate: when a body that still arrives is too slow.
//!
//! A client that sends one byte now and then is never silent for long, yet it keeps what its body
//! holds. So each body has a deadline that its bytes move; fast bytes earn no more than the grace
//! period, whatever was sent before.

use std::time::Duration;
use wornpath_index::Moment;

/// Minimum bytes per second of a body.
pub const MIN_RATE: u64 = 1 << 10;

/// The deadline of a body by its bytes.
#[derive(Clone, Copy, Debug)]
pub struct MinRate {
    /// How far ahead of the minimum rate a body can be.
    grace: Duration,
    deadline: Moment,
}

impl MinRate {
    /// A body that begins now.
    #[must_use]
    pub fn start(now: Moment, grace: Duration) -> Self {
        Self { grace, deadline: now.saturating_add(grace) }
    }

    /// Bytes have arrived; each moves the deadline.
    pub fn received(&mut self, now: Moment, bytes: usize) {
        let earned = Duration::from_secs_f64(bytes as f64 / MIN_RATE as f64);
        let latest = now.saturating_add(self.grace);
        self.deadline = self.deadline.saturating_add(earned).min(latest);
    }

    /// The time left for the next bytes.
    #[must_use]
    pub fn left(&self, now: Moment) -> Duration {
        self.deadline.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_below_the_minimum_rate_runs_out_of_time_whatever_it_sent_before() {
        let second = Duration::from_secs(1);
        let mut rate = MinRate::start(Moment::from_secs(100), 60 * second);
        rate.received(Moment::from_secs(101), 1 << 30);
        assert_eq!(
            rate.left(Moment::from_secs(101)),
            60 * second,
            "fast bytes earn no more than that"
        );
        let mut now = Moment::from_secs(101);
        let mut bytes = 0;
        while rate.left(now) >= 8 * second {
            now += 8 * second;
            rate.received(now, 1);
            bytes += 1;
            assert!(bytes < 20, "one byte in eight seconds goes on and on");
        }
        let mut steady = MinRate::start(Moment::ZERO, 60 * second);
        for passed in 1..100_000 {
            assert!(steady.left(Moment::at(passed * second)) > 50 * second);
            steady.received(Moment::at(passed * second), 1 << 10);
        }
    }
}
