//! Generated traffic, so that the benchmark runs without files, and so that a policy can be judged
//! on other traffic than the recorded: conversations, questions about documents, agents, single
//! prompts of very different lengths, and more contexts than a small cache holds.

use crate::case::{BLOCK, Case};
use crate::distribution::{Zipf, exponential, log_normal};
use std::time::Duration;
use wornpath_routing::Rng;
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};

/// A kind of traffic on 8 pods at its own speed.
struct Kind {
    name: &'static str,
    engine: &'static str,
    fill: fn(&mut Generator),
}

const KINDS: [Kind; 6] = [
    Kind { name: "made_chat", engine: "8b-h200", fill: chat },
    Kind { name: "made_documents", engine: "8b-h200", fill: documents },
    Kind { name: "made_agents", engine: "8b-h200", fill: agents },
    Kind { name: "made_lengths", engine: "8b-h200", fill: lengths },
    Kind { name: "made_mixture", engine: "70b-h100x4", fill: mixture },
    Kind { name: "made_contexts", engine: "32b-h100x2", fill: contexts },
];

/// Every kind of traffic, each with its fleet.
pub(crate) fn cases() -> Vec<(Case, Trace)> {
    let case = |(at, kind): (usize, &Kind)| {
        let mut generator =
            Generator { rng: Rng::new(at as u64 + 1), turns: Vec::new(), next_block: 0 };
        (kind.fill)(&mut generator);
        let case = Case {
            file: kind.name.to_owned(),
            engine: kind.engine.to_owned(),
            pods: 8,
            speed: 1.0,
            copies: 1,
            seeds: 3,
        };
        (case, Trace { block_size: BLOCK, turns: generator.turns })
    };
    KINDS.iter().enumerate().map(case).collect()
}

/// The requests generated so far.
struct Generator {
    rng: Rng,
    turns: Vec<TraceTurn>,
    /// The next unused block id.
    next_block: u64,
}

impl Generator {
    fn interarrival(&mut self, mean: f64) -> f64 {
        exponential(&mut self.rng, mean)
    }

    fn log_normal(&mut self, median: f64, spread: f64) -> usize {
        log_normal(&mut self.rng, median, spread).round().max(1.0) as usize
    }

    /// Blocks that no other request has.
    fn new_blocks(&mut self, blocks: usize) -> Vec<u64> {
        let from = self.next_block;
        self.next_block += blocks as u64;
        (from..self.next_block).collect()
    }

    fn zipf(&mut self, count: usize) -> usize {
        Zipf::new(count, 1.0).draw(&mut self.rng)
    }

    fn add_request(
        &mut self,
        start: TraceStart,
        blocks: &[u64],
        output_tokens: usize,
        session: Option<usize>,
    ) {
        // The last block is partly filled.
        let prompt_tokens = blocks.len() * BLOCK.get() - self.rng.below(BLOCK.get());
        let blocks = blocks.into();
        self.turns.push(TraceTurn {
            start,
            prompt_tokens,
            output_tokens,
            blocks,
            session,
            tenant: None,
        });
    }

    /// A session that begins with `context` and adds about `added` blocks a turn.
    fn add_session(&mut self, at: f64, mut context: Vec<u64>, turns: usize, shape: &SessionShape) {
        let session = Some(self.turns.len());
        for turn in 0..turns {
            let more = self.log_normal(shape.added, 0.8);
            context.extend(self.new_blocks(more));
            let start = match turn {
                0 => TraceStart::At(Duration::from_secs_f64(at)),
                _ => {
                    let delay = Duration::from_secs_f64(self.interarrival(shape.think));
                    TraceStart::After { turn: self.turns.len() - 1, delay }
                }
            };
            let output = self.log_normal(shape.output, 0.7);
            self.add_request(start, &context, output, session);
        }
    }
}

/// The turns of a session.
struct SessionShape {
    /// Blocks added a turn.
    added: f64,
    /// Tokens of an output.
    output: f64,
    /// Seconds of think time.
    think: f64,
}

/// Conversations under a few system prompts.
fn chat(generator: &mut Generator) {
    let systems: Vec<_> = (0..5).map(|_| generator.new_blocks(4)).collect();
    let mut at = 0.0;
    for _ in 0..900 {
        at += generator.interarrival(0.35);
        let system = systems[generator.zipf(5)].clone();
        let turns = generator.log_normal(4.0, 0.7);
        generator.add_session(
            at,
            system,
            turns,
            &SessionShape { added: 4.0, output: 250.0, think: 15.0 },
        );
    }
}

/// Single questions about documents, some of them far more popular than others.
fn documents(generator: &mut Generator) {
    let system = generator.new_blocks(2);
    let texts: Vec<_> = (0..400)
        .map(|_| {
            let blocks = generator.log_normal(20.0, 0.8);
            [system.clone(), generator.new_blocks(blocks)].concat()
        })
        .collect();
    let mut at = 0.0;
    for _ in 0..6000 {
        at += generator.interarrival(0.028);
        let prompt = [texts[generator.zipf(400)].clone(), generator.new_blocks(1)].concat();
        let output = generator.log_normal(150.0, 0.6);
        generator.add_request(TraceStart::At(Duration::from_secs_f64(at)), &prompt, output, None);
    }
}

/// Agents whose contexts grow long, with short pauses for tools.
fn agents(generator: &mut Generator) {
    let system = generator.new_blocks(24);
    let mut at = 0.0;
    for _ in 0..160 {
        at += generator.interarrival(2.2);
        let turns = generator.log_normal(30.0, 0.4);
        generator.add_session(
            at,
            system.clone(),
            turns,
            &SessionShape { added: 4.0, output: 150.0, think: 4.0 },
        );
    }
}

/// Prompts that share nothing and are of very different lengths.
fn lengths(generator: &mut Generator) {
    let mut at = 0.0;
    for _ in 0..5000 {
        at += generator.interarrival(0.05);
        let length = generator.log_normal(10.0, 1.2).min(250);
        let prompt = generator.new_blocks(length);
        let output = generator.log_normal(200.0, 0.8);
        generator.add_request(TraceStart::At(Duration::from_secs_f64(at)), &prompt, output, None);
    }
}

/// Conversations among single prompts, on slow engines.
fn mixture(generator: &mut Generator) {
    let system = generator.new_blocks(3);
    let mut at = 0.0;
    let mut single = 0.0;
    for _ in 0..300 {
        at += generator.interarrival(2.5);
        let turns = generator.log_normal(5.0, 0.5);
        generator.add_session(
            at,
            system.clone(),
            turns,
            &SessionShape { added: 3.0, output: 200.0, think: 20.0 },
        );
        while single < at {
            single += generator.interarrival(0.8);
            let length = generator.log_normal(6.0, 1.0).min(120);
            let prompt = [system.clone(), generator.new_blocks(length)].concat();
            generator.add_request(
                TraceStart::At(Duration::from_secs_f64(single)),
                &prompt,
                200,
                None,
            );
        }
    }
}

/// Slightly more long contexts than the caches hold, each used again and again.
fn contexts(generator: &mut Generator) {
    let texts: Vec<_> = (0..120).map(|_| generator.new_blocks(12)).collect();
    let mut at = 0.0;
    for _ in 0..5000 {
        at += generator.interarrival(0.16);
        let prompt = [texts[generator.rng.below(120)].clone(), generator.new_blocks(2)].concat();
        generator.add_request(TraceStart::At(Duration::from_secs_f64(at)), &prompt, 600, None);
    }
}
