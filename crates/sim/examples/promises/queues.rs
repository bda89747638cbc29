//! Whole queues: requests that decode together, and batches of different urgency in one plan.

use crate::{Outcome, Row};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Duration;
use wornpath_blocks::BlockHash;
use wornpath_planner::{Forest, Job, JobId, Plan, Queue, Speeds};
use wornpath_routing::Rng;
use wornpath_sim::EngineProfile;
use wornpath_sim::offline::{
    OfflineEngines, OfflineRecord, least_time, queue_of, rates, run, run_recorded,
};
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};

const BLOCK: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
const SHORT: Duration = Duration::from_mins(10);
const LONG: Duration = Duration::from_hours(24);

/// Prefixes, each followed by questions.
struct Shape {
    prefix: Range<usize>,
    question: Range<usize>,
    output: Range<usize>,
}

impl Shape {
    /// Questions about prefixes, of which the one with a number has as many as `questions` says.
    fn generate(&self, prefixes: usize, questions: impl Fn(usize) -> usize, seed: u64) -> Trace {
        let mut rng = Rng::new(seed);
        let mut pick = |range: &Range<usize>| range.start + rng.below(range.len());
        let mut turns = Vec::new();
        for prefix in 0..prefixes {
            let shared = pick(&self.prefix);
            for question in 0..questions(prefix) {
                let prompt_tokens = shared + pick(&self.question);
                let id = |block: usize| {
                    let own = if block < shared / BLOCK { 0 } else { question as u64 + 1 };
                    Rng::new((prefix as u64) << 40 | own << 20 | block as u64).bits()
                };
                turns.push(TraceTurn {
                    start: TraceStart::At(Duration::ZERO),
                    prompt_tokens,
                    output_tokens: pick(&self.output),
                    blocks: (0..prompt_tokens / BLOCK).map(id).collect(),
                    session: None,
                    tenant: None,
                });
            }
        }
        Trace { block_size: BLOCK, turns }
    }
}

fn shuffled(mut trace: Trace, seed: u64) -> Trace {
    let mut rng = Rng::new(seed);
    for at in (1..trace.turns.len()).rev() {
        trace.turns.swap(at, rng.below(at + 1));
    }
    trace
}

/// Seconds of the planned queue on four engines without and with cascade attention, and the lower
/// bound with it.
fn with_cascade(trace: &Trace) -> Outcome<[f64; 3]> {
    const PODS: usize = 4;
    let measured = EngineProfile::built_in("8b-h200-measured")?;
    let planned = |engine: EngineProfile| {
        let engines = OfflineEngines { engine, kv_tokens: None };
        let queue = queue_of(trace, |turn| turn.output_tokens)?;
        let least = least_time(&queue, &Forest::of(&queue), &engines, PODS).least();
        let plan = Plan::new(&queue, &Speeds::equal(PODS)?, &rates(&engines));
        Outcome::Ok([run(trace, plan, &engines)?.makespan, least].map(|time| time.as_secs_f64()))
    };
    let [without, _] = planned(measured.without_cascade())?;
    let [with, least] = planned(measured)?;
    Ok([without, with, least])
}

pub(crate) fn documents() -> Outcome<Row> {
    let shape = Shape { prefix: 4_000..32_001, question: 20..121, output: 64..193 };
    let [without, with, least] = with_cascade(&shuffled(shape.generate(60, |_| 30, 42), 43))?;
    Ok(Row {
        claim: "batches are composed for shared attention: 60 documents x 30 questions on 4 engines with cascade attention",
        measured: format!(
            "{with:.1} s, and {without:.1} s on engines without it; no order takes less than {least:.1} s"
        ),
        bar: "at most 45.3 s".to_owned(),
        passes: with <= 45.3 && least <= with,
        note: None,
    })
}

