//! The index as a whole: adds and removes pods, and hands out readers and writers.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::digest::PodDigest;
use crate::export::ExportedBlock;
use crate::ledger::Ledger;
use crate::lookup::IndexReader;
use crate::pod::PodId;
use crate::replicas::BlockLocation;
use crate::state::{IndexLimits, IndexState, NoSlot, PodRemoved};
use crate::stats::{PodStats, Stats};
use crate::writer::IndexWriter;

/// Which pod holds which block. A clone is another handle to the same index.
#[derive(Clone, Debug)]
pub struct Index {
    state: Arc<IndexState>,
}

impl Index {
    /// An empty index. `seed` keys the hashing of names that engines send, so that no engine can
    /// choose names that collide.
    #[must_use]
    pub fn new(limits: IndexLimits, seed: u64) -> Self {
        Self { state: Arc::new(IndexState::new(limits, seed)) }
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
