//! One pod's side of the index: what its engine said, counted exactly.
//!
//! The map knows bits; the ledger knows why they are set. It resolves the engine's names to our
//! hashes, counts copies per tier, keeps what must wait, and knows whether the pod's prefixes may have
//! holes. It changes no bit itself: it lists the blocks whose bit is to be set or cleared, and the
//! caller, who holds the ledger's lock, carries that out before the next event.

use std::collections::HashMap;

use wornpath_blocks::{BlockHash, ContentHash};

use crate::copies::{Copies, Holding};
use crate::digest::{Digest, PodDigest};
use crate::event::{Content, EngineHash, Location, Parent, Stored, Tier};
use crate::expected::Expected;
use crate::sequence::Sequence;
use crate::slab::{Flag, Number, Slab};
use crate::waiting::{Waiter, Waiting};

/// What several copies, or several reports, of one block on one tier come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counting {
    /// A numbered source: every store is a copy, every removal takes one.
    Copies,
    /// A source without numbers: a block is there or not.
    Presence,
    /// A snapshot: as many copies as it names, and what it does not name is to go.
    Snapshot,
}

/// Caps that keep one pod from filling the router's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Entries the pod may have.
    pub(crate) entries: usize,
    /// Blocks that may wait for their prefix.
    pub(crate) waiting: usize,
}

/// Things that happened to a pod's events, counted since it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Blocks not entered because a cap was reached.
    pub refused: u64,
    /// Removals of copies that were not known.
    pub unknown_removals: u64,
    /// Blocks whose own hash came under two of the engine's.
    pub shared: u64,
    /// Expected blocks that the engine confirmed.
    pub confirmed: u64,
    /// Expected blocks that expired.
    pub expired: u64,
    /// Stored events whose lists do not fit together.
    pub malformed: u64,
}

/// What precedes the block at hand.
#[derive(Clone, Copy)]
enum Prefix {
    Known(BlockHash, Number),
    Unknown(EngineHash),
    /// It could not be entered, so nothing after it can be.
    Refused,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    slab: Slab,
    copies: Copies,
    /// For entries that cover several blocks: all but the last.
    spans: HashMap<Number, Box<[BlockHash]>>,
    /// Blocks that more than one entry stands for: how many more.
    shared: HashMap<BlockHash, u32>,
    waiting: Waiting,
    pub(crate) expected: Expected,
    pub(crate) sequence: Sequence,
    tiers: [Digest; 4],
    blocks: Digest,
    /// Entries that no tier holds: breaks in some prefix.
    holes: usize,
    /// Entries of which it is not known what precedes them.
    unlinked: usize,
    pub(crate) counters: Counters,
}

impl Ledger {
    pub(crate) fn new(key: u64, window: usize) -> Self {
        Self {
            slab: Slab::new(key),
            copies: Copies::default(),
            spans: HashMap::new(),
            shared: HashMap::new(),
            waiting: Waiting::default(),
            expected: Expected::default(),
            sequence: Sequence::new(window),
            tiers: Default::default(),
            blocks: Digest::default(),
            holes: 0,
            unlinked: 0,
            counters: Counters::default(),
        }
    }

