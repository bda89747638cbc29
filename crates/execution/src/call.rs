//! One call to a pod: the request of a step, sent up to the first byte of the response body, and
//! what the call tells about the endpoint.
//!
//! A call also tells something if its client gives up. Clients mostly give up long before the
//! first-byte timeout. Without [`InFlight`], an endpoint that hangs would never be judged by them,
//! and since a request that its client left is no load, it would look idle and get ever more.

use crate::breaker::CallOutcome;
use crate::connection::Connection;
use crate::endpoint::{Endpoint, WorkerNumber};
use crate::failure::CallError;
use crate::poison::{PoisonRequests, RequestFingerprint};
use crate::response::{EngineResponse, OpenCall};
use crate::retry::RetryBudgets;
use crate::retry_after::retry_after;
use crate::splice::{Edit, splice};
use crate::timeouts::{TimeoutWatch, Timeouts};
use crate::transfer::{self, TransferState};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, StatusCode, Uri};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;
use wornpath_index::Moment;
use wornpath_routing::{Mutation, PlanStep};

/// The client's request, with the headers that engines see.
#[derive(Clone, Debug)]
pub struct StepCall {
    /// The HTTP method.
    pub method: Method,
    /// The path and query of the request target.
    pub path: PathAndQuery,
    /// Headers, without the hop-by-hop ones.
    pub headers: HeaderMap,
    /// The client's body, byte for byte but for what the router set in it.
    pub body: Bytes,
    /// Whether the router added [`STREAM_OPTIONS`] to the body, to learn the token counts of a
    /// stream.
    pub asks_usage: bool,
}

/// The field that asks for the token counts of a stream.
pub const STREAM_OPTIONS: &str = "stream_options";

/// The address of a pod.
#[derive(Clone, Debug)]
pub struct Target {
    /// The endpoint, which data-parallel ranks share.
    pub endpoint: Arc<Endpoint>,
    /// The data-parallel rank behind the endpoint, if there are several.
    pub rank: Option<u32>,
    /// The port where prefill and decode engines meet.
    pub bootstrap_port: u16,
}

/// The options of all calls of a plan.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions<'a> {
    /// The retry budgets that the request takes from.
    pub budget: RetryBudgets<'a>,
    /// The timeouts of each call.
    pub timeouts: Timeouts,
    /// The first-byte timeout of a response that is not streamed, whose first byte comes when all
    /// of it is computed; none for a stream.
    pub whole_answer: Option<Duration>,
    /// The thread that makes the calls.
    pub worker: WorkerNumber,
    /// The fingerprint of the request.
    pub request: RequestFingerprint,
    /// The requests that broke connections lately.
    pub poison: &'a PoisonRequests,
}

/// A reused connection that is lost within this time after the request was closed by an idle
/// timeout of the engine; one that is lost later was not.
const STALE_WITHIN: Duration = Duration::from_millis(100);

/// A client that gives up sooner says nothing about the endpoint.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

/// Whether the engine of a step is asked for the token counts of a stream that the client did not
/// ask for.
pub(crate) fn asks_usage(call: &StepCall, step: &PlanStep, endpoint: &Endpoint) -> bool {
    call.asks_usage && !step.is_read_whole() && !endpoint.usage.is_refused()
}

/// The request of a step, with the fields that the step sets in the client's body.
pub(crate) fn request(
    call: &StepCall,
    step: &PlanStep,
    target: &Target,
    transfer: &TransferState,
) -> Result<Request<Full<Bytes>>, CallError> {
    let mut edits: Vec<Edit> = transfer::edits(&step.mutations, call.path.path(), transfer);
    if call.asks_usage && target.endpoint.usage.is_refused() {
        edits.push(Edit::remove(STREAM_OPTIONS));
    }
    let body = splice(&call.body, &edits)?;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = call.method.clone();
    *request.uri_mut() = uri(&call.path, target.endpoint.prefix());
    *request.headers_mut() = call.headers.clone();
    request.headers_mut().insert(HOST, target.endpoint.authority().clone());
    target.endpoint.authorize(request.headers_mut());
    if let Some(rank) = target.rank {
        request.headers_mut().insert("x-data-parallel-rank", HeaderValue::from(rank));
    }
    Ok(request)
}

fn uri(path: &PathAndQuery, prefix: &str) -> Uri {
    if prefix.is_empty() {
        return Uri::from(path.clone());
    }
    format!("{prefix}{path}").parse().unwrap_or_else(|_| Uri::from(path.clone()))
}

/// The timeouts of a step's call.
pub(crate) fn step_timeouts(options: &CallOptions<'_>, step: &PlanStep) -> Timeouts {
    let mut timeouts = options.timeouts;
    let is_prefill = step.mutations.iter().any(|it| matches!(it, Mutation::PrefillOnly));
    if let Some(whole) = options.whole_answer
        && !is_prefill
    {
        timeouts.first_byte = timeouts.first_byte.max(whole);
    }
    if let Some(deadline) = step.deadline {
        timeouts.total = timeouts.total.min(deadline);
    }
    timeouts
}

