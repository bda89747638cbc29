//! Account: what a response leaves behind, whatever carries its bytes.
//!
//! Tokens are counted while the bytes pass. Load, quota and summary are released once, when the
//! response ends, breaks, or is dropped because its client disconnected.

use crate::dialect::stream_end::StreamEnd;
use crate::dialect::{Api, Dialect};
use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::request_trace::ContinuationTrace;
use crate::observe::summary::{BestPod, Computed, RequestEnd, RequestSummary, Speculative};
use crate::proxy::continuation::reason::Moved;
use crate::proxy::quota::QuotaPermit;
use crate::proxy::usage::UsageScan;
use crate::proxy::worker::Worker;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use std::sync::Arc;
use wornpath_execution::{CallError, Endpoint, PrefillResult, RequestFingerprint};
use wornpath_index::Moment;
use wornpath_routing::{BestCached, PlanStep, Reservation};

/// How a client learns that its answer broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndMarker {
    /// By an error event in the stream.
    Event(Api),
    /// By the connection, which is closed before the end of the body.
    Disconnect,
}

/// Whether a chunk of a stream may end inside an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkEnds {
    /// Only at the ends of events.
    BetweenEvents,
    /// Anywhere.
    Anywhere,
}

/// The head of a response, as far as it is accounted.
#[derive(Debug)]
pub(crate) struct ResponseFacts {
    pub(crate) status: StatusCode,
    /// Attempts after the first.
    pub(crate) retries: u32,
    /// Whether a step of the plan was skipped.
    pub(crate) is_degraded: bool,
    /// The step that computed the prompt for the one that answers.
    pub(crate) prefill: Option<Box<PrefillResult>>,
}

/// What is released or reported when the answer ends: load, quota and summary.
pub(crate) struct OpenResponse {
    pub(crate) step: PlanStep,
    /// The load of the step that computes the prompt for this one; given back with the first byte.
    pub(crate) prefill: Option<Reservation>,
    pub(crate) endpoint: Option<Arc<Endpoint>>,
    pub(crate) permit: Option<QuotaPermit>,
    pub(crate) worker: Arc<Worker>,
    pub(crate) summary: RequestSummary,
    pub(crate) arrived: Moment,
    pub(crate) request: RequestFingerprint,
}

/// The account of one response.
pub(crate) struct ResponseAccount {
    end_marker: EndMarker,
    /// Whether the stream's last event has passed.
    stream_end: StreamEnd,
    chunk_ends: ChunkEnds,
    scan: UsageScan,
    /// Events that have passed, if it is a stream.
    events: Option<u64>,
    /// When the last of them passed.
    last_event: Option<Moment>,
    /// The head of a response whose first byte has not come.
    head: Option<ResponseFacts>,
    /// Taken when the answer has ended.
    open: Option<OpenResponse>,
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

    /// The dialect of a stream; none if it is none.
    pub(crate) fn dialect(self) -> Option<&'static dyn Dialect> {
        match self {
            Self::Event(api) => Some(api.dialect()),
            Self::Disconnect => None,
        }
    }
}

impl OpenResponse {
    /// Records the head of the response, whose first byte is there.
    pub(crate) fn begin(&mut self, facts: ResponseFacts) {
        let Self { step, worker, summary, arrived, .. } = self;
        let gateway = &worker.gateway;
        let snapshot = gateway.snapshot();
        let now = gateway.now();
        summary.status = facts.status.as_u16();
        summary.first_byte = Some(now.since(*arrived));
        summary.retries = facts.retries;
        summary.is_degraded = facts.is_degraded;
        let (cache, computed_by) = match &facts.prefill {
            Some(prefill) => (&prefill.cache, prefill.pod),
            None => (&step.cache, step.pod),
        };
        // A profile without a cache lookup predicts nothing, which is not the same as zero tokens.
        // Nor does it predict anything about a prompt that an earlier step has rewritten.
        let is_predicted = !step.is_rewritten();
        summary.predicted_tokens =
            summary.predicted_tokens.filter(|_| is_predicted).map(|_| cache.tokens);
        summary.unique_tokens = cache.unique_tokens;
        summary.best = cache.best.and_then(|best| best_pod(&snapshot, best)).map(Box::new);
        let speculative = cache.speculative.zip(computed_by);
        summary.speculative = speculative.map(|(last, pod)| Speculative { pod, last });
        summary.computed = facts.prefill.map(|prefill| Box::new(computed(&snapshot, &prefill)));
        let entry = step.pod.and_then(|pod| snapshot.entry(pod));
        summary.pod = entry.map(|entry| (entry.pod.id(), entry.pod.facts().name.clone()));
    }
}

