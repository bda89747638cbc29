//! `kv-index`, the event-driven index of the Shepherd Model Gateway.
//!
//! One lane map per pod, as its event monitor keeps them; lookups by `score_into` with a closure
//! that fills a reused list, which allocates nothing. The index is created for exactly the number
//! of pods, the smallest and quickest it can be.

use std::ops::Range;

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};

use super::{Index, Reader, chain};
use crate::log::{Event, EventLog, Kind};
use crate::workload::QuerySet;

/// The adapter.
pub(crate) struct KvIndex;

/// Events with both kinds of blocks its API takes.
pub(crate) struct Log {
    events: Vec<Event>,
    stored: Vec<StoredBlock>,
    removed: Vec<SequenceHash>,
}

/// A worker's id, if the index had room for it, and its lane map.
pub(crate) struct Lane {
    worker: Option<u32>,
    blocks: ChainBlockMap,
}

impl Index for KvIndex {
    const NAME: &'static str = "kv-index";
    type Log = Log;
    type Queries = (Vec<ContentHash>, usize);
    type Shared = ChainIndex;
    type Writer = Vec<Lane>;
    type Reader<'a> = KvReader<'a>;

    fn log(log: &EventLog) -> Log {
        let blocks = log.seqs.iter().zip(&log.locals);
        let stored = blocks.map(|(seq, local)| StoredBlock {
            seq_hash: SequenceHash(*seq),
            content_hash: ContentHash(*local),
        });
        Log {
            events: log.events.clone(),
            stored: stored.collect(),
            removed: log.seqs.iter().map(|seq| SequenceHash(*seq)).collect(),
        }
    }

    fn queries(queries: &QuerySet) -> Self::Queries {
        (queries.locals.iter().map(|local| ContentHash(*local)).collect(), queries.blocks)
    }

    fn create(pods: usize) -> (ChainIndex, Vec<Lane>) {
        let index = ChainIndex::with_max_workers(pods);
        let lanes = (0..pods).map(|pod| Lane {
            worker: index.intern_worker(&format!("pod-{pod}")).ok(),
            blocks: ChainBlockMap::new(),
        });
        let lanes: Vec<Lane> = lanes.collect();
        for (pod, lane) in lanes.iter().enumerate() {
            let id = lane.worker.map_or(pod, |id| id as usize);
            assert_eq!(id, pod, "a fresh index numbers its workers from 0");
        }
        (index, lanes)
    }

    fn apply(index: &ChainIndex, lanes: &mut Vec<Lane>, log: &Log, events: Range<usize>) {
        for event in &log.events[events] {
            let lane = &mut lanes[event.pod as usize];
            let Some(worker) = lane.worker else { continue };
            match event.kind {
                Kind::Stored { parent } => {
                    let blocks = &log.stored[event.blocks()];
                    let parent = parent.map(SequenceHash);
                    // A store after an unknown parent is refused; its gateway drops it, so do we.
                    let _ = index.apply_stored(worker, blocks, parent, &mut lane.blocks);
                }
                Kind::Removed => {
                    index.apply_removed(worker, &log.removed[event.blocks()], &mut lane.blocks);
                }
            }
        }
    }

    fn reader(index: &ChainIndex) -> KvReader<'_> {
        KvReader { index, answer: Vec::with_capacity(1024) }
    }

    fn remove_pod(index: &ChainIndex, lanes: &mut Vec<Lane>, pod: u32) {
        let lane = &mut lanes[pod as usize];
        if let Some(worker) = lane.worker.take() {
            index.remove_worker(worker, std::mem::take(&mut lane.blocks));
        }
    }
}

/// Keeps the last answer: (worker, depth) in the order reported.
pub(crate) struct KvReader<'a> {
    index: &'a ChainIndex,
    answer: Vec<(u32, u32)>,
}

impl Reader for KvReader<'_> {
    type Queries = (Vec<ContentHash>, usize);

    #[inline]
    fn lookup(&mut self, (flat, blocks): &Self::Queries, query: usize) {
        let answer = &mut self.answer;
        answer.clear();
        let locals = chain(flat, *blocks, query);
        let report = |worker, depth| answer.push((worker, depth));
        self.index.score_into(locals, |content| content.0, false, report);
    }

    fn depths(&self, into: &mut [u32]) {
        into.fill(0);
        for (pod, depth) in &self.answer {
            into[*pod as usize] = *depth;
        }
    }

    fn answers(&self, pod: u32) -> bool {
        self.answer.iter().any(|(worker, _)| *worker == pod)
    }
}
