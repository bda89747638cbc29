//! Times counted by size, with relaxed additions and nothing else.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds, in seconds: from a proxy's own cost to a long answer.
pub const BOUNDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// How many times fell between which bounds.
#[derive(Debug, Default)]
pub struct Histogram {
    /// By the smallest bound they keep to; the last is beyond all bounds.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    /// Counts a time.
    pub fn record(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// For every bound, and then for all, how many times were at most that.
    #[must_use]
    pub fn cumulative(&self) -> [u64; BOUNDS.len() + 1] {
        let mut total = 0;
        std::array::from_fn(|bucket| {
            total += self.counts[bucket].load(Relaxed);
            total
        })
    }

    /// The sum of all times, in seconds.
    #[must_use]
    pub fn sum(&self) -> f64 {
        Duration::from_nanos(self.nanos.load(Relaxed)).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_on_a_bound_counts_below_it_and_a_long_one_beyond_all() {
        let histogram = Histogram::default();
        for millis in [1, 2, 400_000] {
            histogram.record(Duration::from_millis(millis));
        }
        let counts = histogram.cumulative();
        assert_eq!((counts[0], counts[1], counts[15], counts[16]), (1, 2, 2, 3));
        assert!((histogram.sum() - 400.003).abs() < 1e-9);
    }
}
