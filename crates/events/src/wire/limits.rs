//! Limits of one message.

use super::error::DecodeError;

/// Limits of one message, which bound the memory of a batch whatever an engine sends.
#[derive(Clone, Copy, Debug)]
pub struct WireLimits {
    /// Bytes of the payload.
    pub payload_bytes: usize,
    /// Events, unknown ones included.
    pub events: usize,
    /// Block hashes over all events.
    pub blocks: usize,
    /// Token ids over all events.
    pub tokens: usize,
}

impl Default for WireLimits {
    /// An engine that fills a cache of a million tokens in one step stays well below these.
    fn default() -> Self {
        Self { payload_bytes: 32 << 20, events: 1 << 18, blocks: 1 << 20, tokens: 1 << 23 }
    }
}

pub(super) fn at_most(field: &'static str, found: usize, limit: usize) -> Result<(), DecodeError> {
    if found > limit { Err(DecodeError::TooLarge { field, found, limit }) } else { Ok(()) }
}
