//! Executes a plan of any number of steps.
//!
//! Steps that start together form a group. The last step of the last group responds to the client;
//! the executor waits for every group before it, whose response brings what the next group needs. A
//! plan of one step is the simplest case and runs the same code. [`RetryState`] decides what
//! follows a failure.

mod calls;
mod kv_handover;

use crate::concurrent_steps::{
    ConcurrentSteps, FailureCause, StepFailure, StepHalt, unless_one_fails,
};
use crate::endpoint::Endpoint;
use crate::failure::{CallError, CallFailure};
use crate::in_flight::CancelledBy;
use crate::replan::{CallOptions, PlanResponse, PrefillResult, Replan, StepCall};
use crate::request_builder::is_retryable;
use crate::response::EngineResponse;
use crate::retry_state::{Producer, RetryDecision, RetryState, is_lease_valid};
use crate::splice::field;
use crate::transfer::{TransferState, offers_kv};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::{Moment, PodId};
use wornpath_routing::{
    AfterFailure, FailurePolicy, Mark, Mutation, Name, PlanStep, Rejection, Retry, RoutingPlan,
    SkippedBecause, Start,
};

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

/// The lease of a step that says nothing about it; vLLM's default.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// KV cache that the engine of an earlier step holds.
struct KvHeld {
    lease: Option<Duration>,
    since: Moment,
    /// Whether the engine holds it for another engine to load.
    is_offered: bool,
}

impl KvHeld {
    fn until(&self) -> Moment {
        self.since + self.lease.unwrap_or(DEFAULT_LEASE)
    }
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

struct PlanExecution<'a, D> {
    call: &'a StepCall,
    options: &'a CallOptions<'a>,
    router: &'a mut D,
    retries: RetryState,
    transfer: TransferState,
    held: Option<KvHeld>,
    prefill: Option<Box<PrefillResult>>,
    /// The step whose KV cache the current step loads.
    producer: Option<Producer>,
    is_degraded: bool,
}

/// Executes a plan up to the first byte of its response.
///
/// # Errors
/// If every pod that could be tried failed, or none was left. The client has got nothing yet.
pub async fn execute<D: Replan>(
    plan: RoutingPlan,
    call: &StepCall,
    options: &CallOptions<'_>,
    router: &mut D,
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
    };
    let mut plan = plan;
    loop {
        match execution.run(plan).await {
            Ok(response) => return Ok(response),
            Err(RunStop::Refused(response)) => return Ok(*response),
            Err(RunStop::Failed(failure)) => return Err(failure),
            Err(RunStop::Restart(otherwise)) => match Box::pin(execution.decide_again()).await {
                Ok(again) => plan = again,
                Err(_no_pod) => {
                    execution.retry_not_made();
                    return *otherwise;
                }
            },
        }
    }
}

impl<D: Replan> PlanExecution<'_, D> {
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
                return self.respond(main, concurrent).await;
            }
            if let Err(stop) = Box::pin(self.complete_group(main, concurrent)).await {
                steps.for_each(|never_called| self.withdraw(&never_called));
                return Err(stop);
            }
        }
        Err(RunStop::Failed(CallFailure::Rejected(Rejection::unavailable("plan has no steps"))))
    }

    /// The step that responds to the client.
    async fn respond(
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
            let age = |held: &KvHeld| self.router.now().saturating_sub(held.since);
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

    /// Completes a group before the last: all of its steps must end before the next group starts.
    async fn complete_group(
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
    fn dependency_failed(&mut self, failure: StepFailure) -> Result<(), RunStop> {
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

    /// The prefill engine may have freed its KV cache: a decode step could read another request's
    /// blocks.
    fn lease_expired(&mut self, step: &PlanStep) -> RunStop {
        self.withdraw(step);
        let budget = self.options.budget;
        let now = self.router.now();
        let next = self.retries.exhausted(AfterFailure::Restart, || budget.spend(now));
        self.stop(next, step.name.clone(), CallError::LeaseExpired)
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

    /// Decides the pod of one step.
    async fn bind(&mut self, name: &Name) -> Result<PlanStep, Rejection> {
        let mut steps = self.decide(Some(name)).await?.steps;
        if steps.is_empty() {
            return Err(Rejection::unavailable("plan has no steps"));
        }
        Ok(steps.swap_remove(0))
    }

    async fn decide(&mut self, step: Option<&Name>) -> Result<RoutingPlan, Rejection> {
        self.router.replan(Retry { step, excluded: self.retries.excluded() }).await
    }

    fn failed(&mut self, pod: Option<PodId>, policy: FailurePolicy) -> RetryDecision {
        let budget = self.options.budget;
        let now = self.router.now();
        self.retries.failed(pod, policy, || budget.spend(now))
    }

    /// The retry found no pod, so it returns to the budget.
    fn retry_not_made(&mut self) {
        self.options.budget.give_back();
        self.retries.not_retried();
    }

    /// What follows when a retry found no other pod.
    fn no_other_pod(&mut self, policy: FailurePolicy) -> RetryDecision {
        self.retry_not_made();
        let budget = self.options.budget;
        let now = self.router.now();
        self.retries.exhausted(policy.then, || budget.spend(now))
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
        }
    }

    /// The step's pod will not hold the prompt that the decision expects it to hold.
    fn withdraw(&mut self, step: &PlanStep) {
        if let Some(pod) = step.pod.filter(|_| step.is_expected) {
            self.router.request_refused(pod);
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
