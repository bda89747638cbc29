//! The response: which pod served it, the bytes that pass, and how it ended.
//!
//! Every chunk goes back at once and unchanged, except for token counts that the client did not ask
//! for. A stream that the data plane ends early says nothing about why: its client disconnected, or
//! the pod broke off. The next response of that pod, and probes, tell.

use super::answers::Outbox;
use super::destination::Destination;
use super::head;
use super::header_changes::HeaderChanges;
use super::hints::metadata_text;
use super::messages::{self, Direction, LB_NAMESPACE, Part};
use super::proto::processing_request::Request;
use super::proto::{BodySendMode, HttpBody, HttpHeaders, Metadata, ProcessingRequest};
use crate::dialect::Api;
use crate::observe::summary::RequestEnd;
use crate::proxy::account::{EndMarker, ResponseAccount, ResponseFacts};
use crate::proxy::headers;
use crate::proxy::stream_usage::UsageFilter;
use crate::proxy::worker::Worker;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Status, Streaming};
use wornpath_config::DebugHeaders;
use wornpath_execution::{CallOutcome, Endpoint, PrefillResult, RequestFingerprint, retry_after};
use wornpath_index::PodId;
use wornpath_routing::{AllowedPods, Name, Outcome, PlanStep, Profile, Retry, RoutingContext};

/// The key of the address that served, in the metadata of load balancers.
const SERVED: &str = "x-gateway-destination-endpoint-served";

/// Envoy adds this to a response that a pod has sent, and to none of its own.
const UPSTREAM_TIME: &str = "x-envoy-upstream-service-time";

/// A request that a data plane sends to a pod.
pub(super) struct SentRequest {
    pub(super) worker: Arc<Worker>,
    pub(super) account: ResponseAccount,
    pub(super) trial: Option<Trial>,
    pub(super) destinations: Vec<Destination>,
    pub(super) profile: Arc<Profile>,
    /// None only if the gateway shut down while the request was queued.
    pub(super) context: Option<RoutingContext>,
    /// The step that answers.
    pub(super) step: Name,
    /// The step that computes the prompt for it; its load is in the account.
    pub(super) prefill: Option<PlanStep>,
    /// Bytes of its body.
    pub(super) bytes: usize,
    pub(super) asks_usage: bool,
    /// When the prompt is probably computed, if no first byte shows it.
    pub(super) computed_after: Option<Duration>,
    pub(super) request: RequestFingerprint,
    pub(super) id: HeaderValue,
    pub(super) api: Api,
}

/// The one request that an endpoint gets while its circuit breaker is half open.
pub(super) struct Trial(Arc<Endpoint>);

impl Trial {
    /// None if the breaker is not half open.
    pub(super) fn begin(endpoint: &Arc<Endpoint>) -> Option<Self> {
        endpoint.begin_call().then(|| Self(Arc::clone(endpoint)))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.0.trial_ended();
    }
}

/// What the head of a response tells about its pod. A data plane that cannot reach a pod answers
/// itself, with the statuses of a pod that is busy; so one of these counts as the pod's own only if
/// a header proves it.
fn outcome(status: StatusCode, headers: &HeaderMap) -> CallOutcome {
    let is_of_pod = headers.contains_key(RETRY_AFTER) || headers.contains_key(UPSTREAM_TIME);
    match status.as_u16() {
        429 => CallOutcome::Busy(retry_after(headers)),
        502..=504 if !is_of_pod => CallOutcome::Unanswered,
        503 => CallOutcome::Busy(retry_after(headers)),
        500.. => CallOutcome::Errored,
        _ => CallOutcome::Good,
    }
}

