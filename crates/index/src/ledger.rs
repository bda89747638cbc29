//! The ledger of one pod: the exact state of its engine's cache.
//!
//! The table stores bits; the ledger stores why they are set. It resolves the engine's hashes to
//! our own, counts copies per tier, keeps orphans and speculative blocks, and knows whether the
//! pod's prefixes may have holes. It changes no bit itself: it lists the blocks whose bit is to be
//! set or cleared, and the caller, which holds the ledger's lock, applies that list before the next
//! event.

use wornpath_blocks::BlockHash;

use crate::block_map::BlockMap;
use crate::entry::{EntryId, Flag, SlabEntry};
use crate::event::{EngineHash, Tier};
use crate::holes::PodHoles;
use crate::orphans::Orphans;
use crate::removed::{RemovedBlock, RemovedBlocks};
use crate::replicas::{BlockLocation, Replicas};
use crate::sequence::Sequence;
use crate::slab::{AliasKey, Slab};
use crate::speculative::SpeculativeBlocks;
use crate::steps;

/// How several stores of one block on one tier are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counting {
    /// A numbered source: every store adds a copy, every removal removes one.
    Copies,
    /// A source without numbers: a block is present or not.
    Presence,
    /// A snapshot: the block has as many copies as the snapshot lists; unlisted blocks are removed.
    Snapshot,
}

/// Limits that keep one pod from filling the router's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LedgerLimits {
    /// Blocks of the index that its entries cover.
    pub(crate) blocks: usize,
    /// Blocks of the index whose prefix is not known yet.
    pub(crate) orphans: usize,
}

/// What happened to a pod's events since the pod was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PodCounters {
    /// Blocks that were not stored because a limit was reached.
    pub refused: u64,
    /// Removals of unknown copies.
    pub unknown_removals: u64,
    /// Blocks whose hash the engine stored under two of its own hashes.
    pub shared: u64,
    /// Speculative blocks that the engine confirmed.
    pub confirmed: u64,
    /// Speculative blocks that expired.
    pub expired: u64,
    /// Stored events with lists of inconsistent lengths.
    pub malformed: u64,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) slab: Slab,
    pub(crate) replicas: Replicas,
    /// For blocks with several entries: the number of entries beyond the first.
    duplicates: BlockMap<u32>,
    pub(crate) orphans: Orphans,
    pub(crate) removed: RemovedBlocks,
    pub(crate) speculative: SpeculativeBlocks,
    pub(crate) sequence: Sequence,
    pub(crate) tiers: [BlockDigest; 4],
    pub(crate) blocks: BlockDigest,
    /// Entries that no tier holds.
    pub(crate) holes: usize,
    pub(crate) pod_holes: PodHoles,
    /// Entries with an unknown parent.
    pub(crate) unlinked: usize,
    pub(crate) counters: PodCounters,
}

impl Ledger {
    pub(crate) fn new(key: AliasKey, window: usize) -> Self {
        Self {
            slab: Slab::new(key),
            replicas: Replicas::default(),
            duplicates: BlockMap::default(),
            orphans: Orphans::default(),
            removed: RemovedBlocks::default(),
            speculative: SpeculativeBlocks::default(),
            sequence: Sequence::new(window),
            tiers: Default::default(),
            blocks: BlockDigest::default(),
            holes: 0,
            pod_holes: PodHoles::default(),
            unlinked: 0,
            counters: PodCounters::default(),
        }
    }

    /// Whether the pod may hold a block without holding its whole prefix.
    pub(crate) fn may_have_holes(&self) -> bool {
        self.holes > 0 || self.unlinked > 0 || self.speculative.is_broken()
    }

    /// Whether it may have holes that queries cannot check.
    pub(crate) fn is_suspect(&self) -> bool {
        self.unlinked > 0 || self.speculative.is_broken() || self.pod_holes.has_others()
    }

    /// Blocks of the index, holes included.
    pub(crate) fn len(&self) -> usize {
        self.slab.weight()
    }

