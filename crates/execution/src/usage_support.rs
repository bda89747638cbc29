//! Whether an engine can be asked for the token counts of a stream.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// What is known of one engine.
#[derive(Debug, Default)]
pub(crate) struct UsageSupport(AtomicU8);

const UNKNOWN: u8 = 0;
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 2;

impl UsageSupport {
    /// Whether the engine refuses requests that ask, and answers the same requests without.
    pub(crate) fn is_refused(&self) -> bool {
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

    /// The engine refused the request itself.
    pub(crate) fn set_unknown(&self) {
        self.0.store(UNKNOWN, Relaxed);
    }
}
