//! What was sent to pods that say nothing of their caches, for the index to guess by.

use std::sync::Arc;

use wornpath_blocks::BlockHash;
use wornpath_events::{Guesses, Sent};
use wornpath_index::{PodId, Writer};
use wornpath_routing::Remember;

/// The guesses, as decisions see them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(pub(crate) Arc<Guesses>);

impl Remember for Memory {
    fn sent(
        &self,
        writer: &mut Writer,
        pod: PodId,
        chain: &[BlockHash],
        block_tokens: usize,
    ) -> bool {
        self.0.sent(writer, pod, Sent { chain, block_tokens })
    }

    fn refused(&self, writer: &mut Writer, pod: PodId, chain: &[BlockHash]) -> bool {
        self.0.refused(writer, pod, chain)
    }
}
