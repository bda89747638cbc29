//! A pod's tables grow in steps, and its memory returns as its blocks go, one by one.

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    CacheEvent, Content, EngineHash, Index, IndexLimits, Parent, StoredBlocks, Tier, steps_of,
};

/// Blocks of an event.
const RUN: u64 = 16;

fn names(event: u64) -> Vec<EngineHash> {
    let name = |at: u64| EngineHash((event * RUN + at).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (0..RUN).map(name).collect()
}

#[test]
fn no_event_pays_for_the_growth_of_a_pod_and_an_empty_pod_needs_no_memory() {
    const EVENTS: u64 = 40_000;
    let index = Index::new(IndexLimits::default(), 11);
    let pod = index.add_pod().unwrap();
    let mut writer = index.writer();
    let contents: Vec<_> = (0..RUN).map(ContentHash).collect();
    let mut most = 0;
    for event in 0..EVENTS {
        let content =
            Content::Chained { parent: Parent::Root(BlockHash(event)), contents: &contents };
        let blocks = &names(event);
        let stored = StoredBlocks { tier: Tier::Gpu, blocks, content, locations: &[] };
        let store = || _ = writer.apply(pod, None, &[CacheEvent::Stored(stored)]).unwrap();
        most = most.max(steps_of(store));
    }
    // A table of 640,000 names was moved several times. Only those below 12,000 are at once.
    assert!(most < 16_000, "{most} steps for one event");

    let full = index.pod_stats(pod).unwrap();
    assert_eq!(full.blocks as u64, EVENTS * RUN);
    let mut evict = |events: std::ops::Range<u64>| {
        for event in events {
            let mut blocks = names(event);
            blocks.reverse();
            let removed = CacheEvent::Removed { tier: Tier::Gpu, blocks: &blocks };
            let remove = || _ = writer.apply(pod, None, &[removed]).unwrap();
            assert!(steps_of(remove) < 16_000);
        }
        index.pod_stats(pod).unwrap()
    };
    let tenth = evict(0..EVENTS * 9 / 10);
    assert_eq!(tenth.blocks as u64, EVENTS * RUN / 10);
    assert!(tenth.bytes < full.bytes / 4, "{} of {}", tenth.bytes, full.bytes);
    let empty = evict(EVENTS * 9 / 10..EVENTS);
    assert_eq!(empty.blocks, 0);
    assert!(empty.bytes < full.bytes / 50, "{} of {}", empty.bytes, full.bytes);
}