/// Follows a response to its end.
pub(super) async fn follow(
    mut sent: SentRequest,
    mut inbox: Streaming<ProcessingRequest>,
    outbox: Outbox,
    mode: BodySendMode,
) -> Result<(), Status> {
    let mut filter = None;
    let computed_after = sent.computed_after;
    let mut computed = pin!(async {
        match computed_after {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    });
    let mut is_computing = true;
    let mut has_head = false;
    let mut held_head = None;
    loop {
        let message = tokio::select! {
            biased;
            message = inbox.message() => message,
            () = &mut computed, if is_computing => {
                is_computing = false;
                sent.account.prompt_computed();
                continue;
            }
        };
        let Ok(Some(message)) = message else {
            if sent.account.has_stream_end() {
                sent.account.end(RequestEnd::Whole);
            }
            return Ok(());
        };
        if let Some(Request::ResponseBody(_) | Request::ResponseTrailers(_)) = &message.request {
            held_head.take().into_iter().for_each(|answer| outbox.push(answer));
        }
        match message.request {
            Some(Request::ResponseHeaders(head)) => {
                has_head = true;
                let metadata = message.metadata_context.as_ref();
                let answer = messages::response_head(sent.headed(&head, metadata, &mut filter));
                if !head.end_of_stream && sent.holds_head(mode) {
                    held_head = Some(answer);
                } else {
                    outbox.push(answer);
                }
                if head.end_of_stream || mode == BodySendMode::None {
                    sent.account.end(RequestEnd::Whole);
                }
            }
            Some(Request::ResponseBody(_) | Request::ResponseTrailers(_)) if !has_head => {
                let message = "a response came without its head; set the processing mode \
                               `response_header_mode: SEND`";
                return Err(Status::failed_precondition(message));
            }
            Some(Request::ResponseBody(chunk)) => {
                is_computing = false;
                sent.pass(chunk, &mut filter, &outbox, mode);
            }
            Some(Request::ResponseTrailers(_)) => {
                let rest = filter.take().map(|mut filter: UsageFilter| filter.rest());
                let rest = rest.unwrap_or_default();
                messages::body(Direction::Response, rest, Part::Inner)
                    .for_each(|chunk| outbox.push(chunk));
                outbox.push(messages::trailers(Direction::Response));
                sent.account.end(RequestEnd::Whole);
            }
            Some(
                Request::RequestHeaders(_) | Request::RequestBody(_) | Request::RequestTrailers(_),
            ) => return Err(Status::invalid_argument("a part of the request came twice")),
            None => {
                let message = "a message is empty or of an unknown kind; the picker knows heads, \
                               bodies and trailers";
                return Err(Status::invalid_argument(message));
            }
        }
    }
}

impl SentRequest {
    /// Accounts for the head of the response, and moves the load to the pod that served it.
    fn headed(
        &mut self,
        head: &HttpHeaders,
        metadata: Option<&Metadata>,
        filter: &mut Option<UsageFilter>,
    ) -> HeaderChanges {
        let (status, headers) = head::response(head);
        let served = metadata_text(metadata, LB_NAMESPACE, SERVED).and_then(|it| it.parse().ok());
        let retries = self.settle(served);
        self.trial = None;
        self.report(status, &headers);
        let end_marker = EndMarker::of(self.api, &headers);
        if self.asks_usage && matches!(end_marker, EndMarker::Event(_)) && status.is_success() {
            *filter = Some(UsageFilter::default());
        }
        let prefill = self.prefill.take().map(|step| {
            let PlanStep { pod, cache, .. } = step;
            Box::new(PrefillResult { pod, cache, answer: Bytes::new() })
        });
        let facts = ResponseFacts { status, retries, is_degraded: false, prefill };
        self.account.headed(end_marker, facts);
        let mut changes = self.revealed();
        self.show_to_tests(served, &mut changes);
        changes
    }

    /// Whether the head goes back with the first byte of the body. In the other modes the data plane
    /// sends the body only after the head has gone back.
    fn holds_head(&self, mode: BodySendMode) -> bool {
        let settings = self.worker.gateway().settings();
        mode == BodySendMode::FullDuplexStreamed
            && settings.epp.as_ref().is_some_and(|epp| epp.holds_head)
    }

    /// Names the pod that was selected and the one that served, for conformance tests.
    fn show_to_tests(&self, served: Option<SocketAddr>, changes: &mut HeaderChanges) {
        let settings = self.worker.gateway().settings();
        if settings.epp.as_ref().is_none_or(|epp| !epp.has_test_hooks) {
            return;
        }
        if let Some(first) = self.destinations.first() {
            changes.set(head::TEST_SELECTED, first.address.to_string());
        }
        let failure = || "fail: missing destination endpoint served metadata".to_owned();
        changes.set(head::TEST_SERVED, served.map_or_else(failure, |served| served.to_string()));
    }

    /// The headers that name the pod, if the settings allow it.
    fn revealed(&mut self) -> HeaderChanges {
        let mut changes = HeaderChanges::default();
        let settings = self.worker.gateway().settings();
        let Some(open) = self.account.open() else { return changes };
        if settings.reveal == DebugHeaders::Pod
            && let Some((_, name)) = &open.summary.pod
        {
            let mut headers = HeaderMap::new();
            headers::reveal(&mut headers, name, &open.step, open.summary.is_degraded);
            headers.insert(headers::REQUEST_ID, self.id.clone());
            for (name, value) in &headers {
                changes.set(name.as_str(), value.as_bytes().to_vec());
            }
        }
        changes
    }

    /// Moves the request to the pod that served it. Returns how many pods failed before.
    fn settle(&mut self, served: Option<SocketAddr>) -> u32 {
        let Some(served) = served else { return 0 };
        let at = self.destinations.iter().position(|one| one.address == served);
        let failed = at.unwrap_or(0);
        let worker = Arc::clone(&self.worker);
        let gateway = worker.gateway();
        let snapshot = gateway.snapshot();
        let now = gateway.now();
        for destination in &self.destinations[..failed] {
            if let Some(endpoint) = snapshot.endpoint(destination.pod) {
                let blamed = gateway.poison.blamed(self.request, now);
                endpoint.record_outcome(CallOutcome::Suspect, blamed, now);
            }
        }
        let pod = match at {
            Some(0) => return 0,
            Some(at) => Some(self.destinations[at].pod),
            None => {
                let entries = snapshot.entries().iter();
                let mut at_address =
                    entries.filter(|entry| entry.pod.facts().address == Some(served));
                at_address.next().map(|entry| entry.pod.id())
            }
        };
        if let Some(first) = self.destinations.first() {
            self.roll_back(first.pod);
        }
        self.move_to(pod);
        u32::try_from(failed).unwrap_or(u32::MAX)
    }

    /// Decides the step again, for the pod that serves it: for its load, and what it is believed to
    /// hold. Without a pod, or one that no filter lets pass, the load counts nowhere.
    fn move_to(&mut self, pod: Option<PodId>) {
        let Self { worker, account, profile, context, step, .. } = self;
        let gateway = worker.gateway();
        let snapshot = gateway.snapshot();
        let Some(open) = account.open() else { return };
        open.step.reservation = None;
        open.step.pod = pod;
        open.endpoint = pod.and_then(|pod| snapshot.endpoint(pod)).cloned();
        let (Some(pod), Some(context)) = (pod, context) else { return };
        context.set_allowed(AllowedPods::These([pod].into()));
        let retry = Retry { step: Some(step), excluded: &[] };
        let outcome =
            worker.decide_now(&snapshot, gateway.now(), |env| profile.replan(context, env, retry));
        if let Outcome::Plan(plan) = outcome
            && let Some(step) = plan.steps.into_iter().next_back()
        {
            open.step = step;
        }
    }

    /// Tells the breaker of the pod how it answered.
    fn report(&mut self, status: StatusCode, headers: &HeaderMap) {
        let asks_usage = self.asks_usage;
        let Some(open) = self.account.open() else { return };
        let pod = open.step.pod;
        let gateway = open.worker.gateway();
        if let Some(endpoint) = &open.endpoint {
            let outcome = outcome(status, headers);
            let now = gateway.now();
            endpoint.record_outcome(outcome, gateway.poison.blamed(self.request, now), now);
            if asks_usage {
                endpoint.usage.answered(status);
            }
        }
        if let (false, Some(pod)) = (status.is_success(), pod) {
            self.roll_back(pod);
        }
    }

    /// A pod that is expected to hold the prompt will not.
    fn roll_back(&self, pod: PodId) {
        let context = self.context.as_ref();
        if let Some(blocks) = context.and_then(|context| self.profile.prompt_blocks(context)) {
            self.worker.rollback(pod, &blocks.chain, self.bytes);
        }
    }

    /// Sends a chunk back.
    fn pass(
        &mut self,
        chunk: HttpBody,
        filter: &mut Option<UsageFilter>,
        outbox: &Outbox,
        mode: BodySendMode,
    ) {
        let HttpBody { body, end_of_stream } = chunk;
        if !body.is_empty() {
            self.account.observe(&body, end_of_stream);
        }
        if mode == BodySendMode::FullDuplexStreamed {
            let mut body = match filter {
                Some(filter) => filter.filter(body),
                None => body,
            };
            if end_of_stream && let Some(mut filter) = filter.take() {
                body = [body, filter.rest()].concat().into();
            }
            let last = if end_of_stream { Part::Last } else { Part::Inner };
            messages::body(Direction::Response, body, last).for_each(|it| outbox.push(it));
        } else {
            outbox.push(messages::unchanged_chunk(Direction::Response));
        }
        if end_of_stream {
            self.account.end(RequestEnd::Whole);
        }
    }
}
