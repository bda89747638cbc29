//! A restored export equals the original pod: in lookups, in digests, and under all later events.

use proptest::prelude::*;
use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    CacheEvent, Content, Depths, EngineHash, ExportedBlock, ExportedParent, Index, IndexLimits,
    Parent, PodId, RestoreError, StoredBlocks, Tier,
};

const ROOT: BlockHash = BlockHash(5);
const DEPTH: u64 = 6;

/// An event about the chain of one family of blocks.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Its blocks from the start up to a depth, each of `parts` of the index's, under one of two
    /// names.
    Stored { family: u64, depth: u64, parts: u64, tier: Tier, name: u64 },
    /// One copy of one block was removed.
    Removed { family: u64, depth: u64, tier: Tier, name: u64 },
    /// A block whose name is its hash, with an unknown parent.
    Native { family: u64 },
}

fn change() -> impl Strategy<Value = Change> {
    let tier = || prop::sample::select(Tier::ALL.to_vec());
    let one = (0..5_u64, 1..DEPTH, tier(), 0..2_u64);
    prop_oneof![
        3 => (one.clone(), 1..3_u64).prop_map(|((family, depth, tier, name), parts)| Change::Stored {
            family, depth, parts: if family == 4 { parts } else { 1 }, tier, name
        }),
        3 => one.prop_map(|(family, depth, tier, name)| Change::Removed { family, depth, tier, name }),
        1 => (0..3_u64).prop_map(|family| Change::Native { family }),
    ]
}

