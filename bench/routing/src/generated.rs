//! Traffic of our own making, so that the benchmark runs without any files, and so that a policy can be judged on
//! other traffic than the recorded: conversations, questions about documents, agents, single prompts of
//! very different lengths, and more contexts than a small cache holds.

use crate::case::{BLOCK, Case};
use std::time::Duration;
use wornpath_routing::Rng;
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};

/// A kind of traffic: its name, engine, pods, speed, and how its requests are made.
type Kind = (&'static str, &'static str, usize, f64, fn(&mut Made));

const KINDS: [Kind; 6] = [
    ("made_chat", "8b-h200", 8, 1.0, chat),
    ("made_documents", "8b-h200", 8, 1.0, documents),
    ("made_agents", "8b-h200", 8, 1.0, agents),
    ("made_lengths", "8b-h200", 8, 1.0, lengths),
    ("made_mixture", "70b-h100x4", 8, 1.0, mixture),
    ("made_contexts", "32b-h100x2", 8, 1.0, contexts),
];

/// Every kind, each with its fleet.
pub(crate) fn cases() -> Vec<(Case, Trace)> {
    let case = |(at, (name, engine, pods, speed, fill)): (usize, &Kind)| {
        let mut made = Made { rng: Rng::new(at as u64 + 1), turns: Vec::new(), names: 0 };
        fill(&mut made);
        let case = Case {
            file: (*name).to_owned(),
            engine: (*engine).to_owned(),
            pods: *pods,
            speed: *speed,
            copies: 1,
            seeds: 3,
        };
        (case, Trace { block_size: BLOCK, turns: made.turns })
    };
    KINDS.iter().enumerate().map(case).collect()
}

/// Requests under way.
struct Made {
    rng: Rng,
    turns: Vec<TraceTurn>,
    /// Names of blocks given so far.
    names: u64,
}

impl Made {
    /// A time with this mean, as between arrivals that know nothing of each other.
    fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.rng.unit()).ln()
    }

    /// A count around `median`, a few times more or less.
    fn around(&mut self, median: f64, spread: f64) -> usize {
        // The sum of twelve uniform numbers is normal, near enough.
        let normal = (0..12).map(|_| self.rng.unit()).sum::<f64>() - 6.0;
        (median * (spread * normal).exp()).round().max(1.0) as usize
    }

    /// So many blocks that nobody else has.
    fn fresh(&mut self, blocks: usize) -> Vec<u64> {
        let from = self.names;
        self.names += blocks as u64;
        (from..self.names).collect()
    }

    /// One of `count`, the first most often: Zipf's law.
    fn popular(&mut self, count: usize) -> usize {
        let harmonic = (1..=count).map(|rank| 1.0 / rank as f64).sum::<f64>();
        let mut left = self.rng.unit() * harmonic;
        for rank in 1..count {
            left -= 1.0 / rank as f64;
            if left <= 0.0 {
                return rank - 1;
            }
        }
        count - 1
    }

    fn ask(
        &mut self,
        start: TraceStart,
        blocks: &[u64],
        output_tokens: usize,
        session: Option<usize>,
    ) {
        // The last block is partly filled.
        let prompt_tokens = blocks.len() * BLOCK.get() - self.rng.below(BLOCK.get());
        let blocks = blocks.into();
        self.turns.push(TraceTurn { start, prompt_tokens, output_tokens, blocks, session });
    }

    /// A session that begins with `context` and adds about `added` blocks a turn.
    fn talk(&mut self, at: f64, mut context: Vec<u64>, turns: usize, plan: &Talk) {
        let session = Some(self.turns.len());
        for turn in 0..turns {
            let more = self.around(plan.added, 0.8);
            context.extend(self.fresh(more));
            let start = match turn {
                0 => TraceStart::At(Duration::from_secs_f64(at)),
                _ => {
                    let delay = Duration::from_secs_f64(self.wait(plan.think));
                    TraceStart::After { turn: self.turns.len() - 1, delay }
                }
            };
            let output = self.around(plan.output, 0.7);
            self.ask(start, &context, output, session);
        }
    }
}

/// How a session goes on: blocks added a turn, tokens of an answer, seconds of thought.
struct Talk {
    added: f64,
    output: f64,
    think: f64,
}

/// Conversations under a few system prompts.
fn chat(made: &mut Made) {
    let systems: Vec<_> = (0..5).map(|_| made.fresh(4)).collect();
    let mut at = 0.0;
    for _ in 0..900 {
        at += made.wait(0.35);
        let (system, turns) = (systems[made.popular(5)].clone(), made.around(4.0, 0.7));
        made.talk(at, system, turns, &Talk { added: 4.0, output: 250.0, think: 15.0 });
    }
}

/// Single questions about documents, some of them much asked.
fn documents(made: &mut Made) {
    let system = made.fresh(2);
    let texts: Vec<_> = (0..400)
        .map(|_| {
            let blocks = made.around(20.0, 0.8);
            [system.clone(), made.fresh(blocks)].concat()
        })
        .collect();
    let mut at = 0.0;
    for _ in 0..6000 {
        at += made.wait(0.028);
        let prompt = [texts[made.popular(400)].clone(), made.fresh(1)].concat();
        let output = made.around(150.0, 0.6);
        made.ask(TraceStart::At(Duration::from_secs_f64(at)), &prompt, output, None);
    }
}

/// Agents whose contexts grow long, with short pauses for tools.
fn agents(made: &mut Made) {
    let system = made.fresh(24);
    let mut at = 0.0;
    for _ in 0..160 {
        at += made.wait(2.2);
        let turns = made.around(30.0, 0.4);
        made.talk(at, system.clone(), turns, &Talk { added: 4.0, output: 150.0, think: 4.0 });
    }
}

/// Prompts that share nothing and are of very different lengths.
fn lengths(made: &mut Made) {
    let mut at = 0.0;
    for _ in 0..5000 {
        at += made.wait(0.05);
        let length = made.around(10.0, 1.2).min(250);
        let prompt = made.fresh(length);
        let output = made.around(200.0, 0.8);
        made.ask(TraceStart::At(Duration::from_secs_f64(at)), &prompt, output, None);
    }
}

/// Conversations among single prompts, on slow engines.
fn mixture(made: &mut Made) {
    let system = made.fresh(3);
    let (mut at, mut single) = (0.0, 0.0);
    for _ in 0..300 {
        at += made.wait(2.5);
        let turns = made.around(5.0, 0.5);
        made.talk(at, system.clone(), turns, &Talk { added: 3.0, output: 200.0, think: 20.0 });
        while single < at {
            single += made.wait(0.8);
            let length = made.around(6.0, 1.0).min(120);
            let prompt = [system.clone(), made.fresh(length)].concat();
            made.ask(TraceStart::At(Duration::from_secs_f64(single)), &prompt, 200, None);
        }
    }
}

/// More long contexts than the caches hold with room to spare, each asked about again and again.
fn contexts(made: &mut Made) {
    let texts: Vec<_> = (0..120).map(|_| made.fresh(12)).collect();
    let mut at = 0.0;
    for _ in 0..5000 {
        at += made.wait(0.16);
        let prompt = [texts[made.rng.below(120)].clone(), made.fresh(2)].concat();
        made.ask(TraceStart::At(Duration::from_secs_f64(at)), &prompt, 600, None);
    }
}
