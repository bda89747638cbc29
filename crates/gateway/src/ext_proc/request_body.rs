//! The body of a request, as its chunks arrive in a stream: a body like any other to the stages.

use super::proto::ProcessingRequest;
use super::proto::processing_request::Request;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::codegen::tokio_stream::Stream;
use tonic::{Status, Streaming};

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BodyEnd {
    /// It has not.
    Open,
    /// With its last chunk, or with the head.
    Chunk,
    /// With trailers.
    Trailers,
    /// The stream ended before it: the client disconnected.
    Lost,
}

/// The body of the request of a stream.
pub(super) struct RequestBody<'a> {
    inbox: &'a mut Streaming<ProcessingRequest>,
    end: BodyEnd,
    /// The declared length.
    length: Option<u64>,
    received: u64,
}

/// Why a body has no more bytes.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The client disconnected.
    #[error("the data plane ended the stream")]
    Left,
    /// The connection to the data plane broke.
    #[error("the stream broke: {0}")]
    Broken(#[from] Box<Status>),
    /// A message that cannot come here.
    #[error("a message about the response came before the end of the request")]
    OutOfOrder,
}

impl<'a> RequestBody<'a> {
    pub(super) const fn new(
        inbox: &'a mut Streaming<ProcessingRequest>,
        end: BodyEnd,
        length: Option<u64>,
    ) -> Self {
        Self { inbox, end, length, received: 0 }
    }

    pub(super) const fn end(&self) -> BodyEnd {
        self.end
    }
}

impl Body for RequestBody<'_> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.end != BodyEnd::Open {
            return Poll::Ready(None);
        }
        let message = match ready!(Pin::new(&mut *self.inbox).poll_next(context)) {
            Some(Ok(message)) => message,
            Some(Err(status)) => {
                self.end = BodyEnd::Lost;
                return Poll::Ready(Some(Err(Box::new(status).into())));
            }
            None => {
                self.end = BodyEnd::Lost;
                return Poll::Ready(Some(Err(BodyError::Left)));
            }
        };
        match message.request {
            Some(Request::RequestBody(chunk)) => {
                if chunk.end_of_stream {
                    self.end = BodyEnd::Chunk;
                }
                self.received += chunk.body.len() as u64;
                Poll::Ready(Some(Ok(Frame::data(chunk.body))))
            }
            Some(Request::RequestTrailers(_)) => {
                self.end = BodyEnd::Trailers;
                Poll::Ready(None)
            }
            _ => Poll::Ready(Some(Err(BodyError::OutOfOrder))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.end != BodyEnd::Open
    }

    /// Of what is still to come.
    fn size_hint(&self) -> SizeHint {
        match (self.end, self.length) {
            (BodyEnd::Open, Some(length)) => {
                SizeHint::with_exact(length.saturating_sub(self.received))
            }
            (BodyEnd::Open, None) => SizeHint::default(),
            _ => SizeHint::with_exact(0),
        }
    }
}
