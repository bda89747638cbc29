//! Online priority: what a batch costs clients, in virtual time, with the router, the queue and the
//! plan of the gateway.

use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_batch::PLANNED;
use wornpath_planner::{OnlinePriority, Plan, Speeds};
use wornpath_sim::EngineProfile;
use wornpath_sim::offline::{OfflineEngines, queue_of, rates};
use wornpath_sim::replay::{
    BackgroundLoad, ProfileText, ReplayFleet, RequestRecord, Trace, TraceStart, TraceTurn, replay,
    replay_with_background,
};

const PODS: usize = 4;
const WINDOW: usize = 128;
/// Clients' requests a second that leave pods idle in between.
const RARE: [f64; 3] = [0.5, 1.0, 4.0];
const BLOCK: NonZeroUsize = NonZeroUsize::new(64).unwrap();
const CACHE_AWARE: ProfileText<'_> = ProfileText {
    name: "cache-aware",
    yaml: include_str!("../../../../profiles/cache-aware.yaml"),
};

/// A stream of numbers that is the same for the same seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        least + (self.unit() * (most - least) as f64) as usize
    }
}

/// A prompt whose first `shared` tokens are those of a group, and the rest its own.
struct GroupPrompt {
    group: u64,
    shared: usize,
    own: usize,
}

fn turn(start: Duration, number: u64, prompt: &GroupPrompt, output_tokens: usize) -> TraceTurn {
    let GroupPrompt { group, shared, own } = *prompt;
    let prompt_tokens = shared + own;
    let blocks = (0..prompt_tokens.div_ceil(BLOCK.get()) as u64).map(|block| {
        let is_shared = (block as usize + 1) * BLOCK.get() <= shared;
        let owner = if is_shared { group } else { (1 << 40) + number };
        owner.wrapping_mul(1_000_003).wrapping_add(block)
    });
    TraceTurn {
        start: TraceStart::At(start),
        prompt_tokens,
        output_tokens,
        blocks: blocks.collect(),
        session: None,
        tenant: None,
    }
}

/// Clients' requests that come one after another at random, `per_second` of them: two thousand, or
/// twenty minutes' worth. With five minutes' worth chance decides the p95 of rare requests.
fn clients(per_second: f64) -> Trace {
    let seconds = (2_000.0 / per_second).min(1_200.0);
    let mut dice = Dice(42);
    let mut now = 0.0;
    let mut turns = Vec::new();
    for number in 0.. {
        now -= dice.unit().ln() / per_second;
        if now > seconds {
            break;
        }
        let group = (1 << 50) + dice.between(0, 20) as u64;
        let prompt = GroupPrompt { group, shared: 1_024, own: dice.between(200, 3_000) };
        let output_tokens = dice.between(50, 250);
        let start = Duration::from_secs_f64(now);
        turns.push(turn(start, 1_000_000 + number, &prompt, output_tokens));
    }
    Trace { turns, block_size: BLOCK }
}

/// Far more questions about documents than can be computed meanwhile.
fn documents() -> Trace {
    let mut dice = Dice(7);
    let one = |number: u64| {
        let document = number / 30;
        let length = 4_096 + (number / 30 % 7) as usize * 2_048;
        let prompt = GroupPrompt { group: document, shared: length, own: dice.between(50, 200) };
        turn(Duration::ZERO, number, &prompt, dice.between(64, 256))
    };
    Trace { turns: (0..60_000).map(one).collect(), block_size: BLOCK }
}

fn p95_ttft(records: &[RequestRecord]) -> Duration {
    let mut times: Vec<_> =
        records.iter().map(|record| record.first_token.unwrap() - record.arrival).collect();
    times.sort_unstable();
    times[times.len() * 95 / 100]
}

/// What a batch beside clients came to.
struct Together {
    /// Their p95 time to first token, to that without it.
    ratio: f64,
    /// Its requests that were answered meanwhile.
    offline: usize,
}

/// Clients alone, and with a batch that gives way by `priority`, at several rates.
fn together(rates_of_clients: &[f64], priority: &OnlinePriority<usize>) -> Vec<Together> {
    let engine = EngineProfile::built_in("8b-h200").unwrap();
    let engines = OfflineEngines { engine: engine.clone(), kv_tokens: None };
    let fleet = ReplayFleet::new(engine, PODS, 42);
    let batch = documents();
    let queue = queue_of(&batch, |turn| turn.output_tokens).unwrap();
    let plan = Plan::new(&queue, &Speeds::equal(PODS).unwrap(), &rates(&engines));
    let one = |per_second: &f64| {
        let trace = clients(*per_second);
        let alone = p95_ttft(&replay(&trace, CACHE_AWARE, &fleet).unwrap());
        let beside = BackgroundLoad {
            trace: &batch,
            plan: plan.clone(),
            profile: ProfileText { name: "planned requests", yaml: PLANNED },
            window: WINDOW,
            online_priority: priority.clone(),
        };
        let (records, done) = replay_with_background(&trace, CACHE_AWARE, &fleet, beside).unwrap();
        let together = p95_ttft(&records);
        let ratio = together.as_secs_f64() / alone.as_secs_f64();
        println!(
            "{per_second:>4} requests/s: p95 TTFT {alone:.1?} alone, {together:.1?} with a batch ({ratio:.3}x); {} offline requests meanwhile",
            done.requests
        );
        assert!(done.requests > 0, "the batch stands still");
        assert!(done.requests < batch.turns.len(), "there is always more of the batch");
        Together { ratio, offline: done.requests }
    };
    rates_of_clients.iter().map(one).collect()
}

/// Pods are left to clients, because shrinking windows alone does not do it for rare ones.
#[test]
fn a_batch_costs_clients_at_most_a_tenth_of_their_time_to_first_token() {
    let rates = [&RARE[..], &[8.0, 16.0, 40.0]].concat();
    let left = together(&rates, &OnlinePriority::new(WINDOW));
    let worst = left.iter().map(|one| one.ratio).fold(0.0, f64::max);
    assert!(worst <= 1.1, "p95 TTFT with a batch is {worst:.3}x of that without; at most 1.1x");

    // The rarest alone, or all rare ones in the long run.
    let is_thorough = std::env::var_os("WORNPATH_THOROUGH").is_some();
    let compared = if is_thorough { &RARE[..] } else { &RARE[..1] };
    let shared = together(compared, &OnlinePriority::on_all_pods(WINDOW));
    for ((shared, left), per_second) in shared.iter().zip(&left).zip(compared) {
        println!(
            "priority: {per_second} requests/s: {:.2}x and {} offline requests where all pods are shared, {:.2}x and {} where some are left to clients",
            shared.ratio, shared.offline, left.ratio, left.offline
        );
        assert!(left.ratio < shared.ratio, "at {per_second} requests a second");
    }
    let longer = [&shared, &left].map(|rates| rates[0].ratio - 1.0);
    assert!(
        longer[0] > 1.5 * longer[1],
        "the rarest wait {:.3} longer, and {:.3} with pods left",
        longer[0],
        longer[1]
    );
}
