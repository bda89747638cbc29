//! An engine's answer: its head, and its body as it comes.

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

/// An answer whose body has begun, or has ended without a byte.
#[derive(Debug)]
pub struct EngineResponse {
    /// Status and headers.
    pub head: Parts,
    /// The body, chunk by chunk as the engine sent it.
    pub body: EngineBody,
}

/// The body of an answer. Dropping it before its end closes the connection, which engines take as a wish
/// to stop.
#[derive(Debug)]
pub struct EngineBody {
    /// What has been read already.
    first: Option<Frame<Bytes>>,
    second: Option<Frame<Bytes>>,
    /// None once it has ended. Apart, because answers are handed on a dozen times.
    rest: Option<Box<BodyRest>>,
    size: SizeHint,
}

#[derive(Debug)]
struct BodyRest {
    incoming: Incoming,
    /// Whether the body has been polled.
    is_asked_for: bool,
    /// Whether it is an answer to a client, and no probe's.
    is_work: bool,
    line: Connection,
    watch: TimeoutWatch,
    endpoint: Arc<Endpoint>,
    worker: WorkerNumber,
}

impl EngineResponse {
    /// Waits for the first piece of the body: until then another pod could still answer instead.
    pub(crate) async fn begun(
        head: Parts,
        incoming: Incoming,
        (line, watch): (Connection, TimeoutWatch),
        (endpoint, worker): (&Arc<Endpoint>, WorkerNumber),
    ) -> Result<Self, CallError> {
        let size = incoming.size_hint();
        let endpoint = Arc::clone(endpoint);
        let rest = BodyRest {
            incoming,
            is_asked_for: false,
            is_work: false,
            line,
            watch,
            endpoint,
            worker,
        };
        let mut body = EngineBody { first: None, second: None, rest: Some(Box::new(rest)), size };
        let first = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        body.first = first.transpose()?;
        if size.exact().is_some()
            && let Some(first) = body.first.take()
        {
            // If it has broken off already, another pod can answer instead.
            let mut asleep = Context::from_waker(Waker::noop());
            if let Poll::Ready(Some(second)) = Pin::new(&mut body).poll_frame(&mut asleep) {
                body.second = Some(second?);
            }
            body.first = Some(first);
        }
        Ok(Self { head, body })
    }

    /// One that has been read already.
    pub(crate) fn of(head: Parts, body: Bytes) -> Self {
        let size = SizeHint::with_exact(body.len() as u64);
        let first = Some(body).filter(|body| !body.is_empty()).map(Frame::data);
        Self { head, body: EngineBody { first, second: None, rest: None, size } }
    }

    /// Waits for more of the body, until there is enough of it, so many bytes, or all. It stays the body's beginning.
    ///
    /// # Errors
    /// If the body breaks off before.
    pub(crate) async fn look_ahead(
        &mut self,
        most: usize,
        mut is_enough: impl FnMut(&[u8]) -> bool,
    ) -> Result<Bytes, CallError> {
        let (mut all, mut trailers) = (BytesMut::new(), None);
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

    /// The whole body, if it has at most so many bytes.
    ///
    /// # Errors
    /// If it breaks off or is longer.
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
    /// A body without a byte.
    #[must_use]
    pub fn empty() -> Self {
        Self { first: None, second: None, rest: None, size: SizeHint::with_exact(0) }
    }

    /// What comes of it shows that the endpoint works.
    pub(crate) fn count_as_work(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.is_work = true;
        }
    }

    fn end(&mut self) {
        if let Some(mut rest) = self.rest.take()
            && rest.line.is_free()
        {
            let BodyRest { line, endpoint, worker, .. } = *rest;
            endpoint.keep(worker, line);
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
        // Only driving the connection brings more of the body: being woken by the body as well would
        // poll everything twice for each chunk. But hyper reads a body only once it has been asked for.
        let mut asleep = Context::from_waker(Waker::noop());
        let mut frame = Poll::Pending;
        if !std::mem::replace(&mut rest.is_asked_for, true) {
            frame = Pin::new(&mut rest.incoming).poll_frame(&mut asleep);
        }
        if frame.is_pending() {
            rest.line.drive(context);
            frame = Pin::new(&mut rest.incoming).poll_frame(&mut asleep);
        }
        match frame {
            Poll::Ready(Some(Ok(frame))) => {
                let now = match rest.watch.heard() {
                    Ok(now) => now,
                    Err(error) => {
                        // Nobody waits where a client takes it slowly, and it keeps the pod as long.
                        self.rest = None;
                        return Poll::Ready(Some(Err(error)));
                    }
                };
                if rest.is_work {
                    rest.endpoint.heard(now);
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
            Poll::Pending => match rest.watch.poll(context) {
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

    /// As long as nothing was taken out, what the engine said.
    fn size_hint(&self) -> SizeHint {
        self.size
    }
}
