//! Plans of several steps: groups before the last, and steps that run concurrently with the one
//! that responds to the client.
//!
//! The responding step waits for concurrent steps only to fail: if one of them fails, the KV cache
//! that it waits for will never come. If none fails, they run on after the response, because their
//! engines do.

use super::kv_handover::{DEFAULT_LEASE, KvHeld};
use super::{FailedStep, PlanExecution, ReadUntil, Router, RunStop, after_first_poll};
use crate::call::{CancelledBy, InFlight, call, is_retryable, outcome, request, step_timeouts};
use crate::endpoint::{Endpoint, WorkerNumber};
use crate::failure::{CallError, CallFailure};
use crate::poison::RequestFingerprint;
use crate::response::EngineResponse;
use crate::retry::RetryDecision;
use crate::splice::field;
use crate::timeouts::Timeouts;
use crate::transfer::{Rendezvous, brought, from_prefill, needs_engine_id, offers_kv};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HOST;
use hyper::{Request, Uri};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use tokio::task::JoinSet;
use tokio::time::Instant;
use wornpath_index::Moment;
use wornpath_routing::{AfterFailure, Mutation, PlanStep};

/// The most bytes of a response that does not go to the client.
const MAX_STEP_BYTES: usize = 8 << 20;

/// The concurrent steps of one group. Dropping the set cancels them.
pub(super) type ConcurrentSteps = JoinSet<Result<(), Box<StepFailure>>>;

/// A concurrent step that failed.
pub(super) struct StepFailure {
    pub(super) step: PlanStep,
    pub(super) cause: FailureCause,
}

pub(super) enum FailureCause {
    /// The pod failed.
    Failed(CallError),
    /// The pod refused the client's request.
    Refused(Box<EngineResponse>, Arc<Endpoint>),
}

/// Why the responding step has no response.
pub(super) enum StepHalt {
    /// Its own call failed.
    Failed(CallError),
    /// A concurrent step failed, on which it depends.
    DependencyFailed(Box<StepFailure>),
}

/// The call of one concurrent step.
struct ConcurrentCall {
    step: PlanStep,
    endpoint: Arc<Endpoint>,
    request: Request<Full<Bytes>>,
    timeouts: Timeouts,
    worker: WorkerNumber,
    fingerprint: RequestFingerprint,
    now: Moment,
}

impl ConcurrentCall {
    /// Runs to the end of the response. The step's load counts until then, even if the responding
    /// step is done.
    async fn run(self) -> Result<(), Box<StepFailure>> {
        let Self { step, endpoint, request, timeouts, worker, fingerprint, now } = self;
        let started = Instant::now();
        let in_flight = InFlight::begin(&endpoint, fingerprint, now, CancelledBy::ConcurrentStep);
        let result = match call(&endpoint, worker, request, timeouts).await {
            Ok(response) => {
                let whole = response.whole(MAX_STEP_BYTES).await;
                whole.map(|(head, body)| EngineResponse::from_bytes(head, body))
            }
            Err(cause) => Err(cause),
        };
        in_flight.finish(outcome(&result), Some(fingerprint), now + started.elapsed());
        let cause = match result {
            Err(cause) => FailureCause::Failed(cause),
            Ok(response) => match response.head.status {
                status if status.is_success() => return Ok(()),
                status if status.is_client_error() && !is_retryable(status) => {
                    FailureCause::Refused(Box::new(response), endpoint)
                }
                status => FailureCause::Failed(CallError::Status(status)),
            },
        };
        Err(Box::new(StepFailure { step, cause }))
    }
}

/// Waits for the response of the main step, unless a concurrent step fails first.
pub(super) async fn unless_one_fails<T>(
    mut main: Pin<&mut impl Future<Output = Result<T, CallError>>>,
    steps: &mut ConcurrentSteps,
) -> Result<T, StepHalt> {
    if steps.is_empty() {
        return main.await.map_err(StepHalt::Failed);
    }
    poll_fn(|context| {
        while let Poll::Ready(Some(ended)) = steps.poll_join_next(context) {
            if let Ok(Err(failure)) = ended {
                return Poll::Ready(Err(StepHalt::DependencyFailed(failure)));
            }
        }
        main.as_mut().poll(context).map_err(StepHalt::Failed)
    })
    .await
}

