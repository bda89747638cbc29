//! The bytes between us and a pod, with or without TLS.

use crate::bell::Bell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection's bytes. They ring its bell, whoever polls for them.
pub(crate) struct Wire {
    stream: Stream,
    bell: Waker,
}

impl Wire {
    pub(crate) fn new(stream: Stream, bell: &Arc<Bell>) -> Self {
        Self { stream, bell: Waker::from(Arc::clone(bell)) }
    }
}

macro_rules! either {
    ($wire:expr, ($stream:ident, $context:ident) => $call:expr) => {{
        let Wire { stream, bell } = $wire.get_mut();
        let $context = &mut Context::from_waker(bell);
        match stream {
            Stream::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Tls(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    }};
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, (stream, context) => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, (stream, context) => stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, (stream, context) => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, (stream, context) => stream.poll_shutdown(context))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, (stream, context) => stream.poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
