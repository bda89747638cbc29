//! The index as a whole: adds and removes pods, hands out readers and writers, and reports figures.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::event::Tier;
use crate::export::ExportedBlock;
use crate::ledger::{Ledger, PodCounters, PodDigest};
use crate::lookup::IndexReader;
use crate::pod::{PodId, PodSet};
use crate::replicas::BlockLocation;
use crate::state::{IndexLimits, IndexState, NoSlot, PodRemoved};
use crate::sync::Ordering;
use crate::writer::IndexWriter;

/// Which pod holds which block. A clone is another handle to the same index.
#[derive(Clone, Debug)]
pub struct Index {
    state: Arc<IndexState>,
}

impl Index {
    /// An empty index. `seed` keys the hashing of names that engines send. It must be secret: an
    /// engine that knew it could choose names that collide.
    #[must_use]
    pub fn new(limits: IndexLimits, seed: u64) -> Self {
        Self { state: Arc::new(IndexState::new(limits, seed)) }
    }

    /// The limits it was made with.
    #[must_use]
    pub fn limits(&self) -> IndexLimits {
        self.state.limits
    }

    /// Adds a pod, or a new incarnation of one: it holds nothing yet.
    pub fn add_pod(&self) -> Result<PodId, NoSlot> {
        self.state.add_pod()
    }

    /// Removes a pod: no query that starts after this call reports it. [`IndexWriter::sweep`] frees
    /// its memory. `false` if the pod was removed before.
    pub fn remove_pod(&self, pod: PodId) -> bool {
        self.state.remove_pod(pod)
    }

    /// A reader; each querying thread needs its own.
    #[must_use]
    pub fn reader(&self) -> IndexReader {
        IndexReader::new(Arc::clone(&self.state))
    }

    /// A writer; each thread that applies events needs its own.
    #[must_use]
    pub fn writer(&self) -> IndexWriter {
        IndexWriter::new(Arc::clone(&self.state))
    }

    /// A digest of a pod's blocks, to compare with its engine or with another router.
    pub fn digest(&self, pod: PodId) -> Result<PodDigest, PodRemoved> {
        self.state.with_ledger(pod, |ledger| ledger.digest())
    }

    /// Exports all blocks of a pod for [`IndexWriter::restore`]; `None` while the prefix of any
    /// block is unknown. Holds the pod's lock meanwhile, about ten nanoseconds per block.
    pub fn export(&self, pod: PodId) -> Result<Option<Vec<ExportedBlock>>, PodRemoved> {
        self.state.with_ledger(pod, |ledger| ledger.export())
    }

    /// Writes the tier and the location of each of `blocks`, the beginning of a chain that the pod
    /// is known to hold, for the engine of the chosen pod. Returns how many of them, from the first
    /// on, the pod's events have confirmed; the others are speculative.
    pub fn block_locations(
        &self,
        pod: PodId,
        blocks: &[BlockHash],
        locations: &mut Vec<BlockLocation>,
    ) -> Result<usize, PodRemoved> {
        locations.clear();
        self.state.with_ledger(pod, |ledger| {
            locations.extend(blocks.iter().map(|block| ledger.location(*block)));
            ledger.confirmed(blocks)
        })
    }

    /// How many of `blocks`, the beginning of a chain that the pod is known to hold, lie on each
    /// tier, in the order of [`Tier::ALL`]; a block with several copies counts for the fastest.
    /// Cheap for a pod whose blocks are all on the GPU.
    pub fn blocks_by_tier(
        &self,
        pod: PodId,
        blocks: &[BlockHash],
    ) -> Result<[usize; Tier::ALL.len()], PodRemoved> {
        self.state.with_ledger(pod, |ledger| ledger.blocks_by_tier(blocks))
    }

    /// Figures of one pod.
    pub fn pod_stats(&self, pod: PodId) -> Result<PodStats, PodRemoved> {
        self.state.with_ledger(pod, |ledger| PodStats::of(ledger))
    }

    /// Runs `read` on the locked ledger of a live pod.
    pub(crate) fn with_ledger<T>(
        &self,
        pod: PodId,
        read: impl FnOnce(&mut Ledger) -> T,
    ) -> Result<T, PodRemoved> {
        self.state.with_ledger(pod, read)
    }

    /// Figures of the whole index. Visits every shard and pod: for a metrics page, not for a hot
    /// path.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.state)
    }
}

/// Figures of one pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PodStats {
    /// Blocks in the ledger, holes included.
    pub blocks: usize,
    /// Evicted blocks that held blocks follow.
    pub holes: usize,
    /// Blocks whose prefix is not known yet.
    pub orphans: usize,
    /// Blocks that the pod is expected to hold soon.
    pub speculative: usize,
    /// Batches that arrived out of order and are kept.
    pub early: usize,
    /// Bytes of its entries and aliases.
    pub bytes: usize,
    /// A digest of its blocks.
    pub digest: PodDigest,
    /// What happened since the pod was added.
    pub counters: PodCounters,
}

impl PodStats {
    fn of(ledger: &Ledger) -> Self {
        Self {
            blocks: ledger.len(),
            holes: ledger.holes(),
            orphans: ledger.orphans.len(),
            speculative: ledger.speculative.len(),
            early: ledger.sequence.early(),
            bytes: ledger.bytes(),
            digest: ledger.digest(),
            counters: ledger.counters,
        }
    }
}

/// Figures of the whole index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Live pods.
    pub pods: usize,
    /// Removed pods that are not swept yet.
    pub leaving: usize,
    /// Pods with more holes than queries can check one by one: queries that find them walk over
    /// the chain for them.
    pub suspects: usize,
    /// Distinct blocks in the table.
    pub blocks: usize,
    /// Blocks over all pods, held or speculative: what [`crate::IndexLimits::blocks`] limits.
    pub entries: usize,
    /// Distinct blocks that several pods hold: what [`crate::IndexLimits::shared_blocks`] limits.
    pub shared_blocks: usize,
    /// Distinct sets of more than one pod.
    pub sets: usize,
    /// Bytes of the table.
    pub table_bytes: usize,
    /// How often rows of sets or slots of pods were recycled.
    pub recycled: u64,
}

impl Stats {
    fn of(state: &IndexState) -> Self {
        let size = state.directory.size();
        let suspects: Vec<_> =
            state.suspects.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let slots = state.slot_counts();
        Self {
            pods: slots.pods,
            leaving: slots.leaving,
            suspects: PodSet::new(&suspects).len(),
            blocks: size.entries,
            entries: state.entries.load(Ordering::Relaxed) as usize,
            shared_blocks: state.sets.shared_blocks(),
            sets: state.sets.len(),
            table_bytes: size.bytes,
            recycled: state.directory.recycled(),
        }
    }
}
