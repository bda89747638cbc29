//! The largest prefixes, as people are shown them.
#![cfg(not(any(loom, shuttle)))]

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    CacheEvent, Content, EngineHash, Index, IndexLimits, Parent, PodId, PrefixLimits, PrefixRun,
    Prefixes, StoredBlocks, Tier,
};

const ROOT: BlockHash = BlockHash(5);
const PLENTY: PrefixLimits = PrefixLimits { blocks_per_pod: 1000, runs: 100 };

/// The chain of a prompt whose blocks have these contents.
fn chain(contents: &[u64]) -> Vec<BlockHash> {
    ROOT.chain(&contents.iter().copied().map(ContentHash).collect::<Vec<_>>()).collect()
}

fn store(index: &Index, pod: PodId, contents: &[u64]) {
    let names: Vec<_> = chain(contents).iter().map(|block| EngineHash(block.0)).collect();
    let contents: Vec<_> = contents.iter().copied().map(ContentHash).collect();
    let content = Content::Chained { parent: Parent::Root(ROOT), contents: &contents };
    let stored = StoredBlocks { tier: Tier::Gpu, blocks: &names, content, locations: &[] };
    index.writer().apply(pod, None, &[CacheEvent::Stored(stored)]).expect("it lives");
}

/// Two pods share three blocks; one goes on by two ways, and the other holds something of its own.
fn shared() -> (Index, [PodId; 2]) {
    let index = Index::new(IndexLimits::default(), 3);
    let pods = [(); 2].map(|()| index.add_pod().expect("a slot is free"));
    store(&index, pods[0], &[1, 2, 3, 4, 5]);
    store(&index, pods[0], &[1, 2, 3, 6]);
    store(&index, pods[1], &[1, 2, 3]);
    store(&index, pods[1], &[9, 8]);
    (index, pods)
}

/// What a run follows, its depth, its blocks, who holds it, and its weight.
type Told = (Option<usize>, usize, usize, Vec<usize>, usize);

fn summary(prefixes: &Prefixes) -> Vec<Told> {
    let told =
        |run: &PrefixRun| (run.follows, run.depth, run.blocks, run.holders.clone(), run.weight);
    prefixes.runs.iter().map(told).collect()
}

#[test]
fn a_run_ends_where_prompts_part_or_where_fewer_pods_hold_it() {
    let (index, pods) = shared();
    let prefixes = index.prefixes(&pods, PLENTY);
    let mut told = summary(&prefixes);
    // Runs of equal weight come in the order of their hashes, which is no order at all.
    told.sort_by_key(|run| (run.1, std::cmp::Reverse(run.4)));
    let expected = [
        (None, 0, 3, vec![0, 1], 9),
        (None, 0, 2, vec![1], 2),
        (Some(0), 3, 2, vec![0], 2),
        (Some(0), 3, 1, vec![0], 1),
    ];
    assert_eq!(told, expected);
    assert_eq!(prefixes.runs[0].last, chain(&[1, 2, 3])[2], "the last block names the prefix");
    assert_eq!((prefixes.looked_at, prefixes.detached, prefixes.cut_short), (11, 0, 0));
}

#[test]
fn the_largest_are_told_and_never_without_what_they_follow() {
    let (index, pods) = shared();
    let told = summary(&index.prefixes(&pods, PrefixLimits { runs: 2, ..PLENTY }));
    assert_eq!((told.len(), told[0].4, told[1].4), (2, 9, 2));
    for most in 0..5 {
        let prefixes = index.prefixes(&pods, PrefixLimits { runs: most, ..PLENTY });
        let places = prefixes.runs.iter().enumerate();
        assert!(places.into_iter().all(|(at, run)| run.follows.is_none_or(|it| it < at)));
    }
}

#[test]
fn what_lies_behind_a_hole_hangs_on_nothing_and_is_counted() {
    let (index, pods) = shared();
    let second = EngineHash(chain(&[1, 2])[1].0);
    let removed = CacheEvent::Removed { tier: Tier::Gpu, blocks: &[second] };
    index.writer().apply(pods[0], None, &[removed]).expect("it lives");
    let alone = index.prefixes(&pods[..1], PLENTY);
    assert_eq!(summary(&alone), [(None, 0, 1, vec![0], 1)]);
    assert_eq!((alone.looked_at, alone.detached), (5, 4));
}

#[test]
fn a_pod_that_has_more_than_is_looked_at_is_counted_and_one_that_has_gone_holds_nothing() {
    let (index, pods) = shared();
    let few = index.prefixes(&pods, PrefixLimits { blocks_per_pod: 3, ..PLENTY });
    assert_eq!((few.looked_at, few.cut_short), (6, 2));
    index.remove_pod(pods[0]);
    let left = index.prefixes(&pods, PLENTY);
    assert!(left.runs.iter().all(|run| run.holders == [1]), "{left:?}");
    assert_eq!(left.looked_at, 5);
}