/// Sends a request and waits for the first byte of the response body.
///
/// # Errors
/// If the endpoint is unreachable, a timeout passes, or the connection is lost.
pub async fn call(
    endpoint: &Arc<Endpoint>,
    worker: WorkerNumber,
    request: Request<Full<Bytes>>,
    timeouts: Timeouts,
) -> Result<EngineResponse, CallError> {
    let mut watch = TimeoutWatch::start(timeouts);
    let mut request = Some(request);
    while let Some(mut connection) = endpoint.take_idle(worker) {
        if !connection.is_ready() {
            continue;
        }
        let Some(sent) = request.take() else { break };
        // The engine may close an idle connection in the very moment of its reuse. That says
        // nothing about the engine, so the request goes out once more, over a new connection. If
        // the engine may have begun to compute, the caller decides instead.
        let again = sent.clone();
        let sent_at = Instant::now();
        match send(&mut connection, sent, &mut watch).await {
            Ok(response) => {
                let endpoint = Arc::clone(endpoint);
                let open = OpenCall { connection, watch, endpoint, worker };
                return begin(response, open).await;
            }
            Err(CallError::Broken(error)) if was_stale(&error, sent_at) => {
                request = Some(again);
            }
            Err(error) => return Err(error),
        }
        break;
    }
    let Some(request) = request else { return Err(CallError::PodGone) };
    // Boxed, because it is rare and large, and every request is moved about with the state of this
    // future.
    let mut connection = Box::pin(connect(endpoint, timeouts)).await?;
    let response = send(&mut connection, request, &mut watch).await?;
    let open = OpenCall { connection, watch, endpoint: Arc::clone(endpoint), worker };
    begin(response, open).await
}

/// The response from its first body byte on. The router never asks for a protocol switch.
async fn begin(response: Response<Incoming>, call: OpenCall) -> Result<EngineResponse, CallError> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(CallError::Status(response.status()));
    }
    if !has_plain_length(response.headers()) {
        return Err(CallError::ContentLength);
    }
    let (head, incoming) = response.into_parts();
    EngineResponse::begin(head, incoming, call).await
}

/// Whether the length of a body is not given, or once and as a number. hyper also reads `2, 2`, and
/// would pass it on to the client.
fn has_plain_length(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_number = |length: &HeaderValue| {
        !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit)
    };
    lengths.next().is_none_or(is_number) && lengths.next().is_none()
}

fn was_stale(error: &hyper::Error, sent_at: Instant) -> bool {
    let has_response = error.is_parse();
    error.is_canceled() || !has_response && sent_at.elapsed() < STALE_WITHIN
}

async fn connect(endpoint: &Endpoint, timeouts: Timeouts) -> Result<Connection, CallError> {
    let policy_epoch = endpoint.policy_epoch();
    let limit = timeouts.connect.min(timeouts.total);
    let stream = within(limit, endpoint.connect()).await?;
    Connection::open(stream, policy_epoch).await.map_err(CallError::Broken)
}

/// Connects to an endpoint and closes the connection, without TLS and without a request: it costs
/// little, and engines log nothing.
///
/// # Errors
/// If nothing accepts the connection within the time.
pub async fn check_connection(endpoint: &Endpoint, limit: Duration) -> Result<(), CallError> {
    within(limit, endpoint.connect_tcp()).await.map(drop)
}

async fn within<T>(
    limit: Duration,
    connecting: impl Future<Output = std::io::Result<T>>,
) -> Result<T, CallError> {
    let connected = tokio::time::timeout(limit, connecting).await;
    connected.map_err(|_| CallError::ConnectTimeout(limit))?.map_err(CallError::Connect)
}

async fn send(
    connection: &mut Connection,
    request: Request<Full<Bytes>>,
    watch: &mut TimeoutWatch,
) -> Result<Response<Incoming>, CallError> {
    let mut response = pin!(connection.sender.send_request(request));
    poll_fn(|context| {
        // Driving the connection writes the request and brings the response, so the response itself
        // needs no waker.
        connection.drive(context);
        let mut no_waker = Context::from_waker(Waker::noop());
        if let Poll::Ready(response) = response.as_mut().poll(&mut no_waker) {
            return Poll::Ready(response.map_err(CallError::Broken));
        }
        watch.poll(context).map(Err)
    })
    .await
}

/// Statuses that concern the pod and not the request, so that another pod may succeed.
pub(crate) fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504)
}

/// Whether the prompt may be in the pod's cache now. Engines refuse before they compute; one that
/// timed out may still compute.
pub(crate) fn may_have_computed(result: &Result<EngineResponse, CallError>) -> bool {
    match result {
        Ok(response) => response.head.status.is_success(),
        Err(cause) => cause.is_late(),
    }
}

