//! Errors of a connection.

/// Why a connection failed. A new one may succeed.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    /// A network error.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer answered pings before and stopped.
    #[error("the peer stopped answering pings")]
    Lost,
    /// The handshake timed out.
    #[error("handshake timeout after {seconds} s; check that the peer is a ZeroMQ socket")]
    Timeout {
        /// The timeout.
        seconds: u64,
    },
    /// The bytes are not ZMTP 3.
    #[error("{part}: found {found}, expected {expected}")]
    Unexpected {
        /// The part that was being read.
        part: &'static str,
        /// What the peer sent.
        found: String,
        /// What is valid there.
        expected: &'static str,
    },
    /// The peer is a socket of another type.
    #[error("the peer is a {found} socket, which does not talk to {own}; check the port")]
    WrongSocket {
        /// Our socket type.
        own: &'static str,
        /// The peer's socket type.
        found: String,
    },
    /// A message exceeds a limit.
    #[error("{part}: found {found}, expected at most {limit}")]
    TooLarge {
        /// Which limit.
        part: &'static str,
        /// The size that the peer announced.
        found: u64,
        /// The limit.
        limit: u64,
    },
}

impl ZmtpError {
    pub(super) fn unexpected(part: &'static str, found: &[u8], expected: &'static str) -> Self {
        let found = found[..found.len().min(32)].escape_ascii().to_string();
        Self::Unexpected { part, found: format!("\"{found}\""), expected }
    }
}
