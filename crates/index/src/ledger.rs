//! One pod's side of the index: what its engine said, counted exactly.
//!
//! The map knows bits; the ledger knows why they are set. It resolves the engine's names to our
//! hashes, counts copies per tier, keeps what must wait, and knows whether the pod's prefixes may have
//! holes. It changes no bit itself: it lists the blocks whose bit is to be set or cleared, and the
//! caller, who holds the ledger's lock, carries that out before the next event.

use std::collections::HashMap;

use wornpath_blocks::BlockHash;

use crate::block_map::BlockMap;
use crate::digest::{BlockDigest, PodDigest};
use crate::event::{EngineHash, Tier};
use crate::orphans::Orphans;
use crate::replicas::{BlockLocation, Replicas};
use crate::sequence::Sequence;
use crate::slab::{EntryId, Flag, Slab};
use crate::speculative::SpeculativeBlocks;

/// What several copies, or several reports, of one block on one tier come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counting {
    /// A numbered source: every store is a copy, every removal takes one.
    Copies,
    /// A source without numbers: a block is there or not.
    Presence,
    /// A snapshot: as many copies as it names, and what it does not name is to go.
    Snapshot,
}

/// Caps that keep one pod from filling the router's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    /// Entries the pod may have.
    pub(crate) entries: usize,
    /// Blocks that may wait for their prefix.
    pub(crate) waiting: usize,
}

/// Things that happened to a pod's events, counted since it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PodCounters {
    /// Blocks not entered because a cap was reached.
    pub refused: u64,
    /// Removals of copies that were not known.
    pub unknown_removals: u64,
    /// Blocks whose own hash came under two of the engine's.
    pub shared: u64,
    /// Expected blocks that the engine confirmed.
    pub confirmed: u64,
    /// Expected blocks that expired.
    pub expired: u64,
    /// Stored events whose lists do not fit together.
    pub malformed: u64,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) slab: Slab,
    pub(crate) copies: Replicas,
    /// For entries that cover several blocks: all but the last.
    pub(crate) spans: HashMap<EntryId, Box<[BlockHash]>>,
    /// Blocks that more than one entry stands for: how many more.
    shared: BlockMap<u32>,
    pub(crate) waiting: Orphans,
    pub(crate) expected: SpeculativeBlocks,
    pub(crate) sequence: Sequence,
    pub(crate) tiers: [BlockDigest; 4],
    pub(crate) blocks: BlockDigest,
    /// Entries that no tier holds: breaks in some prefix.
    pub(crate) holes: usize,
    /// Entries of which it is not known what precedes them.
    pub(crate) unlinked: usize,
    pub(crate) counters: PodCounters,
}

impl Ledger {
    pub(crate) fn new(key: u64, window: usize) -> Self {
        Self {
            slab: Slab::new(key),
            copies: Replicas::default(),
            spans: HashMap::new(),
            shared: BlockMap::default(),
            waiting: Orphans::default(),
            expected: SpeculativeBlocks::default(),
            sequence: Sequence::new(window),
            tiers: Default::default(),
            blocks: BlockDigest::default(),
            holes: 0,
            unlinked: 0,
            counters: PodCounters::default(),
        }
    }

