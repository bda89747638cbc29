//! An engine that publishes ten times more than the limits allow: memory stays where it was at the
//! limits.
//!
//! Measured as the process's resident memory, so this has a test binary to itself.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![cfg(target_os = "linux")]

mod stores;

use stores::{BLOCK, served_model, stored};
use wornpath_events::wire::WireBatch;
use wornpath_events::{
    BatchId, Capabilities, Delivery, FeedRules, PodFeed, SourceId, SourceMessage,
};
use wornpath_index::{EngineHash, Index, IndexLimits, IndexWriter, Moment};

/// Blocks in a batch.
const RUN: usize = 64;
fn limits() -> IndexLimits {
    IndexLimits {
        blocks: 400_000,
        blocks_per_pod: 400_000,
        orphans_per_pod: 16_384,
        speculative_per_pod: 16_384,
        early_per_pod: 256,
        ..IndexLimits::default()
    }
}

struct Flooded {
    pod: PodFeed,
    writer: IndexWriter,
    source: SourceId,
    sequence: u64,
    /// Every batch is about blocks of its own.
    number: u64,
}

impl Flooded {
    fn new(index: &Index) -> Self {
        let id = index.add_pod().unwrap();
        let mut pod = PodFeed::new(index, id, served_model(), FeedRules::default()).unwrap();
        let source = pod.add_source(Capabilities { replay: true, snapshot: false, relayed: false });
        Self { pod, writer: index.writer(), source, sequence: 0, number: 0 }
    }

    /// Sends batches of new blocks; with `parent`, they follow an unknown block.
    fn store(&mut self, batches: usize, parent: Option<EngineHash>) {
        for _ in 0..batches {
            let name = |block: u64| (self.number << 8 | block).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let blocks: Vec<_> = (1..=RUN as u64).map(|block| EngineHash(name(block))).collect();
            let first = self.number as u32 * 31;
            let tokens: Vec<u32> = (0..(RUN * BLOCK) as u32).map(|at| first ^ at).collect();
            let mut batch = Box::<WireBatch>::default();
            batch.push(stored(&blocks, parent, &tokens));
            let id = BatchId { sequence: Some(self.sequence), ..BatchId::default() };
            let said = SourceMessage::Batch { id, delivery: Delivery::Live, batch };
            self.pod.handle(&mut self.writer, self.source, said, Moment::ZERO).unwrap();
            self.sequence += 1;
            self.number += 1;
        }
    }
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// What memory there is when the room is full, and after ten times as much again.
fn compare(what: &str, before: usize, mut store: impl FnMut(usize)) {
    store(1);
    let full = resident() - before;
    store(10);
    let flooded = resident() - before;
    eprintln!("{what}: full {} KiB, flooded ten times {} KiB", full >> 10, flooded >> 10);
    assert!(full > 16 << 20, "{full} bytes are too few to measure");
    assert!(flooded as f64 <= full as f64 * 1.1, "{what}: {flooded} bytes, {full} when full");
}

#[test]
fn a_flood_of_ten_times_the_cap_takes_no_more_memory_than_the_cap() {
    let limits = limits();
    let before = resident();
    let index = Index::new(limits, 1);
    let mut flooded = Flooded::new(&index);
    compare("blocks and blocks whose prefix is not known", before, |times| {
        flooded.store(times * limits.blocks_per_pod / RUN, None);
        flooded.store(times * limits.orphans_per_pod / RUN, Some(EngineHash(7)));
    });
    // From here on a batch is missing, and all others wait for it.
    flooded.sequence += 1;
    compare("batches before their turn", before, |times| {
        flooded.store(times * limits.early_per_pod, None);
    });
    let stats = index.pod_stats(flooded.pod.id()).unwrap();
    assert!(stats.blocks <= limits.blocks_per_pod && stats.orphans <= limits.orphans_per_pod);
}
