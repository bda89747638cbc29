//! Accepting connections.
//!
//! Handshakes run concurrently, so that a silent peer does not delay others, and their number is
//! bounded.

use super::connection::{ZmtpConnection, with_timeout};
use super::error::ZmtpError;
use super::handshake::SocketKind;
use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::task::JoinSet;

const MAX_HANDSHAKES: usize = 64;

/// A bound socket.
pub struct ZmtpListener {
    tcp: TcpListener,
    address: SocketAddr,
    own: SocketKind,
    handshakes: JoinSet<Result<ZmtpConnection<TcpStream>, ZmtpError>>,
}

impl ZmtpListener {
    /// Listens at `address`; port 0 is any free one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(address: impl ToSocketAddrs, own: SocketKind) -> io::Result<Self> {
        let tcp = TcpListener::bind(address).await?;
        let address = tcp.local_addr()?;
        Ok(Self { tcp, address, own, handshakes: JoinSet::new() })
    }

    /// The bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next peer that completes the handshake. Failed handshakes are ignored.
    ///
    /// # Errors
    /// The operating system refuses to accept connections.
    pub async fn accept(&mut self) -> io::Result<ZmtpConnection<TcpStream>> {
        loop {
            tokio::select! {
                accepted = self.tcp.accept(), if self.handshakes.len() < MAX_HANDSHAKES => {
                    let (stream, _) = accepted?;
                    stream.set_nodelay(true)?;
                    self.handshakes.spawn(with_timeout(ZmtpConnection::handshake(stream, self.own)));
                }
                Some(handshake) = self.handshakes.join_next() => {
                    if let Ok(Ok(connection)) = handshake {
                        return Ok(connection);
                    }
                }
            }
        }
    }
}
