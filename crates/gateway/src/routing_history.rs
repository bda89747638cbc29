//! What was sent to pods that say nothing of their caches, for the index to guess by.

use std::sync::Arc;

use wornpath_blocks::BlockHash;
use wornpath_events::{ApproximateCaches, SentPrompt};
use wornpath_index::{IndexWriter, PodId};
use wornpath_routing::RoutingHistory;

/// The guesses, as decisions see them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApproximateHistory(pub(crate) Arc<ApproximateCaches>);

impl RoutingHistory for ApproximateHistory {
    fn sent(
        &self,
        writer: &mut IndexWriter,
        pod: PodId,
        chain: &[BlockHash],
        block_tokens: usize,
    ) -> bool {
        self.0.sent(writer, pod, SentPrompt { chain, block_tokens })
    }

    fn refused(&self, writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) -> bool {
        self.0.refused(writer, pod, chain)
    }
}
