//! Carries out a plan of any number of steps.
//!
//! Steps that start together form a group. The last step of the last group answers the client; every
//! group before is waited for, and its answer brings what the next one needs. One step is the simplest
//! case and goes through the same code. What comes after a failure, [`course`](crate::course) says.

use crate::answer::Answer;
use crate::asking::{
    MOST_STEP_BYTES, ask_engine, is_for_another_pod, may_have_computed, request, verdict, within,
};
use crate::connector::{self, Known, Rendezvous};
use crate::course::{Course, Next, is_held};
use crate::dispatch::{Call, Called, Carried, Dispatch, Kit, Taken};
use crate::endpoint::Endpoint;
use crate::exchange::call;
use crate::failure::{CallError, Failure};
use crate::pulse;
use bytes::Bytes;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use wornpath_index::{Moment, PodId};
use wornpath_routing::{
    Mark, Mutation, Name, PlanStep, Rejection, Reservation, Retry, RoutingPlan, SkippedBecause,
    Start,
};

/// Why a plan stopped.
enum Stop {
    /// It must begin again.
    Restart,
    /// It failed.
    Failed(Failure),
    /// A step before the last was refused by its pod for what the client sent.
    Answered(Box<Carried>),
}

/// What an earlier step left behind, and when.
struct Left {
    lease: Option<Duration>,
    at: Moment,
}

struct Run<'a, D> {
    call: &'a Call,
    kit: &'a Kit<'a>,
    dispatch: &'a mut D,
    course: Course,
    known: Known,
    left: Option<Left>,
    taken: Option<Box<Taken>>,
    is_degraded: bool,
}

/// Carries out a plan until the first byte of its answer.
///
/// # Errors
/// If every pod that could be tried failed, or none was left. The client has seen nothing yet.
pub async fn execute<D: Dispatch>(
    plan: RoutingPlan,
    call: &Call,
    kit: &Kit<'_>,
    dispatch: &mut D,
) -> Result<Carried, Failure> {
    kit.budget.request();
    let (course, known) = (Course::default(), Known::default());
    let (left, taken, is_degraded) = (None, None, false);
    let mut run = Run { call, kit, dispatch, course, known, left, taken, is_degraded };
    let mut plan = plan;
    loop {
        match run.carry_out(plan).await {
            Ok(carried) => return Ok(carried),
            Err(Stop::Answered(carried)) => return Ok(*carried),
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::Restart) => {
                plan = Box::pin(run.decide(None)).await.map_err(Failure::Rejected)?;
            }
        }
    }
}

