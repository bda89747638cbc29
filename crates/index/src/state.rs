//! The state that all readers and writers of an index share.
//!
//! A pod is removed in two steps. First a compare-and-swap clears its bit in the alive mask, and
//! every later query masks the pod out. Then its bits in the table are cleared, in steps that the
//! caller drives ([`crate::IndexWriter::sweep`]); only after that may another pod get its slot.
//!
//! Lock order: ledger, shard, register of sets, pages or recycling. Queries take no lock.

use std::collections::{BTreeSet, VecDeque};

use crate::directory::{Directory, Numbering};
use crate::holes::Holes;
use crate::ledger::Ledger;
use crate::pod::{Capacity, PodId, PodSlot, word_and_bit};
use crate::sets::Sets;
use crate::slab::AliasKey;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};

/// Size limits of an index. Whatever exceeds a limit is counted, never dropped silently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexLimits {
    /// Pods at a time.
    pub capacity: Capacity,
    /// Blocks over all pods, each counted once per pod that holds it or is expected to hold it. Wide
    /// sets of pods count as the blocks that would take as much memory.
    pub blocks: usize,
    /// Distinct blocks that several pods hold; at this limit no block is stored at all. At most
    /// [`IndexLimits::MOST_SHARED`].
    pub shared_blocks: usize,
    /// Blocks of one pod.
    pub blocks_per_pod: usize,
    /// Blocks of one pod whose prefix is not known yet; beyond it, those that wait longest are
    /// dropped.
    pub orphans_per_pod: usize,
    /// Speculative blocks of one pod.
    pub speculative_per_pod: usize,
    /// Batches of one pod that arrived out of order and are kept.
    pub early_per_pod: usize,
}

impl IndexLimits {
    /// The most blocks that several pods hold. Each can have a set of pods of its own, and set
    /// numbers have 24 bits; a quarter of them may be waiting to be recycled, and each writer may
    /// exceed the limit by one batch.
    pub const MOST_SHARED: usize = 10 << 20;

    /// Memory that a block of a pod takes: 40 to 50 bytes, and up to a quarter more while tables
    /// grow.
    pub(crate) const BYTES_PER_BLOCK: usize = 64;

    /// These limits with as many blocks as fit into so much memory.
    #[must_use]
    pub fn within(self, bytes: usize) -> Self {
        Self { blocks: bytes / Self::BYTES_PER_BLOCK, ..self }
    }
}

impl Default for IndexLimits {
    fn default() -> Self {
        Self {
            capacity: Capacity::default(),
            blocks: 24 << 20,
            shared_blocks: Self::MOST_SHARED,
            blocks_per_pod: 4 << 20,
            orphans_per_pod: 16 << 10,
            speculative_per_pod: 64 << 10,
            early_per_pod: 1 << 10,
        }
    }
}

/// The pod, or this incarnation of it, was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("pod in slot {} was removed; events of a removed incarnation are ignored", slot.position())]
pub struct PodRemoved {
    /// The slot that the pod had.
    pub slot: PodSlot,
}

/// No slot is free for another pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("index full: all {capacity} pod slots in use ({leaving} being freed); raise the pod limit")]
pub struct NoSlot {
    /// The number of slots.
    pub capacity: usize,
    /// Slots that become free once they are swept.
    pub leaving: usize,
}

#[derive(Debug)]
pub(crate) struct IndexState {
    pub(crate) directory: Directory,
    pub(crate) sets: Sets,
    pub(crate) limits: IndexLimits,
    /// Mask of the pods that queries report.
    pub(crate) alive: Box<[AtomicU64]>,
    /// Mask of the pods that may have holes which are not in `holes`.
    pub(crate) suspects: Box<[AtomicU64]>,
    pub(crate) holes: Holes,
    /// How often a bit of `suspects` was cleared, or a place in `holes`.
    pub(crate) holes_cleared: AtomicU64,
    /// Mask of the pods with speculative blocks.
    pub(crate) speculative: Box<[AtomicU64]>,
    /// Entries and speculative blocks of all ledgers.
    pub(crate) entries: AtomicU64,
    pods: Box<[PodState]>,
    slots: Mutex<Slots>,
    key: AliasKey,
}

#[derive(Debug)]
#[repr(align(64))]
struct PodState {
    /// incarnation · alive (1 bit)
    state: AtomicU64,
    ledger: Mutex<Option<Box<Ledger>>>,
}

#[derive(Debug)]
struct Slots {
    free: BTreeSet<PodSlot>,
    leaving: VecDeque<PodRemoval>,
    incarnations: u64,
}

/// A removed pod whose bits are being swept.
#[derive(Debug)]
pub(crate) struct PodRemoval {
    pub(crate) slot: PodSlot,
    pub(crate) cursor: u32,
}

/// Slots that are in use.
#[derive(Clone, Copy)]
pub(crate) struct SlotCounts {
    pub(crate) pods: usize,
    pub(crate) leaving: usize,
}

