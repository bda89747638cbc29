//! Exponential backoff: the delay doubles with every failure in a row, up to a limit.

use std::time::Duration;

/// Doublings after which the delay no longer grows, whatever the limit.
const MAX_DOUBLINGS: u32 = 10;

/// How long to wait before something that failed is tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// The limit of all delays.
    pub longest: Duration,
}

impl Backoff {
    /// The delay after so many failures in a row.
    #[must_use]
    pub fn delay(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_up_to_the_limit() {
        let backoff =
            Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(30) };
        let delays = [0, 1, 2, 3, 50].map(|failures| backoff.delay(failures).as_millis());
        assert_eq!(delays, [250, 250, 500, 1000, 30_000]);
    }
}
