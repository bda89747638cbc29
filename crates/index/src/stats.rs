//! Figures of the index for metrics and the admin pages.

use crate::digest::PodDigest;
use crate::ledger::{Ledger, PodCounters};
use crate::pod::PodSet;
use crate::state::IndexState;
use crate::sync::Ordering;

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
    pub(crate) fn of(ledger: &Ledger) -> Self {
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
    /// Pods whose prefixes may have holes: queries that find them scan every block.
    pub suspects: usize,
    /// Distinct blocks in the map.
    pub blocks: usize,
    /// Blocks over all pods, held or speculative: what [`crate::IndexLimits::blocks`] limits.
    pub entries: usize,
    /// Distinct sets of more than one pod.
    pub sets: usize,
    /// Bytes of the map's tables.
    pub table_bytes: usize,
    /// How often rows of sets or slots of pods were recycled.
    pub recycled: u64,
}

impl Stats {
    pub(crate) fn of(state: &IndexState) -> Self {
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
            sets: state.sets.len(),
            table_bytes: size.bytes,
            recycled: state.directory.recycled(),
        }
    }
}
