//! Respond and relay: the head of an answer, then its body, byte for byte, and its account.
//!
//! The account counts tokens and gives the pod's load back when the answer ends. A stream that breaks
//! is ended by an error event, so that no client takes it for complete.

use crate::dialect::Dialect;
use crate::dialect::stream_end::{lost_event, next_number, shutdown_event};
use crate::observe::summary::{RequestEnd, RequestSummary};
use crate::proxy::account::{ChunkEnds, EndMarker, OpenResponse, ResponseAccount, ResponseFacts};
use crate::proxy::continuation::KeptRequest;
use crate::proxy::continuation::reason::NotContinued;
use crate::proxy::continuation::stream::{KeptStream, Polled, is_stream};
use crate::proxy::continuation::token_ids::TokenIdFilter;
use crate::proxy::headers;
use crate::proxy::quota::QuotaPermit;
use crate::proxy::stream_usage::UsageFilter;
use crate::proxy::worker::Worker;
use crate::reply::ClientReply;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::http::response::Parts;
use hyper::{Response, Version};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use wornpath_config::DebugHeaders;
use wornpath_execution::{CallError, EngineBody, PlanResponse};
use wornpath_index::{Moment, PodId};

/// The response of a plan, and what is kept to continue its stream.
pub(crate) struct Answered {
    pub(crate) response: PlanResponse,
    pub(crate) permit: Option<QuotaPermit>,
    /// None if the answer is no stream.
    pub(crate) kept: Option<Result<KeptRequest, NotContinued>>,
    /// Whether the engine was asked for token ids that the client did not ask for.
    pub(crate) asks_ids: bool,
}

impl Answered {
    /// A response that no other pod continues.
    pub(crate) const fn once(response: PlanResponse) -> Self {
        Self { response, permit: None, kept: None, asks_ids: false }
    }
}

/// The response of a plan as the client gets it.
pub(crate) fn respond(
    worker: &Arc<Worker>,
    answered: Answered,
    summary: RequestSummary,
    arrived: Moment,
) -> Response<ClientReply> {
    let Answered { response, permit, kept, asks_ids } = answered;
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
    let body = response.answer.body;
    let source = Source::of(worker, kept, &response_head, body, response.step.pod);
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
    let is_events = matches!(end_marker, EndMarker::Event(_));
    let is_plain = matches!(source, Source::Engine(..));
    let filters = Filters {
        ids: (asks_ids && is_events && is_plain).then(TokenIdFilter::default),
        usage: (response.has_extra_usage && is_events).then(UsageFilter::default),
    };
    if !filters.are_none() {
        // The client gets less than that.
        response_head.headers.remove(CONTENT_LENGTH);
    }
    let framing = if ends_by_closing { BodyFraming::Close } else { BodyFraming::Delimited };
    let mut relay = Relay::new(source, framing, end_marker, open);
    relay.filters = filters;
    Response::from_parts(response_head, ClientReply::Relay(Box::pin(relay)))
}

/// What hyper gets when it polls an answer.
type PolledFrame = Poll<Option<Result<Frame<Bytes>, CallError>>>;

/// How the end of an engine's answer is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodyFraming {
    /// By its length or a last chunk.
    Delimited,
    /// By the close of the connection, which a crash causes too.
    Close,
}

/// Where the bytes of an answer come from.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are of one engine, and boxed with the relay"
)]
enum Source {
    /// One engine. Says why another one would not continue its stream, if it is one.
    Engine(EngineBody, Option<NotContinued>),
    /// An engine, and others that continue its stream.
    Kept(Box<KeptStream>),
}

