//! Executes a plan of any number of steps.
//!
//! Steps that start together form a group. The last step of the last group responds to the client;
//! the executor waits for every group before it, whose response brings what the next group needs. A
//! plan of one step is the simplest case and runs the same code: [`PlanExecution::run_last_step`]
//! and [`PlanExecution::attempt`]. What only plans of several steps need is in `multi_step.rs` and
//! `kv_handover.rs`. [`RetryState`] decides what follows a failure.

mod kv_handover;
mod multi_step;

use crate::breaker::CallOutcome;
use crate::call::{
    CallOptions, CancelledBy, InFlight, StepCall, Target, asks_usage, call, is_retryable,
    may_have_computed, outcome, request, step_timeouts,
};
use crate::endpoint::Endpoint;
use crate::failure::{CallError, CallFailure};
use crate::poison::RequestFingerprint;
use crate::response::EngineResponse;
use crate::retry::{Producer, RetryDecision, RetryState, is_lease_valid};
use crate::timeouts::coarse_deadline;
use crate::transfer::{TransferState, reports_failed_load};
use bytes::Bytes;
use hyper::StatusCode;
use kv_handover::{KvHeld, check_load};
use multi_step::{ConcurrentSteps, StepHalt, unless_one_fails};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::{Moment, PodId};
use wornpath_routing::{
    CacheHint, FailurePolicy, Mark, Name, PlanStep, Rejection, Reservation, Retry, RoutingPlan,
    SkippedBecause, Start,
};

/// The router of a plan that is executed: it knows the addresses of pods, decides again when one
/// fails, and is told about every call.
pub trait Router: Send {
    /// The address of a pod; none if it was removed.
    fn target(&self, pod: PodId) -> Option<Target>;
    /// Decides again; waits in the queue while no pod has capacity, as any request does.
    fn replan(
        &mut self,
        retry: Retry<'_>,
    ) -> impl Future<Output = Result<RoutingPlan, Rejection>> + Send;
    /// The current time.
    fn now(&self) -> Moment;
    /// A random number of 63 bits that no other request has.
    fn unique_id(&mut self) -> u64;
    /// A call begins. Returns the time if calls are traced.
    fn call_started(&self) -> Option<Moment> {
        None
    }
    /// The request of a step was handed to its connection: it is written, or waits until the
    /// connection is open. Called once per call, just before the task waits for the engine. Work
    /// that the decision left behind, such as the index update, belongs here: the engine computes
    /// meanwhile.
    fn request_sent(&mut self) {}
    /// A pod that is expected to hold the prompt will not: it refused the request, or never got it.
    fn request_refused(&mut self, _pod: PodId) {}
    /// Until this time an engine may hold KV cache for another engine, which frees it by loading
    /// it; none if no engine does. If the plan is given up before, the engine keeps it until its
    /// lease expires.
    fn kv_held_until(&mut self, _until: Option<Moment>) {}
    /// A call for which [`Self::call_started`] returned the time has its response, or has failed.
    fn call_ended(&mut self, _called: CallAttempt<'_>) {}
}

/// A call that has its response, or has failed.
#[derive(Clone, Copy, Debug)]
pub struct CallAttempt<'a> {
    /// The step of the plan.
    pub step: &'a Name,
    /// The endpoint that was called.
    pub endpoint: &'a Endpoint,
    /// When the call began.
    pub started: Moment,
    /// The error, if it failed.
    pub failure: Option<&'a CallError>,
}

/// The response of a plan. Its load counts on the pod until `step` is dropped.
#[derive(Debug)]
pub struct PlanResponse {
    /// The response, from its first body byte on.
    pub answer: EngineResponse,
    /// The step that responded.
    pub step: PlanStep,
    /// The endpoint that responded.
    pub endpoint: Arc<Endpoint>,
    /// The number of retries.
    pub retries: u32,
    /// Whether a step was skipped because it failed.
    pub is_degraded: bool,
    /// The prefill step whose KV cache the step loaded; boxed, because most plans have none.
    pub prefill: Option<Box<PrefillResult>>,
    /// The fingerprint of the request.
    pub request: RequestFingerprint,
    /// Whether the response has token counts that the client did not ask for.
    pub has_extra_usage: bool,
}

