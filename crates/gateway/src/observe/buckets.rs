//! The exported bounds of histograms, and counts by them that are cheap enough for every token.

use std::time::Duration;

/// Exported upper bounds in seconds: from the overhead of a proxy to a long response.
pub const BOUNDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// [`BOUNDS`] in nanoseconds.
const BOUNDS_NANOS: [u64; BOUNDS.len()] = {
    let mut nanos = [0; BOUNDS.len()];
    let mut at = 0;
    while at < nanos.len() {
        // Exact: every bound is a whole number of microseconds.
        nanos[at] = (BOUNDS[at] * 1e6 + 0.5) as u64 * 1000;
        at += 1;
    }
    nanos
};

/// The times between the tokens of one response, counted where they are relayed and added to a
/// histogram when the response ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GapCounts {
    /// By the smallest bound that is not exceeded; the last bucket is beyond all bounds.
    pub counts: [u32; BOUNDS.len() + 1],
    /// The sum of all times.
    pub nanos: u64,
}

impl GapCounts {
    /// Counts the time between two chunks of which the second has `tokens` tokens.
    pub fn record(&mut self, time: Duration, tokens: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let each = nanos / tokens.max(1);
        let bucket = BOUNDS_NANOS.partition_point(|bound| *bound < each);
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.counts[bucket] = self.counts[bucket].saturating_add(tokens);
        self.nanos = self.nanos.saturating_add(nanos);
    }

    /// How many were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// Whether none was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_before_a_chunk_is_shared_by_its_tokens() {
        let mut gaps = GapCounts::default();
        assert!(gaps.is_empty());
        gaps.record(Duration::from_millis(10), 1);
        gaps.record(Duration::from_millis(40), 4);
        gaps.record(Duration::from_secs(400), 1);
        assert_eq!((gaps.counts[3], gaps.counts[16]), (5, 1), "10 ms is below its bound");
        assert_eq!((gaps.total(), gaps.nanos), (6, 400_050_000_000));
        let exact = BOUNDS.iter().zip(BOUNDS_NANOS);
        assert!(exact.into_iter().all(|(bound, nanos)| (bound * 1e9 - nanos as f64).abs() < 0.5));
    }
}