impl Source {
    fn of(
        worker: &Arc<Worker>,
        kept: Option<Result<KeptRequest, NotContinued>>,
        head: &Parts,
        body: EngineBody,
        pod: Option<PodId>,
    ) -> Self {
        match kept {
            None => Self::Engine(body, None),
            Some(Err(why)) => Self::Engine(body, Some(why)),
            Some(Ok(_)) if !is_stream(head) => Self::Engine(body, Some(NotContinued::Refused)),
            Some(Ok(request)) => {
                Self::Kept(Box::new(KeptStream::new(worker, request, head, body, pod)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Engine(body, _) => body.is_end_stream(),
            Self::Kept(stream) => stream.is_complete(),
        }
    }
}

/// What takes out of a stream what its client did not ask for.
#[derive(Debug, Default)]
struct Filters {
    /// Token ids, unless a stream that may be continued takes them itself.
    ids: Option<TokenIdFilter>,
    /// Token counts.
    usage: Option<UsageFilter>,
}

impl Filters {
    const fn are_none(&self) -> bool {
        self.ids.is_none() && self.usage.is_none()
    }

    fn filter(&mut self, data: Bytes) -> Bytes {
        let data = match &mut self.ids {
            Some(filter) => filter.filter(data),
            None => data,
        };
        match &mut self.usage {
            Some(filter) => filter.filter(data),
            None => data,
        }
    }

    /// What is left when the stream has ended.
    fn rest(&mut self) -> Bytes {
        let ids = self.ids.take().map(|mut filter| filter.rest()).unwrap_or_default();
        match self.usage.take() {
            Some(mut filter) => [&filter.filter(ids)[..], &filter.rest()].concat().into(),
            None => ids,
        }
    }
}

/// The body of an engine's answer on its way to the client.
pub(crate) struct Relay {
    source: Source,
    framing: BodyFraming,
    end_marker: EndMarker,
    account: ResponseAccount,
    /// Whether events of the stream have numbers.
    numbers_events: bool,
    /// Whether the last bytes sent end an event.
    is_between_events: bool,
    /// The number of the next event, where events are numbered.
    next_number: u64,
    filters: Filters,
}

impl Relay {
    fn new(
        source: Source,
        framing: BodyFraming,
        end_marker: EndMarker,
        open: OpenResponse,
    ) -> Self {
        let chunk_ends = match framing {
            BodyFraming::Close => ChunkEnds::Anywhere,
            BodyFraming::Delimited => ChunkEnds::BetweenEvents,
        };
        let mut relay = Self {
            source,
            framing,
            end_marker,
            account: ResponseAccount::new(end_marker, chunk_ends, open),
            numbers_events: end_marker.dialect().is_some_and(Dialect::numbers_events),
            is_between_events: true,
            next_number: 0,
            filters: Filters::default(),
        };
        if relay.source.is_end_stream() && !relay.lacks_end() {
            relay.account.end(RequestEnd::Whole);
        }
        relay
    }

    /// Accounts for the bytes that pass.
    fn observe(&mut self, data: &Bytes) {
        if self.numbers_events {
            self.next_number = next_number(data).unwrap_or(self.next_number);
        }
        self.account.observe(data, self.source.is_end_stream());
    }

    /// The engine closed the body: it is complete, or the engine crashed.
    fn on_close(&mut self) -> PolledFrame {
        if self.account.is_open() && self.lacks_end() {
            let why = self.not_continued();
            return self.on_error(CallError::Unfinished, why);
        }
        self.end()
    }

    /// Why the engine's stream is not continued on another pod.
    const fn not_continued(&self) -> Option<NotContinued> {
        match &self.source {
            Source::Engine(_, why) => *why,
            Source::Kept(_) => None,
        }
    }

    /// The client has the whole answer, but for what the filter holds.
    fn end(&mut self) -> PolledFrame {
        self.account.end(RequestEnd::Whole);
        self.source = Source::Engine(EngineBody::empty(), None);
        let rest = self.filters.rest();
        Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))))
    }

    /// What the client gets of a chunk.
    fn pass_on(&mut self, data: Bytes) -> Bytes {
        let data = self.filters.filter(data);
        if !data.is_empty() {
            self.is_between_events = data.ends_with(b"\n\n");
        }
        data
    }

    /// What comes next of a stream that is continued; none if nothing for the client.
    fn kept(&mut self, polled: Polled) -> Option<PolledFrame> {
        match polled {
            Polled::Data(data) => {
                self.observe(&data);
                let data = self.pass_on(data);
                if self.source.is_end_stream() {
                    self.account.end(RequestEnd::Whole);
                }
                return (!data.is_empty()).then(|| Poll::Ready(Some(Ok(Frame::data(data)))));
            }
            Polled::Trailers(trailers) => return Some(Poll::Ready(Some(Ok(trailers)))),
            Polled::Broken(error, why) => return Some(self.on_error(error, Some(why))),
            Polled::End => return Some(self.end()),
            Polled::Lost => {
                if let Source::Kept(stream) = &self.source
                    && let Some(error) = stream.error()
                {
                    self.account.pod_lost(error);
                }
            }
            Polled::Moved(moved) => {
                if moved.has_extra_usage {
                    self.filters.usage.get_or_insert_default();
                }
                self.account.moved(*moved);
            }
            Polled::Declined(why) => {
                let none = Source::Engine(EngineBody::empty(), None);
                if let Source::Kept(stream) = std::mem::replace(&mut self.source, none) {
                    let (body, ids) = stream.into_body();
                    self.source = Source::Engine(body, Some(why));
                    self.filters.ids = ids;
                }
            }
        }
        None
    }

    /// Whether only the last event shows that a stream is complete, and it has not come.
    fn lacks_end(&self) -> bool {
        let is_known = matches!(self.end_marker, EndMarker::Event(api) if api.dialect().is_known());
        self.framing == BodyFraming::Close && is_known && !self.account.has_stream_end()
    }

    /// The body broke off.
    fn on_error(&mut self, error: CallError, why: Option<NotContinued>) -> PolledFrame {
        self.source = Source::Engine(EngineBody::empty(), None);
        if self.account.has_stream_end() {
            // The client has the whole stream.
            self.account.end(RequestEnd::Whole);
            return Poll::Ready(None);
        }
        if let (Some(why), Some(open)) = (why, self.account.open()) {
            open.worker.gateway.continuations.count_broken(why);
        }
        self.account.broke(&error);
        let EndMarker::Event(api) = self.end_marker else { return Poll::Ready(Some(Err(error))) };
        let why = why.map(NotContinued::text);
        self.last_event(&lost_event(api, &error, why, self.next_number))
    }

    /// An error event, on a line of its own.
    fn last_event(&self, event: &str) -> PolledFrame {
        let start = if self.is_between_events { "" } else { "\n\n" };
        Poll::Ready(Some(Ok(Frame::data(format!("{start}{event}").into()))))
    }

    /// Nothing has come. A stream that the drain does not wait for any longer ends here.
    fn on_pending(&mut self) -> PolledFrame {
        if !self.account.open().is_some_and(|open| open.worker.gateway.is_cut()) {
            return Poll::Pending;
        }
        self.source = Source::Engine(EngineBody::empty(), None);
        if self.account.has_stream_end() {
            self.account.end(RequestEnd::Whole);
            return Poll::Ready(None);
        }
        self.account.cut();
        match self.end_marker {
            EndMarker::Event(api) => self.last_event(&shutdown_event(api, self.next_number)),
            _ => Poll::Ready(Some(Err(CallError::Unfinished))),
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        let relay = self.get_mut();
        loop {
            let body = match &mut relay.source {
                Source::Engine(body, _) => body,
                Source::Kept(stream) => {
                    let Poll::Ready(polled) = stream.poll(context) else {
                        return relay.on_pending();
                    };
                    match relay.kept(polled) {
                        Some(frame) => return frame,
                        None => continue,
                    }
                }
            };
            let frame = match Pin::new(body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(error))) => {
                    let why = relay.not_continued();
                    return relay.on_error(error, why);
                }
                Poll::Ready(None) => return relay.on_close(),
                Poll::Pending => return relay.on_pending(),
            };
            let frame = match frame.into_data() {
                Ok(data) => {
                    relay.observe(&data);
                    Frame::data(relay.pass_on(data))
                }
                Err(trailers) => trailers,
            };
            if relay.source.is_end_stream() && relay.framing == BodyFraming::Delimited {
                relay.account.end(RequestEnd::Whole);
            }
            if relay.filters.are_none() || frame.data_ref().is_none_or(|data| !data.is_empty()) {
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        !self.account.is_open() && self.source.is_end_stream() && self.filters.are_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Engine(body, _) if self.filters.are_none() => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}
