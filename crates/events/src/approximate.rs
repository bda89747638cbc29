//! What pods hold that say nothing of their caches: a guess from what they were sent.
//!
//! The router remembers for each such pod the blocks of the prompts it sent there, as many as the pod's cache has room
//! for in tokens (a block has few of them where prompts are tokenized, and many where text is matched), and forgets as
//! engines evict: what was used least lately goes first, and of one prompt its end. The guess is
//! wrong where the engine evicts otherwise, is used by others too, or restarts; so it is never taken for knowledge: the
//! pod's trust is "guessed", and its status says how full the guessed cache is.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wornpath_blocks::BlockHash;
use wornpath_index::{CacheEvent, Content, EngineHash, IndexWriter, PodId, StoredBlocks, Tier};

/// The guessed cache of one pod. Pure.
#[derive(Debug)]
pub struct ApproximateCache {
    /// Tokens that there is room for, and that are there.
    capacity: u64,
    tokens: u64,
    turn: u64,
    places: HashMap<BlockHash, CachedBlock>,
    order: BTreeMap<LruPosition, BlockHash>,
}

/// When a block goes: least lately used first, and of one prompt the last block first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct LruPosition {
    turn: u64,
    depth: Reverse<u32>,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
struct CachedBlock {
    place: LruPosition,
    tokens: u32,
    /// How many prompts with it were sent since it came.
    prompts: u32,
}

/// A prompt as it is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentPrompt<'a> {
    /// Its blocks.
    pub chain: &'a [BlockHash],
    /// How many tokens each of them has.
    pub block_tokens: usize,
}

/// How a guessed cache changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheChange {
    /// Blocks that came.
    pub stored: Vec<BlockHash>,
    /// Blocks that had to go.
    pub evicted: Vec<BlockHash>,
}

impl ApproximateCache {
    /// Of a cache with room for so many tokens.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, tokens: 0, turn: 0, places: HashMap::new(), order: BTreeMap::new() }
    }

    /// How many blocks the cache is guessed to hold.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it is guessed to be empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A prompt was sent to the pod. Of one that is longer than the cache, only the beginning stays.
    pub fn sent(&mut self, SentPrompt { chain, block_tokens }: SentPrompt<'_>) -> CacheChange {
        self.turn += 1;
        let mut change = CacheChange::default();
        let tokens = u32::try_from(block_tokens.max(1)).unwrap_or(u32::MAX);
        let most = usize::try_from(self.capacity / u64::from(tokens)).unwrap_or(usize::MAX);
        for (depth, block) in (0..).zip(&chain[..chain.len().min(most)]) {
            let place = LruPosition { turn: self.turn, depth: Reverse(depth) };
            match self.places.entry(*block) {
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    self.order.remove(&known.place);
                    known.place = place;
                    known.prompts = known.prompts.saturating_add(1);
                }
                Entry::Vacant(new) => {
                    new.insert(CachedBlock { place, tokens, prompts: 1 });
                    self.tokens += u64::from(tokens);
                    change.stored.push(*block);
                }
            }
            self.order.insert(place, *block);
        }
        // Every block in `order` is in `places` too, so `forget` takes it out of both.
        while self.tokens > self.capacity
            && let Some((_, block)) = self.order.first_key_value()
        {
            change.evicted.push(*block);
            self.forget(*block);
        }
        change
    }

    /// The pod has refused a prompt: of that it computed nothing, so what came with it alone goes.
    pub fn refused(&mut self, chain: &[BlockHash]) -> CacheChange {
        let mut change = CacheChange::default();
        let there = chain.iter().rposition(|block| self.places.contains_key(block));
        for block in chain[..there.map_or(0, |last| last + 1)].iter().rev() {
            if self.places.get(block).is_none_or(|known| known.prompts > 1) {
                break;
            }
            self.forget(*block);
            change.evicted.push(*block);
        }
        change
    }

    fn forget(&mut self, block: BlockHash) {
        if let Some(known) = self.places.remove(&block) {
            self.order.remove(&known.place);
            self.tokens -= u64::from(known.tokens);
        }
    }
}

/// How a guess stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApproximateSize {
    /// Blocks that the pod is guessed to hold.
    pub blocks: usize,
    /// Tokens of theirs.
    pub tokens: u64,
    /// Tokens that it has room for.
    pub capacity: u64,
}

/// The guesses about all pods that say nothing.
#[derive(Debug, Default)]
pub struct ApproximateCaches(Mutex<HashMap<PodId, ApproximateCache>>);

impl ApproximateCaches {
    /// From now on a pod is guessed at, whose cache has room for so many tokens.
    pub fn add(&self, pod: PodId, capacity: u64) {
        self.pods().insert(pod, ApproximateCache::new(capacity));
    }

    /// A pod has gone.
    pub fn remove(&self, pod: PodId) {
        self.pods().remove(&pod);
    }

    /// How the guess about a pod stands, if there is one.
    #[must_use]
    pub fn status(&self, pod: PodId) -> Option<ApproximateSize> {
        let pods = self.pods();
        let history = pods.get(&pod)?;
        let ApproximateCache { capacity, tokens, .. } = *history;
        Some(ApproximateSize { blocks: history.len(), tokens, capacity })
    }

    /// A prompt was sent to a pod; the index is told what that changes. Whether the pod is guessed at.
    pub fn sent(&self, writer: &mut IndexWriter, pod: PodId, sent: SentPrompt<'_>) -> bool {
        self.change(writer, pod, |history| history.sent(sent))
    }

