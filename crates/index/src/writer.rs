//! Changes to the index: events, snapshots, speculative inserts, and the sweep of removed pods.
//!
//! Each change locks the ledger of one pod, lets it list the blocks whose bits change, and applies
//! that list to the table before the next event. Writers of different pods contend only for shards.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::bits::Bits;
use crate::directory::View;
use crate::event::{CacheEvent, StoredBlocks};
use crate::export::{ExportedBlock, RestoreError};
use crate::ledger::{Counting, Ledger, LedgerLimits};
use crate::pod::{PodId, PodSet, PodSlot, word_and_bit};
use crate::sequence::{Applied, Order};
use crate::state::{IndexLimits, IndexState, PodRemoved};
use crate::sync::{AtomicU64, Ordering};
use wornpath_time::Moment;

/// A handle to change the index, one per thread.
#[derive(Debug)]
pub struct IndexWriter {
    state: Arc<IndexState>,
    scratch: WriterScratch,
}

/// All blocks of a pod as its engine reports them.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The sequence number of the last batch it includes, if the source numbers its batches.
    pub sequence: Option<u64>,
    /// All blocks of the pod, in any order; a block is listed once per copy.
    pub stored: &'a [StoredBlocks<'a>],
}

/// What became of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotApplied {
    /// Kept batches that were applied after it.
    pub caught_up: usize,
    /// Hashes of the snapshot whose prefix is unknown: neither the snapshot nor an event before it
    /// has told their tokens. Queries do not find them.
    pub unnamed: usize,
    /// At least so many of its hashes are not in the index: unnamed ones, or beyond a limit.
    pub missing: usize,
}

/// The progress of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swept {
    /// More bits remain to be cleared.
    Partly,
    /// No removed pod has bits left.
    Clean,
}

/// A part of a chain that is inserted speculatively.
#[derive(Clone, Copy)]
struct SpeculativeChain<'a> {
    /// The block before it.
    parent: Option<BlockHash>,
    blocks: &'a [BlockHash],
    /// How many of the blocks the pod probably holds.
    known: usize,
}

impl IndexWriter {
    pub(crate) fn new(state: Arc<IndexState>) -> Self {
        let scratch = WriterScratch::new(&state);
        Self { state, scratch }
    }

