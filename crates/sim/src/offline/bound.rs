//! A lower bound for the time that a queue takes, in any order.
//!
//! The engines together spend at least: the prefill of what is computed only once; for every output
//! token its own part of a decode step; and for every step the reading of the weights. A step
//! serves as many sequences as the engine allows and as fit into its memory, where each holds at
//! least the tokens that it shares with no other request, beside one shared prefix. And no queue
//! ends before its longest request would alone. No order need reach the bound.

use super::OfflineEngines;
use crate::cost::StepLoad;
use std::time::Duration;
use wornpath_planner::{Forest, PlannerRates, Queue};

/// Lower bounds for the time of a queue.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ThroughputBound {
    /// The work of all requests, divided by the pods.
    pub work: Duration,
    /// The longest request on an idle engine.
    pub longest: Duration,
}

impl ThroughputBound {
    /// The larger of the two.
    #[must_use]
    pub fn least(&self) -> Duration {
        self.work.max(self.longest)
    }
}

/// The cost estimates that a plan for such engines uses.
#[must_use]
pub fn rates(engines: &OfflineEngines) -> PlannerRates {
    let cost = engines.engine.step_cost();
    let step = engines.engine.max_step_tokens() as f64;
    PlannerRates {
        per_prefill_token: cost.per_prefill_token + (cost.base + cost.prefill) / step,
        per_pair: cost.per_pair,
        per_output_token: cost.per_sequence + cost.base / engines.engine.max_sequences() as f64,
        per_context_token: cost.per_context_token,
    }
}

/// The lower bound for a queue with known output lengths on `pods` engines.
#[must_use]
pub fn least_time(
    queue: &Queue,
    forest: &Forest,
    engines: &OfflineEngines,
    pods: usize,
) -> ThroughputBound {
    let cost = engines.engine.step_cost();
    let work = PlannerRates {
        per_prefill_token: cost.per_prefill_token,
        per_pair: cost.per_pair,
        per_output_token: cost.per_sequence,
        per_context_token: cost.per_context_token,
    };
    let shared = forest.shared();
    let block = queue.block_size().get();
    let mut total = 0.0;
    let mut tokens = 0.0;
    let mut memory = 0.0;
    let mut least_shared = usize::MAX;
    let mut longest: f64 = 0.0;
    for (index, job) in forest.order().iter().enumerate() {
        let prompt = queue.prompt_tokens(*job);
        let output = queue.output_tokens(*job);
        total += work.request(queue, *job, shared[index] as usize);
        let steps = output.saturating_sub(1) as f64;
        tokens += steps;
        let blocks = shared[index].max(shared.get(index + 1).copied().unwrap_or(0)) as usize;
        let shared_tokens = (blocks * block).min(prompt);
        least_shared = least_shared.min(shared_tokens);
        memory += steps * ((prompt - shared_tokens) as f64 + steps / 2.0);
        longest = longest.max(alone(engines, prompt, output));
    }
    let steps = (tokens / engines.engine.max_sequences() as f64)
        .max(memory / engines.kv_tokens().saturating_sub(least_shared).max(1) as f64);
    let milliseconds = |time: f64| Duration::from_secs_f64(time / 1e3);
    ThroughputBound {
        work: milliseconds((total + steps * cost.base) / pods as f64),
        longest: milliseconds(longest),
    }
}

/// Milliseconds of one request on an idle engine.
fn alone(engines: &OfflineEngines, prompt: usize, output: usize) -> f64 {
    let cost = engines.engine.step_cost();
    let budget = engines.engine.max_step_tokens();
    let mut time = engines.engine.request_time().as_secs_f64() * 1e3;
    let mut done = 0;
    while done < prompt {
        let mut load = StepLoad::default();
        load.add_chunk(done, budget.min(prompt - done));
        time += cost.milliseconds(&load);
        done += budget;
    }
    let steps = output.saturating_sub(1);
    let middle = StepLoad {
        sequences: 1,
        context_tokens: prompt + steps / 2,
        longest_context: prompt + steps / 2,
        ..StepLoad::default()
    };
    time + steps as f64 * cost.milliseconds(&middle)
}
