//! The index as a whole: pods come, speak, and go; readers ask.
//!
//! A pod goes in two steps. Its bit in the alive mask goes at once, by compare-and-swap, and every
//! query that starts afterwards masks it out. Its bits in the map are cleared later, in steps that the
//! caller drives ([`Writer::sweep`]); only then may its slot be given to another pod.
//!
//! Locks are taken in this order: ledger, shard, register of sets, pages or recycling. Queries take
//! none.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::digest::PodDigest;
use crate::directory::Directory;
use crate::export::ExportedBlock;
use crate::ledger::Ledger;
use crate::lookup::IndexReader;
use crate::pod::{Capacity, PodId, PodSlot, place};
use crate::replicas::BlockLocation;
use crate::sets::{Numbering, Sets};
use crate::stats::{PodStats, Stats};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::writer::IndexWriter;

/// How large an index may become. Every cap is counted when it is reached, none is silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexLimits {
    /// Pods at a time.
    pub capacity: Capacity,
    /// Blocks over all pods, each counted once for every pod that holds it or is expected to. No more
    /// than [`Limits::MOST_BLOCKS`].
    pub blocks: usize,
    /// Blocks of one pod.
    pub blocks_per_pod: usize,
    /// Blocks of one pod that wait for their prefix to become known.
    pub waiting_per_pod: usize,
    /// Blocks that one pod is expected to hold soon.
    pub expected_per_pod: usize,
    /// Batches of one pod that came before their turn.
    pub early_per_pod: usize,
}

impl IndexLimits {
    /// The most blocks one index can hold. A set of several pods needs two blocks to come into being,
    /// and sets are numbered with 24 bits; a quarter of them may be waiting to be recycled.
    pub const MOST_BLOCKS: usize = 24 << 20;
}

impl Default for IndexLimits {
    fn default() -> Self {
        Self {
            capacity: Capacity::default(),
            blocks: Self::MOST_BLOCKS,
            blocks_per_pod: 4 << 20,
            waiting_per_pod: 16 << 10,
            expected_per_pod: 64 << 10,
            early_per_pod: 1 << 10,
        }
    }
}

/// The pod is no longer there, or this incarnation of it is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("pod in slot {} has gone; events of an incarnation that has gone have no effect", slot.position())]
pub struct PodRemoved {
    /// Where it was.
    pub slot: PodSlot,
}

/// There is no slot for another pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is room for {capacity} pods and no more; {leaving} of them are just leaving")]
pub struct NoSlot {
    /// The number of slots.
    pub capacity: usize,
    /// Slots that become free once they are swept.
    pub leaving: usize,
}

/// Which pod holds which block. Cloning gives another handle to the same index.
#[derive(Clone, Debug)]
pub struct Index {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) directory: Directory,
    pub(crate) sets: Sets,
    pub(crate) limits: IndexLimits,
    /// Pods that count.
    pub(crate) alive: Box<[AtomicU64]>,
    /// Pods whose prefixes may have holes.
    pub(crate) suspects: Box<[AtomicU64]>,
    /// How often a suspicion was lifted.
    pub(crate) lifted: AtomicU64,
    /// Pods of which something is expected.
    pub(crate) expecting: Box<[AtomicU64]>,
    /// Entries and expectations in all ledgers.
    pub(crate) entries: AtomicU64,
    pods: Box<[PodState]>,
    slots: Mutex<Slots>,
    key: u64,
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

/// A pod that has gone and is being swept.
#[derive(Debug)]
pub(crate) struct PodRemoval {
    pub(crate) slot: PodSlot,
    pub(crate) cursor: u32,
}

const ALIVE: u64 = 1;

impl Index {
    /// An empty index. `seed` spreads what engines send, so that none can choose names that collide.
    #[must_use]
    pub fn new(limits: IndexLimits, seed: u64) -> Self {
        let limits = IndexLimits { blocks: limits.blocks.min(IndexLimits::MOST_BLOCKS), ..limits };
        let words = limits.capacity.words();
        let slots = (0..limits.capacity.pods() as u16).map(PodSlot);
        let mask = || (0..words).map(|_| AtomicU64::new(0)).collect();
        let pod = |_| PodState { state: AtomicU64::new(0), ledger: Mutex::new(None) };
        let shared = Shared {
            directory: Directory::new(Numbering::new(words)),
            sets: Sets::default(),
            limits,
            alive: mask(),
            suspects: mask(),
            lifted: AtomicU64::new(0),
            expecting: mask(),
            entries: AtomicU64::new(0),
            pods: slots.clone().map(pod).collect(),
            slots: Mutex::new(Slots {
                free: slots.collect(),
                leaving: VecDeque::new(),
                incarnations: 0,
            }),
            key: seed,
        };
        Self { shared: Arc::new(shared) }
    }

