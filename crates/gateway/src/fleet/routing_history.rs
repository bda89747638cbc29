//! What was sent to which pod: the caches of pods without events are approximated from it, and other
//! routers are told of it, so that they expect the blocks before any event names them.

use std::sync::Arc;
use wornpath_blocks::BlockHash;
use wornpath_events::{ApproximateCaches, SentPrompt};
use wornpath_exchange::{SentLog, Told};
use wornpath_index::{IndexWriter, PodId};
use wornpath_routing::{RoutingHistory, SentChain};

/// Approximate caches of the pods without cache events, derived from the prompts routed to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApproximateHistory(pub(crate) Arc<ApproximateCaches>);

impl RoutingHistory for ApproximateHistory {
    fn sent(&self, writer: &mut IndexWriter, pod: PodId, chain: SentChain<'_>) -> bool {
        let SentChain { blocks, block_tokens, .. } = chain;
        self.0.sent(writer, pod, SentPrompt { chain: blocks, block_tokens })
    }

    fn refused(&self, writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) -> bool {
        self.0.refused(writer, pod, chain)
    }
}

/// The record of sent prompts that other routers are told of.
#[derive(Clone, Debug)]
pub(crate) struct SharedHistory {
    approximate: ApproximateHistory,
    sent: Arc<SentLog>,
}

impl SharedHistory {
    pub(crate) const fn new(approximate: ApproximateHistory, sent: Arc<SentLog>) -> Self {
        Self { approximate, sent }
    }
}

impl RoutingHistory for SharedHistory {
    fn sent(&self, writer: &mut IndexWriter, pod: PodId, chain: SentChain<'_>) -> bool {
        let is_approximate = self.approximate.sent(writer, pod, chain);
        self.sent.add(pod, chain, if is_approximate { Told::Whole } else { Told::New });
        is_approximate
    }

    fn refused(&self, writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) -> bool {
        self.approximate.refused(writer, pod, chain)
    }
}