impl<R: Router> PlanExecution<'_, R> {
    /// Starts a step that runs concurrently with `next`.
    pub(super) async fn start_concurrent(
        &mut self,
        step: PlanStep,
        next: &PlanStep,
        concurrent: &mut ConcurrentSteps,
    ) -> Result<(), Box<StepFailure>> {
        let prepared = self.prepare_concurrent(&step, next, concurrent.is_empty()).await;
        let (endpoint, request) = match prepared {
            Ok(prepared) => prepared,
            Err(cause) => {
                let cause = FailureCause::Failed(cause);
                return Err(Box::new(StepFailure { step, cause }));
            }
        };
        self.produced(&step, Bytes::new());
        let until = self.router.now() + step.lease.unwrap_or(DEFAULT_LEASE);
        self.router.kv_held_until(Some(until));
        let timeouts = step_timeouts(self.options, &step);
        let worker = self.options.worker;
        let now = self.router.now();
        let fingerprint = self.options.request;
        let call = ConcurrentCall { step, endpoint, request, timeouts, worker, fingerprint, now };
        concurrent.spawn(call.run());
        Ok(())
    }

    /// The endpoint and the request of a step that runs concurrently with `next`.
    async fn prepare_concurrent(
        &mut self,
        step: &PlanStep,
        next: &PlanStep,
        is_first: bool,
    ) -> Result<(Arc<Endpoint>, Request<Full<Bytes>>), CallError> {
        if is_first {
            self.agree_on_rendezvous(step, next).await?;
        }
        let pod = step.pod.ok_or(CallError::PodGone)?;
        let target = self.router.target(pod).ok_or(CallError::PodGone)?;
        let request = request(self.call, step, &target, &self.transfer)?;
        Ok((target.endpoint, request))
    }

    /// Sets where the two engines meet.
    async fn agree_on_rendezvous(
        &mut self,
        prefill: &PlanStep,
        decode: &PlanStep,
    ) -> Result<(), CallError> {
        let target =
            prefill.pod.and_then(|pod| self.router.target(pod)).ok_or(CallError::PodGone)?;
        let host = target.endpoint.host().to_owned();
        let port = target.bootstrap_port;
        let engine = if needs_engine_id(&decode.mutations) {
            let timeouts = step_timeouts(self.options, prefill);
            let query = pin!(query_engine_id(&target.endpoint, port, timeouts));
            after_first_poll(query, || self.router.request_sent()).await?
        } else {
            String::new()
        };
        let room = self.router.unique_id();
        self.transfer.rendezvous = Rendezvous { host, port, room, engine };
        Ok(())
    }

    /// Completes a group before the last: all of its steps must end before the next group starts.
    pub(super) async fn complete_group(
        &mut self,
        main: PlanStep,
        mut concurrent: ConcurrentSteps,
    ) -> Result<(), RunStop> {
        let mut completed = self.complete(main).await;
        while completed.is_ok()
            && let Some(ended) = concurrent.join_next().await
        {
            if let Ok(Err(failure)) = ended {
                completed = self.dependency_failed(*failure);
            }
        }
        concurrent.shutdown().await;
        completed
    }

    /// Completes a step before the last: waits for its response and keeps what the next step needs.
    async fn complete(&mut self, mut step: PlanStep) -> Result<(), RunStop> {
        self.retries.begin_step();
        loop {
            if step.pod.is_none() {
                step = match Box::pin(self.bind(&step.name)).await {
                    Ok(bound) => bound,
                    Err(_no_pod) if step.failure.then == AfterFailure::Skip => {
                        self.skip_transfer();
                        return Ok(());
                    }
                    Err(no_pod) => return Err(RunStop::Failed(CallFailure::Rejected(no_pod))),
                };
            }
            let cause = match self.attempt(&mut step, CancelledBy::Client, ReadUntil::End).await {
                Ok((answer, endpoint)) => {
                    let status = answer.head.status;
                    if status.is_success() {
                        let since = self.router.now();
                        let is_offered = offers_kv(&step.mutations);
                        self.hold(Some(KvHeld { lease: step.lease, since, is_offered }));
                        return Ok(());
                    }
                    let is_refused = status.is_client_error() && !is_retryable(status);
                    if is_refused && may_be_cut_too_short(&step, &self.call.body) {
                        // The next step shows whether the client is at fault.
                        self.skip_transfer();
                        return Ok(());
                    }
                    if is_refused {
                        let response = self.response(answer, step, endpoint);
                        return Err(RunStop::Refused(Box::new(response)));
                    }
                    CallError::Status(status)
                }
                Err(cause) => cause,
            };
            let Some(other) = self.replacement(step, cause).await? else { return Ok(()) };
            step = other;
        }
    }

    /// Reads the whole response of a step before the last; keeps what it brings for the next one.
    pub(super) async fn read_whole(
        &mut self,
        step: &PlanStep,
        answer: EngineResponse,
    ) -> Result<EngineResponse, CallError> {
        let (head, body) = answer.whole(MAX_STEP_BYTES).await?;
        if head.status.is_success() {
            let parts = brought(&step.mutations, &body).map_err(Box::new)?;
            self.transfer.parts.extend(parts);
            self.transfer.from_prefill = from_prefill(&step.mutations, &body).map_err(Box::new)?;
            if self.produced(step, body.clone()) {
                // Even if an earlier prefill step was skipped, this one can be loaded.
                self.transfer.is_skipped = false;
            }
        }
        Ok(EngineResponse::from_bytes(head, body))
    }

    /// The failed step on another pod; none if the next step does its work.
    async fn replacement(
        &mut self,
        step: PlanStep,
        cause: CallError,
    ) -> Result<Option<PlanStep>, RunStop> {
        if matches!(cause, CallError::KvLoad) {
            self.load_failed(&step)?;
            return Ok(Some(step));
        }
        let FailedStep { pod, name, policy, cause } = FailedStep::new(step, cause);
        if cause.is_final() {
            return Err(RunStop::Failed(self.step_failed(name, cause)));
        }
        let mut next = self.failed(pod, policy);
        if next == RetryDecision::OtherPod {
            match Box::pin(self.bind(&name)).await {
                Ok(other) => return Ok(Some(other)),
                Err(_no_pod) => next = self.no_other_pod(policy),
            }
        }
        match next {
            RetryDecision::Skip => {
                self.skip_transfer();
                Ok(None)
            }
            _ => Err(self.stop(next, name, cause)),
        }
    }

    /// A step failed on which the current one depends. The plan restarts with another pod, or the
    /// current step does its work too.
    pub(super) fn dependency_failed(&mut self, failure: StepFailure) -> Result<(), RunStop> {
        let StepFailure { step, cause } = failure;
        let cause = match cause {
            FailureCause::Failed(cause) => cause,
            FailureCause::Refused(answer, endpoint) => {
                self.withdraw(&step);
                let response = self.response(*answer, step, endpoint);
                return Err(RunStop::Refused(Box::new(response)));
            }
        };
        if !cause.is_late() {
            self.withdraw(&step);
        }
        if let Some(target) = step.pod.and_then(|pod| self.router.target(pod)) {
            self.add_failure(&step.name, &target.endpoint, cause.outcome());
        }
        if self.is_poison() {
            return Err(RunStop::Failed(self.step_failed(step.name.clone(), cause)));
        }
        if cause.is_final() {
            return Err(RunStop::Failed(self.step_failed(step.name.clone(), cause)));
        }
        let budget = self.options.budget;
        let now = self.router.now();
        match self.retries.dependency_failed(step.pod, step.failure, || budget.spend(now)) {
            RetryDecision::Skip => {
                self.compute_without_prefill();
                Ok(())
            }
            next => Err(self.stop(next, step.name.clone(), cause)),
        }
    }
}

