//! A small trace of our own, so that the benchmark runs without any files: shared system prompts,
//! conversations that grow, and single questions.

use crate::case::{BLOCK, Case};
use std::time::Duration;
use wornpath_sim::replay::{Start, Trace, Turn};

const CONVERSATIONS: u64 = 150;
const TURNS: u64 = 6;
const SINGLES: u64 = 600;
/// Blocks of a system prompt, and of what each turn adds.
const SYSTEM: u64 = 8;
const ADDED: u64 = 4;

/// The trace and its fleet.
pub(crate) fn case() -> (Case, Trace) {
    let mut turns = Vec::new();
    for conversation in 0..CONVERSATIONS {
        for turn in 0..TURNS {
            let start = match turn {
                0 => Start::At(Duration::from_millis(400 * conversation)),
                _ => Start::After { turn: turns.len() - 1, delay: Duration::from_secs(2) },
            };
            let blocks = chain(conversation % 5, 1 + conversation, SYSTEM + ADDED * (turn + 1));
            turns.push(request(start, blocks, Some(conversation as usize)));
        }
    }
    for single in 0..SINGLES {
        let start = Start::At(Duration::from_millis(100 * single));
        let length = SYSTEM + 2 + single % 29;
        turns.push(request(start, chain(single % 5, 1 << 20 | single, length), None));
    }
    let case = Case {
        file: "generated".to_owned(),
        engine: "8b-h200".to_owned(),
        pods: 4,
        speed: 1.0,
        copies: 1,
        seeds: 3,
    };
    (case, Trace { block_size: BLOCK, turns })
}

/// Names of blocks: the first of them of a system prompt, the others of their own.
fn chain(system: u64, own: u64, length: u64) -> Vec<u64> {
    let name = |at: u64| if at < SYSTEM { system << 8 | at } else { own << 16 | at };
    (0..length).map(name).collect()
}

fn request(start: Start, blocks: Vec<u64>, session: Option<usize>) -> Turn {
    Turn {
        start,
        prompt_tokens: blocks.len() * BLOCK.get(),
        output_tokens: 150,
        blocks: blocks.into(),
        session,
    }
}
