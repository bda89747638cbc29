//! A lower bound for the time that a queue takes, in any order and with any requests together.
//!
//! The engines together spend at least: the prefill of what is computed only once, and finding the
//! rest in the cache; for every output token its own part of a decode step; and the cost of every
//! step, divided among as many sequences as it can have. A step serves as many sequences as the
//! engine allows and as fit into its memory, where each holds at least the tokens that it shares
//! with no other request, beside one shared prefix. On an engine with cascade attention, a token
//! may be computed in a step of requests that all share a prefix: such a step reads the prefix once
//! and has no more sequences than requests have that prefix. For every request, the cheapest of all
//! its prefixes counts. And no queue ends before its longest request could. No order need reach the
//! bound.
//!
//! A step gets its first prefill tokens for less ([`StepCost::free_prefill_tokens`]). That discount
//! is granted to the last step of every prompt and to as many full steps as prompts need, or else
//! to every step; the smaller of the two totals cannot be undercut, and neither can the larger.

use super::OfflineEngines;
use crate::cost::{StepCost, StepLoad};
use std::time::Duration;
use wornpath_planner::{Forest, JobId, PlannerRates, PromptGroups, Queue};

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
    let sequences = engines.engine.max_sequences();
    PlannerRates {
        per_prefill_token: cost.per_prefill_token + (cost.base + cost.prefill) / step,
        per_pair: cost.per_pair,
        per_cached_token: cost.per_past_token,
        per_output_token: cost.per_sequence + cost.base / sequences as f64,
        per_context_token: cost.per_context_token,
        decode_rates: Some(cost.decode_rates(sequences, engines.kv_tokens())),
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
    let bound = Bound::new(queue, forest, engines);
    let milliseconds = |time: f64| Duration::from_secs_f64(time / 1e3);
    ThroughputBound {
        work: milliseconds(bound.work() / pods as f64),
        longest: milliseconds(bound.longest()),
    }
}

/// A request as the bound counts it.
#[derive(Clone, Copy)]
struct Work {
    prompt: usize,
    /// Decode steps.
    steps: f64,
    /// Tokens that it shares with the request before it in the forest.
    found: usize,
    /// Tokens that it shares with any other request.
    shared: usize,
    /// The group of the longest prefix that it shares.
    group: Option<usize>,
}

struct Bound<'a> {
    queue: &'a Queue,
    engines: &'a OfflineEngines,
    cost: &'a StepCost,
    works: Vec<Work>,
    groups: PromptGroups,
    /// Groups from the shortest prefix to the longest: a parent comes before its children.
    outer_first: Vec<usize>,
}

impl<'a> Bound<'a> {
    fn new(queue: &'a Queue, forest: &Forest, engines: &'a OfflineEngines) -> Self {
        let shared = forest.shared();
        let groups = PromptGroups::of(shared.iter().copied());
        let block = queue.block_size().get();
        let work = |(index, job): (usize, &JobId)| {
            let prompt = queue.prompt_tokens(*job);
            let before = shared[index] as usize;
            let behind = shared.get(index + 1).copied().unwrap_or(0) as usize;
            Work {
                prompt,
                steps: queue.output_tokens(*job).saturating_sub(1) as f64,
                found: before.min(queue.reusable_blocks(*job)) * block,
                shared: (before.max(behind) * block).min(prompt),
                group: groups.at_position(index).map(|id| id.index()),
            }
        };
        let works = forest.order().iter().enumerate().map(work).collect();
        let mut outer_first: Vec<_> = (0..groups.all().len()).collect();
        outer_first.sort_unstable_by_key(|id| groups.all()[*id].blocks);
        Self { queue, engines, cost: engines.engine.step_cost(), works, groups, outer_first }
    }

    /// Milliseconds of all requests together.
    fn work(&self) -> f64 {
        let cost = self.cost;
        let discount = (cost.per_prefill_token * cost.free_prefill_tokens - cost.prefill).max(0.0);
        let by_prompt = self.prefill(discount) + self.decode(cost.base);
        match discount <= cost.base {
            true => by_prompt.max(self.prefill(0.0) + self.decode(cost.base - discount)),
            false => by_prompt,
        }
    }

