//! Whether an engine can be asked for the token counts of a stream.

use hyper::StatusCode;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// What is known of one engine.
#[derive(Debug, Default)]
pub struct UsageSupport(AtomicU8);

const UNKNOWN: u8 = 0;
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 2;

impl UsageSupport {
    /// Whether the engine refuses requests that ask, and answers the same requests without.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.0.load(Relaxed) == REFUSED
    }

    /// Whether the engine has answered a request that asked.
    pub(crate) fn is_accepted(&self) -> bool {
        self.0.load(Relaxed) == ACCEPTED
    }

    /// The engine answered a request that asked.
    pub(crate) fn set_accepted(&self) {
        self.0.store(ACCEPTED, Relaxed);
    }

    /// The engine refused a request that asked.
    pub(crate) fn set_refused(&self) {
        self.0.store(REFUSED, Relaxed);
    }

    /// The engine answered a request that asked and cannot be sent again.
    pub fn answered(&self, status: StatusCode) {
        match status.as_u16() {
            200..300 => self.set_accepted(),
            400 | 422 if !self.is_accepted() => self.set_refused(),
            _ => {}
        }
    }

    /// The engine refused the request itself.
    pub(crate) fn set_unknown(&self) {
        self.0.store(UNKNOWN, Relaxed);
    }
}
