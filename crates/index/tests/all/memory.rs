//! A pod's tables grow in steps, and its memory returns as its blocks go, one by one.

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    CacheEvent, Capacity, Content, EngineHash, Index, IndexLimits, Parent, PodId, StoredBlocks,
    Swept, Tier, steps_of,
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

/// A chain of 16 blocks on a pod, stored or evicted.
fn change(index: &Index, pod: PodId, chain: u64, held: bool) {
    let blocks = &names(chain);
    let contents: Vec<_> = (0..RUN).map(ContentHash).collect();
    let content = Content::Chained { parent: Parent::Root(BlockHash(chain)), contents: &contents };
    let stored = StoredBlocks { tier: Tier::Gpu, blocks, content, locations: &[] };
    let removed = CacheEvent::Removed { tier: Tier::Gpu, blocks };
    let event = if held { CacheEvent::Stored(stored) } else { removed };
    index.writer().apply(pod, None, &[event]).unwrap();
}

#[test]
fn blocks_of_several_pods_are_counted_and_limited() {
    let limits = IndexLimits { shared_blocks: 40, ..IndexLimits::default() };
    let index = Index::new(limits, 5);
    let pods: Vec<_> = (0..3).map(|_| index.add_pod().unwrap()).collect();
    let shared = || index.stats().shared_blocks;
    for chain in 0..10 {
        change(&index, pods[0], chain, true);
    }
    assert_eq!(shared(), 0, "no limit on what one pod holds alone");
    change(&index, pods[1], 0, true);
    change(&index, pods[2], 0, true);
    assert_eq!(shared(), 16, "each counts once, whatever the number of its pods");
    change(&index, pods[1], 1, true);
    change(&index, pods[1], 2, true);
    assert_eq!(shared(), 40);
    let refused = |pod: PodId| index.pod_stats(pod).unwrap().counters.refused;
    assert_eq!((refused(pods[0]), refused(pods[1])), (0, 8));
    change(&index, pods[2], 3, true);
    assert_eq!(refused(pods[2]), 16, "at the limit, nothing is stored");
    // Three pods, two, one.
    change(&index, pods[0], 0, false);
    assert_eq!(shared(), 40);
    change(&index, pods[1], 0, false);
    assert_eq!(shared(), 24);
    index.remove_pod(pods[1]);
    while index.writer().sweep(8) == Swept::Partly {}
    assert_eq!(shared(), 0);
}

#[test]
fn the_limit_on_blocks_follows_the_memory_for_them() {
    let gib = 1_usize << 30;
    let blocks = |gib_of_memory: usize| IndexLimits::default().within(gib_of_memory * gib).blocks;
    assert_eq!(blocks(1), 16 << 20);
    assert_eq!(blocks(12), 192 << 20, "more than the default");
    assert_eq!(Index::new(IndexLimits::default().within(gib), 1).limits().blocks, 16 << 20);
}

#[test]
fn wide_sets_of_pods_count_against_the_limit_on_blocks() {
    let refused = |capacity| {
        let limits = IndexLimits { capacity, blocks: 1_000, ..IndexLimits::default() };
        let index = Index::new(limits, 5);
        let pods: Vec<_> = (0..64).map(|_| index.add_pod().unwrap()).collect();
        // Every prompt is on two pods, and no two prompts on the same.
        for chain in 0..31 {
            change(&index, pods[chain as usize], chain, true);
            change(&index, pods[chain as usize + 1], chain, true);
        }
        pods.iter().map(|pod| index.pod_stats(*pod).unwrap().counters.refused).sum::<u64>()
    };
    // A set of up to 64 pods is a word, one of up to 4096 takes as much as eight blocks.
    assert_eq!(refused(Capacity::Pods64), 0);
    assert!(refused(Capacity::Pods4096) > 100);
}