    /// What counts against [`crate::IndexLimits::blocks`].
    pub(crate) fn weight(&self) -> usize {
        self.slab.weight() + self.speculative.len()
    }

    pub(crate) fn holes(&self) -> usize {
        self.holes
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slab.bytes() + self.removed.bytes()
    }

    pub(crate) fn digest(&self) -> PodDigest {
        let last_sequence = self.sequence.last();
        PodDigest { last_sequence, tiers: self.tiers, blocks: self.blocks }
    }

    /// Removes copies; `clear` receives the blocks that the pod no longer holds.
    pub(crate) fn remove(
        &mut self,
        tier: Tier,
        blocks: &[EngineHash],
        counting: Counting,
        clear: &mut Vec<BlockHash>,
    ) {
        self.slab.prefetch(blocks);
        for engine in blocks {
            match self.slab.find(*engine) {
                Some(number) if self.slab.get(number).is_held_in(tier) => {
                    self.remove_copy(number, tier, counting, clear);
                }
                _ => {
                    let all = counting != Counting::Copies;
                    if !self.orphans.remove(*engine, tier, all) {
                        self.counters.unknown_removals += 1;
                    }
                }
            }
        }
    }

    /// Removes all blocks.
    pub(crate) fn clear(&mut self, clear: &mut Vec<BlockHash>) {
        if self.is_clear() {
            return;
        }
        steps::step();
        self.held_from(0, usize::MAX, clear);
        clear.extend(self.speculative.take_all());
        self.slab.clear();
        self.replicas = Replicas::default();
        self.duplicates = BlockMap::default();
        self.orphans = Orphans::default();
        self.removed = RemovedBlocks::default();
        self.tiers = Default::default();
        self.blocks = BlockDigest::default();
        self.holes = 0;
        self.pod_holes.end_all();
        self.unlinked = 0;
    }

    /// Whether nothing was added since it was made or cleared, so that a flood of clears costs
    /// nothing.
    fn is_clear(&self) -> bool {
        let is_empty = self.orphans.is_empty() && self.speculative.is_empty();
        is_empty && self.slab.is_unused() && !self.may_have_holes()
    }

    /// Starts a snapshot: orphans that still exist are listed again.
    pub(crate) fn begin_snapshot(&mut self) {
        self.orphans = Orphans::default();
    }

    /// Ends a snapshot: removes the copies it did not list, and all orphans if they stand for more
    /// than `max_orphans` blocks. Returns how many orphans it left.
    pub(crate) fn end_snapshot(&mut self, max_orphans: usize, clear: &mut Vec<BlockHash>) -> usize {
        let orphans = self.orphans.len();
        if self.orphans.weight() > max_orphans {
            self.counters.refused += self.orphans.len() as u64;
            self.orphans = Orphans::default();
        }
        for number in self.slab.numbers(0) {
            if !self.slab.get(number).is_used() {
                continue;
            }
            for tier in self.slab.get_mut(number).take_unseen() {
                self.remove_copy(number, tier, Counting::Snapshot, clear);
            }
        }
        orphans
    }

    /// Lists the blocks of up to `max` entries from number `start`; returns where to continue, or
    /// `None` at the end.
    pub(crate) fn held_from(
        &self,
        start: u32,
        max: usize,
        held: &mut Vec<BlockHash>,
    ) -> Option<u32> {
        for (done, number) in self.slab.numbers(start).enumerate() {
            if done == max {
                return Some(start.saturating_add(done as u32));
            }
            if self.slab.get(number).is_held() {
                held.extend(self.slab.blocks_of(number));
            }
        }
        None
    }

    /// The bit of a newly stored block was set already: by a speculative insert, which is confirmed
    /// now, or under another of the engine's hashes.
    pub(crate) fn note_already_set(&mut self, block: BlockHash) {
        if self.speculative.confirm(block) {
            self.counters.confirmed += 1;
        } else {
            *self.duplicates.entry(block).or_default() += 1;
            self.counters.shared += 1;
        }
    }

