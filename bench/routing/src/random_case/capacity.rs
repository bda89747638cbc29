//! The load of a trace on a fleet, and a trace at a given load.
//!
//! The capacity of a fleet is the work that its engines do in a second with full batches and with
//! every prefix computed once, or again after a cache of the whole fleet's size has evicted it. No
//! policy reaches it: a load of 1 is an overload.

use super::axes::{Axes, BLOCK};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use wornpath_sim::StepLoad;
use wornpath_sim::replay::{ReplayFleet, Trace, TraceStart};

/// The same trace, its times stretched or squeezed until it has the load that the case asks for.
pub(super) fn fitted_to_load(trace: Trace, axes: &Axes, fleet: &ReplayFleet) -> Trace {
    let work = work(&trace, fleet);
    let total = work.iter().sum::<f64>() * axes.mean_slowdown() / 1e3;
    let step = fleet.engine.step_cost().base * axes.mean_slowdown() / 1e3;
    let pods = axes.pods as f64;
    // Nine tenths of the work are in the middle nine tenths of the planned times.
    let load = |factor: f64| {
        let mut times = planned(&trace, factor, 3.0 * step);
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize];
        0.9 * total / (pods * (at(0.95) - at(0.05)).max(1e-6))
    };
    // A hundred halvings of the logarithm: exact, if the load can be reached at all. Sessions with
    // many turns wait for their answers, so that there is a highest load.
    let [mut least, mut most] = [1e-5_f64, 1e5_f64];
    for _ in 0..100 {
        let middle = (least * most).sqrt();
        if load(middle) > axes.load { least = middle } else { most = middle }
    }
    stretched(trace, most)
}

fn stretched(mut trace: Trace, factor: f64) -> Trace {
    for turn in &mut trace.turns {
        match &mut turn.start {
            TraceStart::At(time) | TraceStart::After { delay: time, .. } => {
                *time = Duration::from_secs_f64(time.as_secs_f64() * factor);
            }
        }
    }
    trace
}

/// When each turn starts, if every token of an answer takes `token_seconds`.
fn planned(trace: &Trace, factor: f64, token_seconds: f64) -> Vec<f64> {
    let mut starts: Vec<f64> = Vec::with_capacity(trace.turns.len());
    for turn in &trace.turns {
        starts.push(match turn.start {
            TraceStart::At(time) => time.as_secs_f64() * factor,
            TraceStart::After { turn, delay } => {
                let answer = trace.turns[turn].output_tokens as f64 * token_seconds;
                starts[turn] + answer + delay.as_secs_f64() * factor
            }
        });
    }
    starts
}

/// Milliseconds of one engine that each turn needs.
fn work(trace: &Trace, fleet: &ReplayFleet) -> Vec<f64> {
    let engine = &fleet.engine;
    let cost = engine.step_cost();
    let kv_tokens = fleet.kv_tokens.unwrap_or(engine.kv_tokens());
    let mut cache = Lru::new(fleet.pods * kv_tokens / BLOCK);
    let starts = planned(trace, 1.0, 0.0);
    let mut order: Vec<usize> = (0..trace.turns.len()).collect();
    order.sort_by(|a, b| starts[*a].total_cmp(&starts[*b]));
    let mut work = vec![0.0; trace.turns.len()];
    for at in order {
        let turn = &trace.turns[at];
        let cached = cache.use_blocks(&turn.blocks) * BLOCK.get();
        let mut load = StepLoad::default();
        load.add_chunk(cached, (turn.prompt_tokens - cached).max(1));
        let prefill = cost.milliseconds(&load) - cost.base;
        let context = turn.prompt_tokens + turn.output_tokens / 2;
        let batch = (kv_tokens as f64 / context as f64).clamp(1.0, engine.max_sequences() as f64);
        let token = cost.base / batch + cost.per_sequence + cost.per_context_token * context as f64;
        work[at] = prefill + turn.output_tokens as f64 * token;
    }
    work
}

/// Blocks in the order of their last use.
struct Lru {
    capacity: usize,
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl Lru {
    fn new(capacity: usize) -> Self {
        Self { capacity, used: HashMap::new(), order: BTreeMap::new(), clock: 0 }
    }

    /// Uses the blocks of a prompt, and returns how many of the first were there.
    fn use_blocks(&mut self, blocks: &[u64]) -> usize {
        let hits = blocks.iter().take_while(|block| self.used.contains_key(block)).count();
        for block in blocks.iter().rev() {
            self.clock += 1;
            if let Some(before) = self.used.insert(*block, self.clock) {
                self.order.remove(&before);
            }
            self.order.insert(self.clock, *block);
        }
        while self.order.len() > self.capacity
            && let Some((_, block)) = self.order.pop_first()
        {
            self.used.remove(&block);
        }
        hits
    }
}