pub(crate) fn examples() -> Outcome<Row> {
    let shape = Shape { prefix: 1_000..3_001, question: 30..201, output: 8..129 };
    let [without, with, _] = with_cascade(&shuffled(shape.generate(12, |_| 128, 42), 43))?;
    Ok(Row {
        claim: "short prefixes do not get slower by that: 12 prefixes x 128 questions",
        measured: format!("{with:.2} s, and {without:.2} s on engines without it"),
        bar: "at most 1.001 of that".to_owned(),
        passes: with <= 1.001 * without,
        note: None,
    })
}

/// Documents of the long batch, and questions about each.
const DOCUMENTS: usize = 60;
const QUESTIONS: usize = 30;
/// Every third document has questions of the short batch, too.
const STEP: usize = 3;
const URGENT: usize = 6;

/// Two batches over the same documents.
struct Batches {
    trace: Trace,
    /// Whether each request belongs to the short batch.
    is_short: Vec<bool>,
    queue: Queue,
    engines: OfflineEngines,
}

impl Batches {
    fn new() -> Outcome<Self> {
        let count =
            |document: usize| QUESTIONS + if document.is_multiple_of(STEP) { URGENT } else { 0 };
        let shape = Shape { prefix: 8_000..24_000, question: 20..120, output: 300..700 };
        let trace = shape.generate(DOCUMENTS, count, 7);
        let is_short: Vec<bool> = (0..DOCUMENTS)
            .flat_map(|document| (0..count(document)).map(|question| question >= QUESTIONS))
            .collect();
        let mut queue = Queue::new(BLOCK);
        for (turn, is_short) in trace.turns.iter().zip(&is_short) {
            let chain: Vec<_> = turn.full_blocks(BLOCK).iter().copied().map(BlockHash).collect();
            queue.set_deadline(Some(if *is_short { SHORT } else { LONG }));
            queue.push(&Job {
                chain: &chain,
                prompt_tokens: turn.prompt_tokens,
                output_tokens: turn.output_tokens,
                identity: None,
            })?;
        }
        let engine = EngineProfile::built_in("32b-h200-measured")?.without_cascade();
        let engines = OfflineEngines { engine, kv_tokens: None };
        Ok(Self { trace, is_short, queue, engines })
    }

    /// Plans the wanted requests and runs the plan on two pods. Returns the tokens computed, and
    /// the records of all requests.
    fn run(&self, wanted: impl Fn(bool) -> bool) -> Outcome<(u64, Vec<OfflineRecord>)> {
        let jobs = (0..self.is_short.len()).filter(|turn| wanted(self.is_short[*turn]));
        let jobs = jobs.map(|turn| JobId(turn as u32)).collect();
        let forest = Forest::of_jobs(&self.queue, jobs);
        let speeds = Speeds::equal(2)?;
        let plan = Plan::of_forest(&self.queue, forest, &speeds, &rates(&self.engines));
        let (result, records) = run_recorded(&self.trace, plan, &self.engines)?;
        Ok((result.computed_tokens, records))
    }
}

pub(crate) fn deadlines() -> Outcome<Row> {
    let batches = Batches::new()?;
    let (computed, records) = batches.run(|_| true)?;
    let short = records.iter().zip(&batches.is_short).filter(|(_, is_short)| **is_short);
    let all = short.clone().count();
    let in_time = short.filter(|(record, _)| record.end <= SHORT).count();
    let apart = batches.run(|is_short| is_short)?.0 + batches.run(|is_short| !is_short)?.0;
    let least = Forest::of(&batches.queue).least_tokens(&batches.queue) as f64;
    let together = computed as f64 / least;
    let apart = apart as f64 / least;
    Ok(Row {
        claim: "who can wait is planned with who cannot: a batch of 24 h and one of 10 min about the same documents",
        measured: format!(
            "{in_time} of {all} of the short one in time; prefill {together:.3} of the joint bound, and {apart:.3} planned apart"
        ),
        bar: "all in time, prefill at most 1.02".to_owned(),
        passes: in_time == all && together <= 1.02,
        note: None,
    })
}
