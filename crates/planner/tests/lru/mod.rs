//! An exact LRU cache of blocks, as simple as it can be: the oracle of what an order computes.

use wornpath_blocks::BlockHash;
use wornpath_planner::{JobId, Queue};

/// Prompt tokens computed when requests come one after the other to a cache of `capacity` blocks.
///
/// A request needs all its blocks at once, the partial last one too; the others go by least recent use, deepest
/// first.
pub(crate) fn computed_tokens(queue: &Queue, order: &[JobId], capacity: usize) -> u64 {
    let block = queue.block_size().get();
    // Least recently used first.
    let mut cache: Vec<BlockHash> = Vec::new();
    let mut computed = 0;
    for job in order {
        let (chain, tokens) = (queue.chain(*job), queue.prompt_tokens(*job));
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
