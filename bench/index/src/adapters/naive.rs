//! The oracle: a map from block to the copies each pod has of it, scanned from block 0.

use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Index, Reader, chain};
use crate::log::{Event, EventLog, Kind};
use crate::workload::QuerySet;

/// Copies per tier.
type Copies = [u16; 4];

/// The definition, implemented literally: the longest contiguous run from block 0 per live pod.
pub(crate) struct Naive;

/// The copies of each block on each pod.
#[derive(Default)]
pub(crate) struct Holdings {
    blocks: FxHashMap<u64, FxHashMap<u32, Copies>>,
    removed: FxHashSet<u32>,
}

/// A plain copy of the log.
pub(crate) struct NaiveLog {
    events: Vec<Event>,
    seqs: Vec<u64>,
}

impl Index for Naive {
    const NAME: &'static str = "naive scan";
    type Log = NaiveLog;
    type Queries = (Vec<u64>, usize);
    type Shared = RwLock<Holdings>;
    type Writer = ();
    type Reader<'a> = NaiveReader<'a>;

    fn log(log: &EventLog) -> NaiveLog {
        NaiveLog { events: log.events.clone(), seqs: log.seqs.clone() }
    }

    fn queries(queries: &QuerySet) -> Self::Queries {
        (queries.seqs.clone(), queries.blocks)
    }

    fn create(_pods: usize) -> (Self::Shared, ()) {
        (RwLock::default(), ())
    }

    fn apply(shared: &Self::Shared, (): &mut (), log: &NaiveLog, events: Range<usize>) {
        let mut holdings = shared.write().unwrap_or_else(PoisonError::into_inner);
        for event in &log.events[events] {
            for seq in &log.seqs[event.blocks()] {
                let pods = holdings.blocks.entry(*seq).or_default();
                let copies = pods.entry(event.pod).or_default();
                let count = &mut copies[usize::from(event.tier)];
                match event.kind {
                    Kind::Stored { .. } => *count += 1,
                    Kind::Removed => *count = count.saturating_sub(1),
                }
                if copies.iter().all(|count| *count == 0) {
                    pods.remove(&event.pod);
                }
            }
        }
    }

    fn reader(shared: &Self::Shared) -> NaiveReader<'_> {
        NaiveReader { shared, answer: FxHashMap::default() }
    }

    fn remove_pod(shared: &Self::Shared, (): &mut (), pod: u32) {
        shared.write().unwrap_or_else(PoisonError::into_inner).removed.insert(pod);
    }
}

/// Keeps the last answer: depth per pod.
pub(crate) struct NaiveReader<'a> {
    shared: &'a RwLock<Holdings>,
    answer: FxHashMap<u32, u32>,
}

impl Reader for NaiveReader<'_> {
    type Queries = (Vec<u64>, usize);

    fn lookup(&mut self, (flat, blocks): &Self::Queries, query: usize) {
        let holdings = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        self.answer.clear();
        for (depth, seq) in chain(flat, *blocks, query).iter().enumerate() {
            let Some(pods) = holdings.blocks.get(seq).filter(|pods| !pods.is_empty()) else {
                break;
            };
            for pod in pods.keys().filter(|pod| !holdings.removed.contains(pod)) {
                let reached = self.answer.entry(*pod).or_insert(0);
                if *reached as usize == depth {
                    *reached += 1;
                }
            }
        }
        self.answer.retain(|_, depth| *depth > 0);
    }

    fn depths(&self, into: &mut [u32]) {
        into.fill(0);
        for (pod, depth) in &self.answer {
            into[*pod as usize] = *depth;
        }
    }

    fn answers(&self, pod: u32) -> bool {
        self.answer.contains_key(&pod)
    }
}