    /// The fastest copy of a block whose bit is set.
    pub(crate) fn location(&self, block: BlockHash) -> BlockLocation {
        let special = self.replicas.special(block);
        let entries = 1 + self.duplicates.get(&block).map_or(0, |more| *more as usize);
        if special.len() < entries {
            return BlockLocation { tier: Tier::Gpu, location: None };
        }
        let fastest = |number: &EntryId| {
            let entry = self.slab.get(*number);
            let tier = Tier::ALL.into_iter().find(|tier| entry.is_held_in(*tier))?;
            Some(BlockLocation { tier, location: self.replicas.location(*number, tier) })
        };
        let location = special.iter().filter_map(fastest).min_by_key(|copy| copy.tier);
        location.unwrap_or(BlockLocation { tier: Tier::Gpu, location: None })
    }

    /// How many of these blocks, whose bits are set, have their fastest copy on each tier.
    pub(crate) fn blocks_by_tier(&self, blocks: &[BlockHash]) -> [usize; Tier::ALL.len()] {
        let mut counts = [0; Tier::ALL.len()];
        if self.replicas.is_empty() {
            counts[Tier::Gpu as usize] = blocks.len();
            return counts;
        }
        for block in blocks {
            counts[self.location(*block).tier as usize] += 1;
        }
        counts
    }

    /// How many leading blocks of a chain, whose bits are set, the pod's events have confirmed; the
    /// others are speculative.
    pub(crate) fn confirmed(&self, blocks: &[BlockHash]) -> usize {
        let is_speculative = |block: &BlockHash| self.speculative.contains(*block);
        if self.may_have_holes() {
            return blocks.iter().position(is_speculative).unwrap_or(blocks.len());
        }
        // Without holes no confirmed block follows a speculative one, so the last block decides.
        match blocks.last() {
            Some(last) if is_speculative(last) => {
                blocks.partition_point(|block| !is_speculative(block))
            }
            _ => blocks.len(),
        }
    }

    fn remove_copy(
        &mut self,
        number: EntryId,
        tier: Tier,
        counting: Counting,
        clear: &mut Vec<BlockHash>,
    ) {
        let entry = self.slab.get_mut(number);
        if entry.has(Flag::Extra) {
            if counting == Counting::Copies && self.replicas.remove_one_of_several(number, tier) {
                return;
            }
            self.replicas.reset(number, tier);
        }
        entry.set_held(tier, false);
        self.tiers[tier as usize].remove(entry.engine.0);
        let held = entry.is_held();
        let children = entry.has_children();
        if !held {
            self.blocks.remove(entry.block.0);
            self.holes += 1;
            self.list_removed(number, clear);
        }
        self.note_special(number);
        if !held && children {
            self.pod_holes.begin(number);
        } else if !held {
            self.free(number);
        }
    }

    fn list_removed(&mut self, number: EntryId, clear: &mut Vec<BlockHash>) {
        let from = clear.len();
        clear.extend(self.slab.blocks_of(number));
        if !self.duplicates.is_empty() {
            let mut kept = from;
            for at in from..clear.len() {
                if !remove_duplicate(&mut self.duplicates, clear[at]) {
                    clear[kept] = clear[at];
                    kept += 1;
                }
            }
            clear.truncate(kept);
        }
        if !self.speculative.is_empty() {
            self.keep_expected(number, from, clear);
        }
    }

    /// Blocks of a removed entry that speculative blocks follow stay set, as speculative ones, if
    /// the pod holds what is before them. `clear[from..]` are the blocks of the entry.
    fn keep_expected(&mut self, number: EntryId, from: usize, clear: &mut Vec<BlockHash>) {
        let removed = &clear[from..];
        let Some(last) = removed.iter().rposition(|it| self.speculative.is_parent(*it)) else {
            return;
        };
        let entry = self.slab.get(number);
        let is_whole = removed.len() == self.slab.span(number).len() + 1;
        let above = (entry.parent != EntryId::NONE).then(|| self.slab.get(entry.parent));
        let is_above_held = above.map_or(!entry.has(Flag::Unlinked), SlabEntry::is_held);
        if is_whole && is_above_held {
            self.speculative.expect_again(above.map(|above| above.block), &removed[..=last]);
            clear.drain(from..=from + last);
        } else {
            removed.iter().for_each(|block| self.speculative.note_missing(*block));
        }
    }

