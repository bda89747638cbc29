//! Names without content: of blocks that were removed a moment ago, and of blocks that never come.

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    CacheEvent, Content, Depths, EngineHash, Index, IndexLimits, IndexReader, IndexWriter, Parent,
    PodId, StoredBlocks, Tier,
};

const ROOT: BlockHash = BlockHash(7);

struct Engine {
    index: Index,
    pod: PodId,
    writer: IndexWriter,
    reader: IndexReader,
}

fn names(range: std::ops::Range<u64>) -> Vec<EngineHash> {
    range.map(EngineHash).collect()
}

fn contents(blocks: u64) -> Vec<ContentHash> {
    (0..blocks).map(ContentHash).collect()
}

impl Engine {
    fn new(limits: IndexLimits) -> Self {
        let index = Index::new(limits, 3);
        let pod = index.add_pod().unwrap();
        Self { pod, writer: index.writer(), reader: index.reader(), index }
    }

    fn apply(&mut self, event: CacheEvent<'_>) {
        self.writer.apply(self.pod, None, &[event]).unwrap();
    }

    fn store(&mut self, names: &[EngineHash], parent: Parent, contents: &[ContentHash]) {
        let content = Content::Chained { parent, contents };
        let stored = StoredBlocks { tier: Tier::Gpu, blocks: names, content, locations: &[] };
        self.apply(CacheEvent::Stored(stored));
    }

    fn name(&mut self, names: &[EngineHash]) {
        let content = Content::KnownAliases;
        let stored = StoredBlocks { tier: Tier::Host, blocks: names, content, locations: &[] };
        self.apply(CacheEvent::Stored(stored));
    }

    fn remove(&mut self, tier: Tier, names: &[EngineHash]) {
        self.apply(CacheEvent::Removed { tier, blocks: names });
    }

    fn depth(&mut self, contents: &[ContentHash]) -> usize {
        let chain: Vec<_> = ROOT.chain(contents).collect();
        let mut depths = Depths::default();
        self.reader.lookup(&chain, &mut depths);
        depths.depth(self.pod.slot())
    }
}

#[test]
fn a_block_that_is_evicted_and_only_then_named_on_the_host_is_found() {
    for each in [1, 3] {
        let mut engine = Engine::new(IndexLimits::default());
        let contents = contents(20 * each);
        let blocks = names(100..120);
        engine.store(&blocks, Parent::Root(ROOT), &contents);
        let mut evicted = blocks.clone();
        evicted.reverse();
        engine.remove(Tier::Gpu, &evicted);
        assert_eq!(engine.depth(&contents), 0);
        // In any order: a block is found when those before it have been named, too.
        engine.name(&blocks[10..]);
        assert_eq!(engine.depth(&contents), 0);
        engine.name(&blocks[..5]);
        assert_eq!(engine.depth(&contents), 5 * each as usize);
        engine.name(&blocks[5..10]);
        assert_eq!(engine.depth(&contents), contents.len());
        let stats = engine.index.pod_stats(engine.pod).unwrap();
        assert_eq!((stats.holes, stats.orphans), (0, 0));
        engine.remove(Tier::Host, &evicted);
        assert_eq!(engine.index.pod_stats(engine.pod).unwrap().blocks, 0);
    }
}

#[test]
fn after_a_clear_no_removed_name_is_remembered() {
    let mut engine = Engine::new(IndexLimits::default());
    engine.store(&names(0..4), Parent::Root(ROOT), &contents(4));
    engine.remove(Tier::Gpu, &names(3..4));
    engine.apply(CacheEvent::Cleared);
    engine.name(&names(0..4));
    assert_eq!(engine.depth(&contents(4)), 0);
    assert_eq!(engine.index.pod_stats(engine.pod).unwrap().orphans, 4);
}

#[test]
fn removed_names_are_remembered_within_bounds() {
    let mut engine = Engine::new(IndexLimits::default());
    let contents = contents(5_000);
    let blocks = names(0..5_000);
    let empty = engine.index.pod_stats(engine.pod).unwrap().bytes;
    for _ in 0..3 {
        engine.store(&blocks, Parent::Root(ROOT), &contents);
        let mut evicted = blocks.clone();
        evicted.reverse();
        evicted.chunks(7).for_each(|some| engine.remove(Tier::Gpu, some));
    }
    let full = engine.index.pod_stats(engine.pod).unwrap().bytes;
    assert!(full - empty < 5_000 * 40, "{full}");
    engine.name(&blocks[..1]);
    assert_eq!(engine.depth(&contents), 1, "the last one that was removed");
    engine.name(&blocks[4_999..]);
    assert_eq!(engine.index.pod_stats(engine.pod).unwrap().orphans, 1, "the first one");
}

#[test]
fn names_whose_content_never_comes_make_room_for_others() {
    let limits = IndexLimits { orphans_per_pod: 64, ..IndexLimits::default() };
    let mut engine = Engine::new(limits);
    engine.name(&names(1_000..1_064));
    // The child comes before its parent, as from another thread of the engine.
    let all = contents(3);
    engine.store(&names(2..4), Parent::Block(EngineHash(1)), &all[1..]);
    engine.store(&names(1..2), Parent::Root(ROOT), &all[..1]);
    assert_eq!(engine.depth(&all), 3);
    let stats = engine.index.pod_stats(engine.pod).unwrap();
    assert_eq!((stats.orphans, stats.counters.refused), (62, 2));
    for round in 0..1_000 {
        engine.name(&names(round * 50..round * 50 + 50));
        assert!(engine.index.pod_stats(engine.pod).unwrap().orphans <= 64);
    }
}

#[test]
fn limits_count_blocks_of_the_index_and_not_of_the_engine() {
    let limits =
        IndexLimits { blocks_per_pod: 1_000, orphans_per_pod: 1_000, ..IndexLimits::default() };
    let mut engine = Engine::new(limits);
    // Each block of the engine has 10,000 blocks of the index.
    let long = contents(10_000);
    for block in 0..100 {
        engine.store(&names(block..block + 1), Parent::Root(BlockHash(block)), &long);
        engine.store(&names(500 + block..501 + block), Parent::Block(EngineHash(9_999)), &long);
    }
    let stats = engine.index.pod_stats(engine.pod).unwrap();
    assert_eq!((stats.blocks, stats.orphans), (0, 0));
    assert_eq!(stats.counters.refused, 200);
    // Three of 300 fit, held or waiting.
    for block in 0..5 {
        engine.store(&names(block..block + 1), Parent::Root(BlockHash(block)), &long[..300]);
        let waiting = names(500 + block..501 + block);
        engine.store(&waiting, Parent::Block(EngineHash(9_999)), &long[..300]);
    }
    let stats = engine.index.pod_stats(engine.pod).unwrap();
    assert_eq!((stats.blocks, stats.orphans), (900, 3));
    assert_eq!(engine.index.stats().entries, 900);
}

#[test]
fn the_seed_of_the_index_is_not_shown() {
    let seed = 0x0123_4567_89AB_CDEF;
    let index = Index::new(IndexLimits::default(), seed);
    let pod = index.add_pod().unwrap();
    let mut engine = Engine { pod, writer: index.writer(), reader: index.reader(), index };
    engine.store(&names(0..3), Parent::Root(ROOT), &contents(3));
    let Engine { index, writer, reader, .. } = engine;
    let shown = format!("{index:?} {writer:?} {reader:?}");
    assert!(shown.contains("AliasKey"));
    assert!(!shown.contains(&seed.to_string()) && !shown.contains("1234567"), "in any form");
}
