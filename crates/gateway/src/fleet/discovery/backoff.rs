//! Scrape backoff: how often an engine's metrics are read.
//!
//! The router counts its own requests exactly, so a scrape only adds the load of other routers and
//! the use of the cache. Scraping 100 pods every 50 ms would cost whole cores. A busy pod is
//! scraped every second, an idle one at doubling intervals, and the whole fleet at a bounded rate.
//! One missed scrape changes nothing; after several in a row the last report is discarded.

use std::time::Duration;

const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(15);
/// Scrapes per second over all pods.
const MAX_PER_SECOND: u32 = 50;
/// Misses in a row after which the last report is discarded.
const MAX_MISSES: u32 = 5;

/// The backoff of one pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrapeBackoff {
    interval: Duration,
    missed: u32,
}

impl Default for ScrapeBackoff {
    fn default() -> Self {
        Self { interval: MIN_INTERVAL, missed: 0 }
    }
}

/// The result of one scrape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrapeReading {
    /// The pod has requests.
    Busy,
    /// The pod has no requests.
    Idle,
    /// The metrics could not be read.
    Missed,
}

impl ScrapeBackoff {
    /// Records the result of a scrape. Returns whether the last report is to be discarded now.
    pub fn record(&mut self, reading: ScrapeReading) -> bool {
        match reading {
            ScrapeReading::Busy => *self = Self::default(),
            ScrapeReading::Idle => {
                *self = Self { interval: (self.interval * 2).min(MAX_INTERVAL), missed: 0 };
            }
            ScrapeReading::Missed => {
                self.missed += 1;
                self.interval = (self.interval * 2).min(MAX_INTERVAL);
            }
        }
        self.missed == MAX_MISSES
    }

    /// The time until the next scrape, in a fleet of `pods`.
    #[must_use]
    pub fn interval(&self, pods: usize) -> Duration {
        let pods = u32::try_from(pods).unwrap_or(u32::MAX);
        self.interval.max(Duration::from_secs(1).saturating_mul(pods) / MAX_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(readings: &[ScrapeReading]) -> Vec<u64> {
        let mut backoff = ScrapeBackoff::default();
        readings
            .iter()
            .map(|reading| {
                backoff.record(*reading);
                backoff.interval(8).as_secs()
            })
            .collect()
    }

    #[test]
    fn a_busy_pod_is_scraped_every_second_and_an_idle_one_at_doubling_intervals() {
        use ScrapeReading::{Busy, Idle, Missed};
        assert_eq!(intervals(&[Busy, Busy]), [1, 1]);
        assert_eq!(intervals(&[Idle, Idle, Idle, Idle, Idle, Busy]), [2, 4, 8, 15, 15, 1]);
        assert_eq!(intervals(&[Missed, Missed, Missed, Idle]), [2, 4, 8, 15]);
    }

    #[test]
    fn a_large_fleet_is_scraped_at_longer_intervals() {
        assert_eq!(ScrapeBackoff::default().interval(50), Duration::from_secs(1));
        assert_eq!(ScrapeBackoff::default().interval(1000), Duration::from_secs(20));
    }

    #[test]
    fn the_fifth_miss_in_a_row_discards_the_report_once() {
        let mut backoff = ScrapeBackoff::default();
        let discards: Vec<_> = (0..7).map(|_| backoff.record(ScrapeReading::Missed)).collect();
        assert_eq!(discards, [false, false, false, false, true, false, false]);
        backoff.record(ScrapeReading::Idle);
        assert!(!backoff.record(ScrapeReading::Missed));
    }
}