fn best_pod(snapshot: &FleetSnapshot, best: BestCached) -> Option<BestPod> {
    let pod = snapshot.entry(best.pod)?.pod.facts().name.clone();
    Some(BestPod { pod, tokens: best.tokens, why: best.why })
}

/// The pod that computed the prompt for another one, and the usage that it reported.
fn computed(snapshot: &FleetSnapshot, prefill: &PrefillResult) -> Computed {
    let mut scan = UsageScan::default();
    scan.feed(&prefill.answer);
    let entry = prefill.pod.and_then(|pod| snapshot.entry(pod));
    Computed { pod: entry.map(|entry| entry.pod.facts().name.clone()), usage: scan.usage() }
}

impl ResponseAccount {
    pub(crate) fn new(end_marker: EndMarker, chunk_ends: ChunkEnds, open: OpenResponse) -> Self {
        let dialect = end_marker.dialect();
        let may_split = dialect.is_some_and(Dialect::may_split_events);
        Self {
            end_marker,
            stream_end: StreamEnd::default(),
            chunk_ends: if may_split { ChunkEnds::Anywhere } else { chunk_ends },
            scan: UsageScan::default(),
            events: dialect.map(|_| 0),
            last_event: None,
            head: None,
            open: Some(open),
        }
    }

    /// The account of a request that was sent and has no response yet.
    pub(crate) fn sent(open: OpenResponse) -> Self {
        Self::new(EndMarker::Disconnect, ChunkEnds::Anywhere, open)
    }

    /// The head of the response to a request that was [`sent`](Self::sent).
    pub(crate) fn headed(&mut self, end_marker: EndMarker, facts: ResponseFacts) {
        self.end_marker = end_marker;
        self.events = end_marker.dialect().map(|_| 0);
        if let Some(open) = &mut self.open {
            open.summary.status = facts.status.as_u16();
        }
        self.head = Some(facts);
    }

