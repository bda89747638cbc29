//! Carries out a plan of any number of steps.
//!
//! Steps that start together form a group. The last step of the last group answers the client; every
//! group before is waited for, and its answer brings what the next one needs. One step is the simplest
//! case and goes through the same code. What comes after a failure, [`retry_state`](crate::course) says.

mod loading;

use crate::coarse_timer;
use crate::concurrent_steps::{Companions, FailureCause, StepFailure, StepHalt, accompany, beside};
use crate::connector::{self, BootstrapCache, Rendezvous, tells_failed_load};
use crate::endpoint::Endpoint;
use crate::failure::{CallError, CallFailure};
use crate::in_flight::Deadline;
use crate::kv_load;
use crate::replan::{CallAttempt, CallOptions, PlanResponse, PrefillResult, Replan, StepCall};
use crate::request_builder::{
    MOST_STEP_BYTES, ask_engine, is_for_another_pod, may_have_computed, request, verdict, within,
};
use crate::response::EngineResponse;
use crate::retry_state::{Producer, RetryDecision, RetryState, is_held};
use crate::send::call;
use crate::splice::field;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use loading::gives;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::{Moment, PodId};
use wornpath_routing::{
    AfterFailure, FailurePolicy, Mark, Mutation, Name, PlanStep, Rejection, Reservation, Retry,
    RoutingPlan, SkippedBecause, Start,
};

/// Why a plan stopped.
enum RunStop {
    /// It must begin again; and what came of it so far, if nobody is left for that.
    Restart(Box<Result<PlanResponse, CallFailure>>),
    /// It failed.
    Failed(CallFailure),
    /// A step before the last was refused by its pod for what the client sent.
    Answered(Box<PlanResponse>),
}

/// How much of an answer is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeaseExpiry {
    FirstByte,
    /// All of it, with what the next step needs.
    End,
}

/// What an earlier step left behind, and when.
struct KvLeft {
    lease: Option<Duration>,
    at: Moment,
    /// Whether its engine holds that for another one.
    is_given: bool,
}

/// How long engines are taken to hold what they computed for others, unless their steps say how long; as vLLM does.
const HELD: Duration = Duration::from_secs(30);

struct PlanExecution<'a, D> {
    call: &'a StepCall,
    kit: &'a CallOptions<'a>,
    dispatch: &'a mut D,
    course: RetryState,
    known: BootstrapCache,
    left: Option<KvLeft>,
    taken: Option<Box<PrefillResult>>,
    /// The step that produced what the step under way loads.
    producer: Option<Producer>,
    is_degraded: bool,
}

/// Carries out a plan until the first byte of its answer.
///
/// # Errors
/// If every pod that could be tried failed, or none was left. The client has seen nothing yet.
pub async fn execute<D: Replan>(
    plan: RoutingPlan,
    call: &StepCall,
    kit: &CallOptions<'_>,
    dispatch: &mut D,
) -> Result<PlanResponse, CallFailure> {
    kit.budget.request();
    let (course, known) = (RetryState::default(), BootstrapCache::default());
    let (left, taken, producer, is_degraded) = (None, None, None, false);
    let mut run =
        PlanExecution { call, kit, dispatch, course, known, left, taken, producer, is_degraded };
    let mut plan = plan;
    loop {
        match run.carry_out(plan).await {
            Ok(carried) => return Ok(carried),
            Err(RunStop::Answered(carried)) => return Ok(*carried),
            Err(RunStop::Failed(failure)) => return Err(failure),
            Err(RunStop::Restart(otherwise)) => match Box::pin(run.decide_again()).await {
                Ok(again) => plan = again,
                Err(_nobody) => {
                    run.not_retried();
                    return *otherwise;
                }
            },
        }
    }
}

