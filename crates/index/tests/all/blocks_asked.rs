//! How many blocks a lookup asks the table for: K log N for K depths in a chain of N blocks,
//! whatever the number of pods, and whatever other chains of these pods look like.

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    CacheEvent, Capacity, Content, EngineHash, Index, IndexLimits, IndexReader, IndexWriter,
    Moment, Parent, PodId, StoredBlocks, Tier, steps_of,
};

const ROOT: BlockHash = BlockHash(7);

/// A fleet whose pods hold beginnings of chains, each named by a number.
struct Fleet {
    index: Index,
    pods: Vec<PodId>,
    writer: IndexWriter,
    reader: IndexReader,
}

fn contents(chain: u64, blocks: usize) -> Vec<ContentHash> {
    (0..blocks as u64).map(|at| ContentHash((chain << 32 | at).wrapping_mul(0x9E37_79B9))).collect()
}

fn names(chain: u64, blocks: usize) -> Vec<EngineHash> {
    (0..blocks as u64).map(|at| EngineHash(chain << 32 | at)).collect()
}

fn chain(number: u64, blocks: usize) -> Vec<BlockHash> {
    ROOT.chain(&contents(number, blocks)).collect()
}

impl Fleet {
    fn of(pods: usize) -> Self {
        let capacity = Capacity::for_pods(pods).unwrap();
        let index = Index::new(IndexLimits { capacity, ..IndexLimits::default() }, 1);
        let pods = (0..pods).map(|_| index.add_pod().unwrap()).collect();
        Self { writer: index.writer(), reader: index.reader(), pods, index }
    }

    fn store(&mut self, pod: usize, chain: u64, blocks: usize) {
        let stored = StoredBlocks {
            tier: Tier::Gpu,
            blocks: &names(chain, blocks),
            content: Content::Chained {
                parent: Parent::Root(ROOT),
                contents: &contents(chain, blocks),
            },
            locations: &[],
        };
        self.writer.apply(self.pods[pod], None, &[CacheEvent::Stored(stored)]).unwrap();
    }

    fn evict(&mut self, pod: usize, chain: u64, block: usize) {
        let blocks = [names(chain, block + 1)[block]];
        let removed = CacheEvent::Removed { tier: Tier::Gpu, blocks: &blocks };
        self.writer.apply(self.pods[pod], None, &[removed]).unwrap();
    }

    /// The depths of all pods, and how many blocks the lookup asked for.
    fn ask(&mut self, chain: &[BlockHash]) -> (Vec<u32>, u64) {
        let mut depths = vec![0; self.pods.len()];
        let steps = steps_of(|| self.reader.depths(chain, &mut depths));
        (depths, steps)
    }
}

#[test]
fn eight_blocks_on_four_pods_take_about_ten_reads() {
    let mut fleet = Fleet::of(4);
    (0..4).for_each(|pod| fleet.store(pod, 1, 8));
    let (depths, asked) = fleet.ask(&chain(1, 8));
    assert_eq!(depths, [8; 4]);
    assert!((8..=10).contains(&asked), "{asked}");
}

#[test]
fn reads_grow_with_the_depths_and_the_logarithm_of_the_blocks() {
    for pods in [16, 256] {
        for length in [64_usize, 512, 4_096, 32_768] {
            for depths in [1_usize, 2, 4] {
                let mut fleet = Fleet::of(pods);
                let at = |pod: usize| length / 2 + (pod % depths) * length / (2 * depths + 1) + 1;
                (0..pods).for_each(|pod| fleet.store(pod, 1, at(pod)));
                let (found, asked) = fleet.ask(&chain(1, length));
                let expected: Vec<_> = (0..pods).map(|pod| at(pod) as u32).collect();
                assert_eq!(found, expected);
                let most = 12 + 4 * depths as u64 * u64::from(length.ilog2());
                assert!(asked <= most, "{pods} pods, {length} blocks, {depths} depths: {asked}");
            }
        }
    }
}

