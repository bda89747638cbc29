//! Dynamo's `ConcurrentRadixTreeCompressed`, its default indexer.
//!
//! Its public interface for events is a worker loop fed by a channel, so one thread runs that loop
//! as long as the index exists, and its CPU clock is the one that counts: the events are created on
//! another thread. They are sent in batches with a flush between them, so that the queue stays
//! small (its buffer would count as the index's memory) and the loop rarely sleeps. Queries run in
//! the caller's thread, as they do in Dynamo.

use std::ops::Range;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use dynamo_kv_router::indexer::WorkerTask;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent, WorkerWithDpRank,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, SyncIndexer};
use tokio::sync::oneshot;

use super::{Index, Reader, chain};
use crate::clock::{CpuClock, pin};
use crate::log::{Event, EventLog, Kind};
use crate::workload::QuerySet;

const BATCH: usize = 512;

/// The adapter.
pub(crate) struct Crtc;

/// A copy of the log: CRTC's events own their lists, so they are created when they are sent.
pub(crate) struct Log {
    events: Vec<Event>,
    seqs: Vec<u64>,
    locals: Vec<u64>,
}

/// The channel into the worker loop, and the thread that runs it.
pub(crate) struct Lane {
    tasks: flume::Sender<WorkerTask>,
    thread: Option<JoinHandle<()>>,
    clock: CpuClock,
    sent: u64,
}

impl Lane {
    fn send(&self, task: WorkerTask) {
        self.tasks.send(task).expect("the worker loop ends only when the lane is dropped");
    }

    fn flush(&self) {
        let (done, wait) = oneshot::channel();
        self.send(WorkerTask::Flush(done));
        wait.blocking_recv().expect("the worker loop answers every flush");
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // If the loop has panicked, the join below fails, and the panic was printed already.
        let _ = self.tasks.send(WorkerTask::Terminate);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Index for Crtc {
    const NAME: &'static str = "CRTC";
    type Log = Log;
    type Queries = (Vec<LocalBlockHash>, usize);
    type Shared = Arc<ConcurrentRadixTreeCompressed>;
    type Writer = Lane;
    type Reader<'a> = CrtcReader<'a>;

    fn log(log: &EventLog) -> Log {
        let EventLog { events, seqs, locals } = log;
        Log { events: events.clone(), seqs: seqs.clone(), locals: locals.clone() }
    }

    fn queries(queries: &QuerySet) -> Self::Queries {
        (queries.locals.iter().map(|local| LocalBlockHash(*local)).collect(), queries.blocks)
    }

    fn create(_pods: usize) -> (Self::Shared, Lane) {
        let index = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (tasks, queue) = flume::unbounded();
        let shared = Arc::clone(&index);
        let thread = std::thread::spawn(move || {
            pin(1);
            shared.worker(queue, None).expect("the worker loop returns no error of its own");
        });
        let clock = CpuClock::of(thread.as_pthread_t());
        (index, Lane { tasks, thread: Some(thread), clock, sent: 0 })
    }

    fn apply(_: &Self::Shared, lane: &mut Lane, log: &Log, events: Range<usize>) {
        let mut batch = Vec::with_capacity(BATCH);
        for events in log.events[events].chunks(BATCH) {
            batch.extend(events.iter().map(|event| {
                lane.sent += 1;
                WorkerTask::Event(router_event(log, event, lane.sent))
            }));
            for task in batch.drain(..) {
                lane.send(task);
            }
            lane.flush();
        }
    }

    fn writer_clock(lane: &Lane) -> CpuClock {
        lane.clock
    }

    fn reader(index: &Self::Shared) -> CrtcReader<'_> {
        CrtcReader { index, answer: OverlapScores::new() }
    }

    fn remove_pod(_: &Self::Shared, lane: &mut Lane, pod: u32) {
        let (resp, wait) = oneshot::channel();
        lane.send(WorkerTask::RemoveWorker { worker_id: u64::from(pod), sweep_tree: true, resp });
        wait.blocking_recv().expect("the worker loop answers every removal");
    }

    fn housekeep(lane: &mut Lane) {
        lane.send(WorkerTask::CleanupStaleChildren);
        lane.flush();
    }
}

fn router_event(log: &Log, event: &Event, event_id: u64) -> RouterEvent {
    let seqs = log.seqs[event.blocks()].iter().map(|seq| ExternalSequenceBlockHash(*seq));
    let data = match event.kind {
        Kind::Stored { parent } => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: parent.map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: seqs
                .zip(&log.locals[event.blocks()])
                .map(|(block_hash, local)| KvCacheStoredBlockData {
                    block_hash,
                    tokens_hash: LocalBlockHash(*local),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        Kind::Removed => {
            KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: seqs.collect() })
        }
    };
    RouterEvent::new(u64::from(event.pod), KvCacheEvent { event_id, data, dp_rank: 0 })
}

/// Keeps the last answer as the index gives it: a map it allocates per query.
pub(crate) struct CrtcReader<'a> {
    index: &'a ConcurrentRadixTreeCompressed,
    answer: OverlapScores,
}

impl Reader for CrtcReader<'_> {
    type Queries = (Vec<LocalBlockHash>, usize);

    #[inline]
    fn lookup(&mut self, (flat, blocks): &Self::Queries, query: usize) {
        self.answer = self.index.find_matches_impl(chain(flat, *blocks, query), false);
    }

    fn depths(&self, into: &mut [u32]) {
        into.fill(0);
        for (worker, depth) in &self.answer.scores {
            into[worker.worker_id as usize] = *depth;
        }
    }

    fn answers(&self, pod: u32) -> bool {
        self.answer.scores.contains_key(&WorkerWithDpRank::new(u64::from(pod), 0))
    }
}