    /// What is open; none once the answer has ended.
    pub(crate) const fn open(&mut self) -> Option<&mut OpenResponse> {
        self.open.as_mut()
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether the last event of a stream has passed.
    pub(crate) const fn has_stream_end(&self) -> bool {
        self.stream_end.has_come()
    }

    /// Accounts for bytes that pass; `is_last` if no more follow.
    pub(crate) fn observe(&mut self, data: &Bytes, is_last: bool) {
        self.scan.feed(data);
        let new_events = self.events.as_ref().map_or(0, |_| count_events(data));
        if let Some(events) = &mut self.events {
            *events += new_events;
        }
        match self.end_marker {
            EndMarker::Event(api) if self.chunk_ends == ChunkEnds::Anywhere => {
                self.stream_end.look_at(api, data);
            }
            EndMarker::Event(_) => self.stream_end.look_at_chunk(data),
            // Only a stream of events has a last event.
            EndMarker::Disconnect => {}
        }
        let Some(open) = &mut self.open else { return };
        if let Some(facts) = self.head.take() {
            open.begin(facts);
        }
        let has_started = open.summary.pieces > 0;
        if new_events > 0 {
            let now = open.worker.gateway.now();
            match self.last_event.replace(now) {
                // The end of the stream has no token, and comes at once after the last one.
                Some(last) if !self.stream_end.has_come() => {
                    open.summary.gaps.record(now.since(last), new_events);
                }
                Some(_) => {}
                None => open.summary.first_token = Some(now.since(open.arrived)),
            }
        }
        open.summary.pieces += 1;
        open.prefill = None;
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
                if !is_last {
                    open.worker.gateway.wait_queue.poll(&*open.worker);
                }
            }
        }
    }

    /// The prompt is probably computed, although no byte shows it.
    pub(crate) fn prompt_computed(&mut self) {
        let Some(open) = &mut self.open else { return };
        if let Some(load) = &mut open.step.reservation {
            load.first_token();
        }
        open.prefill = None;
    }

    /// The body broke off with this error.
    pub(crate) fn broke(&mut self, error: &CallError) {
        if let Some(open) = &mut self.open {
            open.summary.reason = Some(error.to_string().into());
        }
        if let Some(OpenResponse { endpoint: Some(endpoint), worker, request, .. }) = &self.open {
            let gateway = &worker.gateway;
            // A request whose response had begun is not poison: pods that die break all streams.
            let blamed = gateway.poison.blamed(*request, gateway.now());
            endpoint.record_outcome(error.outcome(), blamed, gateway.now());
        }
        self.end(RequestEnd::Broken);
    }

    /// The router shuts down before the response is complete; the pod is not at fault.
    pub(crate) fn cut(&mut self) {
        if let Some(open) = &mut self.open {
            open.summary.reason = Some("the router shut down".into());
        }
        self.end(RequestEnd::Broken);
    }

    /// The pod broke the stream, and another one is decided: its load is given back.
    pub(crate) fn pod_lost(&mut self, error: &CallError) {
        let Some(open) = &mut self.open else { return };
        let gateway = &open.worker.gateway;
        if let Some(endpoint) = open.endpoint.take() {
            let blamed = gateway.poison.blamed(open.request, gateway.now());
            endpoint.record_outcome(error.outcome(), blamed, gateway.now());
        }
        open.step.reservation = None;
        gateway.wait_queue.poll(&*open.worker);
    }

    /// Another pod continues the stream.
    pub(crate) fn moved(&mut self, moved: Moved) {
        let Some(open) = &mut self.open else { return };
        let Moved { step, endpoint, retries, .. } = moved;
        let gateway = &open.worker.gateway;
        open.step = step;
        open.endpoint = Some(endpoint);
        if let Some(load) = &mut open.step.reservation {
            load.first_token_at(gateway.now());
        }
        let summary = &mut open.summary;
        summary.retries += retries;
        summary.continued += 1;
        // The prompt of the client was not what this pod has computed.
        summary.predicted_tokens = None;
        summary.speculative = None;
        let snapshot = gateway.snapshot();
        let entry = open.step.pod.and_then(|pod| snapshot.entry(pod));
        let pod = entry.map(|entry| (entry.pod.id(), entry.pod.facts().name.clone()));
        if let Some(trace) = &mut summary.trace {
            Arc::make_mut(trace).continuations.push(ContinuationTrace {
                at: gateway.now(),
                cause: moved.cause.name(),
                tokens: moved.tokens,
                from: summary.pod.take().map(|(_, name)| name),
                to: pod.as_ref().map(|(_, name)| name.clone()),
            });
        }
        summary.pod = pod;
        gateway.wait_queue.poll(&*open.worker);
    }

    pub(crate) fn end(&mut self, end: RequestEnd) {
        let Some(mut open) = self.open.take() else { return };
        if let Some(facts) = self.head.take() {
            open.begin(facts);
        }
        let OpenResponse {
            mut step, prefill, permit, worker, mut summary, arrived, request, ..
        } = open;
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
            if end == RequestEnd::Whole && (200..300).contains(&summary.status) {
                load.answered_at(tokens, worker.gateway.now());
            }
        }
        if let (RequestEnd::Whole, EndMarker::Event(_), Some(load)) =
            (end, self.end_marker, &mut step.reservation)
        {
            load.ended_at(worker.gateway.now());
        }
        // Released before the poll, so that a queued request can use the capacity.
        drop((step, prefill));
        if let Some(mut permit) = permit
            && summary.status < 400
        {
            permit.settle(&summary.usage);
        }
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

/// A response that is dropped before its end: its client disconnected.
impl Drop for ResponseAccount {
    fn drop(&mut self) {
        self.end(RequestEnd::ClientLeft);
    }
}
