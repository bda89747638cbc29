//! Approximate mode: the caches of pods without events, estimated from the prompts that they were
//! sent.
//!
//! The router records for each such pod the blocks of its prompts, up to the capacity of the pod's
//! cache in tokens (a block has few tokens where prompts are tokenized, and many where text is
//! matched), and evicts as engines do: the least recently used prompt first, and within a prompt
//! the last block first. The estimate is wrong where the engine evicts differently, has other
//! clients, or restarts. So it is marked as such: the pod's trust is "guessed", and its status
//! shows how full the estimated cache is.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wornpath_blocks::BlockHash;
use wornpath_index::{CacheEvent, Content, EngineHash, IndexWriter, PodId, StoredBlocks, Tier};

/// The estimated cache of one pod. Does no I/O and reads no clock.
#[derive(Debug)]
pub struct ApproximateCache {
    /// In tokens.
    capacity: u64,
    tokens: u64,
    /// Number of the last prompt.
    prompt: u64,
    blocks: HashMap<BlockHash, CachedBlock>,
    order: BTreeMap<LruPosition, BlockHash>,
}

/// Eviction order: least recently used first, and within a prompt the last block first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct LruPosition {
    prompt: u64,
    depth: Reverse<u32>,
}

/// A block in the estimated cache.
#[derive(Clone, Copy, Debug)]
struct CachedBlock {
    position: LruPosition,
    tokens: u32,
    /// Prompts with this block since it was stored.
    prompts: u32,
}

/// A prompt that was sent to a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentPrompt<'a> {
    /// The hashes of its blocks.
    pub chain: &'a [BlockHash],
    /// Tokens per block.
    pub block_tokens: usize,
}

/// A change of an estimated cache.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheChange {
    /// Blocks that were stored.
    pub stored: Vec<BlockHash>,
    /// Blocks that were evicted.
    pub evicted: Vec<BlockHash>,
}

impl ApproximateCache {
    /// An empty cache of `capacity` tokens.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, tokens: 0, prompt: 0, blocks: HashMap::new(), order: BTreeMap::new() }
    }

    /// Blocks in the estimated cache.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the estimated cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Stores a prompt that was sent to the pod. Of one that is longer than the cache, only the
    /// beginning is stored.
    pub fn sent(&mut self, SentPrompt { chain, block_tokens }: SentPrompt<'_>) -> CacheChange {
        self.prompt += 1;
        let mut change = CacheChange::default();
        let tokens = u32::try_from(block_tokens.max(1)).unwrap_or(u32::MAX);
        let max_blocks = usize::try_from(self.capacity / u64::from(tokens)).unwrap_or(usize::MAX);
        for (depth, block) in (0..).zip(&chain[..chain.len().min(max_blocks)]) {
            let position = LruPosition { prompt: self.prompt, depth: Reverse(depth) };
            match self.blocks.entry(*block) {
                Entry::Occupied(mut entry) => {
                    let cached = entry.get_mut();
                    self.order.remove(&cached.position);
                    cached.position = position;
                    cached.prompts = cached.prompts.saturating_add(1);
                }
                Entry::Vacant(entry) => {
                    entry.insert(CachedBlock { position, tokens, prompts: 1 });
                    self.tokens += u64::from(tokens);
                    change.stored.push(*block);
                }
            }
            self.order.insert(position, *block);
        }
        // The loop ends: every block in `order` is in `blocks` too, and `evict` removes it from
        // both.
        while self.tokens > self.capacity
            && let Some((_, block)) = self.order.first_key_value()
        {
            change.evicted.push(*block);
            self.evict(*block);
        }
        change
    }

    /// Undoes a prompt that the pod refused and did not compute: evicts the blocks that only this
    /// prompt had.
    pub fn refused(&mut self, chain: &[BlockHash]) -> CacheChange {
        let mut change = CacheChange::default();
        let last = chain.iter().rposition(|block| self.blocks.contains_key(block));
        for block in chain[..last.map_or(0, |last| last + 1)].iter().rev() {
            if self.blocks.get(block).is_none_or(|cached| cached.prompts > 1) {
                break;
            }
            self.evict(*block);
            change.evicted.push(*block);
        }
        change
    }

    fn evict(&mut self, block: BlockHash) {
        if let Some(cached) = self.blocks.remove(&block) {
            self.order.remove(&cached.position);
            self.tokens -= u64::from(cached.tokens);
        }
    }
}

