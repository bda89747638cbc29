//! A planned queue on simulated engines, in virtual time.
//!
//! The planner's own [`PlanRun`] and [`Window`] execute the plan, as in a live runner; only the
//! engines and the clock are simulated. [`least_time`] is a lower bound for every order.

mod bound;

pub use bound::{ThroughputBound, least_time, rates};

use crate::engine::{EngineAdmission, EngineSettings, KvReads, SimEngine};
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
    /// The profile of each engine.
    pub engine: EngineProfile,
    /// KV capacity of each engine in tokens; the profile's capacity if `None`.
    pub kv_tokens: Option<usize>,
}

impl OfflineEngines {
    /// KV capacity of each engine in tokens.
    #[must_use]
    pub fn kv_tokens(&self) -> usize {
        self.kv_tokens.unwrap_or(self.engine.kv_tokens())
    }
}

/// The result of a simulated run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OfflineResult {
    /// When the last request finished.
    pub makespan: Duration,
    /// Prompt tokens that were computed instead of found in a cache.
    pub computed_tokens: u64,
    /// What decode steps read.
    pub kv_reads: KvReads,
}

/// When and where a request ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OfflineRecord {
    /// The pod that computed it.
    pub pod: usize,
    /// When it was sent to its pod.
    pub sent: Duration,
    /// When it finished.
    pub end: Duration,
}

/// The requests of a trace as a queue, in the trace's order and without its times.
///
/// `expected_output` estimates the output tokens of a turn.
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

/// Executes a plan for a trace's requests; output lengths are those of the trace.
///
/// # Errors
/// If an engine could never serve one of the requests.
pub fn run(
    trace: &Trace,
    plan: Plan,
    engines: &OfflineEngines,
) -> Result<OfflineResult, SimRefused> {
    Ok(run_recorded(trace, plan, engines)?.0)
}

/// Like [`run`], with a record of each turn.
///
/// # Errors
/// If an engine could never serve one of the requests.
pub fn run_recorded(
    trace: &Trace,
    plan: Plan,
    engines: &OfflineEngines,
) -> Result<(OfflineResult, Vec<OfflineRecord>), SimRefused> {
    let mut fleet = OfflineFleet::new(trace, plan, engines);
    fleet.fill_all(Duration::ZERO)?;
    while fleet.step()?.is_some() {}
    Ok(fleet.result())
}

impl OfflineFleet<'_> {
    fn fill_all(&mut self, now: Duration) -> Result<(), SimRefused> {
        (0..self.engines.len()).try_for_each(|pod| self.fill(now, pod))
    }

    /// Advances the engine that wakes up next. Returns the time; none if all have finished.
    fn step(&mut self) -> Result<Option<Duration>, SimRefused> {
        let Some(Reverse((now, pod))) = self.wakeups.pop() else { return Ok(None) };
        if self.next_wakeup[pod] == Some(now) {
            self.advance(now, pod)?;
        }
        Ok(Some(now))
    }

    fn result(self) -> (OfflineResult, Vec<OfflineRecord>) {
        let mut result = OfflineResult { makespan: self.end, ..OfflineResult::default() };
        for load in self.engines.iter().map(SimEngine::load) {
            result.computed_tokens += load.prompt_tokens - load.hit_tokens;
            result.kv_reads += load.kv_reads;
        }
        (result, self.records)
    }
}

struct OfflineFleet<'a> {
    trace: &'a Trace,
    run: PlanRun,
    engines: Vec<SimEngine>,
    windows: Vec<Window>,
    /// The valid wake-up of each engine; other entries of `wakeups` are stale.
    next_wakeup: Vec<Option<Duration>>,
    wakeups: BinaryHeap<Reverse<(Duration, usize)>>,
    outputs: Vec<Output>,
    records: Vec<OfflineRecord>,
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
            next_wakeup: vec![None; pods],
            wakeups: BinaryHeap::new(),
            outputs: Vec::new(),
            records: vec![OfflineRecord::default(); trace.turns.len()],
            end: Duration::ZERO,
        }
    }

    /// Sends an engine as many requests as its window allows.
    fn fill(&mut self, now: Duration, pod: usize) -> Result<(), SimRefused> {
        while let Some(job) = self.run.claim(pod, self.windows[pod].capacity()) {
            let request = request_of(job, &self.trace.turns[job.index()], self.trace.block_size);
            self.engines[pod].submit(now, request)?;
            self.records[job.index()] = OfflineRecord { pod, sent: now, end: now };
        }
        let next = self.engines[pod].next_event_time();
        if next != self.next_wakeup[pod] {
            self.next_wakeup[pod] = next;
            self.wakeups.extend(next.map(|time| Reverse((time, pod))));
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
                    self.records[request.0 as usize].end = output.at;
                }
                _ => {}
            }
        }
        let load = self.engines[pod].load();
        self.windows[pod].observe(PodLoad {
            running: load.running,
            waiting: load.waiting,
            kv_usage: load.used_blocks as f64 / load.total_blocks as f64,
            kv_tokens: None,
        });
        self.next_wakeup[pod] = None;
        self.fill(now, pod)
    }
}

fn request_of(job: JobId, turn: &TraceTurn, block_size: NonZeroUsize) -> SimRequest {
    let blocks = turn.full_blocks(block_size).iter().copied();
    SimRequest {
        id: RequestId(u64::from(job.0)),
        prompt_tokens: turn.prompt_tokens,
        output_tokens: turn.output_tokens,
        chain: blocks.map(EngineHash).collect(),
        source: PromptSource::Computed,
        lease: None,
    }
}
