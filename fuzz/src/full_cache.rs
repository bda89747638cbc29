//! Bytes as prompts to one engine whose cache is full: each evicts others, and no operation of the
//! index may take more steps as the cache ages.
//!
//! The first two bytes are the cache's size in blocks. Each further byte stands for a few prompts
//! of one length, and chooses whether they evict the oldest prompt or one of middle age.

use std::collections::VecDeque;

use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_index::{
    CacheEvent, Capacity, Content, Depths, EngineHash, Index, IndexLimits, IndexWriter, Parent,
    PodId, StoredBlocks, Tier, within_steps,
};

/// Prompts that each byte stands for.
const PROMPTS_PER_BYTE: usize = 4;
/// Bytes that are used: more would only make runs slower.
const MAX_BYTES: usize = 96;
const MAX_BLOCKS: usize = 4096;
/// Steps that a block may take, stored or removed.
const STEPS_PER_BLOCK: u64 = 300;
/// Steps that a growing table takes for each of its blocks.
const STEPS_TO_GROW: u64 = 8;

struct Engine {
    size: usize,
    held: usize,
    /// The block hashes of each prompt.
    prompts: VecDeque<Vec<EngineHash>>,
    pod: PodId,
    writer: IndexWriter,
    sequence: u64,
    hashes: u64,
}

impl Engine {
    fn apply(&mut self, event: CacheEvent<'_>, blocks: usize) {
        let known = self.held as u64 + blocks as u64;
        let budget = STEPS_PER_BLOCK * blocks as u64 + STEPS_TO_GROW * known;
        let Self { writer, pod, sequence, .. } = self;
        within_steps(budget, || writer.apply(*pod, Some(*sequence), &[event]).expect("it lives"));
        *sequence += 1;
    }

    fn evict(&mut self, at: usize) {
        let Some(mut names) = self.prompts.remove(at) else { return };
        names.reverse();
        self.apply(CacheEvent::Removed { tier: Tier::Gpu, blocks: &names }, names.len());
        self.held -= names.len();
    }

    fn next_hash(&mut self) -> u64 {
        self.hashes += 1;
        self.hashes
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    /// Serves a new prompt and returns the chain of its blocks.
    fn prompt(&mut self, blocks: usize) -> Vec<BlockHash> {
        let names: Vec<_> = (0..blocks).map(|_| EngineHash(self.next_hash())).collect();
        let contents: Vec<_> = names.iter().map(|name| ContentHash(!name.0)).collect();
        let root = BlockHash(7);
        let content = Content::Chained { parent: Parent::Root(root), contents: &contents };
        let stored = StoredBlocks { tier: Tier::Gpu, blocks: &names, content, locations: &[] };
        self.apply(CacheEvent::Stored(stored), blocks);
        self.held += blocks;
        self.prompts.push_back(names);
        root.chain(&contents).collect()
    }
}

/// Serves the prompts that the bytes encode.
pub fn full_cache(bytes: &[u8]) {
    let [first, second, prompts @ ..] = bytes else { return };
    let size = 1 + usize::from(u16::from_le_bytes([*first, *second])) % MAX_BLOCKS;
    let index = Index::new(IndexLimits { capacity: Capacity::Pods64, ..IndexLimits::default() }, 7);
    let pod = index.add_pod().expect("the first of 64");
    let mut writer = index.writer();
    let mut reader = index.reader();
    writer.start_at(pod, 0).expect("it lives");
    let mut engine =
        Engine { size, held: 0, prompts: VecDeque::new(), pod, writer, sequence: 0, hashes: 0 };
    for byte in prompts.iter().take(MAX_BYTES) {
        let blocks = (1 + usize::from(byte & 0x7f)).min(engine.size);
        for _ in 0..PROMPTS_PER_BYTE {
            while engine.held + blocks > engine.size {
                engine.evict(if byte & 0x80 == 0 { 0 } else { engine.prompts.len() / 2 });
            }
            let chain = engine.prompt(blocks);
            let mut depths = Depths::default();
            reader.lookup(&chain, &mut depths);
            assert_eq!(depths.depth(pod.slot()), blocks);
        }
        assert_eq!(index.pod_stats(pod).expect("it lives").blocks, engine.held);
    }
}
