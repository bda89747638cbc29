//! The answer's body on its way to the client: bytes untouched, load and tokens counted, a broken stream
//! ended by an error that no client can take for success.

use crate::dialect::stream_end::StreamEnd;
use crate::dialect::stream_error::{lost_event, next_number};
use crate::dialect::{Api, Dialect};
use crate::observe::summary::{RequestEnd, RequestSummary};
use crate::proxy::quota::QuotaPermit;
use crate::proxy::usage::UsageScan;
use crate::proxy::worker::Worker;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use wornpath_execution::{CallError, Endpoint, EngineBody};
use wornpath_index::Moment;
use wornpath_routing::PlanStep;

/// How a client can be told that its stream broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndMarker {
    /// By an event in the stream.
    ByEvent(Api),
    /// By nothing but the end of the connection.
    ByBreaking,
}

/// How an engine's answer ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// By its length or a last chunk: less of it is seen to be less.
    Told,
    /// When the connection is closed, as a crash would.
    Closing,
}

/// An engine's answer under way.
pub(crate) struct Relay {
    body: EngineBody,
    ends_by: End,
    told: EndMarker,
    /// Whether the stream has said that it is over.
    ending: StreamEnd,
    /// Whether events of the stream have numbers.
    numbers_events: bool,
    /// Whether a chunk may end inside an event.
    may_split_events: bool,
    /// Whether the last bytes sent end an event.
    is_between_events: bool,
    /// Of the next event, where events are numbered.
    next_number: u64,
    scan: UsageScan,
    /// Taken when the answer has ended: then the load is given back and the record is told.
    open: Option<Open>,
}

struct Open {
    step: PlanStep,
    endpoint: Arc<Endpoint>,
    /// Its place in its tenant's quota.
    turn: Option<QuotaPermit>,
    worker: Arc<Worker>,
    record: RequestSummary,
    arrived: Moment,
}

impl EndMarker {
    pub(crate) fn by(api: Api, headers: &HeaderMap) -> Self {
        const STREAM: &[u8] = b"text/event-stream";
        let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        if kind.get(..STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(STREAM)) {
            Self::ByEvent(api)
        } else {
            Self::ByBreaking
        }
    }
}

impl Relay {
    pub(crate) fn new(
        (body, ends_by): (EngineBody, End),
        (step, endpoint, turn): (PlanStep, Arc<Endpoint>, Option<QuotaPermit>),
        told: EndMarker,
        (worker, record, arrived): (Arc<Worker>, RequestSummary, Moment),
    ) -> Self {
        let open = Open { step, endpoint, turn, worker, record, arrived };
        let dialect = match told {
            EndMarker::ByEvent(api) => Some(api.dialect()),
            EndMarker::ByBreaking => None,
        };
        let mut relay = Self {
            body,
            ends_by,
            told,
            ending: StreamEnd::default(),
            numbers_events: dialect.is_some_and(Dialect::numbers_events),
            may_split_events: ends_by == End::Closing
                || dialect.is_some_and(Dialect::may_split_events),
            is_between_events: true,
            next_number: 0,
            scan: UsageScan::default(),
            open: Some(open),
        };
        if relay.body.is_end_stream() && !relay.lacks_its_end() {
            relay.end(RequestEnd::Whole);
        }
        relay
    }

    fn passes(&mut self, data: &Bytes) {
        self.is_between_events = data.ends_with(b"\n\n");
        self.scan.feed(data);
        if self.numbers_events {
            self.next_number = next_number(data).unwrap_or(self.next_number);
        }
        match self.told {
            EndMarker::ByEvent(api) if self.may_split_events => self.ending.look_at(api, data),
            EndMarker::ByEvent(_) => self.ending.look_at_chunk(data),
            // Whatever a text that is no stream of events says, it is not its end.
            EndMarker::ByBreaking => {}
        }
        let Some(open) = &mut self.open else { return };
        let has_begun = open.record.pieces > 0;
        open.record.pieces += 1;
        if let Some(load) = &mut open.step.reservation {
            // A chunk of a stream is a token, near enough.
            if has_begun {
                load.decoded(1);
            } else {
                match self.told {
                    EndMarker::ByEvent(_) => load.first_token_at(open.worker.gateway.now()),
                    // It came with all others, and tells nothing about speed.
                    EndMarker::ByBreaking => load.first_token(),
                }
                // Its prompt is computed: whoever waits for this pod may go now, or at its end if that is now.
                if !self.body.is_end_stream() {
                    open.worker.gateway.wait_queue.poll(&*open.worker);
                }
            }
        }
    }

    /// The engine said no more: all there is, or all that came before it crashed.
    fn ends(&mut self) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        if self.open.is_some() && self.lacks_its_end() {
            return self.breaks(CallError::Unfinished);
        }
        self.end(RequestEnd::Whole);
        Poll::Ready(None)
    }

    /// Whether only a stream's last word could say that it is over, and has not come.
    fn lacks_its_end(&self) -> bool {
        let is_known = matches!(self.told, EndMarker::ByEvent(api) if api.dialect().is_known());
        self.ends_by == End::Closing && is_known && !self.ending.has_come()
    }

    fn breaks(&mut self, error: CallError) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        if self.ending.has_come() {
            // What follows the last word is nobody's loss.
            self.end(RequestEnd::Whole);
            self.body = EngineBody::empty();
            return Poll::Ready(None);
        }
        if let Some(open) = &self.open {
            open.endpoint.record_outcome(error.outcome(), open.worker.gateway.now());
        }
        self.end(RequestEnd::Broken);
        self.body = EngineBody::empty();
        let EndMarker::ByEvent(api) = self.told else { return Poll::Ready(Some(Err(error))) };
        let start = if self.is_between_events { "" } else { "\n\n" };
        let event = lost_event(api, &error, self.next_number);
        Poll::Ready(Some(Ok(Frame::data(format!("{start}{event}").into()))))
    }

    fn end(&mut self, how: RequestEnd) {
        let Some(Open { mut step, turn, worker, mut record, arrived, .. }) = self.open.take()
        else {
            return;
        };
        if how == RequestEnd::Whole || !record.api.dialect().counts_only_at_the_end() {
            record.usage = std::mem::take(&mut self.scan).usage();
        }
        if let (Some(load), EndMarker::ByBreaking, Some(tokens)) =
            (&mut step.reservation, self.told, record.usage.output_tokens)
        {
            // What was not streamed was not counted token by token: how long answers are is learnt here.
            load.decoded(tokens);
        }
        if let (RequestEnd::Whole, EndMarker::ByEvent(_), Some(load)) =
            (how, self.told, &mut step.reservation)
        {
            load.ended_at(worker.gateway.now());
        }
        // The load first: whoever waits may go now.
        drop((step, turn));
        worker.gateway.wait_queue.poll(&*worker);
        // What events have confirmed since the decision is speculative no longer.
        record.speculative.take_if(|prefix| worker.is_confirmed(prefix));
        record.ended = how;
        record.total = worker.gateway.now().saturating_sub(arrived);
        worker.gateway.ended(&record);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end(RequestEnd::ClientLeft);
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        let relay = self.get_mut();
        match Pin::new(&mut relay.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    relay.passes(data);
                }
                if relay.body.is_end_stream() && relay.ends_by == End::Told {
                    relay.end(RequestEnd::Whole);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => relay.breaks(error),
            Poll::Ready(None) => relay.ends(),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.open.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
