//! How many event blocks one core takes into the index: `cargo run --release --example apply_rate`.
//!
//! Two ways, each with a store of new blocks for every eviction once the cache is full: decoded
//! batches through the feed and the translator into the index, and the same from raw frames,
//! decoded first. Then the time of queries, alone and while another thread applies at full speed.
#![allow(clippy::unwrap_used, reason = "a measuring program stops at the first surprise")]
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wornpath_blocks::{BlockHash, BlockHasher, HashKey, Scope};
use wornpath_events::wire::{
    HashForm, WireBatch, WireDialect, WireEvent, WireLayout, WireLimits, WireMessage, WireRemoved,
    WireStored, decode, encode,
};
use wornpath_events::{
    BatchId, BlockIdScheme, Capabilities, Delivery, FeedRules, PodFeed, ServedModel, SourceMessage,
};
use wornpath_index::Moment;
use wornpath_index::{Depths, EngineHash, Index, IndexLimits, IndexWriter, Tier};

const BLOCK: usize = 16;
/// Blocks of one prompt, which come and go together.
const PROMPT: usize = 64;
/// Prompts that a pod holds.
const HELD: u64 = 512;
const BATCHES: u64 = 8_000;
const ROUNDS: usize = 5;

fn main() {
    let batches: Vec<WireBatch> = (0..BATCHES).map(batch).collect();
    let blocks: usize = batches.iter().map(blocks).sum();
    let raw: Vec<Vec<u8>> = batches.iter().map(payload).collect();
    println!("{BATCHES} batches with {blocks} event blocks; best of {ROUNDS}");
    report("decoded batches, applied", blocks, || {
        let (mut pod, mut writer, source) = pod(&Index::new(IndexLimits::default(), 1));
        let said: Vec<_> = batches.iter().map(|batch| Box::new(batch.clone())).collect();
        let start = now();
        for (sequence, batch) in (0..).zip(said) {
            hear(&mut pod, &mut writer, source, sequence, batch);
        }
        start.elapsed()
    });
    report("raw frames, decoded and applied", blocks, || {
        let (mut pod, mut writer, source) = pod(&Index::new(IndexLimits::default(), 1));
        let start = now();
        for (sequence, payload) in (0_u64..).zip(&raw) {
            let number = sequence.to_be_bytes();
            let frames = [&b"kv@pod@model"[..], &number, payload];
            let WireMessage::Batch { sequence, payload, .. } = WireMessage::parse(&frames).unwrap()
            else {
                panic!("a batch is no end of a replay")
            };
            let mut batch = Box::<WireBatch>::default();
            decode(payload, &WireLimits::default(), &mut batch).unwrap();
            hear(&mut pod, &mut writer, source, sequence, batch);
        }
        start.elapsed()
    });
    queries(&batches);
}

fn report(what: &str, blocks: usize, mut round: impl FnMut() -> Duration) {
    let best = (0..ROUNDS).map(|_| round()).min().unwrap();
    println!("{what}: {:.2} million event blocks per second", rate(blocks, best));
}

fn rate(blocks: usize, time: Duration) -> f64 {
    blocks as f64 / time.as_secs_f64() / 1e6
}

/// Queries for prompts that come and go, timed one by one.
fn queries(batches: &[WireBatch]) {
    let index = Index::new(IndexLimits::default(), 1);
    let (mut pod, mut writer, source) = pod(&index);
    let said = |number: usize| Box::new(batches[number].clone());
    for sequence in 0..HELD {
        hear(&mut pod, &mut writer, source, sequence, said(sequence as usize));
    }
    let alone = ask(&index, BATCHES);
    println!("queries alone: median {:?}, p99 {:?}", alone.0, alone.1);
    let stop = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sequence = HELD;
            while !stop.load(Ordering::Relaxed) {
                let number = (HELD + sequence % (BATCHES - HELD)) as usize;
                hear(&mut pod, &mut writer, source, sequence, said(number));
                sequence += 1;
            }
        });
        let busy = ask(&index, BATCHES);
        stop.store(true, Ordering::Relaxed);
        busy
    });
    println!("queries while another thread applies: median {:?}, p99 {:?}", busy.0, busy.1);
}

fn ask(index: &Index, prompts: u64) -> (Duration, Duration) {
    let hasher = BlockHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(BLOCK).unwrap());
    let chains: Vec<Vec<BlockHash>> = (0..prompts)
        .map(|prompt| {
            let mut chain = Vec::new();
            let root = HashKey::DEFAULT.root(&Scope::model("model"));
            hasher.hash_tokens(&tokens(prompt), root, &mut chain);
            chain
        })
        .collect();
    let mut reader = index.reader();
    let mut answer = Depths::default();
    let mut times: Vec<Duration> = (0..200_000)
        .map(|turn| {
            let start = now();
            reader.lookup(&chains[turn % chains.len()], &mut answer);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn pod(index: &Index) -> (PodFeed, IndexWriter, wornpath_events::SourceId) {
    let served_model = ServedModel {
        key: HashKey::DEFAULT,
        model: "model".to_owned(),
        block_size: NonZeroUsize::new(BLOCK).unwrap(),
        id_scheme: BlockIdScheme::Engine,
    };
    let id = index.add_pod().unwrap();
    let mut pod = PodFeed::new(index, id, served_model, FeedRules::default()).unwrap();
    let source = pod.add_source(Capabilities { replay: true, snapshot: false, relayed: false });
    (pod, index.writer(), source)
}

fn hear(
    pod: &mut PodFeed,
    writer: &mut IndexWriter,
    source: wornpath_events::SourceId,
    sequence: u64,
    batch: Box<WireBatch>,
) {
    let id = BatchId { sequence: Some(sequence), ..BatchId::default() };
    let said = SourceMessage::Batch { id, delivery: Delivery::Live, batch };
    pod.handle(writer, source, said, Moment::ZERO).unwrap();
}

/// A new prompt, and the eviction of the oldest once there are enough.
fn batch(number: u64) -> WireBatch {
    let mut batch = WireBatch::default();
    if let Some(oldest) = number.checked_sub(HELD) {
        let names: Vec<_> = names(oldest).into_iter().rev().collect();
        batch.push(WireEvent::Removed(WireRemoved {
            blocks: &names,
            tier: Tier::Gpu,
            group: None,
        }));
    }
    batch.push(WireEvent::Stored(WireStored::plain(&names(number), None, &tokens(number))));
    batch
}

fn names(prompt: u64) -> Vec<EngineHash> {
    let name = |block: u64| (prompt * PROMPT as u64 + block).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..PROMPT as u64).map(|block| EngineHash(name(block + 1))).collect()
}

fn tokens(prompt: u64) -> Vec<u32> {
    (0..(PROMPT * BLOCK) as u64)
        .map(|at| ((prompt * 7919 + at * 104_729) % 150_000) as u32)
        .collect()
}

fn payload(batch: &WireBatch) -> Vec<u8> {
    let mut payload = Vec::new();
    let dialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Digest };
    encode(batch, dialect, &mut payload);
    payload
}

fn blocks(batch: &WireBatch) -> usize {
    let count = |event: WireEvent<'_>| match event {
        WireEvent::Stored(stored) => stored.blocks.len(),
        WireEvent::Removed(removed) => removed.blocks.len(),
        WireEvent::Cleared => 0,
    };
    batch.events().map(count).sum()
}

#[allow(clippy::disallowed_methods, reason = "measuring is about the clock")]
fn now() -> Instant {
    Instant::now()
}
