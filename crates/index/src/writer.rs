//! What changes the index: events, snapshots, expectations, and the sweep after a pod that left.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::bits::Bits;
use crate::directory::View;
use crate::event::{Event, Stored};
use crate::expected::Moment;
use crate::index::{PodGone, Shared};
use crate::ledger::{Counting, Ledger, Room};
use crate::pod::{PodId, PodSet, PodSlot, place};
use crate::sequence::{Applied, Turn};
use crate::sync::{AtomicU64, Ordering};

/// A thread's way to change the index. Writers of different pods hardly meet.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    view: View,
    /// Blocks whose bit is to be set, and to be cleared.
    set: Vec<BlockHash>,
    clear: Vec<BlockHash>,
}

/// The whole state of a pod as its engine tells it.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The number of the last batch it contains, if the source numbers its batches.
    pub sequence: Option<u64>,
    /// Everything the pod holds, in any order; a block is named once for each copy.
    pub stored: &'a [Stored<'a>],
}

/// How far a sweep has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swept {
    /// There is more to do.
    Partly,
    /// No pod is leaving.
    Clean,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let view = View::new(&shared.directory);
        Self { shared, view, set: Vec::new(), clear: Vec::new() }
    }

    /// Applies a batch. With a `sequence`, copies are counted and each number is applied once and in
    /// order; without, a block is there or not.
    pub fn apply(
        &mut self,
        pod: PodId,
        sequence: Option<u64>,
        events: &[Event<'_>],
    ) -> Result<Applied, PodGone> {
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.ledger(pod)?;
        let ledger = guard.as_deref_mut().ok_or(PodGone { slot: pod.slot })?;
        self.view.refresh(&shared.directory);
        let Some(sequence) = sequence else {
            self.run(ledger, pod.slot, Counting::Presence, events);
            return Ok(Applied::Now { caught_up: 0 });
        };
        match ledger.sequence.turn(sequence) {
            Turn::Now => {
                self.run(ledger, pod.slot, Counting::Copies, events);
                ledger.sequence.advance(sequence);
                Ok(Applied::Now { caught_up: self.catch_up(ledger, pod.slot) })
            }
            Turn::Before => Ok(Applied::Before),
            Turn::Early(expected) if ledger.sequence.keep(sequence, events) => {
                Ok(Applied::Early { expected })
            }
            Turn::Early(expected) => Ok(Applied::Dropped { expected }),
        }
    }

    /// Says which number is to be applied next; batches that came early follow if they can. For an
    /// engine that has just started (zero), and to give up what can be had neither by replay nor in a
    /// snapshot. Without it the first batch sets the count. Returns how many batches followed.
    pub fn start_at(&mut self, pod: PodId, sequence: u64) -> Result<usize, PodGone> {
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.ledger(pod)?;
        let ledger = guard.as_deref_mut().ok_or(PodGone { slot: pod.slot })?;
        self.view.refresh(&shared.directory);
        ledger.sequence.start_at(sequence);
        Ok(self.catch_up(ledger, pod.slot))
    }

    /// Makes the pod's state equal to a snapshot, as a difference: what stays is never missing
    /// meanwhile.
    pub fn apply_snapshot(&mut self, pod: PodId, snapshot: Snapshot<'_>) -> Result<usize, PodGone> {
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.ledger(pod)?;
        let ledger = guard.as_deref_mut().ok_or(PodGone { slot: pod.slot })?;
        self.view.refresh(&shared.directory);
        ledger.begin_snapshot();
        let before = ledger.len();
        let mut room = self.room(ledger);
        // A snapshot may name children before their parents, all of them; only what still waits at
        // its end is waiting.
        room.waiting = room.entries;
        for stored in snapshot.stored {
            ledger.store(stored, Counting::Snapshot, room, &mut self.set);
            self.commit(ledger, pod.slot);
        }
        ledger.end_snapshot(shared.limits.waiting_per_pod, &mut self.clear);
        self.commit(ledger, pod.slot);
        self.count(before, ledger.len());
        if let Some(sequence) = snapshot.sequence {
            ledger.sequence.start_at(sequence.wrapping_add(1));
        }
        Ok(self.catch_up(ledger, pod.slot))
    }

    /// Expects a pod to hold a whole chain soon, until `expires`. `false` if the cap does not allow it.
    pub fn expect(
        &mut self,
        pod: PodId,
        chain: &[BlockHash],
        expires: Moment,
    ) -> Result<bool, PodGone> {
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.ledger(pod)?;
        let ledger = guard.as_deref_mut().ok_or(PodGone { slot: pod.slot })?;
        if ledger.expected.len() + chain.len() > shared.limits.expected_per_pod {
            return Ok(false);
        }
        self.view.refresh(&shared.directory);
        let mut known = std::mem::take(&mut self.set);
        self.bits(pod.slot).set(chain, |block| known.push(block));
        let mut known_from = 0;
        let mut parent = None;
        for block in chain {
            if known.get(known_from) == Some(block) {
                known_from += 1;
                ledger.expected.renew(*block, expires);
            } else {
                ledger.expected.insert(*block, parent, expires);
            }
            parent = Some(*block);
        }
        known.clear();
        self.set = known;
        mark(&shared.expecting, pod.slot, !ledger.expected.is_empty());
        Ok(true)
    }

    /// Ends all expectations that were not confirmed by `now`. Returns how many blocks they were.
    pub fn expire(&mut self, now: Moment) -> usize {
        let shared = Arc::clone(&self.shared);
        let expecting: Vec<_> =
            shared.expecting.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let mut expired = 0;
        for slot in PodSet::new(&expecting).iter() {
            let mut guard = shared.ledger_in(slot);
            let Some(ledger) = guard.as_deref_mut() else { continue };
            self.view.refresh(&shared.directory);
            self.clear = ledger.expected.take_expired(now);
            expired += self.clear.len();
            ledger.counters.expired += self.clear.len() as u64;
            self.commit(ledger, slot);
            mark(&shared.expecting, slot, !ledger.expected.is_empty());
        }
        expired
    }

    /// Clears the bits of pods that have left, at most about `blocks` of them, and gives their slots
    /// back. To be called in the background until it says [`Swept::Clean`].
    pub fn sweep(&mut self, blocks: usize) -> Swept {
        let shared = Arc::clone(&self.shared);
        let Some(mut leaving) = shared.next_leaving() else { return Swept::Clean };
        let mut guard = shared.ledger_in(leaving.slot);
        self.view.refresh(&shared.directory);
        if let Some(ledger) = guard.as_deref_mut() {
            self.clear.clear();
            let rest = ledger.held_from(leaving.cursor, blocks.max(1), &mut self.clear);
            if rest.is_none() {
                self.clear.extend(ledger.expected.take_all());
            }
            let clear = std::mem::take(&mut self.clear);
            self.bits(leaving.slot).clear(&clear);
            self.clear = clear;
            self.clear.clear();
            if let Some(cursor) = rest {
                leaving.cursor = cursor;
                drop(guard);
                shared.still_leaving(leaving);
                return Swept::Partly;
            }
            self.count(ledger.len(), 0);
        }
        *guard = None;
        mark(&shared.suspects, leaving.slot, false);
        mark(&shared.expecting, leaving.slot, false);
        drop(guard);
        shared.sets.shrink(&shared.directory);
        if shared.has_left(leaving.slot) { Swept::Partly } else { Swept::Clean }
    }

    fn catch_up(&mut self, ledger: &mut Ledger, slot: PodSlot) -> usize {
        let mut batches = 0;
        while let Some((sequence, events)) = ledger.sequence.take_due() {
            for event in &events {
                self.run(ledger, slot, Counting::Copies, &[event.as_event()]);
            }
            ledger.sequence.advance(sequence);
            batches += 1;
        }
        batches
    }

    fn run(
        &mut self,
        ledger: &mut Ledger,
        slot: PodSlot,
        counting: Counting,
        events: &[Event<'_>],
    ) {
        let (before, room) = (ledger.len(), self.room(ledger));
        for event in events {
            match event {
                Event::Stored(stored) => ledger.store(stored, counting, room, &mut self.set),
                Event::Removed { tier, blocks } => {
                    ledger.remove(*tier, blocks, counting, &mut self.clear);
                }
                Event::Cleared => ledger.clear(&mut self.clear),
            }
            self.commit(ledger, slot);
        }
        self.count(before, ledger.len());
    }

    /// Carries the ledger's changes over to the map. A pod is suspected before a change that may leave
    /// it with holes, and trusted again after one that fills the last.
    fn commit(&mut self, ledger: &mut Ledger, slot: PodSlot) {
        let shared = Arc::clone(&self.shared);
        if ledger.may_have_holes() {
            mark(&shared.suspects, slot, true);
        }
        let (set, clear) = (std::mem::take(&mut self.set), std::mem::take(&mut self.clear));
        let mut bits = self.bits(slot);
        bits.set(&set, |block| ledger.note_already_set(block));
        bits.clear(&clear);
        (self.set, self.clear) = (set, clear);
        self.set.clear();
        self.clear.clear();
        if !ledger.may_have_holes() {
            mark(&shared.suspects, slot, false);
        }
    }

    fn bits(&mut self, slot: PodSlot) -> Bits<'_> {
        Bits::new(&self.shared.directory, &self.shared.sets, &mut self.view, slot)
    }

    fn room(&self, ledger: &Ledger) -> Room {
        let limits = &self.shared.limits;
        let all = self.shared.entries.load(Ordering::Relaxed);
        let left = (limits.blocks as u64).saturating_sub(all) as usize;
        Room {
            entries: limits.blocks_per_pod.min(ledger.len().saturating_add(left)),
            waiting: limits.waiting_per_pod,
        }
    }

    fn count(&self, before: usize, after: usize) {
        if after != before {
            let change = (after as u64).wrapping_sub(before as u64);
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
