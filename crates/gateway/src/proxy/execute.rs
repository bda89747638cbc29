//! Execute: runs a plan, decides again after failures, and tells the index what becomes of it.

use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::request_trace::{CallTrace, RequestTrace, kept};
use crate::observe::summary::RequestSummary;
use crate::proxy::kv_lease::KvLease;
use crate::proxy::wait_queue::Waiter;
use crate::proxy::worker::{FirstInsert, Worker};
use std::sync::Arc;
use wornpath_execution::{CallAttempt, Replan, Target};
use wornpath_index::{Moment, PodId};
use wornpath_routing::queue::Redecision;
use wornpath_routing::{Outcome, Profile, Rejection, Retry, RoutingContext, RoutingPlan};

/// Decides for the executor, always in the fleet as it is at that moment.
pub(crate) struct Dispatcher<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) profile: &'a Arc<Profile>,
    /// None only if the gateway ended while it waited.
    pub(crate) context: Option<RoutingContext>,
    /// Of the client's body.
    pub(crate) bytes: usize,
    /// Where calls are taken down, if they are.
    pub(crate) seen: Option<Box<RequestTrace>>,
    /// The fleet of the first decision, which is good for its plan.
    pub(crate) snapshot: Arc<FleetSnapshot>,
    /// Committed before anything else that the index learns of this request.
    pub(crate) insert: &'a FirstInsert,
    /// Where it is told what engines hold for each other, if several are at work.
    pub(crate) handover: Option<&'a KvLease>,
    /// Where it is told whose answer is waited for, and what was taken down: a client that leaves meanwhile lets nothing
    /// come to its end.
    pub(crate) record: Option<&'a mut RequestSummary>,
}

impl Dispatcher<'_> {
    /// The request is sent to whoever answers in this plan.
    pub(crate) fn goes_to(&mut self, plan: &RoutingPlan) {
        let Some(record) = &mut self.record else { return };
        let entry = plan.steps.last().and_then(|step| self.snapshot.entry(step.pod?));
        record.pod = entry.map(|entry| (entry.pod.id(), entry.pod.facts().name.clone()));
    }

    /// Nobody answers.
    pub(crate) fn goes_nowhere(&mut self) {
        if let Some(record) = &mut self.record {
            record.pod = None;
        }
    }
}

impl Drop for Dispatcher<'_> {
    fn drop(&mut self) {
        if let Some(record) = &mut self.record {
            record.trace = kept(self.seen.take());
        }
    }
}

impl Replan for Dispatcher<'_> {
    fn target(&self, pod: PodId) -> Option<Target> {
        self.snapshot.target(pod)
    }

    async fn replan(&mut self, retry: Retry<'_>) -> Result<RoutingPlan, Rejection> {
        let (worker, gateway) = (self.worker, &self.worker.gateway);
        worker.commit(self.insert);
        if retry.step.is_none() && self.handover.is_some_and(KvLease::has_client_left) {
            return Err(Rejection::unavailable("the client disconnected"));
        }
        let ending = || Rejection::unavailable("the gateway is shutting down");
        let mut context = self.context.take().ok_or_else(ending)?;
        self.snapshot = gateway.snapshot();
        let outcome = worker.decide_now(&self.snapshot, gateway.now(), |world| {
            self.profile.replan(&mut context, world, retry)
        });
        let (context, decided) = match outcome {
            Outcome::Plan(plan) => (Some(context), Ok(plan)),
            Outcome::Reject(rejection) => (Some(context), Err(rejection)),
            Outcome::Hold(hold) => {
                let again =
                    Redecision { step: retry.step.cloned(), excluded: retry.excluded.to_vec() };
                let waiter = Waiter { profile: self.profile, context, again, bytes: self.bytes };
                let waited = Box::pin(gateway.wait_queue.wait(worker, hold, waiter)).await;
                self.snapshot = gateway.snapshot();
                waited
            }
        };
        self.context = context;
        if let Ok(plan) = &decided {
            self.goes_to(plan);
        }
        decided
    }

    fn now(&self) -> Moment {
        self.worker.gateway.now()
    }

    fn begins(&self) -> Option<Moment> {
        self.seen.as_ref().map(|_| self.now())
    }

    fn answered(&mut self, called: CallAttempt<'_>) {
        let ended = self.now();
        let Some(seen) = &mut self.seen else { return };
        let CallAttempt { step, endpoint, started, failure } = called;
        let (step, url) = (step.clone(), endpoint.url().to_owned());
        let failure = failure.map(ToString::to_string);
        seen.calls.push(CallTrace { step, url, started, ended, failure });
    }

    fn refused(&mut self, pod: PodId) {
        let blocks = self.context.as_ref().and_then(|it| self.profile.prompt_blocks(it));
        if let Some(blocks) = blocks {
            self.worker.commit(self.insert);
            self.worker.rollback(pod, &blocks.chain, self.bytes);
        }
    }

    fn hands_over(&mut self, until: Option<Moment>) {
        if let Some(handover) = self.handover {
            handover.is_held(until);
        }
    }

    fn room(&mut self) -> u64 {
        self.worker.random() >> 1
    }
}