/// The result of a prefill step. The decode engine counts all that it loaded as cached, so only the
/// prefill response tells how much the prefix cache saved.
#[derive(Clone, Debug)]
pub struct PrefillResult {
    /// The prefill pod.
    pub pod: Option<PodId>,
    /// The part of the prompt that the decision expected in the pod's cache.
    pub cache: CacheHint,
    /// The body of its response; empty if the steps were concurrent.
    pub answer: Bytes,
}

/// Why the execution of a plan stopped.
enum RunStop {
    /// The plan must restart; holds the result in case no pod is left for that.
    Restart(Box<Result<PlanResponse, CallFailure>>),
    Failed(CallFailure),
    /// The pod of a step before the last refused the client's request.
    Refused(Box<PlanResponse>),
}

/// How much of a response an attempt waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadUntil {
    FirstByte,
    /// The whole body, with what the next step needs.
    End,
}

/// A step whose last attempt failed.
struct FailedStep {
    pod: Option<PodId>,
    name: Name,
    policy: FailurePolicy,
    cause: CallError,
}

impl FailedStep {
    /// Drops the step, and its load with it.
    fn new(step: PlanStep, cause: CallError) -> Self {
        Self { pod: step.pod, policy: step.failure, name: step.name, cause }
    }
}

struct PlanExecution<'a, R> {
    call: &'a StepCall,
    options: &'a CallOptions<'a>,
    router: &'a mut R,
    retries: RetryState,
    transfer: TransferState,
    held: Option<KvHeld>,
    prefill: Option<Box<PrefillResult>>,
    /// The step whose KV cache the current step loads.
    producer: Option<Producer>,
    is_degraded: bool,
    /// Whether the last request asked for token counts that the client did not ask for.
    has_asked_usage: bool,
    /// Failures that count against their endpoint if another one answers the request.
    unconfirmed: Vec<UnconfirmedFailure>,
}

/// A failure that the request may have caused.
struct UnconfirmedFailure {
    step: Name,
    endpoint: Arc<Endpoint>,
    outcome: CallOutcome,
}

/// Executes a plan up to the first byte of its response.
///
/// # Errors
/// If every pod that could be tried failed, or none was left. The client has got nothing yet.
pub async fn execute<R: Router>(
    plan: RoutingPlan,
    call: &StepCall,
    options: &CallOptions<'_>,
    router: &mut R,
) -> Result<PlanResponse, CallFailure> {
    options.budget.request();
    let mut execution = PlanExecution {
        call,
        options,
        router,
        retries: RetryState::default(),
        transfer: TransferState::default(),
        held: None,
        prefill: None,
        producer: None,
        is_degraded: false,
        has_asked_usage: false,
        unconfirmed: Vec::new(),
    };
    let mut plan = plan;
    loop {
        match execution.run(plan).await {
            Ok(response) => return Ok(response),
            Err(RunStop::Refused(response)) => return Ok(*response),
            Err(RunStop::Failed(failure)) => return Err(failure),
            Err(RunStop::Restart(otherwise)) => match Box::pin(execution.replan_all()).await {
                Ok(again) => plan = again,
                Err(_no_pod) => {
                    execution.retry_not_made();
                    return *otherwise;
                }
            },
        }
    }
}

