//! What was sent to pods that say nothing of their caches, for the index to guess by.

use std::sync::Arc;

use wornpath_blocks::BlockHash;
use wornpath_events::Guesses;
use wornpath_index::{PodId, Writer};
use wornpath_routing::Remember;

/// Tokens in a block of a model of which nothing else is known.
pub(crate) const BLOCK_TOKENS: usize = 16;

/// The guesses, as decisions see them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(pub(crate) Arc<Guesses>);

impl Remember for Memory {
    fn sent(&self, writer: &mut Writer, pod: PodId, chain: &[BlockHash]) -> bool {
        self.0.sent(writer, pod, chain)
    }

    fn refused(&self, writer: &mut Writer, pod: PodId, chain: &[BlockHash]) -> bool {
        self.0.refused(writer, pod, chain)
    }
}
