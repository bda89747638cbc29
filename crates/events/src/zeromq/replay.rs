//! Asking an engine's replay socket, beside the live stream.
//!
//! A connection is kept while each answer has come to its end. One that was given up is closed with what is
//! still under way in it, so that no answer is taken for that of a later question.

use super::dial::Dialer;
use crate::wire::WireMessage;
use crate::zmtp::{SocketKind, ZmtpConnection, ZmtpError};
use bytes::Bytes;
use std::pin::Pin;
use tokio::net::TcpStream;

type Connecting = dyn Future<Output = Result<ZmtpConnection<TcpStream>, ZmtpError>> + Send;

pub(super) struct ReplayQuery {
    address: String,
    pub(super) dial: Dialer,
    connection: Option<ZmtpConnection<TcpStream>>,
    /// Kept over calls: a busy live stream interrupts each of them before it could come to its end.
    connecting: Option<Pin<Box<Connecting>>>,
    /// The number to ask from, until it is asked.
    wish: Option<u64>,
    /// An answer is under way.
    answering: bool,
}

impl ReplayQuery {
    pub(super) fn new(address: String) -> Self {
        let dial = Dialer::default();
        Self { address, dial, connection: None, connecting: None, wish: None, answering: false }
    }

    pub(super) fn ask(&mut self, from: u64) {
        if self.answering {
            self.forget();
        }
        self.wish = Some(from);
    }

    pub(super) fn forget(&mut self) {
        let dial = std::mem::take(&mut self.dial);
        *self = Self { dial, ..Self::new(std::mem::take(&mut self.address)) };
    }

    /// The next message of an answer; for ever, while there is none. A question that fails is dropped: who
    /// asked will ask again.
    pub(super) async fn next(&mut self) -> Vec<Bytes> {
        loop {
            match self.exchange().await {
                Ok(frames) => {
                    self.answering =
                        !matches!(WireMessage::parse(&frames), Ok(WireMessage::ReplayEnd));
                    return frames;
                }
                Err(_) => self.forget(),
            }
        }
    }

    async fn exchange(&mut self) -> Result<Vec<Bytes>, ZmtpError> {
        if self.wish.is_none() && !self.answering {
            return std::future::pending().await;
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let (dial, address) = (&self.dial, &self.address);
                let connecting = self.connecting.get_or_insert_with(|| {
                    Box::pin(dial.clone().connect(address.clone(), SocketKind::Dealer))
                });
                let connected = connecting.await;
                self.connecting = None;
                none.insert(connected?)
            }
        };
        if let Some(from) = self.wish.take() {
            self.answering = true;
            connection.send(&[&[][..], &from.to_be_bytes()]).await?;
        }
        connection.receive().await
    }
}