fn name(family: u64, depth: u64, name: u64) -> EngineHash {
    EngineHash((family << 16 | depth << 8 | name | 1 << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn content(family: u64, part: u64) -> ContentHash {
    ContentHash(family << 32 | part)
}

fn apply(index: &Index, pod: PodId, change: Change) {
    let mut writer = index.writer();
    let sequence = index.digest(pod).unwrap().last_sequence.map_or(0, |last| last + 1);
    match change {
        Change::Stored { family, depth, parts, tier, name: variant } => {
            let blocks: Vec<_> = (0..depth).map(|at| name(family, at, variant)).collect();
            let contents: Vec<_> = (0..depth * parts).map(|at| content(family, at)).collect();
            let content = Content::Chained { parent: Parent::Root(ROOT), contents: &contents };
            let stored = StoredBlocks { tier, blocks: &blocks, content, locations: &[] };
            writer.apply(pod, Some(sequence), &[CacheEvent::Stored(stored)]).unwrap();
        }
        Change::Removed { family, depth, tier, name: variant } => {
            let blocks = [name(family, depth, variant)];
            writer
                .apply(pod, Some(sequence), &[CacheEvent::Removed { tier, blocks: &blocks }])
                .unwrap();
        }
        Change::Native { family } => {
            let blocks = [EngineHash(ROOT.then(content(family, 0)).0)];
            let content = Content::IndexHashes;
            let stored =
                StoredBlocks { tier: Tier::Host, blocks: &blocks, content, locations: &[] };
            writer.apply(pod, Some(sequence), &[CacheEvent::Stored(stored)]).unwrap();
        }
    }
}

fn depths(index: &Index, pod: PodId) -> Vec<usize> {
    let depth = |family| {
        let contents: Vec<_> = (0..DEPTH * 2).map(|at| content(family, at)).collect();
        let chain: Vec<_> = ROOT.chain(&contents).collect();
        let mut depths = Depths::default();
        index.reader().lookup(&chain, &mut depths);
        depths.depth(pod.slot())
    };
    (0..5).map(depth).collect()
}

/// The observable state of a pod.
fn observed(index: &Index, pod: PodId) -> impl PartialEq + std::fmt::Debug {
    let stats = index.pod_stats(pod).unwrap();
    let digest = (stats.digest.tiers, stats.digest.blocks);
    (
        digest,
        stats.blocks,
        stats.holes,
        index.stats().suspects,
        index.stats().entries,
        depths(index, pod),
    )
}

fn start(limits: IndexLimits) -> (Index, PodId) {
    let index = Index::new(limits, 3);
    let pod = index.add_pod().unwrap();
    index.writer().start_at(pod, 0).unwrap();
    (index, pod)
}

proptest! {
    #[test]
    fn a_restored_pod_equals_the_original_now_and_after_more_events(
        before in prop::collection::vec(change(), 0..60),
        after in prop::collection::vec(change(), 0..40),
    ) {
        let (first, pod) = start(IndexLimits::default());
        before.into_iter().for_each(|change| apply(&first, pod, change));
        let items = first.export(pod).unwrap().expect("there are no orphans");
        let (second, other) = start(IndexLimits::default());
        // A restore replaces earlier blocks.
        apply(&second, other, Change::Stored { family: 3, depth: 4, parts: 1, tier: Tier::Disk, name: 1 });
        second.writer().restore(other, &items).unwrap();
        prop_assert_eq!(observed(&first, pod), observed(&second, other));
        for change in after {
            apply(&first, pod, change);
            apply(&second, other, change);
            prop_assert_eq!(observed(&first, pod), observed(&second, other), "after {:?}", change);
        }
    }

    #[test]
    fn any_list_is_restored_completely_or_not_at_all(
        items in prop::collection::vec((0..6_u64, 0..8_u64, any::<Option<u32>>(), any::<[bool; 4]>()), 0..12),
    ) {
        let items: Vec<_> = items.into_iter().map(|(engine, block, before, held)| ExportedBlock {
            engine: EngineHash(engine),
            block: BlockHash(block),
            parts: Box::default(),
            before: before.map_or(ExportedParent::Start, |before| ExportedParent::Item(before % 12)),
            copies: held.map(u32::from),
        }).collect();
        let (index, pod) = start(IndexLimits::default());
        match index.writer().restore(pod, &items) {
            Ok(()) => prop_assert_eq!(index.export(pod).unwrap().unwrap().len(), items.len()),
            Err(_) => prop_assert_eq!(index.stats().entries, 0),
        }
        index.writer().apply(pod, None, &[CacheEvent::Cleared]).unwrap();
        prop_assert_eq!((index.stats().entries, index.stats().suspects), (0, 0));
        let chain: Vec<_> = (0..8).map(BlockHash).collect();
        let mut depths = Depths::default();
        index.reader().lookup(&chain, &mut depths);
        prop_assert_eq!(depths.depth(pod.slot()), 0);
    }
}

#[test]
fn a_restore_error_names_the_item_and_the_problem() {
    let item = |engine, before| ExportedBlock {
        engine: EngineHash(engine),
        block: BlockHash(engine),
        parts: Box::default(),
        before,
        copies: [1, 0, 0, 0],
    };
    let (index, pod) = start(IndexLimits { blocks_per_pod: 2, ..IndexLimits::default() });
    let error = |items: &[ExportedBlock]| index.writer().restore(pod, items).unwrap_err();
    let start = |engine| item(engine, ExportedParent::Start);
    assert_eq!(error(&[start(1), start(1)]), RestoreError::Duplicate { at: 1 });
    assert_eq!(error(&[start(1), item(2, ExportedParent::Item(1))]), RestoreError::Order { at: 1 });
    assert_eq!(error(&[start(1), start(2), start(3)]), RestoreError::LimitReached { at: 2 });
    let unused = ExportedBlock { copies: [0; 4], ..start(2) };
    assert_eq!(error(&[start(1), unused]), RestoreError::Unused { at: 1 });
    assert_eq!(index.stats().entries, 0);
}

#[test]
fn a_pod_with_orphans_has_no_export() {
    let (index, pod) = start(IndexLimits::default());
    let content =
        Content::Chained { parent: Parent::Block(EngineHash(9)), contents: &[ContentHash(1)] };
    let stored =
        StoredBlocks { tier: Tier::Gpu, blocks: &[EngineHash(1)], content, locations: &[] };
    index.writer().apply(pod, Some(0), &[CacheEvent::Stored(stored)]).unwrap();
    assert_eq!(index.export(pod).unwrap(), None);
}
