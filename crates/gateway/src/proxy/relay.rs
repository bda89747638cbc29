//! Respond and relay: the head of an answer, then its body, byte for byte, and its account.
//!
//! The relay counts tokens and gives the pod's load back when the answer ends. A stream that breaks is
//! ended by an error event, so that no client takes it for complete.

use crate::dialect::stream_end::StreamEnd;
use crate::dialect::stream_end::{lost_event, next_number};
use crate::dialect::{Api, Dialect};
use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::summary::Computed;
use crate::observe::summary::Speculative;
use crate::observe::summary::{RequestEnd, RequestSummary};
use crate::proxy::gateway::QuotaPermit;
use crate::proxy::headers;
use crate::proxy::stream_usage::UsageFilter;
use crate::proxy::usage::UsageScan;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Response, Version};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use wornpath_config::DebugHeaders;
use wornpath_execution::{CallError, Endpoint, EngineBody};
use wornpath_execution::{PlanResponse, PrefillResult, RequestFingerprint};
use wornpath_index::Moment;
use wornpath_routing::PlanStep;

/// The response of a plan as the client gets it.
pub(crate) fn respond(
    worker: &Arc<Worker>,
    response: PlanResponse,
    permit: Option<QuotaPermit>,
    mut summary: RequestSummary,
    arrived: Moment,
) -> Response<ClientReply> {
    let gateway = &worker.gateway;
    let snapshot = gateway.snapshot();
    let settings = gateway.settings();
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
    summary.status = response_head.status.as_u16();
    let now = gateway.now();
    summary.first_byte = Some(now.since(arrived));
    if let (Some(load), 0, 200..300) =
        (&response.step.reservation, response.retries, summary.status)
    {
        load.began(now.since(arrived + summary.decided), now);
    }
    summary.retries = response.retries;
    summary.is_degraded = response.is_degraded;
    let (cache, computed_by) = match &response.prefill {
        Some(prefill) => (&prefill.cache, prefill.pod),
        None => (&response.step.cache, response.step.pod),
    };
    // A profile without a cache lookup predicts nothing, which is not the same as zero tokens.
    summary.predicted_tokens = summary.predicted_tokens.map(|_| cache.tokens);
    let speculative = cache.speculative.zip(computed_by);
    summary.speculative = speculative.map(|(last, pod)| Speculative { pod, last });
    summary.computed = response.prefill.map(|prefill| Box::new(computed(&snapshot, &prefill)));
    let entry = response.step.pod.and_then(|pod| snapshot.entry(pod));
    summary.pod = entry.map(|entry| (entry.pod.id(), entry.pod.facts().name.clone()));
    if settings.reveal == DebugHeaders::Pod
        && let Some((_, name)) = &summary.pod
    {
        headers::reveal(&mut response_head.headers, name, &response.step, response.is_degraded);
    }
    if response.is_degraded {
        response_head.headers.insert(headers::DEGRADED, HeaderValue::from_static("true"));
    }
    let end_marker = EndMarker::of(summary.api, &response_head.headers);
    let is_filtered = response.has_extra_usage && matches!(end_marker, EndMarker::Event(_));
    if is_filtered {
        // The client gets less than that.
        response_head.headers.remove(CONTENT_LENGTH);
    }
    let framing = if ends_by_closing { BodyFraming::Close } else { BodyFraming::Delimited };
    let open = OpenResponse {
        step: response.step,
        endpoint: response.endpoint,
        permit,
        worker: Arc::clone(worker),
        summary,
        arrived,
        request: response.request,
    };
    let mut relay = Relay::new(response.answer.body, framing, end_marker, open);
    relay.filter = is_filtered.then(UsageFilter::default);
    Response::from_parts(response_head, ClientReply::Relay(Box::pin(relay)))
}

/// The pod that computed the prompt for another one, and the usage that it reported.
fn computed(snapshot: &FleetSnapshot, prefill: &PrefillResult) -> Computed {
    let mut scan = UsageScan::default();
    scan.feed(&prefill.answer);
    let entry = prefill.pod.and_then(|pod| snapshot.entry(pod));
    Computed { pod: entry.map(|entry| entry.pod.facts().name.clone()), usage: scan.usage() }
}

/// How a client learns that its answer broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndMarker {
    /// By an error event in the stream.
    Event(Api),
    /// By the connection, which is closed before the end of the body.
    Disconnect,
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
    /// Whether the stream's last event has passed.
    stream_end: StreamEnd,
    /// Whether events of the stream have numbers.
    numbers_events: bool,
    /// Whether a chunk may end inside an event.
    may_split_events: bool,
    /// Whether the last bytes sent end an event.
    is_between_events: bool,
    /// The number of the next event, where events are numbered.
    next_number: u64,
    scan: UsageScan,
    /// Events that have passed, if it is a stream.
    events: Option<u64>,
    /// Removes the token counts that the client did not ask for.
    filter: Option<UsageFilter>,
    /// Taken when the answer has ended.
    open: Option<OpenResponse>,
}

/// What is released or reported when the answer ends: load, quota and summary.
pub(crate) struct OpenResponse {
    pub(crate) step: PlanStep,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) permit: Option<QuotaPermit>,
    pub(crate) worker: Arc<Worker>,
    pub(crate) summary: RequestSummary,
    pub(crate) arrived: Moment,
    pub(crate) request: RequestFingerprint,
}

impl EndMarker {
    pub(crate) fn of(api: Api, headers: &HeaderMap) -> Self {
        const STREAM: &[u8] = b"text/event-stream";
        let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        if kind.get(..STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(STREAM)) {
            Self::Event(api)
        } else {
            Self::Disconnect
        }
    }
}