    /// Whether a run that ends late may have a break before its end.
    pub(crate) fn may_have_holes(&self) -> bool {
        self.holes > 0 || self.unlinked > 0 || self.expected.is_broken()
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// What counts against the cap on all blocks.
    pub(crate) fn weight(&self) -> usize {
        self.slab.len() + self.expected.len()
    }

    pub(crate) fn holes(&self) -> usize {
        self.holes
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slab.bytes()
    }

    pub(crate) fn digest(&self) -> PodDigest {
        let last_sequence = self.sequence.last();
        PodDigest { last_sequence, tiers: self.tiers, blocks: self.blocks }
    }

    /// Takes copies out; `clear` receives the blocks that the pod no longer holds.
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
                    self.let_go(number, tier, counting, clear);
                }
                _ => {
                    let all = counting != Counting::Copies;
                    if !self.waiting.remove(*engine, tier, all) {
                        self.counters.unknown_removals += 1;
                    }
                }
            }
        }
    }

    /// Takes everything out.
    pub(crate) fn clear(&mut self, clear: &mut Vec<BlockHash>) {
        self.held_from(0, usize::MAX, clear);
        clear.extend(self.expected.take_all());
        self.slab.clear();
        self.copies = Replicas::default();
        self.spans = HashMap::new();
        self.shared = BlockMap::default();
        self.waiting = Orphans::default();
        self.tiers = Default::default();
        self.blocks = BlockDigest::default();
        self.holes = 0;
        self.unlinked = 0;
    }

    /// Starts a snapshot: what waits will be named again if it is still there.
    pub(crate) fn begin_snapshot(&mut self) {
        self.waiting = Orphans::default();
    }

    /// Ends a snapshot: takes out what it did not name. More than `most_waiting` blocks that still have
    /// no prefix are too many to keep.
    pub(crate) fn end_snapshot(&mut self, most_waiting: usize, clear: &mut Vec<BlockHash>) {
        if self.waiting.len() > most_waiting {
            self.counters.refused += self.waiting.len() as u64;
            self.waiting = Orphans::default();
        }
        for number in self.slab.numbers(0) {
            for tier in self.slab.get_mut(number).take_unseen() {
                self.let_go(number, tier, Counting::Snapshot, clear);
            }
        }
    }

    /// Lists the blocks of up to `most` entries from number `start`; returns where to go on, or `None`
    /// at the end.
    pub(crate) fn held_from(
        &self,
        start: u32,
        most: usize,
        held: &mut Vec<BlockHash>,
    ) -> Option<u32> {
        for (done, number) in self.slab.numbers(start).enumerate() {
            if done == most {
                return Some(start.saturating_add(done as u32));
            }
            if self.slab.get(number).is_held() {
                self.blocks_of(number, |block| held.push(block));
            }
        }
        None
    }

    /// The bit of a block that this pod had just come to hold was set already: by an expectation,
    /// which is thereby confirmed, or by another of the engine's names.
    pub(crate) fn note_already_set(&mut self, block: BlockHash) {
        if self.expected.take(block) {
            self.counters.confirmed += 1;
        } else {
            *self.shared.entry(block).or_default() += 1;
            self.counters.shared += 1;
        }
    }

    /// How the pod holds a block that its bit says it holds: by the fastest of its copies.
    pub(crate) fn holding(&self, block: BlockHash) -> BlockLocation {
        let special = self.copies.special(block);
        let entries = 1 + self.shared.get(&block).map_or(0, |more| *more as usize);
        if special.len() < entries {
            return BlockLocation { tier: Tier::Gpu, location: None };
        }
        let fastest = |number: &EntryId| {
            let entry = self.slab.get(*number);
            let tier = Tier::ALL.into_iter().find(|tier| entry.is_held_in(*tier))?;
            Some(BlockLocation { tier, location: self.copies.location(*number, tier) })
        };
        let holding = special.iter().filter_map(fastest).min_by_key(|holding| holding.tier);
        holding.unwrap_or(BlockLocation { tier: Tier::Gpu, location: None })
    }

    /// How many of a chain's first blocks, which the pod's bits say it holds, its events have confirmed; the others are
    /// expected.
    pub(crate) fn confirmed(&self, blocks: &[BlockHash]) -> usize {
        let is_expected = |block: &BlockHash| self.expected.contains(*block);
        if self.may_have_holes() {
            return blocks.iter().position(is_expected).unwrap_or(blocks.len());
        }
        // Without holes no real block follows an expected one, so the last tells whether there is any.
        match blocks.last() {
            Some(last) if is_expected(last) => blocks.partition_point(|block| !is_expected(block)),
            _ => blocks.len(),
        }
    }

    pub(crate) fn blocks_of(&self, number: EntryId, mut each: impl FnMut(BlockHash)) {
        let entry = self.slab.get(number);
        if entry.has(Flag::Span) {
            self.spans[&number].iter().copied().for_each(&mut each);
        }
        each(entry.block);
    }

    fn let_go(
        &mut self,
        number: EntryId,
        tier: Tier,
        counting: Counting,
        clear: &mut Vec<BlockHash>,
    ) {
        let entry = self.slab.get_mut(number);
        if entry.has(Flag::Extra) {
            if counting == Counting::Copies && self.copies.take_one_of_several(number, tier) {
                return;
            }
            self.copies.reset(number, tier);
        }
        entry.set_held(tier, false);
        self.tiers[tier as usize].remove(entry.engine.0);
        let (held, children) = (entry.is_held(), entry.has_children());
        if !held {
            self.blocks.remove(entry.block.0);
            self.holes += 1;
            self.list_gone(number, clear);
        }
        self.note_special(number);
        if !held && !children {
            self.free(number);
        }
    }

    fn list_gone(&mut self, number: EntryId, clear: &mut Vec<BlockHash>) {
        let from = clear.len();
        self.blocks_of(number, |block| clear.push(block));
        if !self.shared.is_empty() {
            let mut kept = from;
            for at in from..clear.len() {
                if !take_one(&mut self.shared, clear[at]) {
                    clear[kept] = clear[at];
                    kept += 1;
                }
            }
            clear.truncate(kept);
        }
        if !self.expected.is_empty() {
            clear[from..].iter().for_each(|block| self.expected.note_gone(*block));
        }
    }

    /// Drops an entry that no tier holds and nothing follows, then its parent if that was only there
    /// for its sake. A parent is entered before its children and stays while it has any, so parents never
    /// form a circle.
    pub(crate) fn free(&mut self, mut number: EntryId) {
        loop {
            let entry = self.slab.remove(number);
            self.holes -= 1;
            self.unlinked -= usize::from(entry.has(Flag::Unlinked));
            if entry.has(Flag::Span) {
                self.spans.remove(&number);
            }
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

    /// Keeps the list of blocks that are not simply on the GPU.
    pub(crate) fn note_special(&mut self, number: EntryId) {
        let entry = self.slab.get(number);
        if entry.is_plain() && !entry.has(Flag::Extra) {
            return;
        }
        let located = entry.has(Flag::Extra) && self.copies.is_located(number);
        let special = entry.is_held() && (!entry.is_plain() || located);
        if !special && self.copies.is_empty() {
            return;
        }
        let mut blocks = Vec::new();
        self.blocks_of(number, |block| blocks.push(block));
        for block in blocks {
            if special {
                self.copies.set_special(block, number);
            } else {
                self.copies.unset_special(block, number);
            }
        }
        if special {
            self.slab.get_mut(number).mark(Flag::Extra);
        }
    }
}

/// Takes one off a block's count of further entries; `false` if it has none.
fn take_one(shared: &mut BlockMap<u32>, block: BlockHash) -> bool {
    let Some(more) = shared.get_mut(&block) else { return false };
    *more -= 1;
    if *more == 0 {
        shared.remove(&block);
    }
    true
}
