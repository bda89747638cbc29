//! Turns bound steps into a plan: reserves load, adds the speculative insert, notifies plugins.

use super::{BoundStep, DecisionRun, PER_TOKEN, decision};
use crate::fleet::{Candidate, EventTrust, Reservation};
use crate::plan::{CacheHint, CacheRun, Mutation, PlanStep, RoutingPlan, Start};
use crate::workflow::WorkflowStep;

impl<'a> DecisionRun<'a, '_, '_> {
    /// The plan of the bound steps.
    pub(super) fn plan(mut self, bound: Vec<BoundStep<'a>>) -> RoutingPlan {
        let profile = self.profile;
        let prompt_tokens = self.prompt_tokens();
        let mut steps = Vec::with_capacity(bound.len());
        for (at, BoundStep { step, pod: bound, .. }) in bound.into_iter().enumerate() {
            let rules = &step.rules;
            let mut mutations = rules.mutations.clone();
            let before = profile.steps.iter().take_while(|other| other.name != step.name);
            let is_first = at == 0
                && !before
                    .map(|step| &step.picked)
                    .any(|picked| self.context.slots.is_filled(picked));
            if is_first {
                // No step came before, so there is no KV to load.
                mutations.retain(|mutation| !matches!(mutation, Mutation::TakeKv(_)));
            }
            let mut planned = PlanStep {
                name: step.name.clone(),
                role: rules.role.clone(),
                pod: None,
                fallbacks: Vec::new(),
                start: if is_first { Start::After } else { rules.start },
                failure: rules.failure,
                deadline: rules.deadline,
                lease: rules.lease,
                cache: CacheHint::default(),
                mutations,
                computed_after: None,
                reservation: None,
                is_expected: false,
            };
            if let Some(bound) = bound {
                let pod = &self.env.fleet[bound.candidate];
                planned.pod = Some(pod.id());
                planned.fallbacks = bound.fallbacks;
                planned.cache = self.cache_hint(bound.candidate);
                if let Some(field) = rules.cache_hint.clone() {
                    let value = planned.cache.to_json();
                    planned.mutations.push(Mutation::Set { field, value });
                }
                let load = Reservation::new(pod.state(), prompt_tokens, bound.uncached_tokens);
                planned.reservation = Some(load.sent_at(self.env.now));
                if !self.context.request.is_streamed() {
                    let pending = u32::try_from(pod.state().prefill_tokens()).unwrap_or(u32::MAX);
                    planned.computed_after = Some(PER_TOKEN.saturating_mul(pending));
                }
                planned.is_expected = self.speculate(step, bound.candidate);
                self.notify(step, bound.candidate);
            }
            steps.push(planned);
        }
        RoutingPlan { steps, marks: self.marks }
    }

    /// Tells the scorers and the picker of a step that the plan uses their choice.
    fn notify(&self, step: &WorkflowStep, candidate: Candidate) {
        let decision = decision(self.context, self.env, step);
        for scorer in &step.selector.scorers {
            scorer.scorer.chosen(&decision, candidate);
        }
        step.selector.picker.picker.chosen(&decision, candidate);
    }

    /// Adds the chosen pod to the plan's speculative insert, unless the pod holds the whole prompt,
    /// so that the next request with the same prefix follows this one. Returns whether it was
    /// added.
    fn speculate(&mut self, step: &WorkflowStep, candidate: Candidate) -> bool {
        let (Some(lifetime), Some(blocks)) = (self.profile.speculate, &self.profile.blocks) else {
            return false;
        };
        let depth = self.depth(candidate) as usize;
        let Some(blocks) = self.context.slots.read(blocks) else { return false };
        let pod = &self.env.fleet[candidate];
        // An approximated cache is renewed with every request.
        let is_known = depth >= blocks.chain.len() && pod.state().trust() != EventTrust::Guessed;
        if !step.rules.speculates || is_known {
            return false;
        }
        let pod = pod.id();
        self.env.state.expect(pod, blocks, self.env.now + lifetime);
        true
    }

    /// What the pod holds of the prompt, with the tiers that its engine reported.
    fn cache_hint(&mut self, candidate: Candidate) -> CacheHint {
        let depth = self.depth(candidate) as usize;
        let blocks =
            self.profile.blocks.as_ref().and_then(|blocks| self.context.slots.read(blocks));
        let Some(blocks) = blocks.filter(|_| depth > 0) else { return CacheHint::default() };
        // Engines always compute the last token of a prompt, and with it its whole block.
        let most = blocks.prompt_tokens.saturating_sub(1) / blocks.block_tokens.max(1);
        let counted = depth.min(most);
        let tokens = (counted * blocks.block_tokens) as u64;
        let state = &mut *self.env.state;
        let holdings = &mut state.scratch.holdings;
        let held = &blocks.chain[..depth.min(blocks.chain.len())];
        let pod = &self.env.fleet[candidate];
        let Ok(confirmed) = state.index.block_locations(pod.id(), held, holdings) else {
            return CacheHint::default();
        };
        let is_speculative = confirmed < counted && pod.state().trust() != EventTrust::Guessed;
        let speculative = is_speculative.then(|| held[counted - 1]);
        let mut runs: Vec<CacheRun> = Vec::new();
        for holding in holdings.iter() {
            match runs.last_mut() {
                Some(run) if run.tier == holding.tier => run.blocks += 1,
                _ => runs.push(CacheRun {
                    blocks: 1,
                    tier: holding.tier,
                    location: holding.location,
                }),
            }
        }
        CacheHint { tokens, runs, speculative }
    }
}
