//! A minimal HTTP client over a raw connection that measures times.

use anyhow::{Context, bail, ensure};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::clock::nanos;
use crate::engine::head_end;

/// Longer than any answer takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// When the engine sent a token and when the client received it, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenTimes {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// A client's connection.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// The times of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Until the first byte of its body.
    pub(crate) first: Duration,
    /// Until its last.
    pub(crate) total: Duration,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(64 << 10) })
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) async fn request(&mut self, request: &[u8]) -> anyhow::Result<Times> {
        self.request_timed(request, |_| {}).await
    }

    /// Like `request`, and calls `token` with the times of each token.
    pub(crate) async fn request_timed(
        &mut self,
        request: &[u8],
        token: impl FnMut(TokenTimes),
    ) -> anyhow::Result<Times> {
        tokio::time::timeout(TIMEOUT, self.exchange(request, token)).await.context("no answer")?
    }

    async fn exchange(
        &mut self,
        request: &[u8],
        mut token: impl FnMut(TokenTimes),
    ) -> anyhow::Result<Times> {
        let started = Instant::now();
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let mut first = None;
        let mut body = 0;
        let mut length = None;
        let mut stamped = 0;
        loop {
            ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the connection was closed");
            if body == 0 {
                let Some(end) = head_end(&self.buffer) else { continue };
                let head = std::str::from_utf8(&self.buffer[..end])?;
                ensure!(head.starts_with("HTTP/1.1 200"), "answered: {head}");
                length = content_length(head);
                body = end;
                stamped = end;
            }
            if first.is_none() && self.buffer.len() > body {
                first = Some(started.elapsed());
            }
            if length.is_none() {
                stamped = report_tokens(&self.buffer, stamped, &mut token);
            }
            let is_whole = match length {
                Some(length) => self.buffer.len() >= body + length,
                None => self.buffer.ends_with(b"\r\n0\r\n\r\n"),
            };
            if !is_whole {
                continue;
            }
            if length.is_none() && !has_done_event(&self.buffer) {
                bail!("the stream ended without its last event");
            }
            let total = started.elapsed();
            return Ok(Times { first: first.unwrap_or(total), total });
        }
    }
}

fn content_length(head: &str) -> Option<usize> {
    let named = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    };
    head.split("\r\n").find_map(named)
}

/// Whether `[DONE]` is near the end; chunk sizes may follow it.
fn has_done_event(answer: &[u8]) -> bool {
    let tail = &answer[answer.len().saturating_sub(64)..];
    tail.windows(6).any(|window| window == b"[DONE]")
}

/// Reports the tokens that arrived since position `from`; returns the position to continue at.
fn report_tokens(answer: &[u8], from: usize, token: &mut impl FnMut(TokenTimes)) -> usize {
    const MARK: &[u8] = b"chatcmpl-";
    const DIGITS: usize = 20;
    let received = nanos();
    let mut at = from;
    while let Some(found) = answer[at..].windows(MARK.len()).position(|window| window == MARK) {
        let start = at + found + MARK.len();
        let Some(digits) = answer.get(start..start + DIGITS) else { return at + found };
        let sent = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
        if let Some(sent) = sent {
            token(TokenTimes { sent, received });
        }
        at = start + DIGITS;
    }
    at.max(answer.len().saturating_sub(MARK.len()))
}
