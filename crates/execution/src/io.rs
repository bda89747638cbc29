//! The socket of a connection, with or without TLS.
//!
//! Reads and writes wake the connection's [`IoWaker`], whichever task polls. A long write goes out
//! in pieces that are charged to the task's cooperative budget.

use crate::coop_budget::poll_spend;
use crate::io_waker::IoWaker;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The most that one write takes: the kernel copies all of it before it returns.
const MAX_WRITE: usize = 64 << 10;

pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(crate) struct ConnectionIo {
    socket: Socket,
    waker: Waker,
}

impl ConnectionIo {
    pub(crate) fn new(socket: Socket, io_waker: &Arc<IoWaker>) -> Self {
        Self { socket, waker: Waker::from(Arc::clone(io_waker)) }
    }
}

macro_rules! either {
    ($io:expr, ($stream:ident, $context:ident) => $call:expr) => {{
        let ConnectionIo { socket, waker } = $io.get_mut();
        let $context = &mut Context::from_waker(waker);
        match socket {
            Socket::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Socket::Tls(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    }};
}

impl AsyncRead for ConnectionIo {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, (stream, context) => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for ConnectionIo {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = &bytes[..bytes.len().min(MAX_WRITE)];
        either!(self, (stream, context) => {
            ready!(poll_spend(context, bytes.len()));
            stream.poll_write(context, bytes)
        })
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
        let mut first = [io::IoSlice::new(&[]); 8];
        let mut count = 0;
        let mut bytes = 0;
        for piece in pieces.iter().take(first.len()) {
            let length = piece.len().min(MAX_WRITE - bytes);
            first[count] = io::IoSlice::new(&piece[..length]);
            count += 1;
            bytes += length;
        }
        either!(self, (stream, context) => {
            ready!(poll_spend(context, bytes));
            stream.poll_write_vectored(context, &first[..count])
        })
    }

    fn is_write_vectored(&self) -> bool {
        match &self.socket {
            Socket::Plain(stream) => stream.is_write_vectored(),
            Socket::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_long_body_is_written_in_pieces_and_yields_between_them() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_peer, _) = listener.accept().await.unwrap();
        let mut io = ConnectionIo::new(Socket::Plain(stream), &Arc::default());
        let head = [b'h'; 300];
        let body = vec![b'b'; 1 << 20];
        let pieces = [io::IoSlice::new(&head), io::IoSlice::new(&body)];
        // The kernel would take more of it.
        let first = poll_fn(|context| Pin::new(&mut io).poll_write_vectored(context, &pieces));
        assert_eq!(first.await.unwrap(), MAX_WRITE);
        tokio::task::yield_now().await;
        let mut written = 0;
        poll_fn(|context| {
            while let Poll::Ready(count) = Pin::new(&mut io).poll_write(context, &body) {
                written += count.unwrap();
            }
            Poll::Ready(())
        })
        .await;
        assert_eq!(written, MAX_WRITE, "then the budget is spent");
    }
}
