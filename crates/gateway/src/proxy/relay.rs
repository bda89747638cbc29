//! Respond and relay: the head of an answer, then its body, byte for byte, and its account.
//!
//! The account counts tokens and gives the pod's load back when the answer ends. A stream that breaks
//! is ended by an error event, so that no client takes it for complete.

use crate::dialect::Dialect;
use crate::dialect::stream_end::{lost_event, next_number};
use crate::observe::summary::{RequestEnd, RequestSummary};
use crate::proxy::account::{ChunkEnds, EndMarker, OpenResponse, ResponseAccount, ResponseFacts};
use crate::proxy::gateway::QuotaPermit;
use crate::proxy::headers;
use crate::proxy::stream_usage::UsageFilter;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::{Response, Version};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use wornpath_config::DebugHeaders;
use wornpath_execution::{CallError, EngineBody, PlanResponse};
use wornpath_index::Moment;

/// The response of a plan as the client gets it.
pub(crate) fn respond(
    worker: &Arc<Worker>,
    response: PlanResponse,
    permit: Option<QuotaPermit>,
    summary: RequestSummary,
    arrived: Moment,
) -> Response<ClientReply> {
    let settings = worker.gateway.settings();
    let mut response_head = response.answer.head;
    response_head.version = Version::HTTP_11;
    let headers = &response_head.headers;
    let ends_by_closing =
        !headers.contains_key(TRANSFER_ENCODING) && !headers.contains_key(CONTENT_LENGTH);
    if headers.contains_key(TRANSFER_ENCODING) {
        // Chunked framing takes precedence over a length (RFC 9112, section 6.3).
        response_head.headers.remove(CONTENT_LENGTH);
    }
    headers::strip(&mut response_head.headers);
    headers::strip_gateway_headers(&mut response_head.headers);
    headers::strip_response(&mut response_head.headers);
    let facts = ResponseFacts {
        status: response_head.status,
        retries: response.retries,
        is_degraded: response.is_degraded,
        prefill: response.prefill,
    };
    let mut open = OpenResponse {
        step: response.step,
        prefill: None,
        endpoint: Some(response.endpoint),
        permit,
        worker: Arc::clone(worker),
        summary,
        arrived,
        request: response.request,
    };
    open.begin(facts);
    if settings.reveal == DebugHeaders::Pod
        && let Some((_, name)) = &open.summary.pod
    {
        headers::reveal(&mut response_head.headers, name, &open.step, response.is_degraded);
    }
    if response.is_degraded {
        response_head.headers.insert(headers::DEGRADED, HeaderValue::from_static("true"));
    }
    let end_marker = EndMarker::of(open.summary.api, &response_head.headers);
    let is_filtered = response.has_extra_usage && matches!(end_marker, EndMarker::Event(_));
    if is_filtered {
        // The client gets less than that.
        response_head.headers.remove(CONTENT_LENGTH);
    }
    let framing = if ends_by_closing { BodyFraming::Close } else { BodyFraming::Delimited };
    let mut relay = Relay::new(response.answer.body, framing, end_marker, open);
    relay.filter = is_filtered.then(UsageFilter::default);
    Response::from_parts(response_head, ClientReply::Relay(Box::pin(relay)))
}

/// How the end of an engine's answer is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodyFraming {
    /// By its length or a last chunk.
    Delimited,
    /// By the close of the connection, which a crash causes too.
    Close,
}

/// The body of an engine's answer on its way to the client.
pub(crate) struct Relay {
    body: EngineBody,
    framing: BodyFraming,
    end_marker: EndMarker,
    account: ResponseAccount,
    /// Whether events of the stream have numbers.
    numbers_events: bool,
    /// Whether the last bytes sent end an event.
    is_between_events: bool,
    /// The number of the next event, where events are numbered.
    next_number: u64,
    /// Removes the token counts that the client did not ask for.
    filter: Option<UsageFilter>,
}

impl Relay {
    pub(crate) fn new(
        body: EngineBody,
        framing: BodyFraming,
        end_marker: EndMarker,
        open: OpenResponse,
    ) -> Self {
        let chunk_ends = match framing {
            BodyFraming::Close => ChunkEnds::Anywhere,
            BodyFraming::Delimited => ChunkEnds::BetweenEvents,
        };
        let mut relay = Self {
            body,
            framing,
            end_marker,
            account: ResponseAccount::new(end_marker, chunk_ends, open),
            numbers_events: end_marker.dialect().is_some_and(Dialect::numbers_events),
            is_between_events: true,
            next_number: 0,
            filter: None,
        };
        if relay.body.is_end_stream() && !relay.lacks_end() {
            relay.account.end(RequestEnd::Whole);
        }
        relay
    }

    /// Accounts for the bytes that pass.
    fn observe(&mut self, data: &Bytes) {
        if self.numbers_events {
            self.next_number = next_number(data).unwrap_or(self.next_number);
        }
        self.account.observe(data, self.body.is_end_stream());
    }

    /// The engine closed the body: it is complete, or the engine crashed.
    fn on_close(&mut self) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        if self.account.is_open() && self.lacks_end() {
            return self.on_error(CallError::Unfinished);
        }
        self.account.end(RequestEnd::Whole);
        let rest = self.filter.take().map(|mut filter| filter.rest());
        Poll::Ready(rest.filter(|rest| !rest.is_empty()).map(|rest| Ok(Frame::data(rest))))
    }

    /// What the client gets of a chunk.
    fn pass_on(&mut self, data: Bytes) -> Bytes {
        let data = match &mut self.filter {
            Some(filter) => filter.filter(data),
            None => data,
        };
        if !data.is_empty() {
            self.is_between_events = data.ends_with(b"\n\n");
        }
        data
    }

    /// Whether only the last event shows that a stream is complete, and it has not come.
    fn lacks_end(&self) -> bool {
        let is_known = matches!(self.end_marker, EndMarker::Event(api) if api.dialect().is_known());
        self.framing == BodyFraming::Close && is_known && !self.account.has_stream_end()
    }

    /// The body broke off.
    fn on_error(&mut self, error: CallError) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        if self.account.has_stream_end() {
            // The client has the whole stream.
            self.account.end(RequestEnd::Whole);
            self.body = EngineBody::empty();
            return Poll::Ready(None);
        }
        self.account.broke(&error);
        self.body = EngineBody::empty();
        let EndMarker::Event(api) = self.end_marker else { return Poll::Ready(Some(Err(error))) };
        let start = if self.is_between_events { "" } else { "\n\n" };
        let event = lost_event(api, &error, self.next_number);
        Poll::Ready(Some(Ok(Frame::data(format!("{start}{event}").into()))))
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
        loop {
            let frame = match Pin::new(&mut relay.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(error))) => return relay.on_error(error),
                Poll::Ready(None) => return relay.on_close(),
                Poll::Pending => return Poll::Pending,
            };
            let frame = match frame.into_data() {
                Ok(data) => {
                    relay.observe(&data);
                    Frame::data(relay.pass_on(data))
                }
                Err(trailers) => trailers,
            };
            if relay.body.is_end_stream() && relay.framing == BodyFraming::Delimited {
                relay.account.end(RequestEnd::Whole);
            }
            if relay.filter.is_none() || frame.data_ref().is_none_or(|data| !data.is_empty()) {
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        !self.account.is_open() && self.body.is_end_stream() && self.filter.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.filter {
            Some(_) => SizeHint::default(),
            None => self.body.size_hint(),
        }
    }
}
