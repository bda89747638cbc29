//! Figures worth a metric.

use crate::digest::PodDigest;
use crate::index::Shared;
use crate::ledger::{Ledger, PodCounters};
use crate::pod::PodSet;
use crate::sync::Ordering;

/// Figures of one pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PodStats {
    /// Blocks entered, holes included.
    pub blocks: usize,
    /// Blocks that are gone though others that follow them are held.
    pub holes: usize,
    /// Blocks that wait for their prefix.
    pub waiting: usize,
    /// Blocks expected soon.
    pub expected: usize,
    /// Batches that came before their turn.
    pub early: usize,
    /// Bytes of its entries and aliases.
    pub bytes: usize,
    /// What its state comes to.
    pub digest: PodDigest,
    /// What happened since it came.
    pub counters: PodCounters,
}

impl PodStats {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        Self {
            blocks: ledger.len(),
            holes: ledger.holes(),
            waiting: ledger.waiting(),
            expected: ledger.expected.len(),
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
    /// Pods that are there.
    pub pods: usize,
    /// Pods that have left and are not swept yet.
    pub leaving: usize,
    /// Pods whose prefixes may have holes: queries that meet them look at every block.
    pub suspects: usize,
    /// Distinct blocks in the map.
    pub blocks: usize,
    /// Blocks over all pods, held or expected: what the cap on all blocks counts.
    pub entries: usize,
    /// Distinct sets of more than one pod.
    pub sets: usize,
    /// Bytes of the map's tables.
    pub table_bytes: usize,
    /// How often rows of sets or slots of pods were given a new meaning.
    pub recycled: u64,
}

impl Stats {
    pub(crate) fn of(shared: &Shared) -> Self {
        let (blocks, table_bytes) = shared.directory.size();
        let suspects: Vec<_> =
            shared.suspects.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let (pods, leaving) = shared.slots();
        Self {
            pods,
            leaving,
            suspects: PodSet::new(&suspects).len(),
            blocks,
            entries: shared.entries.load(Ordering::Relaxed) as usize,
            sets: shared.sets.len(),
            table_bytes,
            recycled: shared.directory.recycled(),
        }
    }
}
