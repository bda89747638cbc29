//! An exact LRU cache of blocks, as simple as possible: the oracle for what an order computes.

use wornpath_blocks::BlockHash;
use wornpath_planner::{JobId, Queue};

/// Prompt tokens computed when requests come one after the other to a cache of `capacity` blocks.
///
/// A request needs all its blocks at once, also the partial last one; other blocks are evicted by
/// least recent use, the deepest first.
pub(crate) fn computed_tokens(queue: &Queue, order: &[JobId], capacity: usize) -> u64 {
    let block = queue.block_size().get();
    // Least recently used first.
    let mut cache: Vec<BlockHash> = Vec::new();
    let mut computed = 0;
    for job in order {
        let chain = queue.chain(*job);
        let tokens = queue.prompt_tokens(*job);
        let reusable = queue.reusable_blocks(*job).min(chain.len());
        let found = chain[..reusable].iter().take_while(|hash| cache.contains(hash)).count();
        computed += (tokens - found * block) as u64;
        cache.retain(|hash| !chain.contains(hash));
        let own = tokens.div_ceil(block);
        let keep = capacity - own;
        let surplus = cache.len().saturating_sub(keep);
        cache.drain(..surplus);
        cache.extend(chain.iter().rev());
    }
    computed
}
