//! A planned queue on simulated engines, in virtual time.
//!
//! The plan is carried out by the planner's own [`ReplayRun`] and [`Window`], which a live runner uses as well; only
//! engines and clock are models. [`least_time`] says what no order could undercut.

mod bound;

pub use bound::{ThroughputBound, least_time, rates};

use crate::engine::{EngineAdmission, EngineSettings, SimEngine};
use crate::profile::EngineProfile;
use crate::replay::{Trace, TraceTurn};
use crate::request::{Output, PromptSource, RequestId, SimOutcome, SimRefused, SimRequest};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_blocks::BlockHash;
use wornpath_index::EngineHash;
use wornpath_planner::{Job, JobId, Plan, PlanRun, PodLoad, Queue, QueueError, Window};

/// Equal engines for a planned queue.
#[derive(Clone, Debug)]
pub struct OfflineEngines {
    /// How fast each is.
    pub engine: EngineProfile,
    /// Tokens that each engine's cache holds, if not as its profile says.
    pub kv_tokens: Option<usize>,
}

impl OfflineEngines {
    /// Tokens that each engine's cache holds.
    #[must_use]
    pub fn kv_tokens(&self) -> usize {
        self.kv_tokens.unwrap_or(self.engine.kv_tokens())
    }
}

/// What a simulated run came to.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OfflineResult {
    /// When the last request ended.
    pub makespan: Duration,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Prompt tokens that were computed.
    pub computed_tokens: u64,
    /// How often an idle pod took work from another.
    pub thefts: usize,
}

/// The requests of a trace as a queue, in the trace's order and without its times.
///
/// `expected_output` says how long a turn's answer is expected to be.
///
/// # Errors
/// If a request cannot be planned.
pub fn queue_of(
    trace: &Trace,
    expected_output: impl Fn(&TraceTurn) -> usize,
) -> Result<Queue, QueueError> {
    let mut queue = Queue::new(trace.block_size);
    let blocks = trace.turns.iter().map(|turn| turn.blocks.len()).sum();
    queue.reserve(trace.turns.len(), blocks);
    let mut chain = Vec::new();
    for turn in &trace.turns {
        chain.clear();
        chain.extend(turn.full_blocks(trace.block_size).iter().copied().map(BlockHash));
        queue.push(&Job {
            chain: &chain,
            prompt_tokens: turn.prompt_tokens,
            output_tokens: expected_output(turn),
            identity: None,
        })?;
    }
    Ok(queue)
}

/// Carries a plan for a trace's requests out; answers are as long as the trace says.
///
/// # Errors
/// If an engine could never serve one of the requests.
pub fn run(
    trace: &Trace,
    plan: Plan,
    engines: &OfflineEngines,
) -> Result<OfflineResult, SimRefused> {
    let mut fleet = OfflineFleet::new(trace, plan, engines);
    for pod in 0..fleet.engines.len() {
        fleet.fill(Duration::ZERO, pod)?;
    }
    while let Some(Reverse((now, pod))) = fleet.agenda.pop() {
        if fleet.planned[pod] == Some(now) {
            fleet.advance(now, pod)?;
        }
    }
    let loads = fleet.engines.iter().map(SimEngine::load);
    let (asked, hit) =
        loads.fold((0, 0), |sum, load| (sum.0 + load.asked_tokens, sum.1 + load.hit_tokens));
    Ok(OfflineResult {
        makespan: fleet.end,
        prompt_tokens: asked,
        computed_tokens: asked - hit,
        thefts: fleet.run.thefts(),
    })
}

struct OfflineFleet<'a> {
    trace: &'a Trace,
    run: PlanRun,
    engines: Vec<SimEngine>,
    windows: Vec<Window>,
    /// When each engine is next looked at; other entries of the agenda are stale.
    planned: Vec<Option<Duration>>,
    agenda: BinaryHeap<Reverse<(Duration, usize)>>,
    outputs: Vec<Output>,
    end: Duration,
}

impl<'a> OfflineFleet<'a> {
    fn new(trace: &'a Trace, plan: Plan, engines: &OfflineEngines) -> Self {
        let pods = plan.speeds().pods();
        let settings = EngineSettings {
            block_size: trace.block_size,
            kv_tokens: engines.kv_tokens,
            admission: EngineAdmission::WholeFits,
            ..EngineSettings::default()
        };
        let mut models = vec![SimEngine::new(&engines.engine, &settings); pods];
        for (engine, speed) in models.iter_mut().zip(plan.speeds().all()) {
            engine.set_slowdown(1.0 / speed);
        }
        let profile = &engines.engine;
        Self {
            trace,
            run: PlanRun::new(plan),
            engines: models,
            windows: vec![Window::new(profile.max_sequences(), profile.max_step_tokens()); pods],
            planned: vec![None; pods],
            agenda: BinaryHeap::new(),
            outputs: Vec::new(),
            end: Duration::ZERO,
        }
    }

    /// Sends an engine what it has room for.
    fn fill(&mut self, now: Duration, pod: usize) -> Result<(), SimRefused> {
        while let Some(job) = self.run.claim(pod, self.windows[pod].capacity()) {
            let request = request_of(job, &self.trace.turns[job.index()], self.trace.block_size);
            self.engines[pod].submit(now, request)?;
        }
        let next = self.engines[pod].next_event_time();
        if next != self.planned[pod] {
            self.planned[pod] = next;
            self.agenda.extend(next.map(|time| Reverse((time, pod))));
        }
        Ok(())
    }

    fn advance(&mut self, now: Duration, pod: usize) -> Result<(), SimRefused> {
        self.engines[pod].advance(now, &mut self.outputs);
        for output in self.outputs.drain(..) {
            match output.outcome {
                SimOutcome::Token { request, .. } => self.run.prefilled(JobId(request.0 as u32)),
                SimOutcome::Finished { request } => {
                    self.run.finished(JobId(request.0 as u32), pod);
                    self.end = self.end.max(output.at);
                }
                _ => {}
            }
        }
        let load = self.engines[pod].load();
        self.windows[pod].observe(PodLoad {
            running: load.running,
            waiting: load.waiting,
            kv_usage: load.used_blocks as f64 / load.total_blocks as f64,
        });
        self.planned[pod] = None;
        self.fill(now, pod)
    }
}

fn request_of(job: JobId, turn: &TraceTurn, block_size: NonZeroUsize) -> SimRequest {
    let names = turn.full_blocks(block_size).iter().copied();
    SimRequest {
        id: RequestId(u64::from(job.0)),
        prompt_tokens: turn.prompt_tokens,
        output_tokens: turn.output_tokens,
        chain: names.map(EngineHash).collect(),
        source: PromptSource::Computed,
        lease: None,
    }
}
