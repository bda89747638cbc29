//! Peers that connect to us.
//!
//! Handshakes run beside each other: a peer that connects and says nothing keeps nobody waiting, and there
//! can only be so many of its kind.

use super::connection::{ZmtpConnection, in_time};
use super::error::ZmtpError;
use super::handshake::SocketKind;
use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::task::JoinSet;

const MOST_HANDSHAKES: usize = 64;

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
    /// The address cannot be had.
    pub async fn bind(address: impl ToSocketAddrs, own: SocketKind) -> io::Result<Self> {
        let tcp = TcpListener::bind(address).await?;
        let address = tcp.local_addr()?;
        Ok(Self { tcp, address, own, handshakes: JoinSet::new() })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next peer that has shaken hands. Whoever fails to is forgotten.
    ///
    /// # Errors
    /// The system gives no more connections.
    pub async fn accept(&mut self) -> io::Result<ZmtpConnection<TcpStream>> {
        loop {
            tokio::select! {
                accepted = self.tcp.accept(), if self.handshakes.len() < MOST_HANDSHAKES => {
                    let (stream, _) = accepted?;
                    stream.set_nodelay(true)?;
                    self.handshakes.spawn(in_time(ZmtpConnection::handshake(stream, self.own)));
                }
                Some(shaken) = self.handshakes.join_next() => {
                    if let Ok(Ok(connection)) = shaken {
                        return Ok(connection);
                    }
                }
            }
        }
    }
}
