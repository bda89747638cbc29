//! A connection to one peer: the handshake, then messages in both directions.
//!
//! Both directions are cancel-safe: received bytes stay in the inbox, bytes to send stay in the
//! outbox.

use super::error::ZmtpError;
use super::frame::{self, Frame, Inbox};
use super::handshake::{self, GREETING, GREETING_BYTES, SocketKind};
use bytes::{Bytes, BytesMut};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::{Instant, sleep_until};
use wornpath_time::{Moment, TokenBucket};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Buffer for the next read; a longer message takes several.
const READ_BYTES: usize = 64 << 10;

/// What a peer may send per second that is of no use: commands, and what [`ZmtpConnection::charge`]
/// counts.
const USELESS_PER_SECOND: u32 = 10_000;
const USELESS_BURST: u32 = 20_000;
/// Reading is paused for at least this long, so that a flood does not wake its thread for every
/// message.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// A peer after the handshake.
pub struct ZmtpConnection<S> {
    stream: S,
    inbox: Inbox,
    outbox: BytesMut,
    /// The frames of a message that is not complete yet.
    frames: Vec<Bytes>,
    ping: Ping,
    opened: Instant,
    useless: TokenBucket,
    /// Nothing is read before.
    paused_until: Option<Instant>,
    was_paused: bool,
}

/// The peer's answers to pings. A peer that never answered may not support them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ping {
    NeverAnswered,
    Answered,
    Awaited,
}

impl ZmtpConnection<TcpStream> {
    /// Connects and performs the handshake.
    ///
    /// # Errors
    /// The address is unreachable, or the peer is not a socket that talks to `own`.
    pub async fn connect(address: impl ToSocketAddrs, own: SocketKind) -> Result<Self, ZmtpError> {
        with_timeout(async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Self::handshake(stream, own).await
        })
        .await
    }
}

/// Applies the handshake's timeout.
pub(crate) async fn with_timeout<T>(
    attempt: impl Future<Output = Result<T, ZmtpError>>,
) -> Result<T, ZmtpError> {
    let timeout = ZmtpError::Timeout { seconds: HANDSHAKE_TIMEOUT.as_secs() };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, attempt).await.unwrap_or(Err(timeout))
}

impl<S: AsyncRead + AsyncWrite + Unpin> ZmtpConnection<S> {
    /// Performs the handshake over a new stream of any kind.
    ///
    /// # Errors
    /// The peer is not a ZeroMQ socket that talks to `own`.
    pub async fn handshake(stream: S, own: SocketKind) -> Result<Self, ZmtpError> {
        let mut this = Self {
            stream,
            inbox: Inbox::default(),
            outbox: BytesMut::from(&GREETING[..]),
            frames: Vec::new(),
            ping: Ping::NeverAnswered,
            opened: Instant::now(),
            useless: TokenBucket::new(USELESS_PER_SECOND, USELESS_BURST),
            paused_until: None,
            was_paused: false,
        };
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
    /// The connection is lost.
    pub async fn receive(&mut self) -> Result<Vec<Bytes>, ZmtpError> {
        loop {
            if let Some(until) = self.paused_until {
                sleep_until(until).await;
                self.paused_until = None;
            }
            match self.inbox.next()? {
                Some(Frame::Command(body)) => {
                    self.handle_command(&body);
                    self.charge(1);
                }
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

    /// Counts messages that were of no use against the peer's rate limit. Above it reading is
    /// paused, so that the peer's own queue fills instead of our processor.
    pub fn charge(&mut self, messages: u64) {
        let wait = self.useless.take(messages, Moment::at(self.opened.elapsed()));
        if wait > Duration::ZERO {
            self.paused_until = Instant::now().checked_add(wait.max(MIN_PAUSE));
            self.was_paused = true;
        }
    }

    /// Whether reading was paused since the last call.
    pub fn take_paused(&mut self) -> bool {
        std::mem::take(&mut self.was_paused)
    }

    /// Sends a message. If it is cancelled, the rest is sent with the next.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn send<F: AsRef<[u8]>>(&mut self, frames: &[F]) -> Result<(), ZmtpError> {
        frame::put_message(&mut self.outbox, frames);
        self.flush().await
    }

    /// Subscribes to messages whose first frame begins with `topic`; to all if it is empty.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn subscribe(&mut self, topic: &[u8]) -> Result<(), ZmtpError> {
        self.send(&[[&[1], topic].concat()]).await
    }

    /// Sends a ping; call it after a silence. Returns whether the peer answered the last one.
    ///
    /// # Errors
    /// The peer answered pings before and did not answer the last one, or the connection is lost.
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

    /// Sends bytes that are framed already.
    pub(super) async fn send_framed(&mut self, message: &[u8]) -> Result<(), ZmtpError> {
        self.outbox.extend_from_slice(message);
        self.flush().await
    }

    /// Answers pings, and records answers to ours. Unknown commands are ignored.
    fn handle_command(&mut self, body: &[u8]) {
        match frame::command(body) {
            Some((b"PING", content)) => {
                let context = content.get(2..).unwrap_or_default();
                frame::put_command(&mut self.outbox, "PONG", context);
            }
            Some((b"PONG", _)) => self.ping = Ping::Answered,
            _ => {}
        }
    }

    /// Flushes the outbox, then waits for more bytes.
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
