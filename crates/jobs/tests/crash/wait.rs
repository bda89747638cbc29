//! Waiting for a real server, with a deadline.

use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until there is a value.
#[expect(clippy::disallowed_methods, reason = "a server lives in real time")]
pub(crate) fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        thread::sleep(POLL_INTERVAL);
    }
}
