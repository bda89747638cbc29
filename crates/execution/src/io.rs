//! The bytes between us and a pod, with or without TLS.

use crate::coop_budget::poll_turn;
use crate::io_waker::IoWaker;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The most that is written at once: the system copies it before it does anything else.
const PIECE: usize = 64 << 10;

/// A connection.
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection's bytes. They ring its bell, whoever polls for them.
pub(crate) struct ConnectionIo {
    stream: Socket,
    bell: Waker,
}

impl ConnectionIo {
    pub(crate) fn new(stream: Socket, bell: &Arc<IoWaker>) -> Self {
        Self { stream, bell: Waker::from(Arc::clone(bell)) }
    }
}

macro_rules! either {
    ($wire:expr, ($stream:ident, $context:ident) => $call:expr) => {{
        let ConnectionIo { stream, bell } = $wire.get_mut();
        let $context = &mut Context::from_waker(bell);
        match stream {
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
        let bytes = &bytes[..bytes.len().min(PIECE)];
        either!(self, (stream, context) => {
            ready!(poll_turn(context, bytes.len()));
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
        let (mut first, mut count, mut bytes) = ([io::IoSlice::new(&[]); 8], 0, 0);
        for piece in pieces.iter().take(first.len()) {
            let taken = piece.len().min(PIECE - bytes);
            first[count] = io::IoSlice::new(&piece[..taken]);
            (count, bytes) = (count + 1, bytes + taken);
        }
        either!(self, (stream, context) => {
            ready!(poll_turn(context, bytes));
            stream.poll_write_vectored(context, &first[..count])
        })
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
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
    async fn a_long_body_is_written_in_pieces_and_leaves_others_their_turn() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_peer, _) = listener.accept().await.unwrap();
        let mut wire = ConnectionIo::new(Socket::Plain(stream), &Arc::default());
        let (head, body) = ([b'h'; 300], vec![b'b'; 1 << 20]);
        let pieces = [io::IoSlice::new(&head), io::IoSlice::new(&body)];
        // The system would take more of it.
        let first = poll_fn(|context| Pin::new(&mut wire).poll_write_vectored(context, &pieces));
        assert_eq!(first.await.unwrap(), PIECE);
        tokio::task::yield_now().await;
        let mut written = 0;
        poll_fn(|context| {
            while let Poll::Ready(count) = Pin::new(&mut wire).poll_write(context, &body) {
                written += count.unwrap();
            }
            Poll::Ready(())
        })
        .await;
        assert_eq!(written, PIECE, "then it is another task's turn");
    }
}