impl<D: Dispatch> Run<'_, D> {
    async fn carry_out(&mut self, plan: RoutingPlan) -> Result<Carried, Stop> {
        self.known = Known::default();
        (self.left, self.taken) = (None, None);
        let is_left_out =
            |mark: &Mark| matches!(mark, Mark::StepSkipped { why: SkippedBecause::NoPod, .. });
        self.is_degraded |= plan.marks.iter().any(is_left_out);
        let mut steps = plan.steps.into_iter().peekable();
        while let Some(first) = steps.next() {
            let mut companions = JoinSet::new();
            let mut main = first;
            while let Some(next) = steps.next_if(|next| next.start == Start::Together) {
                if companions.is_empty() {
                    let met = Box::pin(self.meet(&main, &next)).await;
                    met.map_err(|cause| self.broken(&main, cause))?;
                }
                self.accompany(main, &mut companions)?;
                main = next;
            }
            if steps.peek().is_none() {
                return self.answer(main, companions).await;
            }
            if let Err(stop) = Box::pin(self.prepare(main)).await {
                steps.for_each(|never_called| self.withdraw(&never_called));
                return Err(stop);
            }
        }
        Err(Stop::Failed(Failure::Rejected(Rejection::unavailable("the plan has no steps"))))
    }

    /// The step that answers the client.
    async fn answer(
        &mut self,
        mut step: PlanStep,
        mut with: JoinSet<Companion>,
    ) -> Result<Carried, Stop> {
        self.course.begin_step();
        let mut spare: Option<Carried> = None;
        loop {
            if step.pod.is_none() {
                step = Box::pin(self.bind(&step.name))
                    .await
                    .map_err(|no| Stop::Failed(Failure::Rejected(no)))?;
            }
            let held = self.left.as_ref().map(|left| is_held(left.lease, self.since(left.at)));
            if held == Some(false) {
                return Err(Stop::Restart);
            }
            let attempt = {
                // Where it stays: it is thousands of bytes.
                let attempt = pin!(self.attempt(&mut step));
                beside(attempt, &mut with).await
            };
            let failed = match attempt {
                Ok((answer, endpoint)) => {
                    let status = answer.head.status;
                    let pod = step.pod;
                    let name = step.name.clone();
                    let policy = step.failure;
                    let carried = self.carried(answer, step, endpoint);
                    if !is_for_another_pod(status) {
                        with.detach_all();
                        return Ok(carried);
                    }
                    spare = Some(carried);
                    (pod, name, policy, CallError::Status(status))
                }
                Err(cause) => (step.pod, step.name.clone(), step.failure, cause),
            };
            let (pod, name, policy, cause) = failed;
            // Gives the load back before anybody decides again. What two pods were to share is void.
            let is_alone = with.is_empty();
            with.abort_all();
            let mut next = self.failed(pod, policy);
            if next == Next::OtherPod && !is_alone {
                return Err(Stop::Restart);
            }
            if next == Next::OtherPod {
                match Box::pin(self.bind(&name)).await {
                    Ok(other) => {
                        step = other;
                        continue;
                    }
                    Err(_nobody) => next = self.course.after_all(policy.then, || false),
                }
            }
            if next == Next::Restart {
                return Err(Stop::Restart);
            }
            let tried = self.course.tried() as usize;
            return spare.ok_or(Stop::Failed(Failure::Step { step: name, tried, cause }));
        }
    }

    /// A step before the last: waits for its answer and takes what the next one needs.
    async fn prepare(&mut self, mut step: PlanStep) -> Result<(), Stop> {
        self.course.begin_step();
        loop {
            if step.pod.is_none() {
                step = Box::pin(self.bind(&step.name))
                    .await
                    .map_err(|no| Stop::Failed(Failure::Rejected(no)))?;
            }
            let (answer, endpoint) = match self.attempt(&mut step).await {
                Ok(answered) => answered,
                Err(cause) => {
                    let Some(other) = self.instead(step, cause).await? else { return Ok(()) };
                    step = other;
                    continue;
                }
            };
            let status = answer.head.status;
            if status.is_client_error() && !is_for_another_pod(status) {
                return Err(Stop::Answered(Box::new(self.carried(answer, step, endpoint))));
            }
            let cause = if status.is_success() {
                match answer.whole(MOST_STEP_BYTES).await {
                    Ok((_, body)) => match connector::brought(&step.mutations, &body) {
                        Ok(brought) => {
                            self.known.brought = brought;
                            if let Some(taken) = taken(&step, body) {
                                // Whatever was left out before, this can be taken over.
                                self.known.alone = false;
                                self.taken = Some(taken);
                            }
                            self.left = Some(Left { lease: step.lease, at: self.dispatch.now() });
                            return Ok(());
                        }
                        Err(field) => CallError::Lacks(field),
                    },
                    Err(cause) => cause,
                }
            } else {
                CallError::Status(status)
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
    ) -> Result<Option<PlanStep>, Stop> {
        let (pod, name, policy) = (step.pod, step.name.clone(), step.failure);
        drop(step);
        let mut next = self.failed(pod, policy);
        if next == Next::OtherPod {
            match Box::pin(self.bind(&name)).await {
                Ok(other) => return Ok(Some(other)),
                Err(_nobody) => {
                    let (budget, now) = (self.kit.budget, self.dispatch.now());
                    next = self.course.after_all(policy.then, || budget.spend(now));
                }
            }
        }
        match next {
            Next::Skip => {
                self.known.alone = true;
                self.is_degraded = true;
                Ok(None)
            }
            Next::Restart => Err(Stop::Restart),
            _ => {
                let tried = self.course.tried() as usize;
                Err(Stop::Failed(Failure::Step { step: name, tried, cause }))
            }
        }
    }

    /// One call to the step's pod.
    async fn attempt(&mut self, step: &mut PlanStep) -> Result<(Answer, Arc<Endpoint>), CallError> {
        let pod = step.pod.ok_or(CallError::PodGone)?;
        let target = self.dispatch.target(pod).ok_or(CallError::PodGone)?;
        let request = request(self.call, step, &target, &self.known)?;
        let endpoint = target.endpoint;
        let began = self.dispatch.begins();
        let timeouts = within(self.kit.timeouts, step);
        let result = {
            let called = pin!(call(&endpoint, self.kit.worker, request, timeouts));
            match step.computed_after.zip(step.reservation.as_mut()) {
                None => called.await,
                Some((time, load)) => computing(called, time, load).await,
            }
        };
        endpoint.judge(verdict(&result), self.dispatch.now());
        if let Some(started) = began {
            let (step, failure) = (&step.name, result.as_ref().err());
            self.dispatch.answered(Called { step, endpoint: &endpoint, started, failure });
        }
        if !may_have_computed(&result) {
            self.withdraw(step);
        }
        result.map(|answer| (answer, endpoint))
    }

    /// Starts a step whose answer nobody needs, beside the one that comes next.
    fn accompany(
        &mut self,
        step: PlanStep,
        companions: &mut JoinSet<Companion>,
    ) -> Result<(), Stop> {
        let target = step.pod.and_then(|pod| self.dispatch.target(pod));
        let target = target.ok_or_else(|| self.broken(&step, CallError::PodGone))?;
        let request = request(self.call, &step, &target, &self.known);
        let request = request.map_err(|cause| self.broken(&step, cause))?;
        self.taken = taken(&step, Bytes::new()).or(self.taken.take());
        let (timeouts, worker, now) = (self.kit.timeouts, self.kit.worker, self.dispatch.now());
        companions.spawn(async move {
            let result = call(&target.endpoint, worker, request, within(timeouts, &step)).await;
            target.endpoint.judge(verdict(&result), now);
            let answer = result?;
            let status = answer.head.status;
            // To its end, and with its load, even if the other one is done: the engine is not.
            let ended = answer.whole(MOST_STEP_BYTES).await;
            drop(step);
            if status.is_success() { ended.map(|_| ()) } else { Err(CallError::Status(status)) }
        });
        Ok(())
    }

    /// Agrees on where two engines meet.
    async fn meet(&mut self, gives: &PlanStep, takes: &PlanStep) -> Result<(), CallError> {
        let target =
            gives.pod.and_then(|pod| self.dispatch.target(pod)).ok_or(CallError::PodGone)?;
        let (host, port) = (target.endpoint.host().to_owned(), target.bootstrap_port);
        let engine = if connector::asks_engine(&takes.mutations) {
            ask_engine(&target.endpoint, port, self.kit.timeouts).await?
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

    fn failed(&mut self, pod: Option<PodId>, policy: wornpath_routing::FailurePolicy) -> Next {
        let (budget, now) = (self.kit.budget, self.dispatch.now());
        self.course.failed(pod, policy, || budget.spend(now))
    }

    fn carried(&self, answer: Answer, step: PlanStep, endpoint: Arc<Endpoint>) -> Carried {
        let (retries, is_degraded) = (self.course.retries(), self.is_degraded);
        Carried { answer, step, endpoint, retries, is_degraded, taken: self.taken.clone() }
    }

    /// A group of steps that could not even start begins again, if that is allowed.
    fn broken(&mut self, step: &PlanStep, cause: CallError) -> Stop {
        match self.failed(step.pod, step.failure) {
            Next::GiveUp => {
                let tried = self.course.tried() as usize;
                Stop::Failed(Failure::Step { step: step.name.clone(), tried, cause })
            }
            _ => Stop::Restart,
        }
    }

    /// What the step's pod was expected to hold because of it, it will not hold.
    fn withdraw(&mut self, step: &PlanStep) {
        if let Some(pod) = step.pod.filter(|_| step.is_expected) {
            self.dispatch.refused(pod);
        }
    }

    fn since(&self, moment: Moment) -> Duration {
        self.dispatch.now().saturating_sub(moment)
    }
}

type Companion = Result<(), CallError>;

/// What the next step takes over of this one, if it gives anything.
fn taken(step: &PlanStep, answer: Bytes) -> Option<Box<Taken>> {
    let gives = step.mutations.iter().any(|it| matches!(it, Mutation::OfferKv(_)));
    let (pod, expected_tokens) = (step.pod, step.cache.tokens);
    gives.then(|| Box::new(Taken { pod, expected_tokens, answer }))
}

/// Waits for an answer that comes as a whole, and meanwhile takes the prompt for computed when its time
/// has come: else the pod would seem to be computing it until the last token is generated.
async fn computing<T>(
    mut called: Pin<&mut impl Future<Output = T>>,
    time: Duration,
    load: &mut Reservation,
) -> T {
    match tokio::time::timeout_at(pulse::after(time), called.as_mut()).await {
        Ok(answered) => answered,
        Err(_) => {
            load.first_token();
            called.await
        }
    }
}

/// Waits for an answer; a companion that fails is a failure of both.
async fn beside<T>(
    mut main: Pin<&mut impl Future<Output = Result<T, CallError>>>,
    companions: &mut JoinSet<Companion>,
) -> Result<T, CallError> {
    if companions.is_empty() {
        return main.await;
    }
    std::future::poll_fn(|context| {
        while let std::task::Poll::Ready(Some(ended)) = companions.poll_join_next(context) {
            if let Ok(Err(cause)) = ended {
                return std::task::Poll::Ready(Err(cause));
            }
        }
        main.as_mut().poll(context)
    })
    .await
}
