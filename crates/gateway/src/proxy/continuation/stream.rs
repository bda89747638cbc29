//! One stream over all its pods: whole events of the first one, and after a break those of the
//! next.
//!
//! Polled by the task of its client, as the body of an engine is; no other task takes part. While
//! the next pod is decided and called, the stream waits for that instead of for bytes.

use super::KeptRequest;
use super::continued_body::ContinuedBody;
use super::event::{EngineFailure, Stop, StreamForm};
use super::reason::{BreakCause, Moved, NotContinued};
use super::request::continued;
use super::run::{Continuing, run};
use super::seam::Seam;
use super::sent::{Passed, Progress, SentText};
use super::token_ids::TokenIdFilter;
use crate::dialect::Api;
use crate::proxy::account::EndMarker;
use crate::proxy::worker::Worker;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};
use hyper::http::response::Parts;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use wornpath_execution::{CallError, EngineBody, PlanResponse, StepCall};
use wornpath_index::{Moment, PodId};
use wornpath_routing::{Health, PodState};

/// What comes next of a stream.
pub(crate) enum Polled {
    /// Bytes for the client.
    Data(Bytes),
    Trailers(Frame<Bytes>),
    /// The pod is lost, and another one is being decided.
    Lost,
    /// Another pod continues it.
    Moved(Box<Moved>),
    /// It is broken for good.
    Broken(CallError, NotContinued),
    /// It cannot be continued any more: from here on the body of its pod is all there is.
    Declined(NotContinued),
    /// It is complete.
    End,
}

/// A stream that is continued when its pod is lost.
pub(crate) struct KeptStream {
    worker: Arc<Worker>,
    /// None once it cannot be continued any more.
    request: Option<KeptRequest>,
    body: EngineBody,
    /// Whether the end of the body is known by the close of the connection.
    ends_by_closing: bool,
    /// Takes out the token ids that the client did not ask for.
    ids: Option<TokenIdFilter>,
    sent: SentText,
    seam: Option<Seam>,
    /// What is after the bytes that were passed on last.
    stop: Option<Stop>,
    moving: Option<Moving>,
    declined: Option<NotContinued>,
    pods: PodsOfStream,
}

/// The pods that a stream was on.
struct PodsOfStream {
    /// The state of the last one.
    state: Option<Arc<PodState>>,
    all: Vec<PodId>,
    /// When the last one was first seen to drain.
    drains_since: Option<Moment>,
    /// Whether no other pod could take it while its own drains.
    must_stay: bool,
    continued: usize,
}

/// The call to another pod.
type Run = Pin<Box<dyn Future<Output = Result<PlanResponse, NotContinued>> + Send>>;

/// A continuation that has not begun.
struct Moving {
    run: Run,
    cause: BreakCause,
    body: ContinuedBody,
    /// What broke the stream; none while the old pod still has it.
    error: Option<CallError>,
}

impl KeptStream {
    /// A stream, from its first byte on.
    pub(crate) fn new(
        worker: &Arc<Worker>,
        request: KeptRequest,
        head: &Parts,
        body: EngineBody,
        pod: Option<PodId>,
    ) -> Self {
        let sent = SentText::new(request.facts.form);
        let ids = request.asks_ids.then(TokenIdFilter::default);
        let mut stream = Self {
            worker: Arc::clone(worker),
            request: Some(request),
            body,
            ends_by_closing: !head.headers.contains_key(TRANSFER_ENCODING),
            ids,
            sent,
            seam: None,
            stop: None,
            moving: None,
            declined: None,
            pods: PodsOfStream {
                state: None,
                all: Vec::new(),
                drains_since: None,
                must_stay: false,
                continued: 0,
            },
        };
        stream.is_on(pod);
        stream
    }

    /// What broke it.
    pub(crate) fn error(&self) -> Option<&CallError> {
        self.moving.as_ref()?.error.as_ref()
    }

