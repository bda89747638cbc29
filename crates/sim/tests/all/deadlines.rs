//! Questions about the same documents, some due in ten minutes and some in 24 hours, in virtual time:
//! planned as one queue and planned apart.
#![allow(clippy::print_stdout, reason = "what was measured is a result")]

use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_blocks::BlockHash;
use wornpath_planner::{Forest, Job, JobId, Plan, Queue, Speeds};
use wornpath_routing::Rng;
use wornpath_sim::EngineProfile;
use wornpath_sim::offline::{OfflineEngines, OfflineRecord, OfflineResult, rates, run_recorded};
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};

const BLOCK: NonZeroUsize = NonZeroUsize::new(16).unwrap();
const PODS: usize = 2;
const SHORT: Duration = Duration::from_mins(10);
const LONG: Duration = Duration::from_hours(24);

/// Documents of the long batch, and questions about each.
const DOCUMENTS: usize = 60;
const QUESTIONS: usize = 30;
/// Every third document has questions of the short batch, too.
const STEP: usize = 3;
const URGENT: usize = 6;

struct Scene {
    trace: Trace,
    /// Whether each turn belongs to the short batch.
    is_short: Vec<bool>,
    engines: OfflineEngines,
}

impl Scene {
    fn new() -> Self {
        let mut rng = Rng::new(7);
        let mut pick = |range: std::ops::Range<usize>| range.start + rng.below(range.len());
        let mut turns = Vec::new();
        for document in 0..DOCUMENTS {
            let shared = pick(8_000..24_000);
            let urgent = if document % STEP == 0 { URGENT } else { 0 };
            for question in 0..QUESTIONS + urgent {
                let prompt_tokens = shared + pick(20..120);
                let id = |block: usize| {
                    let own = if block < shared / BLOCK { 0 } else { question as u64 + 1 };
                    Rng::new((document as u64) << 40 | own << 20 | block as u64).bits()
                };
                let turn = TraceTurn {
                    start: TraceStart::At(Duration::ZERO),
                    prompt_tokens,
                    output_tokens: pick(300..700),
                    blocks: (0..prompt_tokens / BLOCK).map(id).collect(),
                    session: None,
                    tenant: None,
                };
                turns.push((question >= QUESTIONS, turn));
            }
        }
        // The long batch first, as it was submitted.
        turns.sort_by_key(|(is_short, _)| *is_short);
        let (is_short, turns) = turns.into_iter().unzip();
        let engine = EngineProfile::built_in("32b-h200-measured").unwrap();
        let engines = OfflineEngines { engine: engine.without_cascade(), kv_tokens: None };
        Self { trace: Trace { block_size: BLOCK, turns }, is_short, engines }
    }

    /// Both batches as one queue; `deadline` of a request by whether it belongs to the short one.
    fn queue(&self, deadline: impl Fn(bool) -> Option<Duration>) -> Queue {
        let mut queue = Queue::new(BLOCK);
        for (turn, is_short) in self.trace.turns.iter().zip(&self.is_short) {
            let chain: Vec<_> = turn.full_blocks(BLOCK).iter().copied().map(BlockHash).collect();
            queue.set_deadline(deadline(*is_short));
            queue
                .push(&Job {
                    chain: &chain,
                    prompt_tokens: turn.prompt_tokens,
                    output_tokens: turn.output_tokens,
                    identity: None,
                })
                .unwrap();
        }
        queue
    }

    fn plan(&self, queue: &Queue, jobs: Vec<JobId>) -> Plan {
        let forest = Forest::of_jobs(queue, jobs);
        Plan::of_forest(queue, forest, &Speeds::equal(PODS).unwrap(), &rates(&self.engines))
    }

    fn jobs(&self, wanted: impl Fn(bool) -> bool) -> Vec<JobId> {
        let numbers = (0..self.is_short.len()).filter(|turn| wanted(self.is_short[*turn]));
        numbers.map(|turn| JobId(turn as u32)).collect()
    }

    /// When the last request of the short batch and of all has ended.
    fn ends(&self, records: &[OfflineRecord]) -> [Duration; 2] {
        let end = |wanted: &dyn Fn(bool) -> bool| {
            let own = records.iter().zip(&self.is_short).filter(|(_, is_short)| wanted(**is_short));
            own.map(|(record, _)| record.end).max().unwrap_or_default()
        };
        [end(&|is_short| is_short), end(&|_| true)]
    }

    /// Prompt tokens computed, divided by the fewest possible for both batches together.
    fn computed(&self, tokens: u64) -> f64 {
        let queue = self.queue(|_| None);
        tokens as f64 / Forest::of(&queue).least_tokens(&queue) as f64
    }

    fn report(&self, name: &str, tokens: u64, [short, all]: [Duration; 2]) -> f64 {
        let computed = self.computed(tokens);
        let seconds = |time: Duration| time.as_secs_f64();
        println!(
            "{name}: the short batch ends after {:.0} s, all after {:.0} s; prefill {computed:.3} of the joint bound",
            seconds(short),
            seconds(all)
        );
        computed
    }
}

fn deadline(is_short: bool) -> Option<Duration> {
    Some(if is_short { SHORT } else { LONG })
}

#[test]
fn a_short_and_a_long_batch_planned_together_are_in_time_and_compute_documents_once() {
    let scene = Scene::new();
    let all = || scene.jobs(|_| true);
    let run = |plan: Plan| -> (OfflineResult, Vec<OfflineRecord>) {
        run_recorded(&scene.trace, plan, &scene.engines).unwrap()
    };
    let queue = scene.queue(deadline);
    let (result, records) = run(scene.plan(&queue, all()));
    let ends = scene.ends(&records);
    let together = scene.report("together", result.computed_tokens, ends);
    assert!(ends[0] <= SHORT, "{ends:?}");
    assert!(together <= 1.02, "{together}");
    assert!(ends[1] > SHORT, "there is more than ten minutes of work: {ends:?}");
    // Without deadlines the short batch is spread over all of it.
    let patient = scene.queue(|_| None);
    let (result, records) = run(scene.plan(&patient, all()));
    let ends = scene.ends(&records);
    scene.report("together, without deadlines", result.computed_tokens, ends);
    assert!(ends[0] > SHORT, "{ends:?}");
    // One after the other, each computes its documents for itself.
    let (short, records) = run(scene.plan(&queue, scene.jobs(|is_short| is_short)));
    let short_end = scene.ends(&records)[0];
    let (long, records) = run(scene.plan(&queue, scene.jobs(|is_short| !is_short)));
    let ends = [short_end, short_end + scene.ends(&records)[1]];
    let apart = short.computed_tokens + long.computed_tokens;
    let apart = scene.report("apart, one after the other", apart, ends);
    assert!(apart > 1.2, "{apart}");
}
