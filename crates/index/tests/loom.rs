//! Every interleaving of small races, on the index itself (with one shard and tiny tables).
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p wornpath-index --test loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    Applied, CacheEvent, Capacity, Content, Depths, EngineHash, Index, IndexLimits, Parent, PodId,
    Snapshot, StoredBlocks, Swept, Tier,
};

const ROOT: BlockHash = BlockHash(1);

fn index() -> Index {
    Index::new(IndexLimits { capacity: Capacity::Pods64, ..IndexLimits::default() }, 0)
}

/// The chain of a prompt whose blocks have these contents.
fn chain(contents: &[u64]) -> Vec<BlockHash> {
    let contents: Vec<_> = contents.iter().map(|content| ContentHash(*content)).collect();
    ROOT.chain(&contents).collect()
}

/// Stores a chain; the engine's names are the contents.
fn store(index: &Index, pod: PodId, sequence: Option<u64>, contents: &[u64]) {
    let blocks: Vec<_> = contents.iter().map(|content| EngineHash(*content)).collect();
    let contents: Vec<_> = contents.iter().map(|content| ContentHash(*content)).collect();
    let content = Content::Chained { parent: Parent::Root(ROOT), contents: &contents };
    let stored = StoredBlocks { tier: Tier::Gpu, blocks: &blocks, content, locations: &[] };
    let _ = index.writer().apply(pod, sequence, &[CacheEvent::Stored(stored)]);
}

fn evict(index: &Index, pod: PodId, sequence: Option<u64>, names: &[u64]) {
    let blocks: Vec<_> = names.iter().map(|name| EngineHash(*name)).collect();
    let removed = CacheEvent::Removed { tier: Tier::Gpu, blocks: &blocks };
    let _ = index.writer().apply(pod, sequence, &[removed]);
}

fn depth(index: &Index, pod: PodId, contents: &[u64]) -> usize {
    let mut depths = Depths::default();
    index.reader().lookup(&chain(contents), &mut depths);
    depths.depth(pod.slot())
}

#[test]
fn a_store_that_races_with_the_removal_of_its_pod_is_never_reported_and_leaves_nothing() {
    loom::model(|| {
        let index = index();
        let pod = index.add_pod().unwrap();
        let storing = thread::spawn({
            let index = index.clone();
            move || store(&index, pod, None, &[10])
        });
        assert!(index.remove_pod(pod));
        assert_eq!(depth(&index, pod, &[10]), 0, "no query after the removal reports the pod");
        storing.join().unwrap();
        assert_eq!(depth(&index, pod, &[10]), 0);
        while index.writer().sweep(8) == Swept::Partly {}
        assert_eq!(index.stats().blocks, 0);
    });
}

#[test]
fn a_reused_slot_is_not_credited_with_what_its_last_pod_held() {
    loom::model(|| {
        let index = index();
        let old = index.add_pod().unwrap();
        store(&index, old, None, &[10]);
        let gone = Arc::new(AtomicBool::new(false));
        let querying = thread::spawn({
            let index = index.clone();
            let gone = gone.clone();
            move || {
                let gone = gone.load(Ordering::Acquire);
                let found = depth(&index, old, &[10]);
                assert!(
                    found == 0 || !gone,
                    "the new pod of the slot was credited with blocks of the old one"
                );
            }
        });
        assert!(index.remove_pod(old));
        gone.store(true, Ordering::Release);
        while index.writer().sweep(8) == Swept::Partly {}
        let new = index.add_pod().unwrap();
        assert_eq!(new.slot(), old.slot());
        assert_eq!(depth(&index, new, &[10]), 0);
        querying.join().unwrap();
    });
}

#[test]
fn a_late_event_of_an_old_incarnation_has_no_effect_on_the_new_one() {
    loom::model(|| {
        let index = index();
        let old = index.add_pod().unwrap();
        let storing = thread::spawn({
            let index = index.clone();
            move || store(&index, old, None, &[10])
        });
        assert!(index.remove_pod(old));
        while index.writer().sweep(8) == Swept::Partly {}
        let new = index.add_pod().unwrap();
        assert_eq!(depth(&index, new, &[10]), 0);
        storing.join().unwrap();
        assert_eq!(depth(&index, new, &[10]), 0);
        assert_eq!(index.stats().entries, 0);
    });
}