/// Whether an engine may refuse a call only because it is to end after one token: one token is no
/// complete tool call, which the client requires.
fn may_be_cut_too_short(step: &PlanStep, body: &[u8]) -> bool {
    let is_cut = step.mutations.iter().any(|it| matches!(it, Mutation::PrefillOnly));
    let choice = if is_cut { field(body, "tool_choice") } else { Ok(None) };
    matches!(choice, Ok(Some(choice)) if !matches!(choice, b"null" | b"\"none\"" | b"\"auto\""))
}

/// Queries a prefill engine's id among its peers: `{"0": {"engine_id": …}}`.
async fn query_engine_id(
    prefill: &Endpoint,
    port: u16,
    timeouts: Timeouts,
) -> Result<String, CallError> {
    let missing = || CallError::MissingField("engine_id");
    let endpoint = Arc::new(prefill.on_port(port).map_err(|_| missing())?);
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = Uri::from_static("/query");
    request.headers_mut().insert(HOST, endpoint.authority().clone());
    let response = call(&endpoint, WorkerNumber(0), request, timeouts).await?;
    let status = response.head.status;
    if !status.is_success() {
        return Err(CallError::Status(status));
    }
    let (_, body) = response.whole(MAX_STEP_BYTES).await?;
    let engines: serde_json::Value = serde_json::from_slice(&body).map_err(|_| missing())?;
    engines["0"]["engine_id"].as_str().map(str::to_owned).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::BreakerRules;
    use hyper::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn an_engine_id_counts_only_in_a_successful_response() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let query = async {
            let endpoint = Endpoint::new("http://127.0.0.1:1", BreakerRules::default(), 1).unwrap();
            query_engine_id(&endpoint, port, Timeouts::default()).await
        };
        let engine = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _read = stream.read(&mut [0; 1024]).await.unwrap();
            let body = r#"{"0": {"engine_id": "e"}}"#;
            let head = format!("HTTP/1.1 500 no\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            stream
        };
        let (result, _stream) = tokio::join!(query, engine);
        assert!(
            matches!(result, Err(CallError::Status(StatusCode::INTERNAL_SERVER_ERROR))),
            "{result:?}"
        );
    }
}
