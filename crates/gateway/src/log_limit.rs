//! A limit on how often a line is logged: what fails with every request would fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Lets one line through per interval.
#[derive(Debug)]
pub struct LogLimit {
    interval: Duration,
    last: Mutex<Option<Instant>>,
}

impl LogLimit {
    /// One line per `interval`.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        Self { interval, last: Mutex::new(None) }
    }

    /// Whether to log a line now.
    pub fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now >= last + self.interval);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_is_due_per_interval() {
        let limit = LogLimit::new(Duration::from_secs(1));
        let mut logged = 0;
        for _ in 0..10 {
            logged += usize::from(limit.is_due());
            tokio::time::advance(Duration::from_millis(250)).await;
        }
        assert_eq!(logged, 3);
    }
}