/// The size of an estimated cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApproximateSize {
    /// Blocks in it.
    pub blocks: usize,
    /// Tokens in it.
    pub tokens: u64,
    /// Its capacity in tokens.
    pub capacity: u64,
}

/// The estimated caches of all pods without events.
#[derive(Debug, Default)]
pub struct ApproximateCaches(Mutex<HashMap<PodId, ApproximateCache>>);

impl ApproximateCaches {
    /// Adds a pod whose cache has `capacity` tokens.
    pub fn add(&self, pod: PodId, capacity: u64) {
        self.pods().insert(pod, ApproximateCache::new(capacity));
    }

    /// Removes a pod.
    pub fn remove(&self, pod: PodId) {
        self.pods().remove(&pod);
    }

    /// The size of a pod's estimated cache, if it has one.
    #[must_use]
    pub fn status(&self, pod: PodId) -> Option<ApproximateSize> {
        let pods = self.pods();
        let cache = pods.get(&pod)?;
        let ApproximateCache { capacity, tokens, .. } = *cache;
        Some(ApproximateSize { blocks: cache.len(), tokens, capacity })
    }

    /// Stores a prompt that was sent to a pod, in the index too. Returns whether the pod's cache is
    /// estimated.
    pub fn sent(&self, writer: &mut IndexWriter, pod: PodId, sent: SentPrompt<'_>) -> bool {
        self.change(writer, pod, |cache| cache.sent(sent))
    }

    /// Undoes a prompt that a pod refused, in the index too. Returns whether the pod's cache is
    /// estimated.
    pub fn refused(&self, writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) -> bool {
        self.change(writer, pod, |cache| cache.refused(chain))
    }

    fn change(
        &self,
        writer: &mut IndexWriter,
        pod: PodId,
        make: impl FnOnce(&mut ApproximateCache) -> CacheChange,
    ) -> bool {
        let mut pods = self.pods();
        let Some(cache) = pods.get_mut(&pod) else { return false };
        let change = make(cache);
        let hashes = |blocks: &[BlockHash]| blocks.iter().map(|one| EngineHash(one.0)).collect();
        let stored: Vec<_> = hashes(&change.stored);
        let evicted: Vec<_> = hashes(&change.evicted);
        let tier = Tier::Gpu;
        // Under the lock, so that the index gets changes in order. It fails only for a pod that has
        // left the index.
        let stored =
            StoredBlocks { tier, blocks: &stored, content: Content::IndexHashes, locations: &[] };
        let removed = CacheEvent::Removed { tier, blocks: &evicted };
        let _ = writer.apply(pod, None, &[CacheEvent::Stored(stored), removed]);
        true
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<PodId, ApproximateCache>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wornpath_index::{Depths, Index, IndexLimits};

    /// A prompt of blocks of three tokens.
    fn sent(chain: &[BlockHash]) -> SentPrompt<'_> {
        SentPrompt { chain, block_tokens: 3 }
    }

    fn chain(family: u64, length: u64) -> Vec<BlockHash> {
        (0..length).map(|at| BlockHash((family + 1) << 32 | at)).collect()
    }

