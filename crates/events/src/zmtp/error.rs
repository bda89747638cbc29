//! Why a peer cannot be spoken with.

use super::handshake::SocketKind;

/// The connection is of no more use; a new one may be.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    /// The network failed, or nobody listens.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer does not answer pings any more.
    #[error("the peer does not answer any more")]
    Lost,
    /// The peer did not finish its handshake in time.
    #[error("the peer did not finish the handshake within {seconds} s; is it a ZeroMQ socket?")]
    Silent {
        /// How long it had.
        seconds: u64,
    },
    /// The bytes are not those of a ZeroMQ peer that can be understood.
    #[error("{part}: found {found}, expected {expected}")]
    Unexpected {
        /// What was being read.
        part: &'static str,
        /// What stood there.
        found: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// A socket of another kind answers at this address.
    #[error("the peer is a {found} socket, which cannot speak with {own:?}; check the port")]
    WrongSocket {
        /// What we are.
        own: SocketKind,
        /// What the peer says it is.
        found: String,
    },
    /// A message larger than anything that is sent in earnest.
    #[error("{part}: found {found}, expected at most {limit}")]
    TooLarge {
        /// What is too large.
        part: &'static str,
        /// How large it claims to be.
        found: u64,
        /// How large it may be.
        limit: u64,
    },
}

impl ZmtpError {
    pub(super) fn unexpected(part: &'static str, found: &[u8], expected: &'static str) -> Self {
        let found = found[..found.len().min(32)].escape_ascii().to_string();
        Self::Unexpected { part, found: format!("\"{found}\""), expected }
    }
}
