//! KV cache that one step's pod produces and the next step's pod loads, and what follows if the
//! load fails.
//!
//! The pod that fails to load is healthy; the one that produced the KV cache may be dead. So the
//! producer is blamed, probed and excluded, and the consumer stays a candidate.

use super::{KvHeld, PlanExecution, RunStop};
use crate::breaker::CallOutcome;
use crate::failure::CallError;
use crate::replan::{PrefillResult, Replan};
use crate::retry_state::{Producer, RetryDecision};
use crate::transfer::offers_kv;
use bytes::Bytes;
use wornpath_routing::{PlanStep, Rejection, RoutingPlan};

impl<D: Replan> PlanExecution<'_, D> {
    /// Notes a step that has produced KV cache for the next one. Returns whether it has.
    pub(super) fn produced(&mut self, step: &PlanStep, answer: Bytes) -> bool {
        if !offers_kv(&step.mutations) {
            return false;
        }
        let pod = step.pod;
        self.prefill = Some(Box::new(PrefillResult { pod, cache: step.cache.clone(), answer }));
        self.producer = Some(Producer { pod, failure: step.failure });
        true
    }

    /// The step's engine could not load the KV cache: the plan restarts without the pod that
    /// produced it, or the step computes the prompt itself.
    pub(super) fn load_failed(&mut self, step: &PlanStep) -> Result<(), RunStop> {
        let name = step.name.clone();
        let Some(producer) = self.producer else {
            return Err(self.stop(RetryDecision::GiveUp, name, CallError::KvLoad));
        };
        let budget = self.options.budget;
        let now = self.router.now();
        if let Some(target) = producer.pod.and_then(|pod| self.router.target(pod)) {
            target.endpoint.record_outcome(CallOutcome::Suspect, now);
        }
        match self.retries.load_failed(producer, step.failure.then, || budget.spend(now)) {
            RetryDecision::Skip => {
                self.compute_without_prefill();
                Ok(())
            }
            next => Err(self.stop(next, name, CallError::KvLoad)),
        }
    }

    /// The current step loads nothing and computes the prompt itself.
    pub(super) fn compute_without_prefill(&mut self) {
        self.skip_transfer();
        self.prefill = None;
        self.producer = None;
        let held = self.held.take().filter(|held| !held.is_offered);
        self.hold(held);
    }

    /// The steps after a skipped prefill step have nothing to load.
    pub(super) const fn skip_transfer(&mut self) {
        self.transfer.is_skipped = true;
        self.is_degraded = true;
    }

    /// Sets what engines hold for the next step, and reports until when.
    pub(super) fn hold(&mut self, held: Option<KvHeld>) {
        let offered = held.as_ref().filter(|held| held.is_offered);
        self.router.kv_held_until(offered.map(KvHeld::until));
        self.held = held;
    }

    /// Decides the whole plan again; with the suspects if there is no plan without them, since they
    /// may be alive.
    pub(super) async fn decide_again(&mut self) -> Result<RoutingPlan, Rejection> {
        match self.decide(None).await {
            Err(_no_pod) if self.retries.readmit_suspects() => self.decide(None).await,
            decided => decided,
        }
    }
}
