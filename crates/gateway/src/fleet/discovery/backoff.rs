//! How often an engine's own metrics are read.
//!
//! The router knows exactly what it sent where, so what engines say is only a correction: work of other
//! routers, and how full the cache is. Reading 100 pods every 50 ms costs whole cores elsewhere. Here a pod
//! that works is read every second, an idle one ever more seldom, and all pods together at most so often.
//! A reading that is missed changes nothing; only many in a row make what was read before too old to believe.

use std::time::Duration;

const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(15);
/// Readings a second over all pods.
const MOST_PER_SECOND: u32 = 50;
/// Misses in a row after which the last report counts no more.
const TOO_MANY: u32 = 5;

/// One pod's pace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrapeBackoff {
    wait: Duration,
    missed: u32,
}

impl Default for ScrapeBackoff {
    fn default() -> Self {
        Self { wait: OFTEN, missed: 0 }
    }
}

/// How a reading went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrapeReading {
    /// The pod works on something.
    Busy,
    /// The pod has nothing to do.
    Idle,
    /// It could not be read.
    Missed,
}

impl ScrapeBackoff {
    /// Notes how a reading went. Whether the last report is now too old to believe.
    pub fn note(&mut self, reading: ScrapeReading) -> bool {
        match reading {
            ScrapeReading::Busy => *self = Self::default(),
            ScrapeReading::Idle => *self = Self { wait: (self.wait * 2).min(SELDOM), missed: 0 },
            ScrapeReading::Missed => {
                self.missed += 1;
                self.wait = (self.wait * 2).min(SELDOM);
            }
        }
        self.missed == TOO_MANY
    }

    /// Until the next reading, in a fleet of so many pods.
    #[must_use]
    pub fn wait(&self, pods: usize) -> Duration {
        let pods = u32::try_from(pods).unwrap_or(u32::MAX);
        self.wait.max(Duration::from_secs(1).saturating_mul(pods) / MOST_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(readings: &[ScrapeReading]) -> Vec<u64> {
        let mut pace = ScrapeBackoff::default();
        readings
            .iter()
            .map(|reading| {
                pace.note(*reading);
                pace.wait(8).as_secs()
            })
            .collect()
    }

    #[test]
    fn a_busy_pod_is_read_every_second_and_an_idle_one_ever_more_seldom() {
        use ScrapeReading::{Busy, Idle, Missed};
        assert_eq!(waits(&[Busy, Busy]), [1, 1]);
        assert_eq!(waits(&[Idle, Idle, Idle, Idle, Idle, Busy]), [2, 4, 8, 15, 15, 1]);
        assert_eq!(waits(&[Missed, Missed, Missed, Idle]), [2, 4, 8, 15]);
    }

    #[test]
    fn many_pods_are_read_more_seldom_each() {
        assert_eq!(ScrapeBackoff::default().wait(50), Duration::from_secs(1));
        assert_eq!(ScrapeBackoff::default().wait(1000), Duration::from_secs(20));
    }

    #[test]
    fn one_missed_reading_changes_nothing_and_the_fifth_in_a_row_says_so_once() {
        let mut pace = ScrapeBackoff::default();
        let told: Vec<_> = (0..7).map(|_| pace.note(ScrapeReading::Missed)).collect();
        assert_eq!(told, [false, false, false, false, true, false, false]);
        pace.note(ScrapeReading::Idle);
        assert!(!pace.note(ScrapeReading::Missed));
    }
}
