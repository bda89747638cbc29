//! Execute: runs a plan, decides again after failures, and updates the index.
//!
//! The speculative insert of the plan is committed when its request was handed to the connection
//! ([`Router::request_sent`]): the engine computes meanwhile.

use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::request_trace::{CallTrace, RequestTrace, kept};
use crate::observe::summary::RequestSummary;
use crate::proxy::wait_queue::Waiter;
use crate::proxy::worker::{LockedInsert, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use wornpath_execution::{
    CallAttempt, CallFailure, CallOptions, PlanResponse, RequestFingerprint, RetryBudget,
    RetryBudgets, Router, StepCall, Target, Timeouts, execute,
};
use wornpath_index::{Moment, PodId};
use wornpath_routing::queue::Redecision;
use wornpath_routing::{Outcome, Profile, Rejection, Retry, RoutingContext, RoutingPlan};

/// How the calls of one request are made.
#[derive(Clone, Debug)]
pub(crate) struct CallPolicy {
    pub(crate) timeouts: Timeouts,
    /// As in [`CallOptions`].
    pub(crate) whole_answer: Option<Duration>,
    pub(crate) tenant_budget: Option<Arc<RetryBudget>>,
    pub(crate) fingerprint: RequestFingerprint,
}

impl CallPolicy {
    pub(crate) fn options<'a>(&'a self, worker: &'a Worker) -> CallOptions<'a> {
        let gateway = &worker.gateway;
        CallOptions {
            budget: RetryBudgets { router: &gateway.budget, tenant: self.tenant_budget.as_deref() },
            timeouts: self.timeouts,
            whole_answer: self.whole_answer,
            worker: worker.number,
            request: self.fingerprint,
            poison: &gateway.poison,
        }
    }
}

/// Runs a plan of one step for a client.
pub(crate) async fn execute_one_step(
    plan: RoutingPlan,
    call: &StepCall,
    options: &CallOptions<'_>,
    mut replanner: Replanner<'_>,
) -> Result<PlanResponse, CallFailure> {
    replanner.set_pod(&plan);
    let response = execute(plan, call, options, &mut replanner).await;
    if response.is_err()
        && let Some(summary) = &mut replanner.summary
    {
        summary.pod = None;
    }
    response
}

/// Decides for the executor, always with the fleet of that moment.
pub(crate) struct Replanner<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) profile: &'a Arc<Profile>,
    /// None only if the gateway shut down while the request was queued.
    pub(crate) context: Option<RoutingContext>,
    /// Bytes of the client's body.
    pub(crate) bytes: usize,
    /// Where calls are recorded, if they are.
    pub(crate) trace: Option<Box<RequestTrace>>,
    /// The fleet of the last decision.
    pub(crate) snapshot: Arc<FleetSnapshot>,
    /// Committed before anything else that the index learns of this request.
    pub(crate) insert: Option<LockedInsert>,
    /// What engines hold for each other, in a plan of several steps.
    pub(crate) lease: Option<&'a KvLease>,
    /// Names the pod that the client waits for and keeps the trace, also if the client disconnects
    /// and drops this run.
    pub(crate) summary: Option<&'a mut RequestSummary>,
}

impl Replanner<'_> {
    /// The client waits for the pod of the last step.
    fn set_pod(&mut self, plan: &RoutingPlan) {
        let Some(summary) = &mut self.summary else { return };
        let pod = plan.steps.last().and_then(|step| step.pod);
        let entry = pod.and_then(|pod| self.snapshot.entry(pod));
        summary.pod = entry.map(|entry| (entry.pod.id(), entry.pod.facts().name.clone()));
    }

    fn commit(&mut self) {
        if let Some(insert) = self.insert.take() {
            self.worker.commit(insert);
        }
    }
}

impl Drop for Replanner<'_> {
    fn drop(&mut self) {
        if let Some(summary) = &mut self.summary {
            summary.trace = kept(self.trace.take());
        }
    }
}

impl Router for Replanner<'_> {
    fn target(&self, pod: PodId) -> Option<Target> {
        self.snapshot.target(pod)
    }

    async fn replan(&mut self, retry: Retry<'_>) -> Result<RoutingPlan, Rejection> {
        let worker = self.worker;
        let gateway = &worker.gateway;
        self.commit();
        if retry.step.is_none() && self.lease.is_some_and(KvLease::has_client_left) {
            return Err(Rejection::unavailable("the client disconnected"));
        }
        let closed = Rejection::shutting_down;
        let mut context = self.context.take().ok_or_else(closed)?;
        self.snapshot = gateway.snapshot();
        let outcome = worker.decide_now(&self.snapshot, gateway.now(), |env| {
            self.profile.replan(&mut context, env, retry)
        });
        let (context, decided) = match outcome {
            Outcome::Plan(plan) => (Some(context), Ok(plan)),
            Outcome::Reject(rejection) => (Some(context), Err(rejection)),
            Outcome::Hold(hold) => {
                let step = retry.step.cloned();
                let again = Redecision { step, excluded: retry.excluded.to_vec() };
                let waiter = Waiter { profile: self.profile, context, again, bytes: self.bytes };
                let waited = Box::pin(gateway.wait_queue.wait(worker, hold, waiter)).await;
                self.snapshot = gateway.snapshot();
                waited
            }
        };
        self.context = context;
        if let Ok(plan) = &decided {
            self.set_pod(plan);
        }
        decided
    }

    fn now(&self) -> Moment {
        self.worker.gateway.now()
    }

    fn call_started(&self) -> Option<Moment> {
        self.trace.as_ref().map(|_| self.now())
    }

    fn request_sent(&mut self) {
        self.commit();
    }

    fn call_ended(&mut self, called: CallAttempt<'_>) {
        let ended = self.now();
        let Some(trace) = &mut self.trace else { return };
        trace.calls.push(CallTrace {
            step: called.step.clone(),
            url: called.endpoint.url().to_owned(),
            started: called.started,
            ended,
            failure: called.failure.map(ToString::to_string),
        });
    }

    fn request_refused(&mut self, pod: PodId) {
        let context = self.context.as_ref();
        let Some(blocks) = context.and_then(|context| self.profile.prompt_blocks(context)) else {
            return;
        };
        if let Some(insert) = self.insert.take() {
            self.worker.commit(insert);
        }
        self.worker.rollback(pod, &blocks.chain, self.bytes);
    }

    fn kv_held_until(&mut self, until: Option<Moment>) {
        if let Some(lease) = self.lease {
            lease.set_until(until);
        }
    }

    fn unique_id(&mut self) -> u64 {
        self.worker.random() >> 1
    }
}

/// Shared by the plan and the task that waits for its client.
#[derive(Debug, Default)]
pub(crate) struct KvLease {
    /// Nanoseconds until which an engine may hold what it computed for another.
    until: AtomicU64,
    has_client_left: AtomicBool,
}

impl KvLease {
    /// Sets when the lease expires; none if no engine holds anything.
    pub(crate) fn set_until(&self, until: Option<Moment>) {
        let nanos = until
            .map_or(0, |until| u64::try_from(until.since_zero().as_nanos()).unwrap_or(u64::MAX));
        self.until.store(nanos, Relaxed);
    }

    /// The client disconnected: the plan starts nothing new.
    pub(crate) fn set_client_left(&self) {
        self.has_client_left.store(true, Relaxed);
    }

    pub(crate) fn has_client_left(&self) -> bool {
        self.has_client_left.load(Relaxed)
    }

    /// When the lease expires.
    pub(crate) fn until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Relaxed))
    }
}
