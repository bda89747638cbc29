//! An engine's response: its head, and its body as it streams in.
//!
//! The body drives its connection when it is polled, so no other task takes part in a chunk. At its
//! end the connection returns to the pool; a body that is dropped before closes it.

use crate::connection::Connection;
use crate::endpoint::{Endpoint, WorkerNumber};
use crate::failure::CallError;
use crate::timeouts::TimeoutWatch;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::http::response::Parts;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A response whose first body byte is there, or whose body is empty.
#[derive(Debug)]
pub struct EngineResponse {
    /// Status and headers.
    pub head: Parts,
    /// The body, chunk by chunk as the engine sent it.
    pub body: EngineBody,
}

/// The body of a response. Dropping it before its end closes the connection, by which engines
/// cancel the request.
#[derive(Debug)]
pub struct EngineBody {
    /// Frames that were read ahead.
    first: Option<Frame<Bytes>>,
    second: Option<Frame<Bytes>>,
    /// None once it has ended. Boxed, because responses are moved a dozen times.
    rest: Option<Box<BodyRest>>,
    size: SizeHint,
}

#[derive(Debug)]
struct BodyRest {
    incoming: Incoming,
    is_polled: bool,
    /// Whether it is the response to a client's request, and not to a probe.
    is_client_traffic: bool,
    call: OpenCall,
}

/// A call that has its response head and not yet the whole body.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub(crate) connection: Connection,
    pub(crate) watch: TimeoutWatch,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) worker: WorkerNumber,
}

impl EngineResponse {
    /// Waits for the first chunk of the body: until then a retry on another pod is still possible.
    pub(crate) async fn begin(
        head: Parts,
        incoming: Incoming,
        call: OpenCall,
    ) -> Result<Self, CallError> {
        let size = incoming.size_hint();
        let rest = BodyRest { incoming, is_polled: false, is_client_traffic: false, call };
        let mut body = EngineBody { first: None, second: None, rest: Some(Box::new(rest)), size };
        let first = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        body.first = first.transpose()?;
        if size.exact().is_some()
            && let Some(first) = body.first.take()
        {
            // If the connection is lost already, a retry is still possible.
            let mut no_waker = Context::from_waker(Waker::noop());
            if let Poll::Ready(Some(second)) = Pin::new(&mut body).poll_frame(&mut no_waker) {
                body.second = Some(second?);
            }
            body.first = Some(first);
        }
        Ok(Self { head, body })
    }

    /// A response that has been read as a whole.
    pub(crate) fn from_bytes(head: Parts, body: Bytes) -> Self {
        let size = SizeHint::with_exact(body.len() as u64);
        let first = Some(body).filter(|body| !body.is_empty()).map(Frame::data);
        Self { head, body: EngineBody { first, second: None, rest: None, size } }
    }

    /// Reads ahead until `is_enough`, `most` bytes or the end. The bytes stay the beginning of the
    /// body.
    ///
    /// # Errors
    /// If the connection is lost or a timeout passes before.
    pub(crate) async fn look_ahead(
        &mut self,
        most: usize,
        mut is_enough: impl FnMut(&[u8]) -> bool,
    ) -> Result<Bytes, CallError> {
        let mut all = BytesMut::new();
        let mut trailers = None;
        while all.len() < most
            && let Some(frame) =
                poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await
        {
            match frame?.into_data() {
                Ok(data) => all.extend_from_slice(&data),
                Err(frame) => trailers = Some(frame),
            }
            if is_enough(&all) {
                break;
            }
        }
        let all = all.freeze();
        self.body.first = Some(all.clone()).filter(|all| !all.is_empty()).map(Frame::data);
        self.body.second = trailers;
        Ok(all)
    }

    /// Reads the whole body, which may have at most so many bytes.
    ///
    /// # Errors
    /// If the connection is lost, a timeout passes or the body is longer.
    pub async fn whole(mut self, most: usize) -> Result<(Parts, Bytes), CallError> {
        let mut all = BytesMut::new();
        while let Some(frame) =
            poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await
        {
            if let Ok(data) = frame?.into_data() {
                if all.len() + data.len() > most {
                    return Err(CallError::TooLarge(most));
                }
                all.extend_from_slice(&data);
            }
        }
        Ok((self.head, all.freeze()))
    }
}

impl EngineBody {
    /// A body without bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self { first: None, second: None, rest: None, size: SizeHint::with_exact(0) }
    }

    /// Lets its chunks count as activity of the endpoint.
    pub(crate) fn mark_client_traffic(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.is_client_traffic = true;
        }
    }

    fn end(&mut self) {
        if let Some(mut rest) = self.rest.take()
            && rest.call.connection.is_ready()
        {
            let OpenCall { connection, endpoint, worker, .. } = rest.call;
            endpoint.put_idle(worker, connection);
        }
    }
}

impl Body for EngineBody {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        if let Some(read) = self.first.take().or_else(|| self.second.take()) {
            return Poll::Ready(Some(Ok(read)));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        // Only driving the connection brings more of the body: a wakeup by the body as well would
        // poll everything twice for each chunk. But hyper reads a body only once it has been
        // polled.
        let mut no_waker = Context::from_waker(Waker::noop());
        let mut frame = Poll::Pending;
        if !std::mem::replace(&mut rest.is_polled, true) {
            frame = Pin::new(&mut rest.incoming).poll_frame(&mut no_waker);
        }
        if frame.is_pending() {
            rest.call.connection.drive(context);
            frame = Pin::new(&mut rest.incoming).poll_frame(&mut no_waker);
        }
        match frame {
            Poll::Ready(Some(Ok(frame))) => {
                let now = match rest.call.watch.chunk() {
                    Ok(now) => now,
                    Err(error) => {
                        // A slow client never lets the timer fire, but occupies the pod as long.
                        self.rest = None;
                        return Poll::Ready(Some(Err(error)));
                    }
                };
                if rest.is_client_traffic {
                    rest.call.endpoint.record_activity(now);
                }
                if rest.incoming.is_end_stream() {
                    self.end();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.rest = None;
                Poll::Ready(Some(Err(CallError::Broken(error))))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Pending => match rest.call.watch.poll(context) {
                Poll::Ready(error) => {
                    self.rest = None;
                    Poll::Ready(Some(Err(error)))
                }
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.second.is_none() && self.rest.is_none()
    }

    /// The engine's content length, as long as no chunk was read.
    fn size_hint(&self) -> SizeHint {
        self.size
    }
}
