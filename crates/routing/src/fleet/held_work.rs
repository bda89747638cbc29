//! The work of a request that waits in the router, counted on the pod that it waits for.

use std::sync::Arc;

use super::pod_state::PodState;
use super::reservation::pairs;

/// Work of a waiting request on the pod that it waits for. Dropping it takes it back.
#[derive(Debug)]
pub(crate) struct HeldWork {
    pod_state: Arc<PodState>,
    tokens: u64,
    pairs: u64,
}

impl HeldWork {
    pub(crate) fn new(pod_state: &Arc<PodState>, prompt_tokens: u64, uncached_tokens: u64) -> Self {
        let tokens = uncached_tokens.min(prompt_tokens);
        let pairs = pairs(prompt_tokens, tokens);
        pod_state.hold_work(tokens, pairs);
        Self { pod_state: Arc::clone(pod_state), tokens, pairs }
    }
}

impl Drop for HeldWork {
    fn drop(&mut self) {
        self.pod_state.release_held_work(self.tokens, self.pairs);
    }
}