impl<D: Replan> PlanExecution<'_, D> {
    async fn carry_out(&mut self, plan: RoutingPlan) -> Result<PlanResponse, RunStop> {
        self.known = BootstrapCache::default();
        (self.taken, self.producer) = (None, None);
        self.leave(None);
        let is_left_out =
            |mark: &Mark| matches!(mark, Mark::StepSkipped { why: SkippedBecause::NoPod, .. });
        self.is_degraded = plan.marks.iter().any(is_left_out);
        let mut steps = plan.steps.into_iter().peekable();
        while let Some(first) = steps.next() {
            let (mut companions, mut main) = (Companions::new(), first);
            while let Some(next) = steps.next_if(|next| next.start == Start::Together) {
                let begun = Box::pin(self.accompany(main, &next, &mut companions)).await;
                if let Err(stop) = begun.or_else(|fallen| self.without(*fallen)) {
                    [next].into_iter().chain(steps).for_each(|it| self.withdraw(&it));
                    return Err(stop);
                }
                main = next;
            }
            if steps.peek().is_none() {
                return self.answer(main, companions).await;
            }
            if let Err(stop) = Box::pin(self.prepare_beside(main, companions)).await {
                steps.for_each(|never_called| self.withdraw(&never_called));
                return Err(stop);
            }
        }
        Err(RunStop::Failed(CallFailure::Rejected(Rejection::unavailable("the plan has no steps"))))
    }

    /// The step that answers the client.
    async fn answer(
        &mut self,
        mut step: PlanStep,
        mut with: Companions,
    ) -> Result<PlanResponse, RunStop> {
        self.course.begin_step();
        let mut spare: Option<PlanResponse> = None;
        loop {
            if step.pod.is_none() {
                step = Box::pin(self.bind(&step.name))
                    .await
                    .map_err(|no| RunStop::Failed(CallFailure::Rejected(no)))?;
            }
            let held = self.left.as_ref().map(|left| is_held(left.lease, self.since(left.at)));
            if held == Some(false) {
                return Err(self.lapsed(&step));
            }
            let is_alone = with.is_empty();
            let attempt = {
                // Where it stays: it is thousands of bytes.
                let ends_by = if is_alone { Deadline::Client } else { Deadline::Companion };
                let attempt = pin!(self.attempt(&mut step, ends_by, LeaseExpiry::FirstByte));
                beside(attempt, &mut with).await
            };
            let failed = match attempt {
                Ok((answer, endpoint)) => {
                    let status = answer.head.status;
                    let pod = step.pod;
                    let name = step.name.clone();
                    let policy = step.failure;
                    let mut carried = self.carried(answer, step, endpoint);
                    if !is_for_another_pod(status) {
                        with.detach_all();
                        return Ok(carried);
                    }
                    // The pod is done with it, whether or not this is what the client gets in the end.
                    carried.step.reservation = None;
                    spare = Some(carried);
                    (pod, name, policy, CallError::Status(status))
                }
                Err(StepHalt::Failed(CallError::KvLoad)) => {
                    with.shutdown().await;
                    self.load_failed(&step)?;
                    continue;
                }
                Err(StepHalt::Failed(cause)) => {
                    step.reservation = None;
                    (step.pod, step.name.clone(), step.failure, cause)
                }
                Err(StepHalt::Fallen(fallen)) => {
                    with.shutdown().await;
                    self.without(*fallen).inspect_err(|_| self.withdraw(&step))?;
                    continue;
                }
            };
            let (pod, name, policy, cause) = failed;
            // Gives the load back before anybody decides again.
            with.shutdown().await;
            if cause.is_final() {
                return Err(RunStop::Failed(self.step_failed(name, cause)));
            }
            let mut next = self.failed(pod, policy);
            if next == RetryDecision::OtherPod && !is_alone {
                // What two pods were to share is void.
                next = self.course.begin_again();
            }
            if next == RetryDecision::OtherPod {
                match Box::pin(self.bind(&name)).await {
                    Ok(other) => {
                        step = other;
                        continue;
                    }
                    Err(_nobody) => next = self.no_other_pod(policy),
                }
            }
            let otherwise = spare.ok_or_else(|| self.step_failed(name, cause));
            return match next {
                RetryDecision::Restart => Err(RunStop::Restart(Box::new(otherwise))),
                _ => otherwise.map_err(RunStop::Failed),
            };
        }
    }

    /// A group before the last: all of it must be done before the next one starts.
    async fn prepare_beside(
        &mut self,
        main: PlanStep,
        mut with: Companions,
    ) -> Result<(), RunStop> {
        let mut prepared = self.prepare(main).await;
        while prepared.is_ok()
            && let Some(ended) = with.join_next().await
        {
            if let Ok(Err(fallen)) = ended {
                prepared = self.without(*fallen);
            }
        }
        with.shutdown().await;
        prepared
    }

    /// A step before the last: waits for its answer and takes what the next one needs.
    async fn prepare(&mut self, mut step: PlanStep) -> Result<(), RunStop> {
        self.course.begin_step();
        loop {
            if step.pod.is_none() {
                step = match Box::pin(self.bind(&step.name)).await {
                    Ok(bound) => bound,
                    Err(_nobody) if step.failure.then == AfterFailure::Skip => {
                        (self.known.alone, self.is_degraded) = (true, true);
                        return Ok(());
                    }
                    Err(nobody) => return Err(RunStop::Failed(CallFailure::Rejected(nobody))),
                };
            }
            let cause = match self.attempt(&mut step, Deadline::Client, LeaseExpiry::End).await {
                Ok((answer, endpoint)) => {
                    let status = answer.head.status;
                    if status.is_success() {
                        let (lease, at, is_given) = (step.lease, self.dispatch.now(), gives(&step));
                        self.leave(Some(KvLeft { lease, at, is_given }));
                        return Ok(());
                    }
                    let is_refused = status.is_client_error() && !is_for_another_pod(status);
                    if is_refused && may_be_cut_too_short(&step, &self.call.body) {
                        // Whether it is the client's fault, the next step says.
                        (self.known.alone, self.is_degraded) = (true, true);
                        return Ok(());
                    }
                    if is_refused {
                        return Err(RunStop::Answered(Box::new(
                            self.carried(answer, step, endpoint),
                        )));
                    }
                    CallError::Status(status)
                }
                Err(cause) => cause,
            };
            let Some(other) = self.instead(step, cause).await? else { return Ok(()) };
            step = other;
        }
    }

    /// Who takes a failed step; nobody if the next one does its work.
    async fn instead(
        &mut self,
        step: PlanStep,
        cause: CallError,
    ) -> Result<Option<PlanStep>, RunStop> {
        if matches!(cause, CallError::KvLoad) {
            self.load_failed(&step)?;
            return Ok(Some(step));
        }
        let (pod, name, policy) = (step.pod, step.name.clone(), step.failure);
        drop(step);
        if cause.is_final() {
            return Err(RunStop::Failed(self.step_failed(name, cause)));
        }
        let mut next = self.failed(pod, policy);
        if next == RetryDecision::OtherPod {
            match Box::pin(self.bind(&name)).await {
                Ok(other) => return Ok(Some(other)),
                Err(_nobody) => next = self.no_other_pod(policy),
            }
        }
        match next {
            RetryDecision::Skip => {
                self.known.alone = true;
                self.is_degraded = true;
                Ok(None)
            }
            _ => Err(self.stop(next, name, cause)),
        }
    }

    /// A step beside the one that answers has failed. Another pod does its work, with everything begun again, or the
    /// one that answers.
    fn without(&mut self, fallen: StepFailure) -> Result<(), RunStop> {
        let StepFailure { step, why } = fallen;
        let cause = match why {
            FailureCause::Failed(cause) => cause,
            FailureCause::Refused(answer, endpoint) => {
                self.withdraw(&step);
                return Err(RunStop::Answered(Box::new(self.carried(*answer, step, endpoint))));
            }
        };
        if !cause.is_late() {
            self.withdraw(&step);
        }
        if cause.is_final() {
            return Err(RunStop::Failed(self.step_failed(step.name.clone(), cause)));
        }
        let (budget, now) = (self.kit.budget, self.dispatch.now());
        match self.course.failed_beside(step.pod, step.failure, || budget.spend(now)) {
            RetryDecision::Skip => {
                self.compute_alone();
                Ok(())
            }
            next => Err(self.stop(next, step.name.clone(), cause)),
        }
    }

    /// What the step before left may be gone: nobody may rely on it.
    fn lapsed(&mut self, step: &PlanStep) -> RunStop {
        self.withdraw(step);
        let (budget, now) = (self.kit.budget, self.dispatch.now());
        let next = self.course.after_all(AfterFailure::Restart, || budget.spend(now));
        self.stop(next, step.name.clone(), CallError::Lapsed)
    }

    fn stop(&self, next: RetryDecision, step: Name, cause: CallError) -> RunStop {
        let failure = self.step_failed(step, cause);
        match next {
            RetryDecision::Restart => RunStop::Restart(Box::new(Err(failure))),
            _ => RunStop::Failed(failure),
        }
    }

    fn step_failed(&self, step: Name, cause: CallError) -> CallFailure {
        CallFailure::Step { step, tried: self.course.tried().max(1) as usize, cause }
    }

    /// One call to the step's pod.
    async fn attempt(
        &mut self,
        step: &mut PlanStep,
        ends_by: Deadline,
        until: LeaseExpiry,
    ) -> Result<(EngineResponse, Arc<Endpoint>), CallError> {
        let pod = step.pod.ok_or(CallError::PodGone)?;
        let target = self.dispatch.target(pod).ok_or(CallError::PodGone)?;
        let request = request(self.call, step, &target, &self.known)
            .inspect_err(|_never_sent| self.withdraw(step))?;
        let endpoint = target.endpoint;
        let began = self.dispatch.begins();
        let waiting = endpoint.begins(self.dispatch.now(), ends_by);
        let timeouts = within(self.kit, step);
        let result = {
            let called = pin!(call(&endpoint, self.kit.worker, request, timeouts));
            match step.computed_after.zip(step.reservation.as_mut()) {
                None => called.await,
                Some((time, load)) => computing(called, time, load).await,
            }
        };
        // Rare, and apart: it must not swell what every request is carried out with.
        let result = match result {
            Ok(answer)
                if self.producer.is_some() && tells_failed_load(&step.mutations, &self.known) =>
            {
                Box::pin(kv_load::loaded(answer)).await
            }
            result => result,
        };
        let result = match result {
            Ok(answer) if until == LeaseExpiry::End => Box::pin(self.take_over(step, answer)).await,
            result => result,
        };
        waiting.judged(verdict(&result), self.dispatch.now());
        if let Some(started) = began {
            let (step, failure) = (&step.name, result.as_ref().err());
            self.dispatch.answered(CallAttempt { step, endpoint: &endpoint, started, failure });
        }
        if !may_have_computed(&result) {
            self.withdraw(step);
        }
        result.map(|mut answer| {
            answer.body.count_as_work();
            (answer, endpoint)
        })
    }

    /// The whole answer of a step before the last; keeps what it brings for the next one.
    async fn take_over(
        &mut self,
        step: &PlanStep,
        answer: EngineResponse,
    ) -> Result<EngineResponse, CallError> {
        let (head, body) = answer.whole(MOST_STEP_BYTES).await?;
        if head.status.is_success() {
            let brought = connector::brought(&step.mutations, &body);
            self.known.brought = brought.map_err(CallError::Lacks)?;
            if self.produced(step, body.clone()) {
                // Whatever was left out before, this can be taken over.
                self.known.alone = false;
            }
        }
        Ok(EngineResponse::of(head, body))
    }

    /// Starts a step whose answer nobody needs, beside the one that comes next.
    async fn accompany(
        &mut self,
        step: PlanStep,
        next: &PlanStep,
        companions: &mut Companions,
    ) -> Result<(), Box<StepFailure>> {
        let begun = self.introduce(&step, next, companions.is_empty()).await;
        let (endpoint, request) = match begun {
            Ok(begun) => begun,
            Err(cause) => {
                return Err(Box::new(StepFailure { step, why: FailureCause::Failed(cause) }));
            }
        };
        self.produced(&step, Bytes::new());
        let until = self.dispatch.now() + step.lease.unwrap_or(HELD);
        self.dispatch.hands_over(Some(until));
        let timeouts = within(self.kit, &step);
        let (worker, now) = (self.kit.worker, self.dispatch.now());
        companions.spawn(accompany(step, endpoint, (request, timeouts), (worker, now)));
        Ok(())
    }

    /// Whom a step beside `next` goes to, and what it says there.
    async fn introduce(
        &mut self,
        step: &PlanStep,
        next: &PlanStep,
        is_first: bool,
    ) -> Result<(Arc<Endpoint>, Request<Full<Bytes>>), CallError> {
        if is_first {
            self.meet(step, next).await?;
        }
        let pod = step.pod.ok_or(CallError::PodGone)?;
        let target = self.dispatch.target(pod).ok_or(CallError::PodGone)?;
        let request = request(self.call, step, &target, &self.known)?;
        Ok((target.endpoint, request))
    }

    /// Agrees on where two engines meet.
    async fn meet(&mut self, gives: &PlanStep, takes: &PlanStep) -> Result<(), CallError> {
        let target =
            gives.pod.and_then(|pod| self.dispatch.target(pod)).ok_or(CallError::PodGone)?;
        let (host, port) = (target.endpoint.host().to_owned(), target.bootstrap_port);
        let engine = if connector::asks_engine(&takes.mutations) {
            ask_engine(&target.endpoint, port, within(self.kit, gives)).await?
        } else {
            String::new()
        };
        self.known.rendezvous = Rendezvous { host, port, room: self.dispatch.room(), engine };
        Ok(())
    }

    /// Finds a pod for one step.
    async fn bind(&mut self, name: &Name) -> Result<PlanStep, Rejection> {
        let mut steps = self.decide(Some(name)).await?.steps;
        if steps.is_empty() {
            return Err(Rejection::unavailable("the plan has no steps"));
        }
        Ok(steps.swap_remove(0))
    }

    async fn decide(&mut self, step: Option<&Name>) -> Result<RoutingPlan, Rejection> {
        self.dispatch.replan(Retry { step, excluded: self.course.excluded() }).await
    }

    fn failed(&mut self, pod: Option<PodId>, policy: FailurePolicy) -> RetryDecision {
        let (budget, now) = (self.kit.budget, self.dispatch.now());
        self.course.failed(pod, policy, || budget.spend(now))
    }

    /// The retry that was to be made found nobody.
    fn not_retried(&mut self) {
        self.kit.budget.give_back();
        self.course.not_retried();
    }

    /// What comes when the retry that was to be made found no other pod.
    fn no_other_pod(&mut self, policy: FailurePolicy) -> RetryDecision {
        self.not_retried();
        let (budget, now) = (self.kit.budget, self.dispatch.now());
        self.course.after_all(policy.then, || budget.spend(now))
    }

    fn carried(
        &self,
        answer: EngineResponse,
        step: PlanStep,
        endpoint: Arc<Endpoint>,
    ) -> PlanResponse {
        let (retries, is_degraded) = (self.course.retries(), self.is_degraded);
        PlanResponse { answer, step, endpoint, retries, is_degraded, taken: self.taken.clone() }
    }

    /// What the step's pod was expected to hold because of it, it will not hold.
    fn withdraw(&mut self, step: &PlanStep) {
        if let Some(pod) = step.pod.filter(|_| step.is_expected) {
            self.dispatch.refused(pod);
        }
    }

    /// What is there for the next step to take.
    fn leave(&mut self, left: Option<KvLeft>) {
        let given = left.as_ref().filter(|left| left.is_given);
        self.dispatch.hands_over(given.map(|left| left.at + left.lease.unwrap_or(HELD)));
        self.left = left;
    }

    fn since(&self, moment: Moment) -> Duration {
        self.dispatch.now().saturating_sub(moment)
    }
}

/// Whether an engine may refuse a call only because it is to end after one token: it cannot read the call of a tool out of
/// that which a client wants by all means.
fn may_be_cut_too_short(step: &PlanStep, body: &[u8]) -> bool {
    let is_cut = step.mutations.iter().any(|it| matches!(it, Mutation::PrefillOnly));
    let choice = if is_cut { field(body, "tool_choice") } else { Ok(None) };
    matches!(choice, Ok(Some(choice)) if !matches!(choice, b"null" | b"\"none\"" | b"\"auto\""))
}

/// Waits for an answer that comes as a whole, and meanwhile takes the prompt for computed when its time
/// has come: else the pod would seem to be computing it until the last token is generated.
async fn computing<T>(
    mut called: Pin<&mut impl Future<Output = T>>,
    time: Duration,
    load: &mut Reservation,
) -> T {
    match tokio::time::timeout_at(coarse_timer::after(time), called.as_mut()).await {
        Ok(answered) => answered,
        Err(_) => {
            load.first_token();
            called.await
        }
    }
}
