//! One peer: the handshake, then messages both ways.
//!
//! Both directions can be dropped at any await without losing or doubling a byte: what came stays in the
//! inbox, what is to be sent stays in the outbox.

use super::error::ZmtpError;
use super::frame::{self, Frame, Inbox};
use super::handshake::{self, GREETING, GREETING_BYTES, SocketKind};
use bytes::{Bytes, BytesMut};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs};

const HANDSHAKE: Duration = Duration::from_secs(5);

/// Room for the next read; a message that is longer takes several.
const READ_BYTES: usize = 64 << 10;

/// A peer that has shaken hands.
pub struct ZmtpConnection<S> {
    stream: S,
    inbox: Inbox,
    outbox: BytesMut,
    /// The frames of a message whose last has not come yet.
    frames: Vec<Bytes>,
    ping: Ping,
}

/// How the peer takes pings. One that never answered any may not know them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ping {
    NeverAnswered,
    Answered,
    Awaited,
}

impl ZmtpConnection<TcpStream> {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// Nobody listens there, or not a socket that can speak with `own`.
    pub async fn connect(address: impl ToSocketAddrs, own: SocketKind) -> Result<Self, ZmtpError> {
        in_time(async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Self::handshake(stream, own).await
        })
        .await
    }
}

/// The outcome, if it comes within the time that a handshake may take.
pub(crate) async fn in_time<T>(
    attempt: impl Future<Output = Result<T, ZmtpError>>,
) -> Result<T, ZmtpError> {
    let silent = ZmtpError::Silent { seconds: HANDSHAKE.as_secs() };
    tokio::time::timeout(HANDSHAKE, attempt).await.unwrap_or(Err(silent))
}

impl<S: AsyncRead + AsyncWrite + Unpin> ZmtpConnection<S> {
    /// Shakes hands over a fresh stream of any kind.
    ///
    /// # Errors
    /// The peer is no ZeroMQ socket that can speak with `own`.
    pub async fn handshake(stream: S, own: SocketKind) -> Result<Self, ZmtpError> {
        let (inbox, frames) = (Inbox::default(), Vec::new());
        let outbox = BytesMut::from(&GREETING[..]);
        let mut this = Self { stream, inbox, outbox, frames, ping: Ping::NeverAnswered };
        while this.inbox.bytes.len() < GREETING_BYTES {
            this.exchange().await?;
        }
        handshake::check_greeting(&this.inbox.bytes.split_to(GREETING_BYTES))?;
        own.put_ready(&mut this.outbox);
        loop {
            match this.inbox.next()? {
                Some(Frame::Command(body)) => {
                    own.check_ready(&body)?;
                    this.flush().await?;
                    return Ok(this);
                }
                Some(Frame::Part { body, .. }) => {
                    return Err(ZmtpError::unexpected("handshake", &body, "READY"));
                }
                None => this.exchange().await?,
            }
        }
    }

    /// The next message, as its frames.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub async fn receive(&mut self) -> Result<Vec<Bytes>, ZmtpError> {
        loop {
            match self.inbox.next()? {
                Some(Frame::Command(body)) => self.obey(&body),
                Some(Frame::Part { body, more }) => {
                    self.frames.push(body);
                    if !more {
                        return Ok(std::mem::take(&mut self.frames));
                    }
                }
                None => self.exchange().await?,
            }
        }
    }

    /// Sends a message. If this is dropped before its end, the rest is sent with the next.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub async fn send<F: AsRef<[u8]>>(&mut self, frames: &[F]) -> Result<(), ZmtpError> {
        frame::put_message(&mut self.outbox, frames);
        self.flush().await
    }

    /// Asks a publisher for the messages whose first frame begins with `topic`; all, if it is empty.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub async fn subscribe(&mut self, topic: &[u8]) -> Result<(), ZmtpError> {
        self.send(&[[&[1], topic].concat()]).await
    }

    /// Asks for a sign of life, to be called after a silence. Whether there was one since the last ping.
    ///
    /// # Errors
    /// The peer answered pings before and has stopped to, or the connection is of no more use.
    pub async fn ping(&mut self) -> Result<bool, ZmtpError> {
        let answered = self.ping;
        if answered == Ping::Awaited {
            return Err(ZmtpError::Lost);
        }
        if answered == Ping::Answered {
            self.ping = Ping::Awaited;
        }
        let no_limit_no_context = [0, 0];
        frame::put_command(&mut self.outbox, "PING", &no_limit_no_context);
        self.flush().await?;
        Ok(answered == Ping::Answered)
    }

    /// Sends bytes that are frames already.
    pub(super) async fn send_framed(&mut self, message: &[u8]) -> Result<(), ZmtpError> {
        self.outbox.extend_from_slice(message);
        self.flush().await
    }

    /// A peer that looks after its connections wants its ping returned. Commands that are not known
    /// are none of ours.
    fn obey(&mut self, body: &[u8]) {
        match frame::command(body) {
            Some((b"PING", content)) => {
                let context = content.get(2..).unwrap_or_default();
                frame::put_command(&mut self.outbox, "PONG", context);
            }
            Some((b"PONG", _)) => self.ping = Ping::Answered,
            _ => {}
        }
    }

    /// Sends what is to be sent, then waits for more bytes.
    async fn exchange(&mut self) -> Result<(), ZmtpError> {
        self.flush().await?;
        self.inbox.bytes.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.inbox.bytes).await? {
            0 => Err(ZmtpError::Closed),
            _ => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), ZmtpError> {
        while !self.outbox.is_empty() {
            if self.stream.write_buf(&mut self.outbox).await? == 0 {
                return Err(ZmtpError::Closed);
            }
        }
        Ok(())
    }
}
