//! A simulated engine: a cache that changes at random and publishes its events.

use crate::stores::{BLOCK, stored};
use std::collections::BTreeMap;
use wornpath_events::wire::{WireBatch, WireEvent, WireRemoved};
use wornpath_events::{BatchId, EngineDigest, Epoch};
use wornpath_index::{BlockDigest, EngineHash, Tier};

const CAPACITY: usize = 300;

/// SplitMix64: small, and the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone)]
struct Block {
    parent: Option<EngineHash>,
    tokens: Vec<u32>,
    copies: usize,
    children: usize,
}

/// The engine's cache, and all batches that it published since its start.
pub(crate) struct Engine {
    blocks: BTreeMap<EngineHash, Block>,
    pub(crate) epoch: u64,
    pub(crate) batches: Vec<WireBatch>,
}

impl Engine {
    pub(crate) fn new() -> Self {
        Self { blocks: BTreeMap::new(), epoch: 1, batches: Vec::new() }
    }

    /// Restarts with an empty cache, and numbers batches from zero.
    pub(crate) fn restart(&mut self) {
        *self = Self { epoch: self.epoch + 1, ..Self::new() };
    }

    pub(crate) fn holds(&self, name: EngineHash) -> bool {
        self.blocks.contains_key(&name)
    }

    pub(crate) fn last(&self) -> Option<u64> {
        (self.batches.len() as u64).checked_sub(1)
    }

    /// Changes the cache, and publishes the changes in one batch: evictions first, as engines do.
    pub(crate) fn step(&mut self, random: &mut Random) {
        let mut batch = WireBatch::default();
        // The engine's clock, which differs between runs.
        batch.sent_at = self.epoch as f64 * 1e6 + self.batches.len() as f64;
        if random.below(400) == 0 {
            self.blocks.clear();
            batch.push(WireEvent::Cleared);
        }
        while self.blocks.len() > CAPACITY || (random.chance(30) && !self.blocks.is_empty()) {
            self.evict(random, &mut batch);
        }
        for _ in 0..=random.below(3) {
            self.store(random, &mut batch);
        }
        self.batches.push(batch);
    }

    fn evict(&mut self, random: &mut Random, batch: &mut WireBatch) {
        let leaves = self.blocks.iter().filter(|(_, block)| block.children == 0);
        let leaves: Vec<_> = leaves.map(|(name, _)| *name).collect();
        let name = leaves[random.below(leaves.len() as u64) as usize];
        let block = self.blocks.get_mut(&name).unwrap();
        block.copies -= 1;
        if block.copies == 0 {
            let parent = block.parent;
            self.blocks.remove(&name);
            if let Some(parent) = parent {
                self.blocks.get_mut(&parent).unwrap().children -= 1;
            }
        }
        batch.push(WireEvent::Removed(WireRemoved {
            blocks: &[name],
            tier: Tier::Gpu,
            group: None,
        }));
    }

    /// A chain of blocks after some block or at the start. Few tokens are possible, so the same
    /// prefixes come again: then another copy is made.
    fn store(&mut self, random: &mut Random, batch: &mut WireBatch) {
        let names: Vec<_> = self.blocks.keys().copied().collect();
        let parent = match random.below(4) {
            0 => None,
            _ if names.is_empty() => None,
            _ => Some(names[random.below(names.len() as u64) as usize]),
        };
        let mut chain = Vec::new();
        let mut tokens = Vec::new();
        let mut before = parent;
        for _ in 0..=random.below(5) {
            let content = vec![random.below(6) as u32; BLOCK];
            let name = self.name(before, content[0]);
            let new = Block { parent: before, tokens: content.clone(), copies: 0, children: 0 };
            let block = self.blocks.entry(name).or_insert(new);
            block.copies += 1;
            if block.copies == 1
                && let Some(parent) = before
            {
                self.blocks.get_mut(&parent).unwrap().children += 1;
            }
            chain.push(name);
            tokens.extend(content);
            before = Some(name);
        }
        batch.push(stored(&chain, parent, &tokens));
    }

    /// Engines hash blocks with their prefix, differently in each run.
    fn name(&self, parent: Option<EngineHash>, token: u32) -> EngineHash {
        let prefix = parent.map_or(self.epoch, |parent| parent.0);
        EngineHash(Random(prefix ^ u64::from(token).rotate_left(40)).next())
    }

    pub(crate) fn id(&self, sequence: u64) -> BatchId {
        let fingerprint = Some(Random(self.epoch << 32 | sequence).next());
        BatchId { epoch: Some(Epoch(self.epoch)), sequence: Some(sequence), fingerprint }
    }

    /// The whole cache, in no particular order.
    pub(crate) fn snapshot(&self) -> (BatchId, WireBatch) {
        let mut batch = WireBatch::default();
        for (name, block) in &self.blocks {
            for _ in 0..block.copies {
                batch.push(stored(&[*name], block.parent, &block.tokens));
            }
        }
        let id =
            BatchId { epoch: Some(Epoch(self.epoch)), sequence: self.last(), fingerprint: None };
        (id, batch)
    }

    pub(crate) fn digest(&self) -> EngineDigest {
        let mut tiers = [BlockDigest::default(); 4];
        self.blocks.keys().for_each(|name| tiers[Tier::Gpu as usize].add(name.0));
        EngineDigest { epoch: Some(Epoch(self.epoch)), sequence: self.last(), tiers }
    }
}
