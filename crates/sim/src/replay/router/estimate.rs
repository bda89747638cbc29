//! The caches of pods without events, estimated as a live router does: from what it sends them.

use std::sync::Arc;
use wornpath_blocks::BlockHash;
use wornpath_events::{ApproximateCaches, SentPrompt};
use wornpath_index::{IndexWriter, PodId};
use wornpath_routing::{EventTrust, Fleet, RoutingHistory, SentChain};

/// The estimated caches of all pods.
#[derive(Debug, Default)]
pub(super) struct Estimates(ApproximateCaches);

impl Estimates {
    /// Caches of `capacity` tokens for all pods, which are marked as pods without events.
    pub(super) fn of(fleet: &Fleet, capacity: u64) -> Arc<Self> {
        let estimates = Self::default();
        for pod in fleet.pods() {
            estimates.0.add(pod.id(), capacity);
            pod.state().set_trust(EventTrust::Guessed);
        }
        Arc::new(estimates)
    }

    pub(super) fn remove(&self, pod: PodId) {
        self.0.remove(pod);
    }
}

impl RoutingHistory for Estimates {
    fn sent(&self, writer: &mut IndexWriter, pod: PodId, chain: SentChain<'_>) -> bool {
        let SentChain { blocks, block_tokens, .. } = chain;
        self.0.sent(writer, pod, SentPrompt { chain: blocks, block_tokens })
    }

    fn refused(&self, writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) -> bool {
        self.0.refused(writer, pod, chain)
    }
}
