//! An engine in virtual time: it serves calls one prefill after another, keeps a cache of blocks,
//! and says what enters and leaves it. It can crash, hang, and start again at the same address with
//! nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wornpath_events::wire::{WireBatch, WireEvent, WireRemoved, WireStored};
use wornpath_events::{BatchId, EngineDigest, Epoch};
use wornpath_index::{BlockDigest, EngineHash, Moment, Tier};
use wornpath_routing::Rng;

pub(crate) const BLOCK: usize = 8;
const CAPACITY: usize = 160;
/// Batches it keeps for replay.
const RING: usize = 4000;
const PER_TOKEN: Duration = Duration::from_micros(40);

/// What a call asks: the blocks of its prompt, by their first token.
pub(crate) type Prompt = Vec<u32>;

struct Block {
    parent: Option<EngineHash>,
    token: u32,
    used: u64,
    children: usize,
}

/// One engine process after another, at one address.
pub(crate) struct Engine {
    pub(crate) life: u64,
    pub(crate) is_up: bool,
    /// It takes calls and answers none.
    pub(crate) hangs: bool,
    /// So many times slower than usual.
    pub(crate) slowness: u32,
    blocks: BTreeMap<EngineHash, Block>,
    uses: u64,
    first_kept: u64,
    said: VecDeque<WireBatch>,
    free_at: Moment,
}

impl Engine {
    pub(crate) fn new() -> Self {
        Self {
            life: 1,
            is_up: true,
            hangs: false,
            slowness: 1,
            blocks: BTreeMap::new(),
            uses: 0,
            first_kept: 0,
            said: VecDeque::new(),
            free_at: Moment::ZERO,
        }
    }

    /// Ends; nothing of it is left.
    pub(crate) fn crash(&mut self) {
        *self = Self { life: self.life + 1, is_up: false, ..Self::new() };
    }

    /// When the first token of a call that arrives now will be there.
    pub(crate) fn admit(&mut self, prompt: &Prompt, now: Moment) -> Moment {
        let missing = prompt.len() - self.held(prompt);
        let work = PER_TOKEN * (missing * BLOCK + 1) as u32 * self.slowness;
        self.free_at = self.free_at.max(now) + work;
        self.free_at
    }

    /// How many leading blocks of a prompt it holds.
    pub(crate) fn held(&self, prompt: &Prompt) -> usize {
        let names = self.names(prompt);
        names.iter().take_while(|name| self.blocks.contains_key(name)).count()
    }

    /// Computes a prompt, and returns the number of the batch that says so, if anything changed.
    pub(crate) fn compute(&mut self, prompt: &Prompt) -> Option<u64> {
        let names = self.names(prompt);
        let held = self.held(prompt);
        self.uses += 1;
        for name in &names[..held] {
            if let Some(block) = self.blocks.get_mut(name) {
                block.used = self.uses;
            }
        }
        if held == names.len() {
            return None;
        }
        let mut batch = WireBatch::default();
        // The engine's clock, which is never the same in two lives.
        batch.sent_at = self.life as f64 * 1e6 + self.next() as f64;
        while self.blocks.len() + names.len() - held > CAPACITY {
            self.evict(&mut batch);
        }
        for at in held..names.len() {
            let parent = at.checked_sub(1).map(|at| names[at]);
            let block = Block { parent, token: prompt[at], used: self.uses, children: 0 };
            self.blocks.insert(names[at], block);
            self.count_child(parent, 1);
        }
        let tokens: Vec<u32> =
            prompt[held..].iter().flat_map(|token| std::iter::repeat_n(*token, BLOCK)).collect();
        batch.push(stored(&names[held..], held.checked_sub(1).map(|at| names[at]), &tokens));
        Some(self.say(batch))
    }

    /// Forgets everything and says so.
    pub(crate) fn reset(&mut self) -> u64 {
        self.blocks.clear();
        let mut batch = WireBatch::default();
        batch.sent_at = self.life as f64 * 1e6 + self.next() as f64;
        batch.push(WireEvent::Cleared);
        self.say(batch)
    }

    /// The oldest that nothing follows and that is not in use right now.
    fn evict(&mut self, batch: &mut WireBatch) {
        let leaves = self.blocks.iter().filter(|(_, block)| block.children == 0);
        let oldest = leaves.filter(|(_, block)| block.used < self.uses);
        let oldest = oldest.min_by_key(|(name, block)| (block.used, **name)).map(|(name, _)| *name);
        let name = oldest.expect("a prompt is shorter than the cache");
        let block = self.blocks.remove(&name).unwrap();
        self.count_child(block.parent, -1);
        batch.push(WireEvent::Removed(WireRemoved {
            blocks: &[name],
            tier: Tier::Gpu,
            group: None,
        }));
    }

    fn count_child(&mut self, parent: Option<EngineHash>, change: isize) {
        if let Some(parent) = parent.and_then(|parent| self.blocks.get_mut(&parent)) {
            parent.children = parent.children.strict_add_signed(change);
        }
    }

    fn say(&mut self, batch: WireBatch) -> u64 {
        self.said.push_back(batch);
        if self.said.len() > RING {
            self.said.pop_front();
            self.first_kept += 1;
        }
        self.next() - 1
    }

    fn next(&self) -> u64 {
        self.first_kept + self.said.len() as u64
    }

    /// The numbers of the batches that it keeps, from `from` on.
    pub(crate) fn kept_from(&self, from: u64) -> std::ops::Range<u64> {
        from.max(self.first_kept)..self.next()
    }

    pub(crate) fn batch(&self, sequence: u64) -> (BatchId, WireBatch) {
        let fingerprint = Some(Rng::new(self.life << 32 | sequence).bits());
        let heading =
            BatchId { epoch: Some(Epoch(self.life)), sequence: Some(sequence), fingerprint };
        (heading, self.said[(sequence - self.first_kept) as usize].clone())
    }

    /// Everything it holds, in no particular order.
    pub(crate) fn snapshot(&self) -> (BatchId, WireBatch) {
        let mut batch = WireBatch::default();
        for (name, block) in &self.blocks {
            batch.push(stored(&[*name], block.parent, &[block.token; BLOCK]));
        }
        (BatchId { epoch: Some(Epoch(self.life)), sequence: self.last(), fingerprint: None }, batch)
    }

    pub(crate) fn digest(&self) -> EngineDigest {
        let mut tiers = [BlockDigest::default(); 4];
        self.blocks.keys().for_each(|name| tiers[Tier::Gpu as usize].add(name.0));
        EngineDigest { epoch: Some(Epoch(self.life)), sequence: self.last(), tiers }
    }

    fn last(&self) -> Option<u64> {
        self.next().checked_sub(1)
    }

    /// Engines name blocks by their prefix, each life in its own way.
    fn names(&self, prompt: &Prompt) -> Vec<EngineHash> {
        let mut before = self.life;
        let mut name = |token: &u32| {
            before = Rng::new(before ^ u64::from(*token).rotate_left(40)).bits();
            EngineHash(before)
        };
        prompt.iter().map(&mut name).collect()
    }
}

fn stored<'a>(
    blocks: &'a [EngineHash],
    parent: Option<EngineHash>,
    tokens: &'a [u32],
) -> WireEvent<'a> {
    WireEvent::Stored(WireStored::plain(blocks, parent, tokens))
}
