//! The body of a response to a client: bytes of the gateway, or a stream from an engine or a file.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use wornpath_execution::CallError;

/// The body of a response to a client.
pub enum ClientReply {
    /// Bytes of the gateway itself, sent as one frame; none if the body is empty or sent.
    Whole(Option<Bytes>),
    /// An engine's response, relayed frame by frame.
    Relay(Pin<Box<dyn Body<Data = Bytes, Error = CallError> + Send>>),
    /// Chunks that are read while earlier ones are sent, ended by `None`. A channel that closes
    /// without it breaks the response.
    Pieces(mpsc::Receiver<Option<Bytes>>),
}

impl ClientReply {
    /// A body of bytes that are already complete.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for ClientReply {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relay(relay) => relay.as_mut().poll_frame(context),
            Self::Pieces(pieces) => pieces.poll_recv(context).map(|piece| match piece {
                Some(piece) => piece.map(|piece| Ok(Frame::data(piece))),
                None => Some(Err(CallError::PodGone)),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Relay(relay) => relay.is_end_stream(),
            Self::Pieces(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Relay(relay) => relay.size_hint(),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}