    /// Whether the client has all of it.
    pub(crate) fn is_complete(&self) -> bool {
        self.sent.progress() == Progress::Ended && self.body.is_end_stream()
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Polled> {
        loop {
            if let Some(polled) = self.stop.take().and_then(|stop| self.stopped(stop)) {
                return Poll::Ready(polled);
            }
            if let Some(moving) = &mut self.moving {
                let Poll::Ready(answered) = moving.run.as_mut().poll(context) else {
                    return Poll::Pending;
                };
                match self.answered(answered) {
                    Some(polled) => return Poll::Ready(polled),
                    None => continue,
                }
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                return Poll::Pending;
            };
            let data = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Polled::Trailers(trailers)),
                Some(Err(error)) => return Poll::Ready(self.broke(error)),
                None => return Poll::Ready(self.closed()),
            };
            let bytes = self.pass(data);
            self.move_from_draining();
            if !bytes.is_empty() {
                return Poll::Ready(Polled::Data(bytes));
            }
        }
    }

    /// What the client gets of the engine's next bytes.
    fn pass(&mut self, data: Bytes) -> Bytes {
        let mut ids = VecDeque::new();
        let data = match &mut self.ids {
            Some(filter) => filter.take(data, &mut ids),
            None => data,
        };
        let Passed { bytes, stop } = match &mut self.seam {
            Some(seam) => seam.pass(data, &mut ids),
            None => Passed { bytes: data, stop: None },
        };
        self.stop = stop;
        if self.declined.is_some() {
            return bytes;
        }
        let passed = self.sent.pass(bytes, &mut ids);
        self.stop = passed.stop.or(self.stop);
        if let Some(request) = &mut self.request {
            let held = self.ids.as_ref().map_or(0, TokenIdFilter::len);
            let bytes = request.sent.call.body.len() + self.sent.len() + held;
            let ids = self.sent.ids_len();
            if ids > 0 && request.bytes.grow_to(bytes + ids).is_err() {
                self.sent.lose_ids();
            }
            if let (Err(why), None) = (request.bytes.grow_to(bytes), self.stop) {
                self.stop = Some(Stop::NotContinued(why));
                return [&passed.bytes[..], &self.sent.rest()].concat().into();
            }
        }
        passed.bytes
    }

    /// The body of its pod, which is relayed but for the token ids.
    pub(crate) fn into_body(self) -> (EngineBody, Option<TokenIdFilter>) {
        (self.body, self.ids)
    }

    fn stopped(&mut self, stop: Stop) -> Option<Polled> {
        match stop {
            Stop::Failed(EngineFailure::Error(status)) => {
                Some(self.broke(CallError::Status(status)))
            }
            Stop::Failed(EngineFailure::Aborted) => Some(self.broke(CallError::Unfinished)),
            Stop::NotContinued(NotContinued::Diverged) => {
                self.body = EngineBody::empty();
                Some(Polled::Broken(CallError::Unfinished, NotContinued::Diverged))
            }
            Stop::NotContinued(why) => {
                self.declined = Some(why);
                self.request = None;
                // The events of another pod still need the names of the first.
                self.seam.is_none().then_some(Polled::Declined(why))
            }
        }
    }

    /// The engine closed the body: it is complete, or the engine crashed.
    fn closed(&mut self) -> Polled {
        let is_whole = match self.sent.progress() {
            Progress::Ended => true,
            Progress::Finished { .. } => {
                let may_lack_counts = self.sent.named().is_none() || self.declined.is_some();
                !self.ends_by_closing && may_lack_counts
            }
            Progress::Unnamed | Progress::Begun => self.declined.is_some() && !self.ends_by_closing,
        };
        if !is_whole {
            return self.broke(CallError::Unfinished);
        }
        let rest = [&self.sent.rest()[..], &self.rest_of_ids()].concat();
        if rest.is_empty() { Polled::End } else { Polled::Data(rest.into()) }
    }

    /// The beginning of an event of its pod that has not come to its end.
    fn rest_of_ids(&mut self) -> Bytes {
        self.ids.as_mut().map(TokenIdFilter::rest).unwrap_or_default()
    }

    /// The stream broke: another pod continues it, if that is possible.
    fn broke(&mut self, error: CallError) -> Polled {
        self.body = EngineBody::empty();
        if self.sent.progress() == Progress::Ended {
            return Polled::End;
        }
        self.sent.rest();
        self.rest_of_ids();
        let Some(cause) = BreakCause::of(&error) else {
            return Polled::Broken(error, NotContinued::Final);
        };
        if let (None, Progress::Finished { .. }) = (self.declined, self.sent.progress())
            && (self.sent.has_counts() || !self.needs_counts())
        {
            // The client lacks nothing but the last event.
            self.worker.gateway.continuations.count_continued(cause);
            let last = Bytes::from_static(self.sent.last_event());
            let last = self.sent.pass(last, &mut VecDeque::new());
            return Polled::Data(last.bytes);
        }
        match self.continuation() {
            Ok((run, body)) => {
                self.moving = Some(Moving { run, cause, body, error: Some(error) });
                Polled::Lost
            }
            Err(why) => Polled::Broken(error, why),
        }
    }

    /// Whether the client is to get token counts.
    fn needs_counts(&self) -> bool {
        let asks = |request: &KeptRequest| asks_counts(&request.sent.call);
        self.sent.named().is_some() || self.request.as_ref().is_none_or(asks)
    }

    /// The call that continues the stream.
    fn continuation(&self) -> Result<(Run, ContinuedBody), NotContinued> {
        if let Some(why) = self.declined {
            return Err(why);
        }
        let request = self.request.as_ref().ok_or(NotContinued::Final)?;
        if self.pods.continued >= self.worker.gateway.settings().continuation.most {
            return Err(NotContinued::Limit);
        }
        let body = continued(&request.sent.call.body, &self.sent)?;
        let mut sent = request.sent.clone();
        sent.call.body = body.body.clone();
        let continuing = Continuing {
            facts: request.facts.clone(),
            sent,
            lost: self.pods.all.clone(),
            needs_able: !body.resent.text.is_empty()
                && (body.resent.ids.is_some() || self.sent.form() != StreamForm::Completion),
            path: body.path,
        };
        Ok((Box::pin(run(Arc::clone(&self.worker), continuing)), body))
    }

    /// Another pod has answered, or none could.
    fn answered(&mut self, answered: Result<PlanResponse, NotContinued>) -> Option<Polled> {
        let Moving { cause, body, error, .. } = self.moving.take()?;
        let answered = answered.and_then(|response| {
            let is_stream = is_stream(&response.answer.head);
            if is_stream { Ok(response) } else { Err(NotContinued::Refused) }
        });
        let response = match (answered, error) {
            (Ok(response), _) => response,
            (Err(why), Some(error)) => return Some(Polled::Broken(error, why)),
            (Err(_), None) => {
                self.pods.must_stay = true;
                return None;
            }
        };
        self.worker.gateway.continuations.count_continued(cause);
        self.seam = Seam::after(&self.sent, &body);
        self.sent.continued_after(&body.resent);
        self.sent.rest();
        self.rest_of_ids();
        let PlanResponse { answer, step, endpoint, retries, has_extra_usage, .. } = response;
        self.ends_by_closing = !answer.head.headers.contains_key(TRANSFER_ENCODING);
        self.body = answer.body;
        self.pods.continued += 1;
        self.is_on(step.pod);
        let tokens = self.sent.tokens();
        let moved = Moved { step, endpoint, retries, has_extra_usage, cause, tokens };
        Some(Polled::Moved(Box::new(moved)))
    }

    fn is_on(&mut self, pod: Option<PodId>) {
        let snapshot = self.worker.gateway.snapshot();
        let entry = pod.and_then(|pod| snapshot.entry(pod));
        self.pods.state = entry.map(|entry| Arc::clone(entry.pod.state()));
        self.pods.drains_since = None;
        self.pods.all.extend(pod);
    }

    /// Begins to move a stream whose pod has been draining for long enough. The old body is kept
    /// until the new one has begun.
    fn move_from_draining(&mut self) {
        let pods = &mut self.pods;
        let drains = |state: &Arc<PodState>| state.health() == Health::Draining;
        if pods.must_stay || !pods.state.as_ref().is_some_and(drains) {
            return;
        }
        let gateway = &self.worker.gateway;
        let Some(after) = gateway.settings().drain.move_after else { return };
        let now = gateway.now();
        if now.since(*pods.drains_since.get_or_insert(now)) < after
            || self.sent.progress() != Progress::Begun
            || self.stop.is_some()
        {
            return;
        }
        match self.continuation() {
            Ok((run, body)) => {
                self.moving = Some(Moving { run, cause: BreakCause::Drained, body, error: None });
            }
            Err(_) => self.pods.must_stay = true,
        }
    }
}

/// Whether a response is a stream of events of which every byte can be replaced.
pub(crate) fn is_stream(head: &Parts) -> bool {
    let has = |name: HeaderName| head.headers.contains_key(name);
    head.status == StatusCode::OK
        && !has(CONTENT_ENCODING)
        && !has(CONTENT_LENGTH)
        && matches!(EndMarker::of(Api::CHAT, &head.headers), EndMarker::Event(_))
}

/// Whether a client asks for the token counts of its stream.
fn asks_counts(call: &StepCall) -> bool {
    let body = serde_json::from_slice::<serde_json::Value>(&call.body).unwrap_or_default();
    !call.asks_usage && body["stream_options"]["include_usage"] == true
}
