//! Dynamo's selector as a library: `dynamo-kv-router` 1.6.1.
//!
//! Two rows. The first is its selector alone, with all inputs in place. The second also hashes the
//! tokens, queries its index and fills the maps that the selector reads. The load maps, which its
//! scheduler projects anew for each request, and the reservation are left out. Both rows are
//! therefore less than a request costs there.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dynamo_kv_router::indexer::WorkerTask;
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent, RoutingConstraints, WorkerConfigLike,
    WorkerId, WorkerWithDpRank,
};
use dynamo_kv_router::scheduling::{OverlapSignals, ScheduleMode};
use dynamo_kv_router::{
    ConcurrentRadixTreeCompressed, DefaultWorkerSelector, KvRouterConfig, SchedulingRequest,
    SyncIndexer, WorkerLoadProjection, WorkerSelectionInput, WorkerSelector,
    compute_block_hash_for_seq,
};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::Contestant;
use crate::workload::{BLOCK, Workload};

#[derive(Default)]
struct Worker {
    taints: HashSet<String>,
}

impl WorkerConfigLike for Worker {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }

    fn data_parallel_size(&self) -> u32 {
        1
    }

    fn max_num_batched_tokens(&self) -> Option<u64> {
        None
    }

    fn total_kv_blocks(&self) -> Option<u64> {
        Some(131_072)
    }

    fn taints(&self) -> &HashSet<String> {
        &self.taints
    }
}

/// The part of the decision that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    SelectorAlone,
    FromTokens,
}

struct Dynamo {
    extent: Extent,
    index: Arc<ConcurrentRadixTreeCompressed>,
    workers: HashMap<WorkerId, Worker>,
    selector: DefaultWorkerSelector,
    prompts: Vec<Vec<u32>>,
    request: SchedulingRequest,
}

pub(crate) fn contestants(workload: &Workload) -> Vec<Box<dyn Contestant>> {
    let index = index(workload);
    let contestant = |extent| -> Box<dyn Contestant> {
        let config = KvRouterConfig { router_temperature: 0.0, ..Default::default() };
        let mut dynamo = Dynamo {
            extent,
            index: Arc::clone(&index),
            workers: (0..workload.pods as u64).map(|id| (id, Worker::default())).collect(),
            selector: DefaultWorkerSelector::new(Some(config), "prefill"),
            prompts: workload.prompts.clone(),
            request: request(workload),
        };
        dynamo.look_up(0);
        Box::new(dynamo)
    };
    vec![contestant(Extent::SelectorAlone), contestant(Extent::FromTokens)]
}

fn hashes(tokens: &[u32]) -> Vec<LocalBlockHash> {
    compute_block_hash_for_seq(tokens, BLOCK as u32, BlockHashOptions::default())
}

/// Its index with the workload's conversations in it, fed through its worker loop.
fn index(workload: &Workload) -> Arc<ConcurrentRadixTreeCompressed> {
    let index = Arc::new(ConcurrentRadixTreeCompressed::new());
    let (tasks, queue) = flume::unbounded();
    let shared = Arc::clone(&index);
    std::thread::scope(|scope| {
        scope.spawn(move || shared.worker(queue, None).expect("the worker loop returns no error"));
        let send = |task| tasks.send(task).expect("the worker loop is running");
        let mut event_id = 0;
        for (tokens, homes) in &workload.conversations {
            let locals = hashes(tokens);
            let mut prefix = 0_u64;
            let blocks: Vec<_> = locals
                .iter()
                .map(|local| {
                    prefix = (prefix.rotate_left(5) ^ local.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    let block_hash = ExternalSequenceBlockHash(prefix);
                    KvCacheStoredBlockData { block_hash, tokens_hash: *local, mm_extra_info: None }
                })
                .collect();
            for home in homes {
                event_id += 1;
                let data = KvCacheEventData::Stored(KvCacheStoreData {
                    parent_hash: None,
                    start_position: None,
                    blocks: blocks.clone(),
                });
                let event = KvCacheEvent { event_id, data, dp_rank: 0 };
                send(WorkerTask::Event(RouterEvent::new(*home as u64, event)));
            }
        }
        let (done, wait) = oneshot::channel();
        send(WorkerTask::Flush(done));
        wait.blocking_recv().expect("the worker loop answers a flush");
        send(WorkerTask::Terminate);
    });
    index
}

fn request(workload: &Workload) -> SchedulingRequest {
    let worker_loads: FxHashMap<_, _> = (0..workload.pods)
        .map(|pod| {
            let load = WorkerLoadProjection {
                active_prefill_tokens: workload.load[pod] as usize * 256,
                active_decode_blocks: workload.load[pod] as usize * 16,
                active_requests: workload.load[pod] as usize,
                ..Default::default()
            };
            (WorkerWithDpRank::from_worker_id(pod as u64), load)
        })
        .collect();
    SchedulingRequest {
        mode: ScheduleMode::QueryOnly { request_id: None },
        token_seq: None,
        isl_tokens: workload.prompts[0].len(),
        lora_name: None,
        expected_output_tokens: Some(256),
        affinity_target: None,
        pinned_worker: None,
        allowed_worker_ids: None,
        routing_constraints: RoutingConstraints {
            required_taints: HashSet::new(),
            preferred_taints: Default::default(),
        },
        router_config_override: None,
        track_prefill_tokens: true,
        priority_jump: 0.0,
        strict_priority: 0,
        policy_class: None,
        session_context: None,
        overlap: OverlapSignals {
            tier_overlap_blocks: Default::default(),
            effective_overlap_blocks: Default::default(),
            effective_cached_tokens: Default::default(),
        },
        kv_transfer_candidates: None,
        retain_kv_transfer_chain: false,
        shared_cache_hits: None,
        worker_loads,
        resp_tx: None,
    }
}

impl Dynamo {
    /// Hashes the prompt, asks the index, and fills the maps that the selector reads.
    fn look_up(&mut self, request: usize) {
        let scores = self.index.find_matches_impl(&hashes(&self.prompts[request]), false).scores;
        let overlap = &mut self.request.overlap;
        overlap.effective_overlap_blocks.clear();
        overlap.effective_cached_tokens.clear();
        for (worker, depth) in &scores {
            overlap.effective_overlap_blocks.insert(*worker, f64::from(*depth));
            overlap.effective_cached_tokens.insert(*worker, *depth as usize * BLOCK);
        }
    }
}

impl Contestant for Dynamo {
    fn name(&self) -> String {
        match self.extent {
            Extent::SelectorAlone => "dynamo selector alone".to_owned(),
            Extent::FromTokens => "dynamo hash + index + selector".to_owned(),
        }
    }

    fn is_judged(&self) -> bool {
        false
    }

    fn decide(&mut self, request: usize) {
        if self.extent == Extent::FromTokens {
            self.look_up(request);
        }
        let input = WorkerSelectionInput::configured(
            &self.workers,
            &self.request,
            self.request.eligibility(),
            BLOCK as u32,
        );
        let selected = self.selector.select_worker(input);
        std::hint::black_box(selected.expect("some worker is eligible"));
    }
}