    /// Applies a batch. With a `sequence`, copies are counted and each batch is applied once and in
    /// order; without, a block is present or not.
    pub fn apply(
        &mut self,
        pod: PodId,
        sequence: Option<u64>,
        events: &[CacheEvent<'_>],
    ) -> Result<Applied, PodRemoved> {
        self.change(pod, |change| {
            let Some(sequence) = sequence else {
                change.run(Counting::Presence, events);
                return Applied::Now { caught_up: 0 };
            };
            match change.ledger.sequence.order(sequence) {
                Order::Now => {
                    change.run(Counting::Copies, events);
                    change.ledger.sequence.advance(sequence);
                    Applied::Now { caught_up: change.catch_up() }
                }
                Order::Duplicate => Applied::Duplicate,
                Order::Early(expected) if change.ledger.sequence.keep(sequence, events) => {
                    Applied::Early { expected }
                }
                Order::Early(expected) => Applied::Dropped { expected },
            }
        })
    }

    /// Sets the sequence number to apply next, then applies kept batches that follow it. For an
    /// engine that has just started (zero), and to skip batches that neither a replay nor a
    /// snapshot provides. Without this call the first batch sets the number. Returns how many kept
    /// batches were applied.
    pub fn start_at(&mut self, pod: PodId, sequence: u64) -> Result<usize, PodRemoved> {
        self.change(pod, |change| {
            change.ledger.sequence.start_at(sequence);
            change.catch_up()
        })
    }

    /// Makes the pod's blocks equal to a snapshot by applying the difference: a block that stays is
    /// never missing meanwhile. Kept batches that follow it are applied after it.
    pub fn apply_snapshot(
        &mut self,
        pod: PodId,
        snapshot: Snapshot<'_>,
    ) -> Result<SnapshotApplied, PodRemoved> {
        self.change(pod, |change| {
            let refused = change.ledger.counters.refused;
            let unnamed = change.apply_snapshot(snapshot.stored);
            // Orphans that were dropped are among the unnamed ones already.
            let refused = (change.ledger.counters.refused - refused) as usize;
            if let Some(sequence) = snapshot.sequence {
                change.ledger.sequence.start_at(sequence.wrapping_add(1));
            }
            let missing = unnamed.max(refused);
            SnapshotApplied { caught_up: change.catch_up(), unnamed, missing }
        })
    }

    /// Replaces the blocks of a pod by an export of [`crate::Index::export`]; sequence numbers stay
    /// unchanged.
    ///
    /// # Errors
    /// If the export is inconsistent or exceeds the limits; the pod holds nothing then.
    pub fn restore(&mut self, pod: PodId, items: &[ExportedBlock]) -> Result<(), RestoreError> {
        self.change(pod, |change| {
            change.run(Counting::Presence, &[CacheEvent::Cleared]);
            change.restore(items)
        })?
    }

    /// Inserts a whole chain speculatively: the pod is expected to hold it soon, until `expires`.
    /// At the pod's limit, the blocks that expire next are dropped. Returns `false` if the chain
    /// exceeds the pod's or the index's limit, or if a part of it disappeared meanwhile; then only
    /// a part is inserted. Other writers may change the pod between pieces of a long chain.
    pub fn insert_speculative(
        &mut self,
        pod: PodId,
        chain: &[BlockHash],
        expires: Moment,
    ) -> Result<bool, PodRemoved> {
        self.insert_speculative_after(pod, chain, 0, expires)
    }

    /// The same for a chain whose first `known` blocks the pod held a moment ago, which saves a
    /// lookup of each. A wrong `known` costs only that saving.
    pub fn insert_speculative_after(
        &mut self,
        pod: PodId,
        chain: &[BlockHash],
        known: usize,
        expires: Moment,
    ) -> Result<bool, PodRemoved> {
        self.insert_chain(pod, SpeculativeChain { parent: None, blocks: chain, known }, expires)
    }

    /// The same for the end of a chain, below `parent`. Returns `false` also if the pod does not hold
    /// `parent`; then nothing is inserted.
    pub fn insert_speculative_below(
        &mut self,
        pod: PodId,
        parent: Option<BlockHash>,
        chain: &[BlockHash],
        expires: Moment,
    ) -> Result<bool, PodRemoved> {
        self.insert_chain(pod, SpeculativeChain { parent, blocks: chain, known: 0 }, expires)
    }

    fn insert_chain(
        &mut self,
        pod: PodId,
        chain: SpeculativeChain<'_>,
        expires: Moment,
    ) -> Result<bool, PodRemoved> {
        let SpeculativeChain { mut parent, blocks, known } = chain;
        let mut known = known.min(blocks.len());
        for piece in blocks.chunks(SPECULATIVE_AT_ONCE) {
            let here = known.min(piece.len());
            known -= here;
            if !self
                .change(pod, |change| change.insert_speculative(parent, piece, here, expires))?
            {
                return Ok(false);
            }
            parent = piece.last().copied();
        }
        Ok(true)
    }

    /// Rolls back the speculative insert of one request, which the engine has rejected. Blocks that
    /// the pod holds, and blocks that other requests inserted too, stay. Returns the number of
    /// removed blocks.
    pub fn rollback(&mut self, pod: PodId, chain: &[BlockHash]) -> Result<usize, PodRemoved> {
        let mut removed = 0;
        for piece in chain.rchunks(SPECULATIVE_AT_ONCE) {
            let rolled_back = self.change(pod, |change| change.rollback(piece))?;
            removed += rolled_back.removed;
            if !rolled_back.may_continue {
                break;
            }
        }
        Ok(removed)
    }

    /// Removes all speculative blocks that expired by `now`. Returns their number.
    pub fn expire(&mut self, now: Moment) -> usize {
        let Self { state, scratch } = self;
        let pods: Vec<_> =
            state.speculative.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let mut expired = 0;
        for slot in PodSet::new(&pods).iter() {
            let mut guard = state.ledger_in(slot);
            let Some(ledger) = guard.as_deref_mut() else { continue };
            expired += scratch.open(state, slot, ledger).expire(now);
        }
        expired
    }

    /// Clears the bits of removed pods, about `blocks` of them at most, and frees their slots. To
    /// be called in the background until it returns [`Swept::Clean`].
    pub fn sweep(&mut self, blocks: usize) -> Swept {
        let Self { state, scratch } = self;
        let Some(mut removal) = state.next_removal() else { return Swept::Clean };
        let mut guard = state.ledger_in(removal.slot);
        if let Some(ledger) = guard.as_deref_mut()
            && let Some(cursor) =
                scratch.open(state, removal.slot, ledger).sweep(removal.cursor, blocks.max(1))
        {
            removal.cursor = cursor;
            drop(guard);
            state.resume_removal(removal);
            return Swept::Partly;
        }
        if let Some(ledger) = guard.as_deref_mut() {
            ledger.pod_holes.end_all();
            scratch.open(state, removal.slot, ledger).settle();
        }
        *guard = None;
        clear_suspect(state, removal.slot);
        mark(&state.speculative, removal.slot, false);
        drop(guard);
        state.sets.shrink(&state.directory);
        if state.free_slot(removal.slot) { Swept::Partly } else { Swept::Clean }
    }

    /// Runs `make` under the lock of the pod's ledger: only the holder changes the pod's bits.
    fn change<T>(
        &mut self,
        pod: PodId,
        make: impl FnOnce(&mut PodChange<'_>) -> T,
    ) -> Result<T, PodRemoved> {
        let Self { state, scratch } = self;
        let mut guard = state.ledger(pod)?;
        let ledger = guard.as_deref_mut().ok_or(PodRemoved { slot: pod.slot })?;
        Ok(make(&mut scratch.open(state, pod.slot, ledger)))
    }
}

/// Blocks of a chain that are inserted or rolled back under one lock: tens of microseconds.
const SPECULATIVE_AT_ONCE: usize = 256;

/// Buffers that a writer reuses between changes.
#[derive(Debug)]
struct WriterScratch {
    view: View,
    /// Blocks whose bit is to be set.
    set: Vec<BlockHash>,
    /// Blocks whose bit is to be cleared.
    clear: Vec<BlockHash>,
}

impl WriterScratch {
    fn new(state: &IndexState) -> Self {
        Self { view: View::new(&state.directory), set: Vec::new(), clear: Vec::new() }
    }

    fn open<'a>(
        &'a mut self,
        state: &'a IndexState,
        slot: PodSlot,
        ledger: &'a mut Ledger,
    ) -> PodChange<'a> {
        self.view.refresh(&state.directory);
        PodChange { state, scratch: self, slot, ledger }
    }
}

