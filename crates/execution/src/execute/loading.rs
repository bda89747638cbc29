//! KV cache that one step's pod produces and the next step's pod loads, and what follows if the load fails.
//!
//! The pod that fails to load is healthy; the one that produced the KV cache may be dead. So the producer is blamed, probed
//! and excluded, and the consumer stays a candidate.

use super::{PlanExecution, RunStop};
use crate::breaker::CallOutcome;
use crate::failure::CallError;
use crate::replan::{PrefillResult, Replan};
use crate::retry_state::{Producer, RetryDecision};
use bytes::Bytes;
use wornpath_routing::{Mutation, PlanStep, Rejection, RoutingPlan};

impl<D: Replan> PlanExecution<'_, D> {
    /// A step's pod produces KV cache, if that is for the next step to load; whether it is.
    pub(super) fn produced(&mut self, step: &PlanStep, answer: Bytes) -> bool {
        if !gives(step) {
            return false;
        }
        let pod = step.pod;
        self.taken = Some(Box::new(PrefillResult { pod, cache: step.cache.clone(), answer }));
        self.producer = Some(Producer { pod, failure: step.failure });
        true
    }

    /// The step's engine could not load the KV cache: the plan starts again without the pod that produced it, or the step
    /// goes on without it.
    pub(super) fn load_failed(&mut self, step: &PlanStep) -> Result<(), RunStop> {
        let name = step.name.clone();
        let Some(producer) = self.producer else {
            return Err(self.stop(RetryDecision::GiveUp, name, CallError::KvLoad));
        };
        let (budget, now) = (self.kit.budget, self.dispatch.now());
        if let Some(target) = producer.pod.and_then(|pod| self.dispatch.target(pod)) {
            target.endpoint.judge(CallOutcome::Suspect, now);
        }
        match self.course.load_failed(producer, step.failure.then, || budget.spend(now)) {
            RetryDecision::Skip => {
                self.compute_alone();
                Ok(())
            }
            next => Err(self.stop(next, name, CallError::KvLoad)),
        }
    }

    /// The step under way loads nothing and computes the prompt itself.
    pub(super) fn compute_alone(&mut self) {
        (self.known.alone, self.is_degraded) = (true, true);
        (self.taken, self.producer) = (None, None);
        let left = self.left.take().filter(|left| !left.is_given);
        self.leave(left);
    }

    /// Decides the whole plan again; with suspects if there is no plan without them, since they may be alive.
    pub(super) async fn decide_again(&mut self) -> Result<RoutingPlan, Rejection> {
        match self.decide(None).await {
            Err(_nobody) if self.course.readmit_suspects() => self.decide(None).await,
            decided => decided,
        }
    }
}

/// Whether a step produces KV cache for another one.
pub(super) fn gives(step: &PlanStep) -> bool {
    step.mutations.iter().any(|it| matches!(it, Mutation::OfferKv(_)))
}