    proptest! {
        #[test]
        fn an_estimated_cache_stays_within_its_capacity_and_has_no_gaps(
            capacity in 1..30_usize,
            prompts in prop::collection::vec((0..6_u64, 0..12_u64), 1..60),
        ) {
            let mut cache = ApproximateCache::new(3 * capacity as u64 + 2);
            let mut held = std::collections::HashSet::new();
            for (family, length) in prompts {
                let chain = chain(family, length);
                let change = cache.sent(sent(&chain));
                held.extend(change.stored.iter().copied());
                for gone in &change.evicted {
                    prop_assert!(held.remove(gone), "an evicted block was cached");
                    prop_assert!(!chain[..chain.len().min(capacity)].contains(gone), "a block in use is not evicted");
                }
                prop_assert!(held.len() <= capacity && held.len() == cache.len());
                prop_assert_eq!(cache.tokens, 3 * held.len() as u64);
                for block in &held {
                    let before = BlockHash(block.0 - 1);
                    prop_assert!(block.0 as u32 == 0 || held.contains(&before), "a gap before {block:?}");
                }
            }
        }
    }

    #[test]
    fn the_least_recently_used_prompt_is_evicted_first() {
        let mut cache = ApproximateCache::new(18);
        cache.sent(sent(&chain(0, 3)));
        cache.sent(sent(&chain(1, 3)));
        let again = cache.sent(sent(&chain(0, 3)));
        assert_eq!(again, CacheChange::default(), "it is cached already");
        assert_eq!(cache.sent(sent(&chain(2, 2))).evicted, [chain(1, 3)[2], chain(1, 3)[1]]);
    }

    #[test]
    fn capacity_is_counted_in_tokens_for_blocks_of_any_size() {
        let mut cache = ApproximateCache::new(1000);
        cache.sent(SentPrompt { chain: &chain(0, 90), block_tokens: 16 });
        assert_eq!((cache.len(), cache.tokens), (62, 992));
        cache.sent(SentPrompt { chain: &chain(1, 90), block_tokens: 128 });
        assert_eq!((cache.len(), cache.tokens), (7 + 6, 7 * 128 + 6 * 16));
        let too_long = cache.sent(SentPrompt { chain: &chain(2, 1), block_tokens: 1001 });
        assert_eq!(too_long, CacheChange::default());
    }

    #[test]
    fn a_refused_prompt_evicts_only_the_blocks_that_no_other_prompt_has() {
        let mut cache = ApproximateCache::new(18);
        cache.sent(sent(&chain(0, 3)));
        cache.sent(sent(&chain(0, 5)));
        let mut long = chain(0, 5);
        assert_eq!(cache.refused(&long).evicted, [long[4], long[3]]);
        assert_eq!(cache.refused(&long), CacheChange::default(), "two prompts had the rest");
        long = chain(1, 9);
        cache.sent(sent(&long));
        assert_eq!(cache.refused(&long).evicted.len(), 6, "the part that fitted");
        assert!(cache.is_empty() && cache.order.is_empty() && cache.tokens == 0);
    }

    #[test]
    fn the_index_changes_for_pods_with_an_estimated_cache_and_for_no_others() {
        let index = Index::new(IndexLimits::default(), 1);
        let silent = index.add_pod().unwrap();
        let other = index.add_pod().unwrap();
        let caches = ApproximateCaches::default();
        caches.add(silent, 12);
        let mut writer = index.writer();
        assert!(!caches.sent(&mut writer, other, sent(&chain(0, 3))));
        assert!(caches.sent(&mut writer, silent, sent(&chain(0, 3))));
        assert!(caches.sent(&mut writer, silent, sent(&chain(1, 3))));
        let depth = |family| {
            let mut answer = Depths::default();
            let mut depths = [0; 2];
            index.reader().lookup(&chain(family, 3), &mut answer);
            answer.depths_into(&mut depths);
            depths[silent.slot().position()]
        };
        assert_eq!((depth(0), depth(1)), (1, 3));
        assert_eq!(
            caches.status(silent),
            Some(ApproximateSize { blocks: 4, tokens: 12, capacity: 12 })
        );
        assert!(caches.refused(&mut writer, silent, &chain(1, 3)));
        assert!(!caches.refused(&mut writer, other, &chain(1, 3)));
        assert_eq!((depth(0), depth(1)), (1, 0));
        caches.remove(silent);
        assert_eq!(caches.status(silent), None);
    }
}
