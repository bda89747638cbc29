//! What every pod would make of a request, for comparisons of decisions.

use std::time::Duration;

use wornpath_index::PodId;

use super::{DecisionRun, Retry, decision};
use crate::decision_state::DecisionEnv;
use crate::profile::Profile;
use crate::slot::RoutingContext;

/// What a pod would make of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PodEstimate {
    /// The pod.
    pub pod: PodId,
    /// Leading tokens of the prompt that it need not compute; none if the profile ignores caches.
    pub cached_tokens: Option<u64>,
    /// The predicted time to first token, if a scorer of the profile predicts it.
    pub first_token: Option<Duration>,
}

impl Profile {
    /// What each pod would make of a prepared request if it went there now. Decides nothing.
    ///
    /// # Panics
    /// If another profile made the context.
    #[must_use]
    pub fn survey(
        &self,
        context: &mut RoutingContext,
        env: &mut DecisionEnv<'_>,
    ) -> Vec<PodEstimate> {
        self.assert_owns(context);
        let marks = Vec::new();
        let retry = Retry::FIRST;
        let mut run = DecisionRun { profile: self, context, env, retry, recorder: None, marks };
        run.lookup();
        run.estimates()
    }
}

impl DecisionRun<'_, '_, '_> {
    /// By the step that computes the prompt, which is the first.
    fn estimates(&self) -> Vec<PodEstimate> {
        let Some(step) = self.profile.steps.first() else { return Vec::new() };
        let blocks = self.profile.blocks.as_ref();
        let prompt = blocks.and_then(|blocks| self.context.slots.read(blocks));
        let decision = decision(self.context, self.env, step);
        let fleet = self.env.fleet;
        let estimate = |at| PodEstimate {
            pod: fleet[at].id(),
            cached_tokens: prompt.map(|prompt| {
                let depth = (self.depth(at) as usize).min(prompt.countable_blocks());
                (depth * prompt.block_tokens) as u64
            }),
            first_token: step
                .selector
                .scorers
                .iter()
                .find_map(|scorer| scorer.scorer.first_token(&decision, at)),
        };
        fleet.candidates().map(estimate).collect()
    }
}