#[test]
fn a_snapshot_and_the_event_after_it_give_one_state_in_either_order() {
    loom::model(|| {
        let index = index();
        let pod = index.add_pod().unwrap();
        index.writer().start_at(pod, 0).unwrap();
        let removing = thread::spawn({
            let index = index.clone();
            move || evict(&index, pod, Some(6), &[11])
        });
        let blocks = [EngineHash(10), EngineHash(11)];
        let contents = [ContentHash(10), ContentHash(11)];
        let content = Content::Chained { parent: Parent::Root(ROOT), contents: &contents };
        let stored = [StoredBlocks { tier: Tier::Gpu, blocks: &blocks, content, locations: &[] }];
        let snapshot = Snapshot { sequence: Some(5), stored: &stored };
        index.writer().apply_snapshot(pod, snapshot).unwrap();
        removing.join().unwrap();
        assert_eq!(depth(&index, pod, &[10, 11]), 1);
        assert_eq!(index.digest(pod).unwrap().last_sequence, Some(6));
        assert_eq!(index.writer().apply(pod, Some(6), &[]), Ok(Applied::Duplicate));
    });
}

#[test]
fn a_query_during_evictions_sees_each_block_before_or_after() {
    loom::model(|| {
        let index = index();
        let pod = index.add_pod().unwrap();
        store(&index, pod, None, &[10, 11]);
        let evicting = thread::spawn({
            let index = index.clone();
            move || evict(&index, pod, None, &[11, 10])
        });
        assert!(depth(&index, pod, &[10, 11]) <= 2);
        evicting.join().unwrap();
        assert_eq!(depth(&index, pod, &[10, 11]), 0);
    });
}

#[test]
fn a_query_is_never_credited_across_a_hole_that_was_there_before_it() {
    loom::model(|| {
        let index = index();
        let pod = index.add_pod().unwrap();
        store(&index, pod, None, &[10, 11]);
        let hole = Arc::new(AtomicBool::new(false));
        let evicting = thread::spawn({
            let index = index.clone();
            let hole = hole.clone();
            move || {
                evict(&index, pod, None, &[10]);
                hole.store(true, Ordering::Release);
            }
        });
        let there = hole.load(Ordering::Acquire);
        let found = depth(&index, pod, &[10, 11]);
        assert!(if there { found == 0 } else { found == 0 || found == 2 }, "found {found}");
        evicting.join().unwrap();
    });
}

#[test]
fn a_recycled_row_is_never_read_as_its_previous_set() {
    // Three pods and two events have too many interleavings to try all: only those with up to three
    // preemptions.
    let mut few_preemptions = loom::model::Builder::new();
    few_preemptions.preemption_bound = Some(3);
    few_preemptions.check(|| {
        let index = index();
        let first = index.add_pod().unwrap();
        let second = index.add_pod().unwrap();
        let third = index.add_pod().unwrap();
        store(&index, first, None, &[10]);
        store(&index, second, None, &[10]);
        store(&index, second, None, &[20]);
        let changing = thread::spawn({
            let index = index.clone();
            move || {
                // Frees the row of both pods, then reuses it for another pair.
                evict(&index, second, None, &[10]);
                store(&index, third, None, &[20]);
            }
        });
        let mut depths = Depths::default();
        index.reader().lookup(&chain(&[10]), &mut depths);
        assert_eq!(depths.depth(first.slot()), 1, "it held the block all the time");
        assert_eq!(depths.depth(third.slot()), 0, "it never held the block");
        changing.join().unwrap();
    });
}

#[test]
fn a_block_is_found_while_its_table_grows() {
    loom::model(|| {
        let index = index();
        let pod = index.add_pod().unwrap();
        store(&index, pod, None, &[10]);
        let growing = thread::spawn({
            let index = index.clone();
            move || store(&index, pod, None, &[20, 21])
        });
        assert_eq!(depth(&index, pod, &[10]), 1);
        growing.join().unwrap();
        assert_eq!(depth(&index, pod, &[20, 21]), 2);
    });
}
