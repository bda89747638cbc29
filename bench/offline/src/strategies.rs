//! One queue on the same simulated engines under several strategies.

use std::time::Duration;
use wornpath_planner::{Forest, Plan, PlannerRates, Queue, Speeds};
use wornpath_sim::{EngineProfile, KvReads};
use wornpath_sim::offline::{OfflineEngines, ThroughputBound, least_time, queue_of, rates, run};
use wornpath_sim::replay::{ProfileText, ReplayFleet, Trace, TraceStart, replay_with_reads};

/// Requests that clients of an online router keep in flight, per pod. The best of the three counts:
/// where prompts are long and the cache is tight, many clients make the longest prompts wait until
/// the router's queue timeout.
const CLIENTS: [usize; 3] = [8, 32, 256];

const ROUND_ROBIN: ProfileText<'_> =
    ProfileText { name: "round-robin", yaml: include_str!("../../../profiles/round-robin.yaml") };
const CACHE_AWARE: ProfileText<'_> =
    ProfileText { name: "cache-aware", yaml: include_str!("../../../profiles/cache-aware.yaml") };

/// The result of one strategy.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) computed: u64,
    pub(crate) makespan: Duration,
    pub(crate) kv_reads: KvReads,
}

/// A queue on a fleet.
pub(crate) struct Comparison<'a> {
    trace: &'a Trace,
    engines: OfflineEngines,
    pods: usize,
    pub(crate) queue: Queue,
    pub(crate) forest: Forest,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(
        trace: &'a Trace,
        engine: &EngineProfile,
        kv_tokens: Option<usize>,
        pods: usize,
    ) -> anyhow::Result<Self> {
        let queue = queue_of(trace, |turn| turn.output_tokens)?;
        let forest = Forest::of(&queue);
        let engines = OfflineEngines { engine: engine.clone(), kv_tokens };
        Ok(Self { trace, engines, pods, queue, forest })
    }

    pub(crate) fn kv_tokens(&self) -> usize {
        self.engines.kv_tokens()
    }

    pub(crate) fn least_tokens(&self) -> u64 {
        self.forest.least_tokens(&self.queue)
    }

    pub(crate) fn least_time(&self) -> ThroughputBound {
        least_time(&self.queue, &self.forest, &self.engines, self.pods)
    }

    pub(crate) fn rates(&self) -> PlannerRates {
        rates(&self.engines)
    }

    /// In the file's order, each pod in turn.
    pub(crate) fn round_robin(&self) -> anyhow::Result<Figures> {
        self.online(self.trace, ROUND_ROBIN)
    }

    /// In the file's order, through the default profile of the router.
    pub(crate) fn cache_aware(&self) -> anyhow::Result<Figures> {
        self.online(self.trace, CACHE_AWARE)
    }

    /// In depth-first order, but each pod in turn.
    pub(crate) fn sorted(&self) -> anyhow::Result<Figures> {
        let order = self.forest.order().iter();
        let turns = order.map(|job| self.trace.turns[job.index()].clone()).collect();
        self.online(&Trace { turns, block_size: self.trace.block_size }, ROUND_ROBIN)
    }

    /// As planned, with the true output lengths.
    pub(crate) fn planned(&self) -> anyhow::Result<Figures> {
        let plan = self.plan(&self.queue)?;
        self.run_plan(plan)
    }

    /// As planned with the average output length for every request.
    pub(crate) fn planned_with_average_outputs(&self) -> anyhow::Result<Figures> {
        let all: usize = self.trace.turns.iter().map(|turn| turn.output_tokens).sum();
        let average = all / self.trace.turns.len();
        let queue = queue_of(self.trace, |_| average)?;
        self.run_plan(self.plan(&queue)?)
    }

    pub(crate) fn plan(&self, queue: &Queue) -> anyhow::Result<Plan> {
        Ok(Plan::new(queue, &Speeds::equal(self.pods)?, &self.rates()))
    }

    fn run_plan(&self, plan: Plan) -> anyhow::Result<Figures> {
        let result = run(self.trace, plan, &self.engines)?;
        Ok(Figures {
            computed: result.computed_tokens,
            makespan: result.makespan,
            kv_reads: result.kv_reads,
        })
    }

    fn online(&self, trace: &Trace, profile: ProfileText<'_>) -> anyhow::Result<Figures> {
        let mut best: Option<Figures> = None;
        for clients in CLIENTS {
            let figures =
                self.replay_online(&closed_loop(trace.clone(), clients * self.pods), profile)?;
            best = best.into_iter().chain(figures).min_by_key(|figures| figures.makespan);
        }
        best.ok_or_else(|| {
            anyhow::anyhow!("{}: requests fail with every number of clients", profile.name)
        })
    }

    /// `None` if requests failed by the router's queue timeout.
    fn replay_online(
        &self,
        trace: &Trace,
        profile: ProfileText<'_>,
    ) -> anyhow::Result<Option<Figures>> {
        let fleet = ReplayFleet {
            kv_tokens: self.engines.kv_tokens,
            ..ReplayFleet::new(self.engines.engine.clone(), self.pods, 42)
        };
        let (records, kv_reads) = replay_with_reads(trace, profile, &fleet)?;
        let mut figures = Figures { computed: 0, makespan: Duration::ZERO, kv_reads };
        for (turn, record) in trace.turns.iter().zip(&records) {
            let Some(end) = record.end else { return Ok(None) };
            figures.makespan = figures.makespan.max(end);
            figures.computed += (turn.prompt_tokens - record.cached_tokens) as u64;
        }
        Ok(Some(figures))
    }
}

/// Closed loop: `clients` clients, each sending the next request when its last one has finished.
fn closed_loop(mut trace: Trace, clients: usize) -> Trace {
    for (number, turn) in trace.turns.iter_mut().enumerate() {
        turn.start = match number.checked_sub(clients) {
            Some(before) => TraceStart::After { turn: before, delay: Duration::ZERO },
            None => TraceStart::At(Duration::ZERO),
        };
    }
    trace
}
