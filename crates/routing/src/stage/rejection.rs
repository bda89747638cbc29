//! How a request is turned away.

use std::time::Duration;

/// A request that is turned away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// The HTTP status that says it best.
    pub status: u16,
    /// Why, for the client and the log.
    pub reason: String,
    /// When trying again may help.
    pub retry_after: Option<Duration>,
}

impl Rejection {
    /// Nobody can serve it now.
    #[must_use]
    pub fn unavailable(reason: &str) -> Self {
        Self { status: 503, reason: reason.into(), retry_after: Some(Duration::from_secs(1)) }
    }

    /// Everybody is busy.
    #[must_use]
    pub fn busy(reason: &str) -> Self {
        Self { status: 429, ..Self::unavailable(reason) }
    }

    /// The client asks for what cannot be.
    #[must_use]
    pub fn refused(status: u16, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), retry_after: None }
    }
}