struct RolledBack {
    removed: usize,
    /// Whether the blocks before these may be rolled back too.
    may_continue: bool,
}

/// A change to one pod, under the lock of its ledger.
struct PodChange<'a> {
    state: &'a IndexState,
    scratch: &'a mut WriterScratch,
    slot: PodSlot,
    ledger: &'a mut Ledger,
}

impl PodChange<'_> {
    fn run(&mut self, counting: Counting, events: &[CacheEvent<'_>]) {
        let before = self.ledger.weight();
        let caps = self.caps();
        for event in events {
            match event {
                CacheEvent::Stored(stored) => {
                    self.ledger.store(stored, counting, caps, &mut self.scratch.set);
                }
                CacheEvent::Removed { tier, blocks } => {
                    self.ledger.remove(*tier, blocks, counting, &mut self.scratch.clear);
                }
                CacheEvent::Cleared => self.ledger.clear(&mut self.scratch.clear),
            }
            self.commit();
        }
        self.drop_surplus();
        self.count(before);
    }

    /// Drops speculative blocks above the limit: removals of confirmed blocks can make more of
    /// them.
    fn drop_surplus(&mut self) {
        let max = self.state.limits.speculative_per_pod;
        let surplus = self.ledger.speculative.len().saturating_sub(max);
        if surplus > 0 {
            self.ledger.speculative.take_oldest(surplus, &mut self.scratch.clear);
            self.ledger.counters.expired += surplus as u64;
            self.commit();
        }
    }

    /// Applies kept batches that are next in sequence.
    fn catch_up(&mut self) -> usize {
        let mut batches = 0;
        while let Some((sequence, events)) = self.ledger.sequence.take_next() {
            for event in &events {
                self.run(Counting::Copies, &[event.as_event()]);
            }
            self.ledger.sequence.advance(sequence);
            batches += 1;
        }
        batches
    }

    /// Returns how many hashes have no known prefix.
    fn apply_snapshot(&mut self, stored: &[StoredBlocks<'_>]) -> usize {
        let before = self.ledger.weight();
        let mut caps = self.caps();
        // A snapshot may list every child before its parent; only blocks that have no prefix at its
        // end are orphans.
        caps.orphans = caps.blocks;
        self.ledger.begin_snapshot();
        for stored in stored {
            self.ledger.store(stored, Counting::Snapshot, caps, &mut self.scratch.set);
            self.commit();
        }
        let max_orphans = self.state.limits.orphans_per_pod;
        let unnamed = self.ledger.end_snapshot(max_orphans, &mut self.scratch.clear);
        self.commit();
        self.count(before);
        unnamed
    }

    fn restore(&mut self, items: &[ExportedBlock]) -> Result<(), RestoreError> {
        let before = self.ledger.weight();
        let caps = self.caps();
        let restored = self.ledger.restore(items, caps, &mut self.scratch.set);
        if restored.is_err() {
            // No bit was set yet, so none needs clearing.
            self.ledger.clear(&mut self.scratch.clear);
            self.scratch.set.clear();
            self.scratch.clear.clear();
        }
        self.commit();
        self.count(before);
        restored
    }

    /// Inserts a chain after `parent`; the pod probably holds its first `known` blocks.
    fn insert_speculative(
        &mut self,
        mut parent: Option<BlockHash>,
        mut chain: &[BlockHash],
        known: usize,
        expires: Moment,
    ) -> bool {
        let before = self.ledger.weight();
        let max = self.state.limits.speculative_per_pod;
        if chain.len() > max || chain.len() > self.remaining() {
            return false;
        }
        let has_holes = self.ledger.may_have_holes();
        if has_holes {
            self.ledger.speculative.note_holes();
        }
        let WriterScratch { view, set, clear } = &mut *self.scratch;
        let mut bits = Bits::new(&self.state.directory, &self.state.sets, view, self.slot);
        // The parent was inserted a moment ago. If it is gone, this chain would follow a hole.
        if parent.is_some_and(|parent| !bits.has(parent)) {
            return false;
        }
        let (known, rest) = chain.split_at(known);
        // A pod without holes that holds a block holds the whole prefix.
        if let Some(last) = known.last()
            && !has_holes
            && bits.has(*last)
        {
            self.ledger.speculative.renew_prefix(known, expires);
            parent = Some(*last);
            chain = rest;
        }
        bits.set(chain, |block| set.push(block));
        self.ledger.speculative.insert(parent, chain, set, expires);
        set.clear();
        let surplus = self.ledger.speculative.len().saturating_sub(max);
        if surplus > 0 {
            self.ledger.speculative.take_oldest(surplus, clear);
            self.ledger.counters.expired += surplus as u64;
        }
        if surplus > 0 || has_holes {
            self.commit();
        }
        self.count(before);
        mark(&self.state.speculative, self.slot, !self.ledger.speculative.is_empty());
        true
    }

    fn rollback(&mut self, chain: &[BlockHash]) -> RolledBack {
        let before = self.ledger.weight();
        let may_continue = self.ledger.speculative.rollback(chain, &mut self.scratch.clear);
        let removed = self.scratch.clear.len();
        self.commit();
        self.count(before);
        mark(&self.state.speculative, self.slot, !self.ledger.speculative.is_empty());
        RolledBack { removed, may_continue }
    }

    fn expire(&mut self, now: Moment) -> usize {
        let before = self.ledger.weight();
        self.scratch.clear = self.ledger.speculative.take_expired(now);
        let expired = self.scratch.clear.len();
        self.ledger.counters.expired += expired as u64;
        self.commit();
        self.count(before);
        mark(&self.state.speculative, self.slot, !self.ledger.speculative.is_empty());
        expired
    }

    /// Clears bits of a removed pod. Returns where to continue, or `None` at the end.
    fn sweep(&mut self, cursor: u32, blocks: usize) -> Option<u32> {
        let rest = self.ledger.held_from(cursor, blocks, &mut self.scratch.clear);
        if rest.is_none() {
            let weight = self.ledger.weight() as u64;
            self.state.entries.fetch_sub(weight, Ordering::Relaxed);
            self.scratch.clear.extend(self.ledger.speculative.take_all());
        }
        self.commit();
        rest
    }

    /// Applies the ledger's changes to the table. A pod becomes a suspect before a change that may
    /// leave it with a hole, if only until the next bit changes, and stops being one when queries
    /// can check all its holes.
    fn commit(&mut self) {
        let Self { state, scratch: WriterScratch { view, set, clear }, slot, ledger } = self;
        if ledger.speculative.is_broken() {
            set.iter().for_each(|block| ledger.speculative.note_stored(*block));
        }
        if ledger.is_suspect() || ledger.pod_holes.has_fresh() {
            mark(&state.suspects, *slot, true);
        }
        let mut bits = Bits::new(&state.directory, &state.sets, view, *slot);
        bits.set(set, |block| ledger.note_already_set(block));
        bits.clear(clear);
        set.clear();
        clear.clear();
        self.settle();
    }

    /// Tells queries which holes the pod has, after its bits have changed.
    fn settle(&mut self) {
        let Self { state, slot, ledger, .. } = self;
        if ledger.pod_holes.has_ended() {
            state.holes_cleared.fetch_add(1, Ordering::AcqRel);
        }
        if ledger.pod_holes.has_ended() || ledger.pod_holes.has_fresh() {
            ledger.pod_holes.settle(&state.holes, *slot, &ledger.slab);
        }
        if !ledger.is_suspect() {
            clear_suspect(state, *slot);
        }
    }

    fn caps(&self) -> LedgerLimits {
        let limits = &self.state.limits;
        LedgerLimits {
            blocks: limits.blocks_per_pod.min(self.ledger.len().saturating_add(self.remaining())),
            orphans: limits.orphans_per_pod,
        }
    }

    /// How many more blocks the limits of the index allow; each may be the second copy of one.
    fn remaining(&self) -> usize {
        let limits = &self.state.limits;
        // The first word of a set is part of what a block takes.
        let words = self.state.sets.len() * (limits.capacity.words() - 1);
        let wide_sets = words * size_of::<u64>() / IndexLimits::BYTES_PER_BLOCK;
        let all = self.state.entries.load(Ordering::Relaxed) as usize + wide_sets;
        let shared = limits.shared_blocks.saturating_sub(self.state.sets.shared_blocks());
        limits.blocks.saturating_sub(all).min(shared)
    }

    /// Adds the growth of this pod since it weighed `before` to the count of all blocks.
    fn count(&self, before: usize) {
        let change = (self.ledger.weight() as u64).wrapping_sub(before as u64);
        if change != 0 {
            self.state.entries.fetch_add(change, Ordering::Relaxed);
        }
    }
}

/// Sets or clears a pod's bit in a mask; writes only if the bit changes.
fn mark(mask: &[AtomicU64], slot: PodSlot, on: bool) {
    let (word, bit) = word_and_bit(slot);
    if (mask[word].load(Ordering::Acquire) & bit != 0) != on {
        if on {
            mask[word].fetch_or(bit, Ordering::AcqRel);
        } else {
            mask[word].fetch_and(!bit, Ordering::AcqRel);
        }
    }
}

/// Clears a pod's bit in `suspects`, if it is set. The counter is incremented first: a query that
/// finds the bit cleared must be able to tell that it was set when the query read the blocks.
fn clear_suspect(state: &IndexState, slot: PodSlot) {
    let (word, bit) = word_and_bit(slot);
    if state.suspects[word].load(Ordering::Acquire) & bit != 0 {
        state.holes_cleared.fetch_add(1, Ordering::AcqRel);
        state.suspects[word].fetch_and(!bit, Ordering::AcqRel);
    }
}
