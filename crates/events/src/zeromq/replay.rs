//! Client of an engine's replay socket, beside the live stream.
//!
//! The connection is reused after a complete reply. A reply that was given up closes the
//! connection, so that no part of it is taken for the reply to a later query.

use super::dial::Dialer;
use crate::wire::WireMessage;
use crate::zmtp::{SocketKind, ZmtpConnection, ZmtpError};
use bytes::Bytes;
use std::pin::Pin;
use tokio::net::TcpStream;

type Connecting = dyn Future<Output = Result<ZmtpConnection<TcpStream>, ZmtpError>> + Send;

pub(super) struct ReplayClient {
    address: String,
    pub(super) dial: Dialer,
    connection: Option<ZmtpConnection<TcpStream>>,
    /// Kept across calls: `select!` drops a call whenever a live message comes first.
    connecting: Option<Pin<Box<Connecting>>>,
    /// First sequence number to request.
    requested: Option<u64>,
    /// A reply is in flight.
    is_replying: bool,
}

impl ReplayClient {
    pub(super) fn new(address: String) -> Self {
        let dial = Dialer::default();
        Self {
            address,
            dial,
            connection: None,
            connecting: None,
            requested: None,
            is_replying: false,
        }
    }

    pub(super) fn request(&mut self, from: u64) {
        if self.is_replying {
            self.reset();
        }
        self.requested = Some(from);
    }

    pub(super) fn reset(&mut self) {
        let dial = std::mem::take(&mut self.dial);
        *self = Self { dial, ..Self::new(std::mem::take(&mut self.address)) };
    }

    /// The next message of a reply; pending while there is no query. A query that fails is dropped,
    /// and times out.
    pub(super) async fn next(&mut self) -> Vec<Bytes> {
        loop {
            match self.exchange().await {
                Ok(frames) => {
                    self.is_replying =
                        !matches!(WireMessage::parse(&frames), Ok(WireMessage::ReplayEnd));
                    return frames;
                }
                Err(_) => self.reset(),
            }
        }
    }

    async fn exchange(&mut self) -> Result<Vec<Bytes>, ZmtpError> {
        if self.requested.is_none() && !self.is_replying {
            return std::future::pending().await;
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let dial = &self.dial;
                let address = &self.address;
                let connecting = self.connecting.get_or_insert_with(|| {
                    Box::pin(dial.clone().connect(address.clone(), SocketKind::Dealer))
                });
                let connected = connecting.await;
                self.connecting = None;
                none.insert(connected?)
            }
        };
        if let Some(from) = self.requested.take() {
            self.is_replying = true;
            connection.send(&[&[][..], &from.to_be_bytes()]).await?;
        }
        connection.receive().await
    }
}