    /// Frees an entry that no tier holds and that has no children, then its parent if that is now
    /// in the same state. A parent is inserted before its children and stays while it has any, so
    /// parents form no cycle.
    pub(crate) fn free(&mut self, mut number: EntryId) {
        loop {
            self.remember(number);
            let entry = self.slab.remove(number);
            self.holes -= 1;
            self.pod_holes.end(number);
            self.unlinked -= usize::from(entry.has(Flag::Unlinked));
            let parent = entry.parent;
            if parent == EntryId::NONE {
                return;
            }
            let above = self.slab.get(parent);
            if above.is_held() || above.has_children() {
                return;
            }
            number = parent;
        }
    }

    /// Remembers a block that is about to be freed, in case its name comes again.
    #[inline]
    fn remember(&mut self, number: EntryId) {
        let entry = self.slab.get(number);
        if !entry.has(Flag::Unlinked) {
            let parent = match entry.parent {
                EntryId::NONE => entry.engine,
                parent => self.slab.get(parent).engine,
            };
            let SlabEntry { engine, block, .. } = *entry;
            let removed = RemovedBlock { engine, block, parent };
            self.removed.push(&removed, self.slab.span(number), self.slab.len());
        }
    }

    /// Updates the list of blocks with copies elsewhere than on the GPU, or with a location.
    pub(crate) fn note_special(&mut self, number: EntryId) {
        let entry = self.slab.get(number);
        if entry.is_plain() && !entry.has(Flag::Extra) {
            return;
        }
        let located = entry.has(Flag::Extra) && self.replicas.is_located(number);
        let special = entry.is_held() && (!entry.is_plain() || located);
        if !special && self.replicas.is_empty() {
            return;
        }
        for block in self.slab.blocks_of(number) {
            if special {
                self.replicas.set_special(block, number);
            } else {
                self.replicas.unset_special(block, number);
            }
        }
        if special {
            self.slab.get_mut(number).mark(Flag::Extra);
        }
    }
}

/// Decrements the count of a block's further entries; `false` if it has none.
fn remove_duplicate(duplicates: &mut BlockMap<u32>, block: BlockHash) -> bool {
    let Some(more) = duplicates.get_mut(&block) else { return false };
    *more -= 1;
    if *more == 0 {
        duplicates.remove(&block);
    }
    true
}

/// A cheap check whether two sides agree on a set of blocks: the number of hashes and their
/// exclusive or. Equal sets have equal digests; unequal sets have
/// equal digests with a probability of about 2^-64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockDigest {
    /// The number of hashes.
    pub count: u64,
    /// Their exclusive or.
    pub xor: u64,
}

impl BlockDigest {
    /// Adds a hash.
    pub fn add(&mut self, hash: u64) {
        self.count += 1;
        self.xor ^= hash;
    }

    pub(crate) fn add_all(&mut self, hashes: impl ExactSizeIterator<Item = u64>) {
        self.count += hashes.len() as u64;
        self.xor ^= hashes.fold(0, |xor, hash| xor ^ hash);
    }

    /// Removes a hash that was added.
    pub fn remove(&mut self, hash: u64) {
        self.count -= 1;
        self.xor ^= hash;
    }
}

/// The digests of a pod's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PodDigest {
    /// The last sequence number applied, if the source numbers its batches.
    pub last_sequence: Option<u64>,
    /// Per tier, over the engine's own hashes: to compare with the engine.
    pub tiers: [BlockDigest; 4],
    /// Over our hashes of all blocks held on any tier: to compare with another router.
    pub blocks: BlockDigest,
}
