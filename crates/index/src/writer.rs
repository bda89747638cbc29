//! What changes the index: events, snapshots, expectations, and the sweep after a pod that left.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::bits::Bits;
use crate::directory::View;
use crate::event::{CacheEvent, StoredBlocks};
use crate::export::{ExportedBlock, RestoreError};
use crate::index::{PodRemoved, Shared};
use crate::ledger::{Caps, Counting, Ledger};
use crate::pod::{PodId, PodSet, PodSlot, place};
use crate::sequence::{Applied, Order};
use crate::speculative::Moment;
use crate::sync::{AtomicU64, Ordering};

/// A thread's way to change the index. Writers of different pods hardly meet.
#[derive(Debug)]
pub struct IndexWriter {
    shared: Arc<Shared>,
    desk: WriterState,
}

/// The whole state of a pod as its engine tells it.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The number of the last batch it contains, if the source numbers its batches.
    pub sequence: Option<u64>,
    /// Everything the pod holds, in any order; a block is named once for each copy.
    pub stored: &'a [StoredBlocks<'a>],
}

/// How far a sweep has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swept {
    /// There is more to do.
    Partly,
    /// No pod is leaving.
    Clean,
}

impl IndexWriter {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let desk = WriterState::new(&shared);
        Self { shared, desk }
    }

    /// Applies a batch. With a `sequence`, copies are counted and each number is applied once and in
    /// order; without, a block is there or not.
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
            match change.ledger.sequence.turn(sequence) {
                Order::Now => {
                    change.run(Counting::Copies, events);
                    change.ledger.sequence.advance(sequence);
                    Applied::Now { caught_up: change.catch_up() }
                }
                Order::Before => Applied::Before,
                Order::Early(expected) if change.ledger.sequence.keep(sequence, events) => {
                    Applied::Early { expected }
                }
                Order::Early(expected) => Applied::Dropped { expected },
            }
        })
    }

    /// Says which number is to be applied next; batches that came early follow if they can. For an
    /// engine that has just started (zero), and to give up what can be had neither by replay nor in a
    /// snapshot. Without it the first batch sets the count. Returns how many batches followed.
    pub fn start_at(&mut self, pod: PodId, sequence: u64) -> Result<usize, PodRemoved> {
        self.change(pod, |change| {
            change.ledger.sequence.start_at(sequence);
            change.catch_up()
        })
    }

    /// Makes the pod's state equal to a snapshot, as a difference: what stays is never missing
    /// meanwhile. Returns how many batches that came early followed.
    pub fn apply_snapshot(
        &mut self,
        pod: PodId,
        snapshot: Snapshot<'_>,
    ) -> Result<usize, PodRemoved> {
        self.change(pod, |change| {
            change.become_equal(snapshot.stored);
            if let Some(sequence) = snapshot.sequence {
                change.ledger.sequence.start_at(sequence.wrapping_add(1));
            }
            change.catch_up()
        })
    }

    /// Makes a pod hold what an inventory says, and nothing else; the numbers of batches stay as they are.
    ///
    /// # Errors
    /// What is wrong with the inventory; the pod holds nothing then.
    pub fn restore(&mut self, pod: PodId, items: &[ExportedBlock]) -> Result<(), RestoreError> {
        self.change(pod, |change| {
            change.run(Counting::Presence, &[CacheEvent::Cleared]);
            change.restore(items)
        })?
    }

    /// Expects a pod to hold a whole chain soon, until `expires`. At the pod's cap, what would expire next is no
    /// longer expected. `false` if the chain is longer than the cap, all pods together are at theirs, or a part of it
    /// went while it was told: then it is expected in part. Others may change the pod between pieces of a long chain.
    pub fn expect(
        &mut self,
        pod: PodId,
        chain: &[BlockHash],
        expires: Moment,
    ) -> Result<bool, PodRemoved> {
        self.expect_after(pod, chain, 0, expires)
    }

    /// The same for a chain whose first `known` blocks the pod had a moment ago, which spares looking for
    /// each of them. If it is not so, nothing is lost but that.
    pub fn expect_after(
        &mut self,
        pod: PodId,
        chain: &[BlockHash],
        known: usize,
        expires: Moment,
    ) -> Result<bool, PodRemoved> {
        let (mut parent, mut known) = (None, known.min(chain.len()));
        for piece in chain.chunks(EXPECTED_AT_ONCE) {
            let here = known.min(piece.len());
            known -= here;
            if !self.change(pod, |change| change.expect(parent, piece, here, expires))? {
                return Ok(false);
            }
            parent = piece.last().copied();
        }
        Ok(true)
    }

    /// No longer expects what a pod was expected to hold of a chain because of one request alone, which it has refused.
    /// What it holds, and what others were sent there with, stays. Returns how many blocks that were.
    pub fn withdraw(&mut self, pod: PodId, chain: &[BlockHash]) -> Result<usize, PodRemoved> {
        let mut withdrawn = 0;
        for piece in chain.rchunks(EXPECTED_AT_ONCE) {
            let (count, may_go_on) = self.change(pod, |change| change.withdraw(piece))?;
            withdrawn += count;
            if !may_go_on {
                break;
            }
        }
        Ok(withdrawn)
    }

    /// Ends all expectations that were not confirmed by `now`. Returns how many blocks they were.
    pub fn expire(&mut self, now: Moment) -> usize {
        let Self { shared, desk } = self;
        let expecting: Vec<_> =
            shared.expecting.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let mut expired = 0;
        for slot in PodSet::new(&expecting).iter() {
            let mut guard = shared.ledger_in(slot);
            let Some(ledger) = guard.as_deref_mut() else { continue };
            expired += desk.open(shared, slot, ledger).expire(now);
        }
        expired
    }

    /// Clears the bits of pods that have left, at most about `blocks` of them, and gives their slots
    /// back. To be called in the background until it says [`Swept::Clean`].
    pub fn sweep(&mut self, blocks: usize) -> Swept {
        let Self { shared, desk } = self;
        let Some(mut leaving) = shared.next_leaving() else { return Swept::Clean };
        let mut guard = shared.ledger_in(leaving.slot);
        if let Some(ledger) = guard.as_deref_mut()
            && let Some(cursor) =
                desk.open(shared, leaving.slot, ledger).leave(leaving.cursor, blocks.max(1))
        {
            leaving.cursor = cursor;
            drop(guard);
            shared.still_leaving(leaving);
            return Swept::Partly;
        }
        *guard = None;
        trust(shared, leaving.slot);
        mark(&shared.expecting, leaving.slot, false);
        drop(guard);
        shared.sets.shrink(&shared.directory);
        if shared.has_left(leaving.slot) { Swept::Partly } else { Swept::Clean }
    }

    /// Runs `make` with the pod's ledger locked: only its holder changes the pod's bits.
    fn change<T>(
        &mut self,
        pod: PodId,
        make: impl FnOnce(&mut WriterChange<'_>) -> T,
    ) -> Result<T, PodRemoved> {
        let Self { shared, desk } = self;
        let mut guard = shared.ledger(pod)?;
        let ledger = guard.as_deref_mut().ok_or(PodRemoved { slot: pod.slot })?;
        Ok(make(&mut desk.open(shared, pod.slot, ledger)))
    }
}

