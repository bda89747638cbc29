//! The queues: three generated ones, and recorded traces.
//!
//! Their order has nothing to do with what requests share, as in a file written row by row:
//! documents and prefixes are shuffled, and traces are in the order of their times.

use anyhow::Context;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use wornpath_routing::Rng;
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};

/// Seed of all random choices.
const SEED: u64 = 42;

/// Tokens per block of the generated queues, as engines have it.
const BLOCK: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// Tokens per block of the traces.
const TRACE_BLOCK: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// A queue with the cache sizes it is tried with.
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) trace: Trace,
    /// Tokens of a tight cache.
    pub(crate) tight: usize,
}

/// 200 documents of 4-32k tokens with 30 questions each.
pub(crate) fn documents() -> Workload {
    let shape = Shape { prefixes: 200, questions: 30, prefix: 4_000..32_001, question: 20..121 };
    let trace = shape.generate(16..97);
    Workload { name: "doc-qa".to_owned(), trace, tight: 100_000 }
}

/// 60 documents as above, with longer answers.
pub(crate) fn few_documents() -> Workload {
    let shape = Shape { prefixes: 60, questions: 30, prefix: 4_000..32_001, question: 20..121 };
    let trace = shape.generate(64..193);
    Workload { name: "doc-qa of 60".to_owned(), trace, tight: 100_000 }
}

/// 12 prefixes of 1-3k tokens with 128 questions each.
pub(crate) fn few_examples() -> Workload {
    let shape = Shape { prefixes: 12, questions: 128, prefix: 1_000..3_001, question: 30..201 };
    let trace = shape.generate(8..129);
    Workload { name: "few-shot of 12".to_owned(), trace, tight: 48_000 }
}

/// 27 prefixes of 1-3k tokens with 240 questions each.
pub(crate) fn examples() -> Workload {
    let shape = Shape { prefixes: 27, questions: 240, prefix: 1_000..3_001, question: 30..201 };
    let trace = shape.generate(8..129);
    Workload { name: "few-shot".to_owned(), trace, tight: 48_000 }
}

/// 4,000 records of 100-200 tokens with 5 short questions each, answered in a few tokens.
pub(crate) fn labels() -> Workload {
    let shape = Shape { prefixes: 4_000, questions: 5, prefix: 100..201, question: 10..41 };
    let trace = shape.generate(1..9);
    Workload { name: "labels".to_owned(), trace, tight: 48_000 }
}

/// A recorded trace, with all requests queued from the start.
pub(crate) fn recorded(path: &Path) -> anyhow::Result<Workload> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
    let mut trace = Trace::read(&file, &text, TRACE_BLOCK)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    for turn in &mut trace.turns {
        turn.start = TraceStart::At(Duration::ZERO);
    }
    let longest = trace.turns.iter().map(|turn| turn.prompt_tokens + turn.output_tokens).max();
    Ok(Workload { name, trace, tight: 2 * longest.unwrap_or(0) })
}

/// Prefixes, each followed by many questions.
struct Shape {
    prefixes: usize,
    questions: usize,
    prefix: std::ops::Range<usize>,
    question: std::ops::Range<usize>,
}

impl Shape {
    fn generate(&self, output: std::ops::Range<usize>) -> Trace {
        let mut rng = Rng::new(SEED);
        let mut pick = |range: &std::ops::Range<usize>| range.start + rng.below(range.len());
        let mut turns = Vec::new();
        for prefix in 0..self.prefixes {
            let shared = pick(&self.prefix);
            for question in 0..self.questions {
                let prompt_tokens = shared + pick(&self.question);
                let blocks = block_ids(prefix, question, shared, prompt_tokens);
                let output_tokens = pick(&output);
                let start = TraceStart::At(Duration::ZERO);
                turns.push(TraceTurn {
                    start,
                    prompt_tokens,
                    output_tokens,
                    blocks,
                    session: None,
                    tenant: None,
                });
            }
        }
        let mut rng = Rng::new(SEED + 1);
        for index in (1..turns.len()).rev() {
            turns.swap(index, rng.below(index + 1));
        }
        Trace { block_size: BLOCK, turns }
    }
}

/// Block ids: those of blocks inside the shared part depend on the prefix, the others also on the
/// question.
fn block_ids(prefix: usize, question: usize, shared: usize, tokens: usize) -> Arc<[u64]> {
    let full = |tokens: usize| tokens / BLOCK.get();
    let id = |block: usize| {
        let own = if block < full(shared) { 0 } else { question as u64 + 1 };
        let plain = (prefix as u64) << 40 | (own << 20) | block as u64;
        // Ids are hashes: their order must carry no information.
        Rng::new(plain).bits()
    };
    (0..full(tokens)).map(id).collect()
}