impl<R: Router> PlanExecution<'_, R> {
    async fn run(&mut self, plan: RoutingPlan) -> Result<PlanResponse, RunStop> {
        self.transfer = TransferState::default();
        self.prefill = None;
        self.producer = None;
        self.hold(None);
        let is_skipped =
            |mark: &Mark| matches!(mark, Mark::StepSkipped { why: SkippedBecause::NoPod, .. });
        self.is_degraded = plan.marks.iter().any(is_skipped);
        let mut steps = plan.steps.into_iter().peekable();
        while let Some(first) = steps.next() {
            let mut concurrent = ConcurrentSteps::new();
            let mut main = first;
            while let Some(next) = steps.next_if(|next| next.start == Start::Together) {
                let started = Box::pin(self.start_concurrent(main, &next, &mut concurrent)).await;
                if let Err(stop) = started.or_else(|failure| self.dependency_failed(*failure)) {
                    [next].into_iter().chain(steps).for_each(|step| self.withdraw(&step));
                    return Err(stop);
                }
                main = next;
            }
            if steps.peek().is_none() {
                return self.run_last_step(main, concurrent).await;
            }
            if let Err(stop) = Box::pin(self.complete_group(main, concurrent)).await {
                steps.for_each(|never_called| self.withdraw(&never_called));
                return Err(stop);
            }
        }
        Err(RunStop::Failed(CallFailure::Rejected(Rejection::unavailable("plan has no steps"))))
    }

    /// Calls pods for the step that responds to the client, until one does or the plan stops.
    async fn run_last_step(
        &mut self,
        mut step: PlanStep,
        mut concurrent: ConcurrentSteps,
    ) -> Result<PlanResponse, RunStop> {
        self.retries.begin_step();
        // The response of a pod that another pod might improve on.
        let mut spare: Option<PlanResponse> = None;
        loop {
            if step.pod.is_none() {
                step = Box::pin(self.bind(&step.name))
                    .await
                    .map_err(|rejection| RunStop::Failed(CallFailure::Rejected(rejection)))?;
            }
            let age = |held: &KvHeld| self.router.now().since(held.since);
            if self.held.as_ref().is_some_and(|held| !is_lease_valid(held.lease, age(held))) {
                return Err(self.lease_expired(&step));
            }
            let is_alone = concurrent.is_empty();
            let attempt = {
                // Pinned where it is: it is thousands of bytes.
                let cancelled_by =
                    if is_alone { CancelledBy::Client } else { CancelledBy::ConcurrentStep };
                let attempt = pin!(self.attempt(&mut step, cancelled_by, ReadUntil::FirstByte));
                unless_one_fails(attempt, &mut concurrent).await
            };
            let failed = match attempt {
                Ok((answer, endpoint)) => {
                    let status = answer.head.status;
                    let pod = step.pod;
                    let policy = step.failure;
                    let name = step.name.clone();
                    let mut response = self.response(answer, step, endpoint);
                    if !is_retryable(status) {
                        concurrent.detach_all();
                        return Ok(response);
                    }
                    // The pod is done with it, whether or not the client gets this response in the
                    // end.
                    response.step.reservation = None;
                    spare = Some(response);
                    FailedStep { pod, name, policy, cause: CallError::Status(status) }
                }
                Err(StepHalt::Failed(CallError::KvLoad)) => {
                    concurrent.shutdown().await;
                    self.load_failed(&step)?;
                    continue;
                }
                Err(StepHalt::Failed(cause)) => FailedStep::new(step, cause),
                Err(StepHalt::DependencyFailed(failure)) => {
                    concurrent.shutdown().await;
                    self.dependency_failed(*failure).inspect_err(|_| self.withdraw(&step))?;
                    continue;
                }
            };
            // Releases their load before the next decision.
            concurrent.shutdown().await;
            if failed.cause.is_final() {
                return Err(RunStop::Failed(self.step_failed(failed.name, failed.cause)));
            }
            let mut next = self.failed(failed.pod, failed.policy);
            if next == RetryDecision::OtherPod && !is_alone {
                // The KV transfer between the two pods is void.
                next = self.retries.restart();
            }
            if next == RetryDecision::OtherPod {
                match Box::pin(self.bind(&failed.name)).await {
                    Ok(other) => {
                        step = other;
                        continue;
                    }
                    Err(_no_pod) => next = self.no_other_pod(failed.policy),
                }
            }
            let otherwise = spare.ok_or_else(|| self.step_failed(failed.name, failed.cause));
            return match next {
                RetryDecision::Restart => Err(RunStop::Restart(Box::new(otherwise))),
                _ => otherwise.map_err(RunStop::Failed),
            };
        }
    }

    /// One call to the step's pod.
    async fn attempt(
        &mut self,
        step: &mut PlanStep,
        cancelled_by: CancelledBy,
        until: ReadUntil,
    ) -> Result<(EngineResponse, Arc<Endpoint>), CallError> {
        let pod = step.pod.ok_or(CallError::PodGone)?;
        let target = self.router.target(pod).ok_or(CallError::PodGone)?;
        let request = request(self.call, step, &target, &self.transfer)
            .inspect_err(|_never_sent| self.withdraw(step))?;
        let endpoint = Arc::clone(&target.endpoint);
        self.has_asked_usage = asks_usage(self.call, step, &endpoint);
        let traced_since = self.router.call_started();
        let in_flight =
            InFlight::begin(&endpoint, self.options.request, self.router.now(), cancelled_by);
        let timeouts = step_timeouts(self.options, step);
        let result = {
            let called = pin!(call(&endpoint, self.options.worker, request, timeouts));
            let called = pin!(after_first_poll(called, || self.router.request_sent()));
            match step.computed_after.zip(step.reservation.as_mut()) {
                None => called.await,
                Some((time, load)) => computing(called, time, load).await,
            }
        };
        // Boxed, because it is rare: it must not swell the state of every request.
        let result = match result {
            Ok(answer) if self.has_asked_usage && !endpoint.usage.is_accepted() => {
                Box::pin(self.check_usage(step, &target, answer)).await
            }
            result => result,
        };
        let result = match result {
            Ok(answer)
                if self.producer.is_some()
                    && reports_failed_load(&step.mutations, &self.transfer) =>
            {
                Box::pin(check_load(answer)).await
            }
            result => result,
        };
        let result = match result {
            Ok(answer) if until == ReadUntil::End => Box::pin(self.read_whole(step, answer)).await,
            result => result,
        };
        let outcome = outcome(&result);
        if outcome == CallOutcome::Good {
            in_flight.finish(outcome, None, self.router.now());
            if !self.unconfirmed.is_empty() {
                self.confirm_failures(&step.name, &endpoint, until);
            }
        } else {
            in_flight.finish(outcome, self.blamed(), self.router.now());
            self.add_failure(&step.name, &endpoint, outcome);
        }
        if let Some(started) = traced_since {
            let failure = result.as_ref().err();
            let attempt = CallAttempt { step: &step.name, endpoint: &endpoint, started, failure };
            self.router.call_ended(attempt);
        }
        if !may_have_computed(&result) {
            self.withdraw(step);
        }
        result.map(|mut answer| {
            answer.body.mark_client_traffic();
            (answer, endpoint)
        })
    }

    /// Notes whether the engine accepts that it is asked for token counts. If it refuses the
    /// request, the request is sent again without: the client did not ask.
    async fn check_usage(
        &mut self,
        step: &PlanStep,
        target: &Target,
        answer: EngineResponse,
    ) -> Result<EngineResponse, CallError> {
        let endpoint = &target.endpoint;
        match answer.head.status {
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {}
            status => {
                if status.is_success() {
                    endpoint.usage.set_accepted();
                }
                return Ok(answer);
            }
        }
        drop(answer);
        endpoint.usage.set_refused();
        self.has_asked_usage = false;
        let timeouts = step_timeouts(self.options, step);
        let request = request(self.call, step, target, &self.transfer)?;
        let again = call(endpoint, self.options.worker, request, timeouts).await;
        if !again.as_ref().is_ok_and(|answer| answer.head.status.is_success()) {
            // It refused the request itself.
            endpoint.usage.set_unknown();
        }
        again
    }

    /// The request, if it may be to blame for a failure.
    fn blamed(&self) -> Option<RequestFingerprint> {
        self.options.poison.blamed(self.options.request, self.router.now())
    }

    /// An endpoint failed: by its own fault or that of the request.
    fn add_failure(&mut self, step: &Name, endpoint: &Arc<Endpoint>, outcome: CallOutcome) {
        let now = self.router.now();
        if !outcome.needs_confirmation() {
            return;
        }
        let Some(request) = self.blamed() else {
            return endpoint.confirm_outcome(outcome, None, now);
        };
        if outcome == CallOutcome::Lost {
            self.options.poison.broke_connection(request, endpoint.url(), now);
        }
        let endpoint = Arc::clone(endpoint);
        self.unconfirmed.push(UnconfirmedFailure { step: step.clone(), endpoint, outcome });
    }

    /// An endpoint answered: others that failed in the same step failed by their own fault. If the
    /// last step is answered, so did all.
    fn confirm_failures(&mut self, step: &Name, answered: &Arc<Endpoint>, until: ReadUntil) {
        let request = Some(self.options.request);
        let now = self.router.now();
        for failure in std::mem::take(&mut self.unconfirmed) {
            if until == ReadUntil::End && failure.step != *step {
                self.unconfirmed.push(failure);
            } else if !Arc::ptr_eq(&failure.endpoint, answered) {
                failure.endpoint.confirm_outcome(failure.outcome, request, now);
            }
        }
    }

    /// Whether the request broke the connections to two endpoints.
    fn is_poison(&self) -> bool {
        self.options.poison.poisonous_for(self.options.request, self.router.now()).is_some()
    }

    /// Decides the pod of one step.
    async fn bind(&mut self, name: &Name) -> Result<PlanStep, Rejection> {
        let mut steps = self.replan(Some(name)).await?.steps;
        if steps.is_empty() {
            return Err(Rejection::unavailable("plan has no steps"));
        }
        Ok(steps.swap_remove(0))
    }

    /// Decides the whole plan again; with the suspects if there is no plan without them, since they
    /// may be alive.
    async fn replan_all(&mut self) -> Result<RoutingPlan, Rejection> {
        match self.replan(None).await {
            Err(_no_pod) if self.retries.readmit_suspects() => self.replan(None).await,
            decided => decided,
        }
    }

    /// Decides one step again, or the whole plan, without the pods that failed.
    async fn replan(&mut self, step: Option<&Name>) -> Result<RoutingPlan, Rejection> {
        self.router.replan(Retry { step, excluded: self.retries.excluded() }).await
    }

    fn failed(&mut self, pod: Option<PodId>, policy: FailurePolicy) -> RetryDecision {
        let is_poison = self.is_poison();
        let budget = self.options.budget;
        let now = self.router.now();
        let next = self.retries.failed(pod, policy, || !is_poison && budget.spend(now));
        if is_poison { RetryDecision::GiveUp } else { next }
    }

    /// What follows when a retry found no other pod.
    fn no_other_pod(&mut self, policy: FailurePolicy) -> RetryDecision {
        self.retry_not_made();
        let budget = self.options.budget;
        let now = self.router.now();
        self.retries.exhausted(policy.then, || budget.spend(now))
    }

    /// The retry found no pod, so it returns to the budget.
    fn retry_not_made(&mut self) {
        self.options.budget.give_back();
        self.retries.not_retried();
    }

    fn stop(&self, next: RetryDecision, step: Name, cause: CallError) -> RunStop {
        let failure = self.step_failed(step, cause);
        match next {
            RetryDecision::Restart => RunStop::Restart(Box::new(Err(failure))),
            _ => RunStop::Failed(failure),
        }
    }

    fn step_failed(&self, step: Name, cause: CallError) -> CallFailure {
        CallFailure::Step { step, tried: self.retries.tried().max(1) as usize, cause }
    }

    fn response(
        &self,
        answer: EngineResponse,
        step: PlanStep,
        endpoint: Arc<Endpoint>,
    ) -> PlanResponse {
        PlanResponse {
            answer,
            step,
            endpoint,
            retries: self.retries.retries(),
            is_degraded: self.is_degraded,
            prefill: self.prefill.clone(),
            request: self.options.request,
            has_extra_usage: self.has_asked_usage,
        }
    }

    /// The step's pod will not hold the prompt that the decision expects it to hold.
    fn withdraw(&mut self, step: &PlanStep) {
        if let Some(pod) = step.pod.filter(|_| step.is_expected) {
            self.router.request_refused(pod);
        }
    }
}

/// Calls `hook` once, after the first poll of a call: its request is on its way, and the task would
/// wait next.
async fn after_first_poll<T>(
    mut called: Pin<&mut impl Future<Output = T>>,
    hook: impl FnOnce(),
) -> T {
    let mut hook = Some(hook);
    poll_fn(|context| {
        let polled = called.as_mut().poll(context);
        if let Some(hook) = hook.take() {
            hook();
        }
        polled
    })
    .await
}

/// Waits for a response that is not streamed, and counts the prompt as computed when its estimated
/// time has passed: otherwise the pod would seem to compute it until the last token is generated.
async fn computing<T>(
    mut called: Pin<&mut impl Future<Output = T>>,
    time: Duration,
    load: &mut Reservation,
) -> T {
    match tokio::time::timeout_at(coarse_deadline(time), called.as_mut()).await {
        Ok(answered) => answered,
        Err(_) => {
            load.first_token();
            called.await
        }
    }
}