/// Blocks of a chain that are expected under one lock: tens of microseconds.
const EXPECTED_AT_ONCE: usize = 256;

/// What a writer keeps between changes.
#[derive(Debug)]
struct WriterState {
    view: View,
    /// Blocks whose bit is to be set, and to be cleared.
    set: Vec<BlockHash>,
    clear: Vec<BlockHash>,
}

impl WriterState {
    fn new(shared: &Shared) -> Self {
        Self { view: View::new(&shared.directory), set: Vec::new(), clear: Vec::new() }
    }

    fn open<'a>(
        &'a mut self,
        shared: &'a Shared,
        slot: PodSlot,
        ledger: &'a mut Ledger,
    ) -> WriterChange<'a> {
        self.view.refresh(&shared.directory);
        WriterChange { shared, desk: self, slot, ledger }
    }
}

/// A change to one pod, under its ledger's lock.
struct WriterChange<'a> {
    shared: &'a Shared,
    desk: &'a mut WriterState,
    slot: PodSlot,
    ledger: &'a mut Ledger,
}

impl WriterChange<'_> {
    fn run(&mut self, counting: Counting, events: &[CacheEvent<'_>]) {
        let (before, room) = (self.ledger.weight(), self.room());
        for event in events {
            match event {
                CacheEvent::Stored(stored) => {
                    self.ledger.store(stored, counting, room, &mut self.desk.set);
                }
                CacheEvent::Removed { tier, blocks } => {
                    self.ledger.remove(*tier, blocks, counting, &mut self.desk.clear);
                }
                CacheEvent::Cleared => self.ledger.clear(&mut self.desk.clear),
            }
            self.commit();
        }
        self.count(before);
    }

    /// Applies the batches that had come early and whose turn it now is.
    fn catch_up(&mut self) -> usize {
        let mut batches = 0;
        while let Some((sequence, events)) = self.ledger.sequence.take_due() {
            for event in &events {
                self.run(Counting::Copies, &[event.as_event()]);
            }
            self.ledger.sequence.advance(sequence);
            batches += 1;
        }
        batches
    }

    fn become_equal(&mut self, stored: &[StoredBlocks<'_>]) {
        let before = self.ledger.weight();
        let mut room = self.room();
        // A snapshot may name children before their parents, all of them; only what still waits at
        // its end is waiting.
        room.waiting = room.entries;
        self.ledger.begin_snapshot();
        for stored in stored {
            self.ledger.store(stored, Counting::Snapshot, room, &mut self.desk.set);
            self.commit();
        }
        let most_waiting = self.shared.limits.waiting_per_pod;
        self.ledger.end_snapshot(most_waiting, &mut self.desk.clear);
        self.commit();
        self.count(before);
    }

    fn restore(&mut self, items: &[ExportedBlock]) -> Result<(), RestoreError> {
        let (before, room) = (self.ledger.weight(), self.room());
        let restored = self.ledger.restore(items, room, &mut self.desk.set);
        if restored.is_err() {
            // No bit was set yet, so none is to be cleared.
            self.ledger.clear(&mut self.desk.clear);
            self.desk.set.clear();
            self.desk.clear.clear();
        }
        self.commit();
        self.count(before);
        restored
    }

    /// Expects a chain after `parent`, of which the pod is thought to have the first `known` blocks.
    fn expect(
        &mut self,
        mut parent: Option<BlockHash>,
        mut chain: &[BlockHash],
        known: usize,
        expires: Moment,
    ) -> bool {
        let (before, most) = (self.ledger.weight(), self.shared.limits.expected_per_pod);
        if chain.len() > most || chain.len() > self.left() {
            return false;
        }
        let has_holes = self.ledger.may_have_holes();
        let WriterState { view, set, clear } = &mut *self.desk;
        let mut bits = Bits::new(&self.shared.directory, &self.shared.sets, view, self.slot);
        // What comes before was expected a moment ago. If it has gone since, this would follow nothing.
        if parent.is_some_and(|parent| !bits.has(parent)) {
            return false;
        }
        let (known, rest) = chain.split_at(known);
        // Who has no holes and has a block has all that it follows.
        if let Some(last) = known.last()
            && !has_holes
            && bits.has(*last)
        {
            self.ledger.expected.renew_whole(known, expires);
            (parent, chain) = (Some(*last), rest);
        }
        bits.set(chain, |block| set.push(block));
        self.ledger.expected.expect(parent, chain, set, expires);
        set.clear();
        let surplus = self.ledger.expected.len().saturating_sub(most);
        if surplus > 0 {
            self.ledger.expected.take_oldest(surplus, clear);
            self.ledger.counters.expired += surplus as u64;
            self.commit();
        }
        self.count(before);
        mark(&self.shared.expecting, self.slot, !self.ledger.expected.is_empty());
        true
    }

    /// How many blocks went, and whether those before may go too.
    fn withdraw(&mut self, chain: &[BlockHash]) -> (usize, bool) {
        let before = self.ledger.weight();
        let may_go_on = self.ledger.expected.withdraw(chain, &mut self.desk.clear);
        let withdrawn = self.desk.clear.len();
        self.commit();
        self.count(before);
        mark(&self.shared.expecting, self.slot, !self.ledger.expected.is_empty());
        (withdrawn, may_go_on)
    }

    fn expire(&mut self, now: Moment) -> usize {
        let before = self.ledger.weight();
        self.desk.clear = self.ledger.expected.take_expired(now);
        let expired = self.desk.clear.len();
        self.ledger.counters.expired += expired as u64;
        self.commit();
        self.count(before);
        mark(&self.shared.expecting, self.slot, !self.ledger.expected.is_empty());
        expired
    }

    /// Clears bits of a pod that has left. Returns where to go on, or `None` when none is left.
    fn leave(&mut self, cursor: u32, blocks: usize) -> Option<u32> {
        let rest = self.ledger.held_from(cursor, blocks, &mut self.desk.clear);
        if rest.is_none() {
            let weight = self.ledger.weight() as u64;
            self.shared.entries.fetch_sub(weight, Ordering::Relaxed);
            self.desk.clear.extend(self.ledger.expected.take_all());
        }
        self.commit();
        rest
    }

    /// Carries the ledger's changes over to the map. A pod is suspected before a change that may leave
    /// it with holes, and trusted again after one that fills the last.
    fn commit(&mut self) {
        let Self { shared, desk: WriterState { view, set, clear }, slot, ledger } = self;
        if ledger.may_have_holes() {
            mark(&shared.suspects, *slot, true);
        }
        let mut bits = Bits::new(&shared.directory, &shared.sets, view, *slot);
        bits.set(set, |block| ledger.note_already_set(block));
        bits.clear(clear);
        set.clear();
        clear.clear();
        if !ledger.may_have_holes() {
            trust(shared, *slot);
        }
    }

    fn room(&self) -> Caps {
        let limits = &self.shared.limits;
        Caps {
            entries: limits.blocks_per_pod.min(self.ledger.len().saturating_add(self.left())),
            waiting: limits.waiting_per_pod,
        }
    }

    /// How many blocks the cap on all still allows.
    fn left(&self) -> usize {
        let all = self.shared.entries.load(Ordering::Relaxed) as usize;
        self.shared.limits.blocks.saturating_sub(all)
    }

    /// Adds to the count of all blocks what this pod has gained since it weighed `before`.
    fn count(&self, before: usize) {
        let change = (self.ledger.weight() as u64).wrapping_sub(before as u64);
        if change != 0 {
            self.shared.entries.fetch_add(change, Ordering::Relaxed);
        }
    }
}

/// Sets or clears a pod's bit in a mask; touches the line only when it changes something.
fn mark(mask: &[AtomicU64], slot: PodSlot, on: bool) {
    let (word, bit) = place(slot);
    if (mask[word].load(Ordering::Acquire) & bit != 0) != on {
        if on {
            mask[word].fetch_or(bit, Ordering::AcqRel);
        } else {
            mask[word].fetch_and(!bit, Ordering::AcqRel);
        }
    }
}

/// Lifts the suspicion of a pod, if there is one. It is counted first: a query that finds no suspicion
/// any more must know that there was one when it read the blocks.
fn trust(shared: &Shared, slot: PodSlot) {
    let (word, bit) = place(slot);
    if shared.suspects[word].load(Ordering::Acquire) & bit != 0 {
        shared.lifted.fetch_add(1, Ordering::AcqRel);
        shared.suspects[word].fetch_and(!bit, Ordering::AcqRel);
    }
}
