//! How many event blocks one core decodes and translates: `cargo run --release --example
//! event_rate`.
//!
//! Replays the captured `stress_offload` and `stress_gpu` streams from their raw frames, through
//! both steps, without the index.
#![allow(clippy::unwrap_used, reason = "a measuring program stops at the first surprise")]
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};
use wornpath_blocks::HashKey;
use wornpath_events::Translator;
use wornpath_events::wire::{WireBatch, WireLimits, WireMessage, decode, records};
use wornpath_index::CacheEvent;

#[allow(clippy::disallowed_methods, reason = "measuring is about the clock")]
fn main() {
    for name in ["stress_gpu", "stress_offload"] {
        let path = format!("{}/tests/fixtures/vllm-0.32/{name}.bin", env!("CARGO_MANIFEST_DIR"));
        let recording = std::fs::read(path).unwrap();
        let messages: Vec<_> = records(&recording).map(Result::unwrap).collect();
        let mut best = [Duration::MAX; 2];
        let mut counts = [0; 2];
        for _ in 0..200 {
            let start = Instant::now();
            counts[0] = replay(&messages, |_| 0);
            best[0] = best[0].min(start.elapsed());
            let mut translator =
                Translator::new(&HashKey::DEFAULT, "tiny", NonZeroUsize::new(16).unwrap());
            let start = Instant::now();
            counts[1] = replay(&messages, |batch| {
                translator.translate(batch).unwrap().events.iter().map(blocks).sum()
            });
            best[1] = best[1].min(start.elapsed());
        }
        let per_second = |time: Duration| counts[1] as f64 / time.as_secs_f64() / 1e6;
        println!(
            "{name}: {} event blocks in {} messages: decode {:.2} M/s, decode and translate {:.2} M/s",
            counts[1],
            messages.len(),
            per_second(best[0]),
            per_second(best[1]),
        );
    }
}

fn replay(messages: &[Vec<&[u8]>], mut step: impl FnMut(&WireBatch) -> usize) -> usize {
    let mut batch = WireBatch::default();
    let mut blocks = 0;
    for frames in messages {
        let WireMessage::Batch { payload, .. } = WireMessage::parse(frames).unwrap() else {
            continue;
        };
        decode(payload, &WireLimits::default(), &mut batch).unwrap();
        blocks += step(std::hint::black_box(&batch));
    }
    blocks
}

fn blocks(event: &CacheEvent<'_>) -> usize {
    match event {
        CacheEvent::Stored(stored) => stored.blocks.len(),
        CacheEvent::Removed { blocks, .. } => blocks.len(),
        CacheEvent::Cleared => 0,
    }
}