impl Relay {
    pub(crate) fn new(
        body: EngineBody,
        framing: BodyFraming,
        end_marker: EndMarker,
        open: OpenResponse,
    ) -> Self {
        let dialect = match end_marker {
            EndMarker::Event(api) => Some(api.dialect()),
            EndMarker::Disconnect => None,
        };
        let mut relay = Self {
            body,
            framing,
            end_marker,
            stream_end: StreamEnd::default(),
            numbers_events: dialect.is_some_and(Dialect::numbers_events),
            may_split_events: framing == BodyFraming::Close
                || dialect.is_some_and(Dialect::may_split_events),
            is_between_events: true,
            next_number: 0,
            scan: UsageScan::default(),
            events: dialect.map(|_| 0),
            filter: None,
            open: Some(open),
        };
        if relay.body.is_end_stream() && !relay.lacks_end() {
            relay.end(RequestEnd::Whole);
        }
        relay
    }

    /// Accounts for the bytes that pass.
    fn observe(&mut self, data: &Bytes) {
        self.scan.feed(data);
        if let Some(events) = &mut self.events {
            *events += count_events(data);
        }
        if self.numbers_events {
            self.next_number = next_number(data).unwrap_or(self.next_number);
        }
        match self.end_marker {
            EndMarker::Event(api) if self.may_split_events => self.stream_end.look_at(api, data),
            EndMarker::Event(_) => self.stream_end.look_at_chunk(data),
            // Only a stream of events has a last event.
            EndMarker::Disconnect => {}
        }
        let Some(open) = &mut self.open else { return };
        let has_started = open.summary.pieces > 0;
        open.summary.pieces += 1;
        if let Some(load) = &mut open.step.reservation {
            // A chunk of a stream is about one token.
            if has_started {
                load.decoded(1);
            } else {
                match self.end_marker {
                    EndMarker::Event(_) => load.first_token_at(open.worker.gateway.now()),
                    // All tokens came at once, so the time says nothing about speed.
                    EndMarker::Disconnect => load.first_token(),
                }
                // The prompt is computed, so a queued request may go to this pod. If the answer
                // ends with this chunk, `end` polls the queue instead.
                if !self.body.is_end_stream() {
                    open.worker.gateway.wait_queue.poll(&*open.worker);
                }
            }
        }
    }

    /// The engine closed the body: it is complete, or the engine crashed.
    fn on_close(&mut self) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        if self.open.is_some() && self.lacks_end() {
            return self.on_error(CallError::Unfinished);
        }
        self.end(RequestEnd::Whole);
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
        self.framing == BodyFraming::Close && is_known && !self.stream_end.has_come()
    }

    /// The body broke off.
    fn on_error(&mut self, error: CallError) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        if self.stream_end.has_come() {
            // The client has the whole stream.
            self.end(RequestEnd::Whole);
            self.body = EngineBody::empty();
            return Poll::Ready(None);
        }
        if let Some(open) = &self.open {
            let gateway = &open.worker.gateway;
            // A request whose response had begun is not poison: pods that die break all streams.
            let blamed = gateway.poison.blamed(open.request, gateway.now());
            open.endpoint.record_outcome(error.outcome(), blamed, gateway.now());
        }
        self.end(RequestEnd::Broken);
        self.body = EngineBody::empty();
        let EndMarker::Event(api) = self.end_marker else { return Poll::Ready(Some(Err(error))) };
        let start = if self.is_between_events { "" } else { "\n\n" };
        let event = lost_event(api, &error, self.next_number);
        Poll::Ready(Some(Ok(Frame::data(format!("{start}{event}").into()))))
    }

    fn end(&mut self, end: RequestEnd) {
        let Some(open) = self.open.take() else { return };
        let OpenResponse { mut step, permit, worker, mut summary, arrived, request, .. } = open;
        // An error of the engine is complete too, and shows nothing.
        let is_refused = summary.status >= 500 || summary.status == 429;
        if end == RequestEnd::Whole && !is_refused {
            worker.gateway.poison.succeeded(request, worker.gateway.now());
        }
        if end == RequestEnd::Whole || !summary.api.dialect().counts_only_at_the_end() {
            summary.usage = std::mem::take(&mut self.scan).usage();
        }
        let ends = u64::from(self.stream_end.has_come());
        summary.events = self.events.map(|events| events.saturating_sub(ends));
        if let (Some(load), EndMarker::Disconnect, Some(tokens)) =
            (&mut step.reservation, self.end_marker, summary.usage.output_tokens)
        {
            // An answer that is not streamed was not counted token by token.
            load.decoded(tokens);
        }
        if let (RequestEnd::Whole, EndMarker::Event(_), Some(load)) =
            (end, self.end_marker, &mut step.reservation)
        {
            load.ended_at(worker.gateway.now());
        }
        // Released before the poll, so that a queued request can use the capacity.
        drop(step);
        drop(permit);
        worker.gateway.wait_queue.poll(&*worker);
        // Events may have confirmed the prediction since.
        summary.speculative.take_if(|prefix| worker.is_confirmed(prefix));
        summary.ended = end;
        summary.total = worker.gateway.now().since(arrived);
        worker.gateway.ended(&summary);
    }
}

/// The blank lines in a chunk, each of which ends an event.
fn count_events(data: &[u8]) -> u64 {
    let pairs = memchr::memmem::find_iter(data, b"\n\n").count();
    let others = if pairs == 0 { memchr::memmem::find_iter(data, b"\r\n\r\n").count() } else { 0 };
    (pairs + others) as u64
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
                relay.end(RequestEnd::Whole);
            }
            if relay.filter.is_none() || frame.data_ref().is_none_or(|data| !data.is_empty()) {
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.open.is_none() && self.body.is_end_stream() && self.filter.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.filter {
            Some(_) => SizeHint::default(),
            None => self.body.size_hint(),
        }
    }
}