    /// A new pod, or a new incarnation of one: it holds nothing yet.
    pub fn add_pod(&self) -> Result<PodId, NoSlot> {
        let shared = &*self.shared;
        let mut slots = lock(&shared.slots);
        let Some(slot) = slots.free.pop_first() else {
            let leaving = slots.leaving.len();
            return Err(NoSlot { capacity: shared.limits.capacity.pods(), leaving });
        };
        slots.incarnations += 1;
        let id = PodId { slot, incarnation: slots.incarnations };
        let pod = &shared.pods[slot.position()];
        let window = shared.limits.early_per_pod;
        *lock(&pod.ledger) = Some(Box::new(Ledger::new(shared.key, window)));
        pod.state.store(id.incarnation << 1 | ALIVE, Ordering::Release);
        // A query under way may have read bits of the slot's last pod: it must not answer them as
        // this one's.
        shared.directory.recycle();
        let (word, bit) = place(slot);
        shared.alive[word].fetch_or(bit, Ordering::AcqRel);
        Ok(id)
    }

    /// Takes a pod out: no query that starts after this call answers it. Its memory comes back as
    /// [`Writer::sweep`] is driven. `false` if it had gone before.
    pub fn remove_pod(&self, pod: PodId) -> bool {
        let shared = &*self.shared;
        let (living, dead) = (pod.incarnation << 1 | ALIVE, pod.incarnation << 1);
        let state = &shared.pods[pod.slot.position()].state;
        if state.compare_exchange(living, dead, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        let (word, bit) = place(pod.slot);
        shared.alive[word].fetch_and(!bit, Ordering::AcqRel);
        lock(&shared.slots).leaving.push_back(PodRemoval { slot: pod.slot, cursor: 0 });
        true
    }

    /// A reader, one for each thread that asks.
    #[must_use]
    pub fn reader(&self) -> IndexReader {
        IndexReader::new(Arc::clone(&self.shared))
    }

    /// A writer, one for each thread that brings events.
    #[must_use]
    pub fn writer(&self) -> IndexWriter {
        IndexWriter::new(Arc::clone(&self.shared))
    }

    /// What a pod's state comes to, to compare with its engine or with another router.
    pub fn digest(&self, pod: PodId) -> Result<PodDigest, PodRemoved> {
        self.shared.with_ledger(pod, |ledger| ledger.digest())
    }

    /// Everything that is known of a pod, to be entered again by [`Writer::restore`]; nothing while blocks of it wait
    /// for their prefix. Takes the pod's lock for as long as the list takes to write: some ten nanoseconds a block.
    pub fn inventory(&self, pod: PodId) -> Result<Option<Vec<ExportedBlock>>, PodRemoved> {
        self.shared.with_ledger(pod, |ledger| ledger.inventory())
    }

    /// How a pod holds each of `blocks`, the beginning of a chain that it is known to hold: the tier, and where on it. For
    /// the pod that was chosen, to tell its engine. Returns how many of them, from the first on, its events have confirmed;
    /// it is only expected to hold the others.
    pub fn holdings(
        &self,
        pod: PodId,
        blocks: &[BlockHash],
        holdings: &mut Vec<BlockLocation>,
    ) -> Result<usize, PodRemoved> {
        holdings.clear();
        self.shared.with_ledger(pod, |ledger| {
            holdings.extend(blocks.iter().map(|block| ledger.holding(*block)));
            ledger.confirmed(blocks)
        })
    }

    /// Figures of one pod.
    pub fn pod_stats(&self, pod: PodId) -> Result<PodStats, PodRemoved> {
        self.shared.with_ledger(pod, |ledger| PodStats::of(ledger))
    }

    /// Looks at the ledger of a pod that is there.
    pub(crate) fn with_ledger<T>(
        &self,
        pod: PodId,
        look: impl FnOnce(&mut Ledger) -> T,
    ) -> Result<T, PodRemoved> {
        self.shared.with_ledger(pod, look)
    }

    /// Figures of the whole. Looks at every shard and pod: for a metrics page, not for a hot path.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.shared)
    }
}

impl Shared {
    /// The ledger of a pod that is there. Whoever holds it is the only one who changes the pod's bits.
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

    pub(crate) fn with_ledger<T>(
        &self,
        pod: PodId,
        look: impl FnOnce(&mut Ledger) -> T,
    ) -> Result<T, PodRemoved> {
        let mut ledger = self.ledger(pod)?;
        ledger.as_deref_mut().map(look).ok_or(PodRemoved { slot: pod.slot })
    }

    /// The ledger in a slot, whoever lives there.
    pub(crate) fn ledger_in(&self, slot: PodSlot) -> MutexGuard<'_, Option<Box<Ledger>>> {
        lock(&self.pods[slot.position()].ledger)
    }

    pub(crate) fn next_leaving(&self) -> Option<PodRemoval> {
        lock(&self.slots).leaving.pop_front()
    }

    pub(crate) fn still_leaving(&self, leaving: PodRemoval) {
        lock(&self.slots).leaving.push_front(leaving);
    }

    /// Gives a swept slot back. Whether more pods are leaving.
    pub(crate) fn has_left(&self, slot: PodSlot) -> bool {
        let mut slots = lock(&self.slots);
        slots.free.insert(slot);
        !slots.leaving.is_empty()
    }

    pub(crate) fn slots(&self) -> (usize, usize) {
        let slots = lock(&self.slots);
        let leaving = slots.leaving.len();
        (self.pods.len() - slots.free.len() - leaving, leaving)
    }
}