    /// Prefill, with a discount for the last step of every prompt and for full steps.
    fn prefill(&self, discount: f64) -> f64 {
        let cost = self.cost;
        let engine = &self.engines.engine;
        // A step that does not end a prompt is full, but for the sequences that decode in it.
        let full = engine.max_step_tokens().saturating_sub(engine.max_sequences()).max(1) as f64;
        let per_token = (cost.per_prefill_token - discount / full).max(0.0);
        let per_found = cost.per_past_token.min(per_token);
        let one = |work: &Work| {
            let fresh = (work.prompt - work.found) as f64;
            let prompt = work.prompt as f64;
            let found = work.found as f64;
            let pairs = (prompt * prompt - found * found) / 2.0;
            let tokens = per_token * fresh;
            cost.per_pair * pairs + (tokens - discount).max(0.0) + per_found * found
        };
        self.works.iter().map(one).sum()
    }

    /// Decoding, if a step costs at least `base`: each step counts by its sequences, or as one of
    /// as few steps as memory allows.
    fn decode(&self, base: f64) -> f64 {
        let cost = self.cost;
        let context = |work: &Work| work.prompt as f64 + work.steps / 2.0;
        let sequences = self.engines.engine.max_sequences() as f64;
        let total = |base: f64| -> f64 {
            let best = self.cheapest_prefix(|group, prefix| {
                let cascade = cost.cascade?;
                let members = self.groups.all()[group].positions.len() as f64;
                let step = base + cascade.base + cascade.per_shared_token * prefix;
                Some(step / members.min(sequences) - cost.per_context_token * prefix)
            });
            let one = |work: &Work| {
                let plain = base / sequences;
                let least = work.group.map_or(plain, |group| plain.min(best[group]));
                let read = cost.per_context_token * context(work) + least;
                work.steps * (cost.per_sequence + read)
            };
            self.works.iter().map(one).sum()
        };
        let own = |work: &Work| work.steps * (context(work) - work.shared as f64);
        let memory: f64 = self.works.iter().map(own).sum();
        let least_shared = self.works.iter().map(|work| work.shared).min().unwrap_or(0);
        let room = self.engines.kv_tokens().saturating_sub(least_shared).max(1) as f64;
        total(base).max(total(0.0) + memory / room * base)
    }

    /// For each group, the least value of it and of the groups around it; `value` has none where
    /// the engine does not read that prefix once.
    fn cheapest_prefix(&self, value: impl Fn(usize, f64) -> Option<f64>) -> Vec<f64> {
        let all = self.groups.all();
        let mut best = vec![f64::INFINITY; all.len()];
        let Some(cascade) = self.cost.cascade else { return best };
        for id in &self.outer_first {
            let group = &all[*id];
            let prefix = group.blocks * self.queue.block_size().get();
            let can =
                group.positions.len() >= cascade.least_sequences && prefix >= cascade.least_tokens;
            let own = can.then(|| value(*id, prefix as f64)).flatten().unwrap_or(f64::INFINITY);
            best[*id] = group.parent.map_or(own, |above| own.min(best[above.index()]));
        }
        best
    }

    /// Milliseconds until the longest request ends, if nothing delays it.
    fn longest(&self) -> f64 {
        let cost = self.cost;
        // One sequence reads its own tokens at this price.
        let per_own = cost.per_context_token.max(cost.per_longest_token);
        let best = self.cheapest_prefix(|_, prefix| {
            let cascade = cost.cascade?;
            Some(cascade.base + cascade.per_shared_token * prefix - per_own * prefix)
        });
        let one = |work: &Work| {
            let context = work.prompt as f64 + work.steps / 2.0;
            let least = work.group.map_or(0.0, |group| best[group].min(0.0));
            let read = (per_own * context + least).max(0.0);
            self.alone(work) + work.steps * (cost.base + cost.per_sequence + read)
        };
        self.works.iter().map(one).fold(0.0, f64::max)
    }

    /// Milliseconds until an idle engine has computed a prompt.
    fn alone(&self, work: &Work) -> f64 {
        let budget = self.engines.engine.max_step_tokens();
        let mut time = self.engines.engine.request_time().as_secs_f64() * 1e3;
        let mut done = 0;
        while done < work.prompt {
            let mut load = StepLoad::default();
            load.add_chunk(done, budget.min(work.prompt - done));
            time += self.cost.milliseconds(&load);
            done += budget;
        }
        time
    }
}