    /// Whether a run that ends late may have a break before its end.
    pub(crate) fn may_have_holes(&self) -> bool {
        self.holes > 0 || self.unlinked > 0 || self.expected.is_broken()
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn holes(&self) -> usize {
        self.holes
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slab.bytes()
    }

    pub(crate) fn digest(&self) -> PodDigest {
        let last_sequence = self.sequence.last();
        PodDigest { last_sequence, tiers: self.tiers, blocks: self.blocks }
    }

    /// Enters stored copies; `set` receives the blocks that the pod now holds and did not before.
    pub(crate) fn store(
        &mut self,
        stored: &Stored<'_>,
        counting: Counting,
        room: Room,
        set: &mut Vec<BlockHash>,
    ) {
        let located = stored.locations.len();
        if located != 0 && located != stored.blocks.len() {
            self.counters.malformed += 1;
            return;
        }
        self.slab.touch(stored.blocks);
        let mut entering = Entering { ledger: self, tier: stored.tier, counting, room, set };
        match stored.content {
            Content::Chained { parent, contents } => {
                entering.chained(stored.blocks, parent, contents, stored.locations);
            }
            Content::Named => entering.named(stored.blocks, stored.locations),
            Content::Native => entering.native(stored.blocks, stored.locations),
        }
    }

    /// Takes copies out; `clear` receives the blocks that the pod no longer holds.
    pub(crate) fn remove(
        &mut self,
        tier: Tier,
        blocks: &[EngineHash],
        counting: Counting,
        clear: &mut Vec<BlockHash>,
    ) {
        self.slab.touch(blocks);
        for engine in blocks {
            match self.slab.find(*engine) {
                Some(number) if self.slab.get(number).is_held_in(tier) => {
                    self.let_go(number, tier, counting, clear);
                }
                _ => {
                    let all = counting != Counting::Copies;
                    if !self.waiting.remove(*engine, tier, all) {
                        self.counters.unknown_removals += 1;
                    }
                }
            }
        }
    }

    /// Takes everything out.
    pub(crate) fn clear(&mut self, clear: &mut Vec<BlockHash>) {
        self.held_from(0, usize::MAX, clear);
        clear.extend(self.expected.take_all());
        self.slab.clear();
        self.copies = Copies::default();
        self.spans = HashMap::new();
        self.shared = HashMap::new();
        self.waiting = Waiting::default();
        self.tiers = Default::default();
        self.blocks = Digest::default();
        self.holes = 0;
        self.unlinked = 0;
    }

    /// Starts a snapshot: what waits will be named again if it is still there.
    pub(crate) fn begin_snapshot(&mut self) {
        self.waiting = Waiting::default();
    }

    /// Ends a snapshot: takes out what it did not name. More than `most_waiting` blocks that still have
    /// no prefix are too many to keep.
    pub(crate) fn end_snapshot(&mut self, most_waiting: usize, clear: &mut Vec<BlockHash>) {
        if self.waiting.len() > most_waiting {
            self.counters.refused += self.waiting.len() as u64;
            self.waiting = Waiting::default();
        }
        for number in self.slab.numbers(0) {
            for tier in self.slab.get_mut(number).take_unseen() {
                self.let_go(number, tier, Counting::Snapshot, clear);
            }
        }
    }

    /// Lists the blocks of up to `most` entries from number `start`; returns where to go on, or `None`
    /// at the end.
    pub(crate) fn held_from(
        &self,
        start: u32,
        most: usize,
        held: &mut Vec<BlockHash>,
    ) -> Option<u32> {
        for (done, number) in self.slab.numbers(start).enumerate() {
            if done == most {
                return Some(start.saturating_add(done as u32));
            }
            if self.slab.get(number).is_held() {
                self.blocks_of(number, |block| held.push(block));
            }
        }
        None
    }

    /// The bit of a block that this pod had just come to hold was set already: by an expectation,
    /// which is thereby confirmed, or by another of the engine's names.
    pub(crate) fn note_already_set(&mut self, block: BlockHash) {
        if self.expected.take(block) {
            self.counters.confirmed += 1;
        } else {
            *self.shared.entry(block).or_default() += 1;
            self.counters.shared += 1;
        }
    }

    /// How the pod holds a block that its bit says it holds.
    pub(crate) fn holding(&self, block: BlockHash) -> Holding {
        let Some(number) = self.copies.special(block) else {
            return Holding { tier: Tier::Gpu, location: None };
        };
        let entry = self.slab.get(number);
        let tier = Tier::ALL.into_iter().find(|tier| entry.is_held_in(*tier));
        let tier = tier.unwrap_or(Tier::Gpu);
        Holding { tier, location: self.copies.location(number, tier) }
    }

    fn blocks_of(&self, number: Number, mut each: impl FnMut(BlockHash)) {
        let entry = self.slab.get(number);
        if entry.has(Flag::Span) {
            self.spans[&number].iter().copied().for_each(&mut each);
        }
        each(entry.block);
    }

    fn let_go(
        &mut self,
        number: Number,
        tier: Tier,
        counting: Counting,
        clear: &mut Vec<BlockHash>,
    ) {
        let entry = self.slab.get_mut(number);
        if entry.has(Flag::Extra) {
            if counting == Counting::Copies && self.copies.take_one_of_several(number, tier) {
                return;
            }
            self.copies.reset(number, tier);
        }
        entry.set_held(tier, false);
        self.tiers[tier as usize].remove(entry.engine.0);
        let (held, children) = (entry.is_held(), entry.has_children());
        if !held {
            self.blocks.remove(entry.block.0);
            self.holes += 1;
            self.list_gone(number, clear);
        }
        self.note_special(number);
        if !held && !children {
            self.free(number);
        }
    }

    fn list_gone(&mut self, number: Number, clear: &mut Vec<BlockHash>) {
        let from = clear.len();
        self.blocks_of(number, |block| clear.push(block));
        if !self.shared.is_empty() {
            let mut kept = from;
            for at in from..clear.len() {
                if !take_one(&mut self.shared, clear[at]) {
                    clear[kept] = clear[at];
                    kept += 1;
                }
            }
            clear.truncate(kept);
        }
        if !self.expected.is_empty() {
            clear[from..].iter().for_each(|block| self.expected.note_gone(*block));
        }
    }

    /// Drops an entry that no tier holds and nothing follows, then its parent if that was only there
    /// for its sake.
    fn free(&mut self, mut number: Number) {
        loop {
            let entry = self.slab.remove(number);
            self.holes -= 1;
            self.unlinked -= usize::from(entry.has(Flag::Unlinked));
            if entry.has(Flag::Span) {
                self.spans.remove(&number);
            }
            let parent = entry.parent;
            if parent == Number::NONE {
                return;
            }
            let above = self.slab.get(parent);
            if above.is_held() || above.has_children() {
                return;
            }
            number = parent;
        }
    }

    /// Keeps the list of blocks that are not simply on the GPU.
    fn note_special(&mut self, number: Number) {
        let entry = self.slab.get(number);
        if entry.is_plain() && !entry.has(Flag::Extra) {
            return;
        }
        let located = entry.has(Flag::Extra) && self.copies.is_located(number);
        let special = entry.is_held() && (!entry.is_plain() || located);
        if !special && self.copies.is_empty() {
            return;
        }
        let mut blocks = Vec::new();
        self.blocks_of(number, |block| blocks.push(block));
        for block in blocks {
            if special {
                self.copies.set_special(block, number);
            } else {
                self.copies.unset_special(block, number);
            }
        }
        if special {
            self.slab.get_mut(number).mark(Flag::Extra);
        }
    }
}

/// Takes one off a block's count of further entries; `false` if it has none.
fn take_one(shared: &mut HashMap<BlockHash, u32>, block: BlockHash) -> bool {
    let Some(more) = shared.get_mut(&block) else { return false };
    *more -= 1;
    if *more == 0 {
        shared.remove(&block);
    }
    true
}

/// A store under way.
struct Entering<'a> {
    ledger: &'a mut Ledger,
    tier: Tier,
    counting: Counting,
    room: Room,
    set: &'a mut Vec<BlockHash>,
}