const ALIVE: u64 = 1;

impl IndexState {
    pub(crate) fn new(limits: IndexLimits, seed: u64) -> Self {
        let shared_blocks = limits.shared_blocks.min(IndexLimits::MOST_SHARED);
        let limits = IndexLimits { shared_blocks, ..limits };
        let words = limits.capacity.words();
        let slots = (0..limits.capacity.pods() as u16).map(PodSlot);
        let mask = || (0..words).map(|_| AtomicU64::new(0)).collect();
        let pod = |_| PodState { state: AtomicU64::new(0), ledger: Mutex::new(None) };
        Self {
            directory: Directory::new(Numbering::new(words)),
            sets: Sets::default(),
            limits,
            alive: mask(),
            suspects: mask(),
            holes: Holes::new(),
            holes_cleared: AtomicU64::new(0),
            speculative: mask(),
            entries: AtomicU64::new(0),
            pods: slots.clone().map(pod).collect(),
            slots: Mutex::new(Slots {
                free: slots.collect(),
                leaving: VecDeque::new(),
                incarnations: 0,
            }),
            key: AliasKey(seed),
        }
    }

    pub(crate) fn add_pod(&self) -> Result<PodId, NoSlot> {
        let mut slots = lock(&self.slots);
        let Some(slot) = slots.free.pop_first() else {
            let leaving = slots.leaving.len();
            return Err(NoSlot { capacity: self.limits.capacity.pods(), leaving });
        };
        slots.incarnations += 1;
        let id = PodId { slot, incarnation: slots.incarnations };
        let pod = &self.pods[slot.position()];
        let window = self.limits.early_per_pod;
        *lock(&pod.ledger) = Some(Box::new(Ledger::new(self.key, window)));
        pod.state.store(id.incarnation << 1 | ALIVE, Ordering::Release);
        // A concurrent query may have read bits of the slot's previous pod and must not report them
        // for this one.
        self.directory.recycle();
        let (word, bit) = word_and_bit(slot);
        self.alive[word].fetch_or(bit, Ordering::AcqRel);
        Ok(id)
    }

    pub(crate) fn remove_pod(&self, pod: PodId) -> bool {
        let dead = pod.incarnation << 1;
        let state = &self.pods[pod.slot.position()].state;
        let removed =
            state.compare_exchange(dead | ALIVE, dead, Ordering::AcqRel, Ordering::Relaxed);
        if removed.is_err() {
            return false;
        }
        let (word, bit) = word_and_bit(pod.slot);
        self.alive[word].fetch_and(!bit, Ordering::AcqRel);
        lock(&self.slots).leaving.push_back(PodRemoval { slot: pod.slot, cursor: 0 });
        true
    }

    /// Locks the ledger of a live pod. Only the holder of this lock changes the pod's bits.
    pub(crate) fn ledger(
        &self,
        pod: PodId,
    ) -> Result<MutexGuard<'_, Option<Box<Ledger>>>, PodRemoved> {
        let cell = &self.pods[pod.slot.position()];
        let ledger = lock(&cell.ledger);
        if cell.state.load(Ordering::Acquire) == pod.incarnation << 1 | ALIVE && ledger.is_some() {
            Ok(ledger)
        } else {
            Err(PodRemoved { slot: pod.slot })
        }
    }

    /// Runs `read` on the locked ledger of a live pod.
    pub(crate) fn with_ledger<T>(
        &self,
        pod: PodId,
        read: impl FnOnce(&mut Ledger) -> T,
    ) -> Result<T, PodRemoved> {
        let mut ledger = self.ledger(pod)?;
        ledger.as_deref_mut().map(read).ok_or(PodRemoved { slot: pod.slot })
    }

    /// Locks the ledger in a slot, whichever incarnation it belongs to.
    pub(crate) fn ledger_in(&self, slot: PodSlot) -> MutexGuard<'_, Option<Box<Ledger>>> {
        lock(&self.pods[slot.position()].ledger)
    }

    pub(crate) fn next_removal(&self) -> Option<PodRemoval> {
        lock(&self.slots).leaving.pop_front()
    }

    /// Puts back a removal that is not finished.
    pub(crate) fn resume_removal(&self, removal: PodRemoval) {
        lock(&self.slots).leaving.push_front(removal);
    }

    /// Frees a swept slot. Returns whether more pods are leaving.
    pub(crate) fn free_slot(&self, slot: PodSlot) -> bool {
        let mut slots = lock(&self.slots);
        slots.free.insert(slot);
        !slots.leaving.is_empty()
    }

    pub(crate) fn slot_counts(&self) -> SlotCounts {
        let slots = lock(&self.slots);
        let leaving = slots.leaving.len();
        SlotCounts { pods: self.pods.len() - slots.free.len() - leaving, leaving }
    }
}
