//! The largest prefixes, as the admin page shows them.

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
    index.writer().apply(pod, None, &[CacheEvent::Stored(stored)]).expect("the pod is live");
}

/// Two pods share three blocks; one continues in two branches, the other holds a prompt of its own.
fn shared() -> (Index, [PodId; 2]) {
    let index = Index::new(IndexLimits::default(), 3);
    let pods = [(); 2].map(|()| index.add_pod().expect("a slot is free"));
    store(&index, pods[0], &[1, 2, 3, 4, 5]);
    store(&index, pods[0], &[1, 2, 3, 6]);
    store(&index, pods[1], &[1, 2, 3]);
    store(&index, pods[1], &[9, 8]);
    (index, pods)
}

/// The parent of a run, its depth, its blocks, its holders and its weight.
type Summary = (Option<usize>, usize, usize, Vec<usize>, usize);

fn summary(prefixes: &Prefixes) -> Vec<Summary> {
    let of =
        |run: &PrefixRun| (run.follows, run.depth, run.blocks, run.holders.clone(), run.weight);
    prefixes.runs.iter().map(of).collect()
}

#[test]
fn a_run_ends_where_prompts_diverge_or_where_fewer_pods_hold_it() {
    let (index, pods) = shared();
    let prefixes = index.prefixes(&pods, PLENTY);
    let mut runs = summary(&prefixes);
    // Runs of equal weight are ordered by their hashes, which is arbitrary.
    runs.sort_by_key(|run| (run.1, std::cmp::Reverse(run.4)));
    let expected = [
        (None, 0, 3, vec![0, 1], 9),
        (None, 0, 2, vec![1], 2),
        (Some(0), 3, 2, vec![0], 2),
        (Some(0), 3, 1, vec![0], 1),
    ];
    assert_eq!(runs, expected);
    assert_eq!(prefixes.runs[0].last, chain(&[1, 2, 3])[2], "the last block names the prefix");
    assert_eq!((prefixes.looked_at, prefixes.detached, prefixes.cut_short), (11, 0, 0));
}

#[test]
fn the_largest_runs_are_returned_each_after_its_parent() {
    let (index, pods) = shared();
    let runs = summary(&index.prefixes(&pods, PrefixLimits { runs: 2, ..PLENTY }));
    assert_eq!((runs.len(), runs[0].4, runs[1].4), (2, 9, 2));
    for max in 0..5 {
        let prefixes = index.prefixes(&pods, PrefixLimits { runs: max, ..PLENTY });
        let mut runs = prefixes.runs.iter().enumerate();
        assert!(runs.all(|(at, run)| run.follows.is_none_or(|it| it < at)));
    }
}

#[test]
fn blocks_behind_a_hole_are_counted_as_detached() {
    let (index, pods) = shared();
    let second = EngineHash(chain(&[1, 2])[1].0);
    let removed = CacheEvent::Removed { tier: Tier::Gpu, blocks: &[second] };
    index.writer().apply(pods[0], None, &[removed]).expect("the pod is live");
    let alone = index.prefixes(&pods[..1], PLENTY);
    assert_eq!(summary(&alone), [(None, 0, 1, vec![0], 1)]);
    assert_eq!((alone.looked_at, alone.detached), (5, 4));
}

#[test]
fn a_pod_beyond_the_limit_is_counted_and_a_removed_pod_holds_nothing() {
    let (index, pods) = shared();
    let few = index.prefixes(&pods, PrefixLimits { blocks_per_pod: 3, ..PLENTY });
    assert_eq!((few.looked_at, few.cut_short), (6, 2));
    index.remove_pod(pods[0]);
    let left = index.prefixes(&pods, PLENTY);
    assert!(left.runs.iter().all(|run| run.holders == [1]), "{left:?}");
    assert_eq!(left.looked_at, 5);
}