impl Entering<'_> {
    fn chained(
        &mut self,
        blocks: &[EngineHash],
        parent: Parent,
        contents: &[ContentHash],
        locations: &[Location],
    ) {
        let each = contents.len() / blocks.len().max(1);
        if each == 0 || each * blocks.len() != contents.len() {
            self.ledger.counters.malformed += 1;
            return;
        }
        let mut prefix = match parent {
            Parent::Root(seed) => Prefix::Known(seed, Number::NONE),
            Parent::Block(engine) => match self.ledger.slab.find(engine) {
                Some(number) => Prefix::Known(self.ledger.slab.get(number).block, number),
                None => Prefix::Unknown(engine),
            },
        };
        let plain = each == 1 && locations.is_empty() && self.is_plain();
        for (at, engine) in blocks.iter().enumerate() {
            if plain
                && let Prefix::Known(hash, parent) = prefix
                && self.ledger.waiting.is_empty()
                && self.has_room()
                && self.ledger.slab.find(*engine).is_none()
            {
                prefix = self.enter_plain(*engine, hash.then(contents[at]), parent);
                continue;
            }
            let contents = &contents[at * each..(at + 1) * each];
            let location = locations.get(at).copied();
            prefix = self.one(*engine, prefix, contents, location);
        }
    }

    /// Whether a new block is simply one copy on the GPU.
    fn is_plain(&self) -> bool {
        self.tier == Tier::Gpu && self.counting != Counting::Snapshot
    }

    /// The common case at once: a new block after a known prefix, one copy on the GPU.
    #[inline]
    fn enter_plain(&mut self, engine: EngineHash, block: BlockHash, parent: Number) -> Prefix {
        let number = self.ledger.slab.insert_plain(engine, block, parent);
        self.ledger.tiers[Tier::Gpu as usize].add(engine.0);
        self.ledger.blocks.add(block.0);
        self.set.push(block);
        Prefix::Known(block, number)
    }

    fn one(
        &mut self,
        engine: EngineHash,
        prefix: Prefix,
        contents: &[ContentHash],
        location: Option<Location>,
    ) -> Prefix {
        if let Some(number) = self.ledger.slab.find(engine) {
            self.hold(number, self.tier, location);
            return Prefix::Known(self.ledger.slab.get(number).block, number);
        }
        match prefix {
            Prefix::Known(..) if !self.has_room() => {
                self.ledger.counters.refused += 1;
                Prefix::Refused
            }
            Prefix::Known(hash, parent) => {
                let number = self.enter(engine, hash, parent, contents);
                self.hold(number, self.tier, location);
                if !self.ledger.waiting.is_empty() {
                    self.wake(engine, number);
                }
                Prefix::Known(self.ledger.slab.get(number).block, number)
            }
            Prefix::Unknown(parent) => {
                if self.wait(engine, location) {
                    self.ledger.waiting.link(engine, parent, contents);
                    Prefix::Unknown(engine)
                } else {
                    Prefix::Refused
                }
            }
            Prefix::Refused => {
                self.ledger.counters.refused += 1;
                Prefix::Refused
            }
        }
    }

    fn named(&mut self, blocks: &[EngineHash], locations: &[Location]) {
        for (at, engine) in blocks.iter().enumerate() {
            let location = locations.get(at).copied();
            match self.ledger.slab.find(*engine) {
                Some(number) => self.hold(number, self.tier, location),
                None => {
                    self.wait(*engine, location);
                }
            }
        }
    }

    fn native(&mut self, blocks: &[EngineHash], locations: &[Location]) {
        for (at, engine) in blocks.iter().enumerate() {
            let location = locations.get(at).copied();
            let known = self.ledger.slab.find(*engine);
            if known.is_none() && !self.has_room() {
                self.ledger.counters.refused += 1;
                continue;
            }
            let number = known.unwrap_or_else(|| {
                let block = BlockHash(engine.0);
                let number = self.ledger.slab.insert(*engine, block, Number::NONE);
                self.ledger.slab.get_mut(number).mark(Flag::Unlinked);
                self.ledger.unlinked += 1;
                self.ledger.holes += 1;
                number
            });
            self.hold(number, self.tier, location);
            if !self.ledger.waiting.is_empty() {
                self.wake(*engine, number);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.ledger.slab.len() < self.room.entries && !self.ledger.slab.is_full()
    }

    /// Adds an entry, held by no tier yet, after a known prefix.
    fn enter(
        &mut self,
        engine: EngineHash,
        prefix: BlockHash,
        parent: Number,
        contents: &[ContentHash],
    ) -> Number {
        let ledger = &mut *self.ledger;
        let (first, last) = contents.split_at(contents.len() - 1);
        let number = if first.is_empty() {
            ledger.slab.insert(engine, prefix.then(last[0]), parent)
        } else {
            let span: Box<[BlockHash]> = prefix.chain(first).collect();
            let block = span[span.len() - 1].then(last[0]);
            let number = ledger.slab.insert(engine, block, parent);
            ledger.slab.get_mut(number).mark(Flag::Span);
            ledger.spans.insert(number, span);
            number
        };
        ledger.holes += 1;
        number
    }

    fn hold(&mut self, number: Number, tier: Tier, location: Option<Location>) {
        let ledger = &mut *self.ledger;
        let entry = ledger.slab.get_mut(number);
        let first = self.counting == Counting::Snapshot && entry.mark_seen(tier);
        if entry.is_held_in(tier) {
            if first {
                ledger.copies.reset(number, tier);
            } else if self.counting != Counting::Presence {
                entry.mark(Flag::Extra);
                ledger.copies.add(number, tier);
            }
        } else {
            let was_held = entry.is_held();
            entry.set_held(tier, true);
            ledger.tiers[tier as usize].add(entry.engine.0);
            if !was_held {
                ledger.blocks.add(entry.block.0);
                ledger.holes -= 1;
                let set = &mut *self.set;
                ledger.blocks_of(number, |block| set.push(block));
            }
        }
        if let Some(location) = location {
            ledger.slab.get_mut(number).mark(Flag::Extra);
            ledger.copies.locate(number, tier, location);
        }
        ledger.note_special(number);
    }

    /// Puts a copy with the waiting; `false` if there is no room.
    fn wait(&mut self, engine: EngineHash, location: Option<Location>) -> bool {
        let waiting = &mut self.ledger.waiting;
        if !waiting.contains(engine) && waiting.len() >= self.room.waiting {
            self.ledger.counters.refused += 1;
            return false;
        }
        let waiter = waiting.enter(engine);
        let count = &mut waiter.copies[self.tier as usize];
        *count = if self.counting == Counting::Presence { 1 } else { *count + 1 };
        waiter.locations[self.tier as usize] = location;
        true
    }

    /// A block has become known: gives it what waited under its name, and enters what waited for it.
    fn wake(&mut self, engine: EngineHash, number: Number) {
        if let Some(waiter) = self.ledger.waiting.take(engine) {
            self.hold_all(number, &waiter);
        }
        let mut known = vec![(engine, number)];
        while let Some((engine, parent)) = known.pop() {
            for (child, waiter) in self.ledger.waiting.take_children(engine) {
                let Some((_, contents)) = &waiter.link else { continue };
                if !self.has_room() {
                    self.ledger.counters.refused += 1;
                    continue;
                }
                let prefix = self.ledger.slab.get(parent).block;
                let number = self.enter(child, prefix, parent, contents);
                self.hold_all(number, &waiter);
                known.push((child, number));
            }
            let entry = self.ledger.slab.get(parent);
            if !entry.is_held() && !entry.has_children() {
                self.ledger.free(parent);
            }
        }
    }

    fn hold_all(&mut self, number: Number, waiter: &Waiter) {
        for tier in Tier::ALL {
            for _ in 0..waiter.copies[tier as usize] {
                self.hold(number, tier, waiter.locations[tier as usize]);
            }
        }
    }
}
