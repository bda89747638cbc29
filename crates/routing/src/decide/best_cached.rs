//! What a plan gives away: the pod that holds more of a prompt than the chosen one, and why it was
//! passed over.
//!
//! Asked once for each plan, and answered by one comparison unless another pod holds more.

use super::{DecisionRun, decision};
use crate::fleet::{BreakerState, Candidate, FleetPod, Health};
use crate::plan::{BestCached, PassedOver};
use crate::slot::BlockHashes;
use crate::stage::{ConfiguredFilter, Decision, WhenEmpty};
use crate::workflow::WorkflowStep;

/// Of pods that hold equally much, so many are asked: one that only scored worse is the answer then.
const MOST_ASKED: usize = 8;

impl DecisionRun<'_, '_, '_> {
    /// The pod that holds most of the prompt, if it holds more than the chosen one. `elsewhere` is
    /// the most that any other pod holds.
    pub(super) fn best_cached(
        &self,
        step: &WorkflowStep,
        chosen: Candidate,
        elsewhere: usize,
    ) -> Option<BestCached> {
        let blocks = self.profile.blocks.as_ref();
        let prompt = blocks.and_then(|blocks| self.context.slots.read(blocks))?;
        let own = self.counted_depth(prompt, chosen);
        if elsewhere.min(prompt.countable_blocks()) <= own {
            return None;
        }
        let fleet = self.env.fleet;
        // Blocks of another model may have the same hashes, and are of no use.
        let serving = || fleet.candidates().filter(|at| self.serves_model(&fleet[*at]));
        let deepest = serving().map(|at| self.counted_depth(prompt, at)).max()?;
        if deepest <= own {
            return None;
        }
        let decision = decision(self.context, self.env, step);
        let best = serving().filter(|at| self.counted_depth(prompt, *at) == deepest);
        let asked = best.take(MOST_ASKED).map(|at| (self.why_passed_over(step, &decision, at), at));
        let (why, at) = asked.min_by_key(|(why, _)| *why != PassedOver::Load)?;
        let tokens = (deepest * prompt.block_tokens) as u64;
        Some(BestCached { pod: fleet[at].id(), tokens, why })
    }

    /// The leading blocks that a pod holds and that need not be computed.
    fn counted_depth(&self, prompt: &BlockHashes, at: Candidate) -> usize {
        (self.depth(at) as usize).min(prompt.countable_blocks())
    }

    fn serves_model(&self, pod: &FleetPod) -> bool {
        let models = &pod.facts().models;
        models.is_empty() || models.contains(&self.context.request.model.base)
    }

    fn why_passed_over(
        &self,
        step: &WorkflowStep,
        decision: &Decision<'_>,
        at: Candidate,
    ) -> PassedOver {
        let pod = decision.pod(at);
        if !pod.facts().roles.contains(&step.rules.role) {
            return PassedOver::Role;
        }
        if self.retry.excluded.contains(&pod.id()) {
            return PassedOver::Excluded;
        }
        let allowed = self.context.request.allowed.as_ref();
        if allowed.is_some_and(|allowed| !allowed.has(pod)) {
            return PassedOver::Subset;
        }
        let drops = |filter: &&ConfiguredFilter| {
            let mut keep = [true];
            filter.filter.keep(decision, &[at], &mut keep);
            keep == [false]
        };
        match step.selector.filters.iter().find(drops) {
            None => PassedOver::Load,
            Some(_) if is_unhealthy(pod) => PassedOver::Health,
            Some(filter) if filter.when_empty == WhenEmpty::Hold => PassedOver::Hold,
            Some(_) => PassedOver::Filter,
        }
    }
}

fn is_unhealthy(pod: &FleetPod) -> bool {
    let state = pod.state();
    state.health() != Health::Up
        || matches!(state.breaker(), BreakerState::Open | BreakerState::HalfOpen)
}