#[test]
fn with_many_depths_the_chain_is_read_little_more_than_once() {
    for depths in [58, 193, 431] {
        let mut fleet = Fleet::of(depths);
        (0..depths).for_each(|pod| fleet.store(pod, 1, 1 + pod * 511 / depths));
        let asked = chain(1, 512);
        for _ in 0..20 {
            let (found, asked) = fleet.ask(&asked);
            assert!((0..depths).all(|pod| found[pod] as usize == 1 + pod * 511 / depths));
            assert!(asked <= 640, "{depths} depths: {asked}");
        }
    }
}

#[test]
fn holes_in_other_chains_cost_a_lookup_nothing_and_one_in_its_own_a_block() {
    let mut fleet = Fleet::of(64);
    for pod in 0..64 {
        fleet.store(pod, 1, 4_000);
        fleet.store(pod, 2, 40);
    }
    let asked = chain(1, 4_096);
    let before = fleet.ask(&asked);
    assert_eq!(before.0, [4_000; 64]);
    fleet.evict(5, 2, 11);
    fleet.evict(6, 2, 12);
    assert_eq!(fleet.ask(&asked), before);
    assert_eq!(fleet.index.stats().suspects, 0);
    let mut short = [40; 64];
    (short[5], short[6]) = (11, 12);
    assert_eq!(fleet.ask(&chain(2, 60)).0, short);

    fleet.evict(7, 1, 3_000);
    let (depths, steps) = fleet.ask(&asked);
    assert_eq!((depths[7], depths[8]), (3_000, 4_000));
    assert!(steps <= before.1 + 1, "{steps} after {}", before.1);
}

#[test]
fn a_pod_with_many_holes_is_walked_and_the_others_are_searched() {
    let mut fleet = Fleet::of(64);
    (0..64).for_each(|pod| fleet.store(pod, 1, 4_000));
    fleet.store(9, 2, 400);
    let asked = chain(1, 4_096);
    let before = fleet.ask(&asked);
    (1..399).step_by(2).for_each(|block| fleet.evict(9, 2, block));
    assert_eq!(fleet.index.stats().suspects, 1);
    // Pod 9 holds less of the chain than others, and only that much is walked.
    fleet.evict(9, 1, 100);
    let (depths, steps) = fleet.ask(&asked);
    assert_eq!((depths[9], depths[10]), (100, 4_000));
    assert!(steps <= before.1 + 130, "{steps} after {}", before.1);

    // Its last holes end: the suspicion does, too.
    (0..400).rev().for_each(|block| fleet.evict(9, 2, block));
    assert_eq!(fleet.index.stats().suspects, 0);
    let (depths, steps) = fleet.ask(&asked);
    assert_eq!((depths[9], depths[10]), (100, 4_000));
    assert!(steps <= before.1 + 1, "{steps} after {}", before.1);
}

#[test]
fn an_engine_with_a_full_cache_and_expectations_that_expire_is_never_a_suspect() {
    const BLOCKS: usize = 20;
    let mut fleet = Fleet::of(2);
    let pod = fleet.pods[0];
    let mut blocks_asked = 0;
    for turn in 0..2_000_u64 {
        let now = Moment::from_millis(100 * turn);
        fleet.writer.expire(now);
        // A request continues a prompt that the cache still holds; the engine never reports the
        // rest.
        fleet.store(0, turn, BLOCKS);
        let lifetime = std::time::Duration::from_secs(10);
        let expected = chain(turn, BLOCKS + 4);
        fleet.writer.insert_speculative_after(pod, &expected, BLOCKS, now + lifetime).unwrap();
        // The cache has room for five prompts.
        if let Some(oldest) = turn.checked_sub(5) {
            (0..BLOCKS).rev().for_each(|block| fleet.evict(0, oldest, block));
        }
        assert_eq!(fleet.index.stats().suspects, 0, "turn {turn}");
        assert_eq!(fleet.index.pod_stats(pod).unwrap().holes, 0);
        blocks_asked += fleet.ask(&chain(turn, 200)).1;
    }
    assert!(blocks_asked < 60 * 2_000, "{blocks_asked}");
    // What was expected is gone after its time, evicted prefixes included.
    fleet.writer.expire(Moment::from_secs(1_000));
    assert_eq!(fleet.ask(&chain(1_000, BLOCKS)).0[0], 0);
    assert_eq!(fleet.ask(&chain(1_999, BLOCKS + 4)).0[0] as usize, BLOCKS);
}
