//! Entering stored copies into a pod's ledger: the writing half of [`crate::ledger`].
//!
//! The blocks of a store are taken one after another, each the prefix of the next. A block is known
//! already, or follows a known prefix and is entered, or has to wait for its prefix; what waited for a
//! block that has become known is entered after it.

use wornpath_blocks::{BlockHash, ContentHash};

use crate::event::{Content, EngineHash, Location, Parent, StoredBlocks, Tier};
use crate::ledger::{Caps, Counting, Ledger};
use crate::orphans::Orphan;
use crate::slab::{EntryId, Flag};

/// What precedes the block at hand.
#[derive(Clone, Copy)]
enum Prefix {
    Known(BlockHash, EntryId),
    Unknown(EngineHash),
    /// It could not be entered, so nothing after it can be.
    Refused,
}

impl Ledger {
    /// Enters stored copies; `set` receives the blocks that the pod now holds and did not before.
    pub(crate) fn store(
        &mut self,
        stored: &StoredBlocks<'_>,
        counting: Counting,
        room: Caps,
        set: &mut Vec<BlockHash>,
    ) {
        let located = stored.locations.len();
        if located != 0 && located != stored.blocks.len() {
            self.counters.malformed += 1;
            return;
        }
        self.slab.prefetch(stored.blocks);
        let mut entering = InsertPass { ledger: self, tier: stored.tier, counting, room, set };
        match stored.content {
            Content::Chained { parent, contents } => {
                entering.chained(stored.blocks, parent, contents, stored.locations);
            }
            Content::Named => entering.named(stored.blocks, stored.locations),
            Content::Native => entering.native(stored.blocks, stored.locations),
        }
    }
}

/// A store under way.
struct InsertPass<'a> {
    ledger: &'a mut Ledger,
    tier: Tier,
    counting: Counting,
    room: Caps,
    set: &'a mut Vec<BlockHash>,
}

impl InsertPass<'_> {
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
            Parent::Root(seed) => Prefix::Known(seed, EntryId::NONE),
            Parent::Block(engine) => match self.ledger.slab.find(engine) {
                Some(number) => Prefix::Known(self.ledger.slab.get(number).block, number),
                None => Prefix::Unknown(engine),
            },
        };
        let plain = each == 1 && locations.is_empty();
        let mut at = 0;
        while at < blocks.len() {
            if plain && self.is_plain() {
                let entered;
                (entered, prefix) = self.enter_run(&blocks[at..], &contents[at..], prefix);
                at += entered;
            }
            if let Some(engine) = blocks.get(at) {
                let contents = &contents[at * each..(at + 1) * each];
                prefix = self.one(*engine, prefix, contents, locations.get(at).copied());
                at += 1;
            }
        }
    }

    /// Whether a new block is simply one copy on the GPU, for which nothing waits.
    fn is_plain(&self) -> bool {
        let simple = self.tier == Tier::Gpu && self.counting != Counting::Snapshot;
        simple && self.ledger.waiting.is_empty()
    }

    /// The common case at once: new blocks after a known prefix, one copy of each on the GPU. Returns
    /// how many of them were that simple, and what precedes the next.
    fn enter_run(
        &mut self,
        blocks: &[EngineHash],
        contents: &[ContentHash],
        prefix: Prefix,
    ) -> (usize, Prefix) {
        let Self { ledger, set, room, .. } = self;
        let Prefix::Known(hash, parent) = prefix else { return (0, prefix) };
        let most = blocks.len().min(room.entries.saturating_sub(ledger.slab.len()));
        if !ledger.slab.has_numbers(most) {
            return (0, prefix);
        }
        let from = set.len();
        set.extend(hash.chain(&contents[..most]));
        let (entered, last) = ledger.slab.insert_run(&blocks[..most], &set[from..], parent);
        set.truncate(from + entered);
        ledger.tiers[Tier::Gpu as usize].add_all(blocks[..entered].iter().map(|engine| engine.0));
        ledger.blocks.add_all(set[from..].iter().map(|block| block.0));
        (entered, Prefix::Known(set.last().filter(|_| entered > 0).copied().unwrap_or(hash), last))
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
                let number = self.ledger.slab.insert(*engine, block, EntryId::NONE);
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
        parent: EntryId,
        contents: &[ContentHash],
    ) -> EntryId {
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

    fn hold(&mut self, number: EntryId, tier: Tier, location: Option<Location>) {
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
    fn wake(&mut self, engine: EngineHash, number: EntryId) {
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

    fn hold_all(&mut self, number: EntryId, waiter: &Orphan) {
        for tier in Tier::ALL {
            for _ in 0..waiter.copies[tier as usize] {
                self.hold(number, tier, waiter.locations[tier as usize]);
            }
        }
    }
}
