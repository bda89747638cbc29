//! Speculative blocks, two names for one block, and evictions in any order, on whole chains.

use std::time::Duration;

use wornpath_blocks::BlockHash;
use wornpath_index::{
    CacheEvent, Capacity, Content, Depths, EngineHash, Index, IndexLimits, Moment, Parent, PodId,
    StoredBlocks, Tier,
};

use super::world::{Pod, Rng, Tree, alias};

pub(crate) fn run(seed: u64, operations: usize) {
    let mut rng = Rng(seed ^ 0xE1EC);
    let tree = Tree::random(&mut rng, 120, 20);
    let index =
        Index::new(IndexLimits { capacity: Capacity::Pods64, ..IndexLimits::default() }, seed);
    let mut writer = index.writer();
    let mut reader = index.reader();
    let mut pods: Vec<(PodId, Pod)> =
        (0..5).map(|_| (index.add_pod().expect("a slot"), Pod::default())).collect();
    let mut depths = Depths::default();
    let mut dense = [0; 64];
    let mut now = Moment::ZERO;
    for operation in 0..operations {
        now += Duration::from_millis(rng.below(20) as u64);
        let at = rng.below(pods.len());
        let node = rng.below(tree.len());
        let path = tree.path(node);
        let chain: Vec<BlockHash> = path.iter().map(|node| tree.block[*node]).collect();
        let (id, pod) = &mut pods[at];
        match rng.below(100) {
            0..35 => {
                let variant = rng.below(2) as u64;
                let blocks: Vec<EngineHash> =
                    path.iter().map(|node| alias(*id, *node, variant)).collect();
                let contents: Vec<_> = path.iter().map(|node| tree.content[*node]).collect();
                let content =
                    Content::Chained { parent: Parent::Root(tree.root), contents: &contents };
                let stored =
                    StoredBlocks { tier: Tier::Gpu, blocks: &blocks, content, locations: &[] };
                writer.apply(*id, None, &[CacheEvent::Stored(stored)]).expect("the pod is live");
                for node in &path {
                    pod.store(*node, variant, Tier::Gpu, false);
                    pod.known.insert(*node);
                    pod.confirm(*node, &tree);
                }
            }
            35..60 => {
                let mut keys: Vec<_> = pod.copies.keys().map(|(n, v, _)| (*n, *v)).collect();
                keys.sort_unstable();
                rng.shuffle(&mut keys);
                keys.truncate(1 + rng.below(6));
                let blocks: Vec<_> = keys.iter().map(|(n, v)| alias(*id, *n, *v)).collect();
                let removed = CacheEvent::Removed { tier: Tier::Gpu, blocks: &blocks };
                writer.apply(*id, None, &[removed]).expect("the pod is live");
                for (node, variant) in keys {
                    pod.remove(node, variant, Tier::Gpu, false);
                    pod.expect_again(node, variant, &tree);
                }
            }
            60..80 => {
                let expires = now + Duration::from_millis(rng.below(400) as u64);
                // The hint may be right or wrong.
                let known = match rng.below(3) {
                    0 => 0,
                    1 => pod.depth(&path),
                    _ => rng.below(chain.len() + 2),
                };
                assert!(
                    writer
                        .insert_speculative_after(*id, &chain, known, expires)
                        .expect("the pod is live")
                );
                // Time is counted in steps of 50 ms, and no block expires early.
                let steps = expires.since_zero().as_millis().div_ceil(50) as u64;
                let expires = Moment::from_millis(steps * 50);
                for node in &path {
                    if !pod.has_copy(*node) {
                        let until = pod.speculative.entry(*node).or_insert(expires);
                        *until = expires.max(*until);
                    }
                }
            }
            80..88 => {
                // The unit tests check which blocks a rollback keeps for other requests.
                let removed = writer.rollback(*id, &chain).expect("the pod is live");
                let last = path.iter().rposition(|node| pod.speculative.contains_key(node));
                let end = last.map_or(0, |last| last + 1);
                for node in &path[end - removed..end] {
                    assert!(
                        pod.speculative.remove(node).is_some(),
                        "seed {seed}: the block was not speculative"
                    );
                }
            }
            _ => {
                writer.expire(now);
                for (_, pod) in &mut pods {
                    pod.speculative.retain(|_, expires| *expires > now);
                    pod.note_expected(&tree);
                }
            }
        }
        pods[at].1.note_expected(&tree);
        reader.lookup(&chain, &mut depths);
        reader.depths(&chain, &mut dense);
        for (id, pod) in &pods {
            let truth = pod.depth(&path);
            assert_eq!(depths.depth(id.slot()), truth, "seed {seed}, operation {operation}");
            assert_eq!(dense[id.slot().position()] as usize, truth, "the other form");
        }
    }
}