/// What the result of a call tells the breaker.
pub(crate) fn outcome(result: &Result<EngineResponse, CallError>) -> CallOutcome {
    match result {
        Err(error) => error.outcome(),
        Ok(response) => match response.head.status.as_u16() {
            429 | 503 => CallOutcome::Busy(retry_after(&response.head.headers)),
            500.. => CallOutcome::Errored,
            _ => CallOutcome::Good,
        },
    }
}

/// Who can cancel a call before its response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CancelledBy {
    /// Only the client.
    Client,
    /// Also the failure of a concurrent step, which says nothing about this endpoint.
    ConcurrentStep,
}

pub(crate) struct InFlight<'a> {
    endpoint: &'a Endpoint,
    request: RequestFingerprint,
    began: Moment,
    started: Instant,
    is_trial: bool,
    /// Whether its end still has to be judged when it is dropped.
    is_judged_on_drop: bool,
}

impl<'a> InFlight<'a> {
    /// Registers a call that begins now.
    pub(crate) fn begin(
        endpoint: &'a Endpoint,
        request: RequestFingerprint,
        now: Moment,
        cancelled_by: CancelledBy,
    ) -> Self {
        let is_trial = endpoint.begin_call();
        let is_judged_on_drop = cancelled_by == CancelledBy::Client;
        let started = Instant::now();
        Self { endpoint, request, began: now, started, is_trial, is_judged_on_drop }
    }

    /// The call has its response, or has failed.
    pub(crate) fn finish(
        mut self,
        outcome: CallOutcome,
        blamed: Option<RequestFingerprint>,
        now: Moment,
    ) {
        self.is_judged_on_drop = false;
        self.endpoint.record_outcome(outcome, blamed, now);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let waited = self.started.elapsed();
        if self.is_judged_on_drop
            && waited >= CLIENT_PATIENCE
            && !self.endpoint.was_active_since(self.started)
        {
            self.endpoint.abandoned(Some(self.request), self.began + waited);
        }
        if self.is_trial {
            self.endpoint.trial_ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::BreakerRules;
    use wornpath_routing::BreakerState;

    const NOW: Moment = Moment::from_secs(9);

    async fn give_up_after(
        endpoint: &Endpoint,
        number: u64,
        waited: Duration,
        cancelled_by: CancelledBy,
    ) {
        let request = RequestFingerprint(number);
        let in_flight = InFlight::begin(endpoint, request, NOW, cancelled_by);
        tokio::time::sleep(waited).await;
        drop(in_flight);
    }

    fn endpoint() -> Endpoint {
        Endpoint::new("http://127.0.0.1:1", BreakerRules::default(), 1).expect("an address")
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_give_up_open_the_breaker_of_an_endpoint_that_hangs() {
        let hung = endpoint();
        for number in 0..4 {
            give_up_after(&hung, number, CLIENT_PATIENCE, CancelledBy::Client).await;
        }
        assert_eq!(hung.breaker().0, BreakerState::Closed);
        give_up_after(&hung, 4, CLIENT_PATIENCE, CancelledBy::Client).await;
        assert_eq!(hung.breaker().0, BreakerState::Open);
        let hung_once = endpoint();
        for _ in 0..9 {
            give_up_after(&hung_once, 7, CLIENT_PATIENCE, CancelledBy::Client).await;
        }
        assert_eq!(hung_once.breaker().0, BreakerState::Closed, "it may be the request's fault");
    }

    #[tokio::test(start_paused = true)]
    async fn impatience_a_concurrent_step_and_responses_to_others_are_no_blame() {
        let slow = endpoint();
        for number in 0..9 {
            give_up_after(&slow, number, CLIENT_PATIENCE / 2, CancelledBy::Client).await;
            give_up_after(&slow, number, CLIENT_PATIENCE * 2, CancelledBy::ConcurrentStep).await;
        }
        for number in 0..9 {
            let request = RequestFingerprint(number);
            let in_flight = InFlight::begin(&slow, request, NOW, CancelledBy::Client);
            tokio::time::sleep(CLIENT_PATIENCE).await;
            // A chunk for another client.
            slow.record_activity(Instant::now());
            tokio::time::sleep(CLIENT_PATIENCE).await;
            drop(in_flight);
        }
        assert_eq!(slow.breaker().0, BreakerState::Closed);
    }

    #[test]
    fn a_length_that_is_given_twice_or_as_a_list_is_invalid() {
        let headers = |lengths: &[&'static str]| -> HeaderMap {
            lengths
                .iter()
                .map(|length| (CONTENT_LENGTH, HeaderValue::from_static(length)))
                .collect()
        };
        for good in [&[][..], &["0"], &["17"]] {
            assert!(has_plain_length(&headers(good)), "{good:?}");
        }
        for bad in [&["2, 2"][..], &["2", "2"], &["+2"], &["2 2"], &[""]] {
            assert!(!has_plain_length(&headers(bad)), "{bad:?}");
        }
    }
}
