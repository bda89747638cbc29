//! Waiting for a condition, with a deadline.

use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

const POLL: Duration = Duration::from_millis(5);

/// Polls `is_done`, and panics with `describe` if it is still false after `limit`. Works in paused
/// time too.
pub(crate) async fn until(
    limit: Duration,
    is_done: impl Fn() -> bool,
    describe: impl Fn() -> String,
) {
    let deadline = Instant::now() + limit;
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !is_done() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {}", describe());
        ticks.tick().await;
    }
}