    /// A pod has refused a prompt that was sent to it; the index is told what that changes. Whether the pod is guessed
    /// at.
    pub fn refused(&self, writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) -> bool {
        self.change(writer, pod, |history| history.refused(chain))
    }

    fn change(
        &self,
        writer: &mut IndexWriter,
        pod: PodId,
        make: impl FnOnce(&mut ApproximateCache) -> CacheChange,
    ) -> bool {
        let mut pods = self.pods();
        let Some(history) = pods.get_mut(&pod) else { return false };
        let change = make(history);
        let names = |blocks: &[BlockHash]| blocks.iter().map(|one| EngineHash(one.0)).collect();
        let (stored, evicted): (Vec<_>, Vec<_>) = (names(&change.stored), names(&change.evicted));
        let tier = Tier::Gpu;
        // Under the lock, so that the index hears of changes in their order. A pod that has left it is no
        // matter.
        let stored =
            StoredBlocks { tier, blocks: &stored, content: Content::Native, locations: &[] };
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
        fn a_guess_stays_within_its_room_and_has_no_holes(
            capacity in 1..30_usize,
            prompts in prop::collection::vec((0..6_u64, 0..12_u64), 1..60),
        ) {
            let mut history = ApproximateCache::new(3 * capacity as u64 + 2);
            let mut held = std::collections::HashSet::new();
            for (family, length) in prompts {
                let chain = chain(family, length);
                let change = history.sent(sent(&chain));
                held.extend(change.stored.iter().copied());
                for gone in &change.evicted {
                    prop_assert!(held.remove(gone), "what goes was there");
                    prop_assert!(!chain[..chain.len().min(capacity)].contains(gone), "what is used stays");
                }
                prop_assert!(held.len() <= capacity && held.len() == history.len());
                prop_assert_eq!(history.tokens, 3 * held.len() as u64);
                for block in &held {
                    let before = BlockHash(block.0 - 1);
                    prop_assert!(block.0 as u32 == 0 || held.contains(&before), "a hole before {block:?}");
                }
            }
        }
    }

    #[test]
    fn what_was_used_least_lately_goes_first() {
        let mut history = ApproximateCache::new(18);
        history.sent(sent(&chain(0, 3)));
        history.sent(sent(&chain(1, 3)));
        let again = history.sent(sent(&chain(0, 3)));
        assert_eq!(again, CacheChange::default(), "it is there, and used again");
        assert_eq!(history.sent(sent(&chain(2, 2))).evicted, [chain(1, 3)[2], chain(1, 3)[1]]);
    }

    #[test]
    fn room_is_counted_in_tokens_however_long_blocks_are() {
        let mut history = ApproximateCache::new(1000);
        history.sent(SentPrompt { chain: &chain(0, 90), block_tokens: 16 });
        assert_eq!((history.len(), history.tokens), (62, 992));
        history.sent(SentPrompt { chain: &chain(1, 90), block_tokens: 128 });
        assert_eq!((history.len(), history.tokens), (7 + 6, 7 * 128 + 6 * 16));
        let too_long = history.sent(SentPrompt { chain: &chain(2, 1), block_tokens: 1001 });
        assert_eq!(too_long, CacheChange::default());
    }

    #[test]
    fn a_refused_prompt_takes_back_what_came_with_it_alone() {
        let mut history = ApproximateCache::new(18);
        history.sent(sent(&chain(0, 3)));
        history.sent(sent(&chain(0, 5)));
        let mut long = chain(0, 5);
        assert_eq!(history.refused(&long).evicted, [long[4], long[3]]);
        assert_eq!(history.refused(&long), CacheChange::default(), "two prompts had the rest");
        long = chain(1, 9);
        history.sent(sent(&long));
        assert_eq!(history.refused(&long).evicted.len(), 6, "what had room of it");
        assert!(history.is_empty() && history.order.is_empty() && history.tokens == 0);
    }

    #[test]
    fn the_index_is_told_of_pods_that_are_guessed_at_and_of_no_others() {
        let index = Index::new(IndexLimits::default(), 1);
        let (silent, other) = (index.add_pod().unwrap(), index.add_pod().unwrap());
        let guesses = ApproximateCaches::default();
        guesses.add(silent, 12);
        let mut writer = index.writer();
        assert!(!guesses.sent(&mut writer, other, sent(&chain(0, 3))));
        assert!(guesses.sent(&mut writer, silent, sent(&chain(0, 3))));
        assert!(guesses.sent(&mut writer, silent, sent(&chain(1, 3))));
        let depth = |family| {
            let (mut answer, mut depths) = (Depths::default(), [0; 2]);
            index.reader().lookup(&chain(family, 3), &mut answer);
            answer.depths_into(&mut depths);
            depths[silent.slot().position()]
        };
        assert_eq!((depth(0), depth(1)), (1, 3));
        assert_eq!(
            guesses.status(silent),
            Some(ApproximateSize { blocks: 4, tokens: 12, capacity: 12 })
        );
        assert!(guesses.refused(&mut writer, silent, &chain(1, 3)));
        assert!(!guesses.refused(&mut writer, other, &chain(1, 3)));
        assert_eq!((depth(0), depth(1)), (1, 0));
        guesses.remove(silent);
        assert_eq!(guesses.status(silent), None);
    }
}
