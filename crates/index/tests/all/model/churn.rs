//! Full caches that churn: an engine whose cache holds a fixed number of blocks evicts one for
//! every block that it stores. Its alias table then stays at one size, perhaps just below the next
//! growth, while every alias in it is replaced again and again.
//!
//! Lookups are compared with the engine's own state, and operations have a budget of steps, which
//! is the same on every machine.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread;

use wornpath_blocks::{BlockHash, ContentHash};

use wornpath_index::{
    CacheEvent, Content, Depths, EngineHash, Index, IndexLimits, IndexReader, IndexWriter, Parent,
    PodId, StoredBlocks, Tier, within_steps,
};

use super::world::Rng;

/// The budget of steps to store or remove a block. In a new table it takes one or two.
const STEPS_PER_BLOCK: u64 = 300;
/// Steps to move the largest table that is moved at once.
const SMALL_TABLE: u64 = 20_000;

/// A prompt in the engine's cache; its last blocks are evicted first.
struct Prompt {
    names: Vec<EngineHash>,
    chain: Vec<BlockHash>,
    held: usize,
}

/// An engine with a cache of `size` blocks that is always full, and an index that tracks it.
struct Engine {
    size: usize,
    held: usize,
    prompts: VecDeque<Prompt>,
    rng: Rng,
    pod: PodId,
    writer: IndexWriter,
    reader: IndexReader,
    sequence: u64,
    stored: usize,
}

impl Engine {
    fn new(size: usize) -> Self {
        let index = Index::new(IndexLimits::default(), size as u64);
        let pod = index.add_pod().expect("a slot is free");
        let mut writer = index.writer();
        writer.start_at(pod, 0).expect("the pod is live");
        Self {
            size,
            held: 0,
            prompts: VecDeque::new(),
            rng: Rng(size as u64),
            pod,
            writer,
            reader: index.reader(),
            sequence: 0,
            stored: 0,
        }
    }

    fn apply(&mut self, event: CacheEvent<'_>, blocks: usize) {
        // While the cache fills, its tables grow: large ones in steps, small ones at once.
        let is_full = self.stored > self.size;
        let growth = if is_full { 0 } else { SMALL_TABLE };
        let budget = STEPS_PER_BLOCK * blocks as u64 + growth;
        let Self { writer, pod, sequence, .. } = self;
        within_steps(budget, || {
            writer.apply(*pod, Some(*sequence), &[event]).expect("the pod is live")
        });
        *sequence += 1;
    }

    /// Evicts from the oldest prompt, its last block first, until `blocks` more fit.
    fn evict_for(&mut self, blocks: usize) {
        let mut evicted = vec![];
        while self.held + blocks > self.size {
            let oldest = &mut self.prompts[0];
            oldest.held -= 1;
            evicted.push(oldest.names[oldest.held]);
            self.held -= 1;
            if oldest.held == 0 {
                self.prompts.pop_front();
            }
        }
        if !evicted.is_empty() {
            self.apply(CacheEvent::Removed { tier: Tier::Gpu, blocks: &evicted }, evicted.len());
        }
    }

    /// Serves one new prompt.
    fn prompt(&mut self) {
        let blocks = 1 + self.rng.next() as usize % self.size.min(35);
        self.evict_for(blocks);
        let names: Vec<_> = (0..blocks).map(|_| EngineHash(self.rng.next())).collect();
        let contents: Vec<_> = (0..blocks).map(|_| ContentHash(self.rng.next())).collect();
        let root = BlockHash(7);
        let stored = StoredBlocks {
            tier: Tier::Gpu,
            blocks: &names,
            content: Content::Chained { parent: Parent::Root(root), contents: &contents },
            locations: &[],
        };
        self.apply(CacheEvent::Stored(stored), blocks);
        self.held += blocks;
        self.stored += blocks;
        let chain = root.chain(&contents).collect();
        self.prompts.push_back(Prompt { names, chain, held: blocks });
    }

    /// Compares the depths of the oldest prompt and of a random one with the cache.
    fn check(&mut self) {
        let other = self.rng.next() as usize % self.prompts.len();
        for at in [0, other] {
            let prompt = &self.prompts[at];
            let mut depths = Depths::default();
            self.reader.lookup(&prompt.chain, &mut depths);
            assert_eq!(depths.depth(self.pod.slot()), prompt.held, "cache of {} blocks", self.size);
        }
    }

    /// Serves until `blocks` blocks have been stored.
    fn churn(&mut self, blocks: usize) {
        while self.stored < blocks {
            self.prompt();
            self.check();
        }
    }
}

/// Churns a full cache of each size for `generations` generations and at least 5,000 blocks. Every
/// core takes sizes until none is left.
pub(crate) fn run(sizes: impl Iterator<Item = usize> + Send, generations: usize) {
    let sizes = Mutex::new(sizes);
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let next = || sizes.lock().unwrap().next();
                while let Some(size) = next() {
                    Engine::new(size).churn((size * generations).max(5_000));
                }
            });
        }
    });
}

#[test]
fn clearing_a_pod_that_holds_nothing_takes_no_step() {
    let mut engine = Engine::new(50);
    (0..20).for_each(|_| engine.prompt());
    let held = engine.prompts[0].chain.clone();
    let is_held = |engine: &mut Engine| {
        let mut depths = Depths::default();
        engine.reader.lookup(&held, &mut depths);
        depths.depth(engine.pod.slot()) > 0
    };
    assert!(is_held(&mut engine));
    let clear = |engine: &mut Engine, budget| {
        let Engine { writer, pod, .. } = engine;
        within_steps(budget, || writer.apply(*pod, None, &[CacheEvent::Cleared]).unwrap());
    };
    clear(&mut engine, u64::MAX);
    assert!(!is_held(&mut engine));
    for _ in 0..1000 {
        clear(&mut engine, 0);
    }
    engine.prompts.clear();
    engine.held = 0;
    engine.prompt();
    let next = engine.prompts[0].chain.clone();
    let mut depths = Depths::default();
    engine.reader.lookup(&next, &mut depths);
    assert_eq!(depths.depth(engine.pod.slot()), next.len(), "it is stored as before");
    clear(&mut engine, u64::MAX);
    engine.reader.lookup(&next, &mut depths);
    assert_eq!(depths.depth(engine.pod.slot()), 0, "and cleared again");
}
