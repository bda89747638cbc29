//! Inserts stored copies into a pod's ledger: the writing half of [`crate::ledger`].
//!
//! The blocks of a stored event are inserted in order, each the parent of the next. A block is
//! known already, or follows a known prefix and is inserted, or becomes an orphan; orphans whose
//! parent becomes known are inserted after it.

use wornpath_blocks::{BlockHash, ContentHash};

use crate::entry::{EntryId, Flag};
use crate::event::{Content, EngineHash, Location, Parent, StoredBlocks, Tier};
use crate::ledger::{Counting, Ledger, LedgerLimits};
use crate::orphans::Orphan;
use crate::removed::RemovedBlock;

/// The parent of the current block.
#[derive(Clone, Copy)]
enum Prefix {
    Known(BlockHash, EntryId),
    Unknown(EngineHash),
    /// It was not inserted, so no block after it can be.
    Refused,
}

impl Ledger {
    /// Inserts stored copies; `set` receives the blocks that the pod newly holds.
    pub(crate) fn store(
        &mut self,
        stored: &StoredBlocks<'_>,
        counting: Counting,
        caps: LedgerLimits,
        set: &mut Vec<BlockHash>,
    ) {
        let located = stored.locations.len();
        if located != 0 && located != stored.blocks.len() {
            self.counters.malformed += 1;
            return;
        }
        self.slab.prefetch(stored.blocks);
        let mut pass = InsertPass { ledger: self, tier: stored.tier, counting, caps, set };
        match stored.content {
            Content::Chained { parent, contents } => {
                pass.chained(stored.blocks, parent, contents, stored.locations);
            }
            Content::KnownAliases => pass.named(stored.blocks, stored.locations),
            Content::IndexHashes => pass.native(stored.blocks, stored.locations),
        }
    }
}

/// The insertion of one stored event.
struct InsertPass<'a> {
    ledger: &'a mut Ledger,
    tier: Tier,
    counting: Counting,
    caps: LedgerLimits,
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
                let inserted;
                (inserted, prefix) = self.insert_run(&blocks[at..], &contents[at..], prefix);
                at += inserted;
            }
            if let Some(engine) = blocks.get(at) {
                let contents = &contents[at * each..(at + 1) * each];
                prefix = self.insert_one(*engine, prefix, contents, locations.get(at).copied());
                at += 1;
            }
        }
    }

    /// Whether a new block is just one copy on the GPU, and no orphan can follow it.
    fn is_plain(&self) -> bool {
        let simple = self.tier == Tier::Gpu && self.counting != Counting::Snapshot;
        simple && self.ledger.orphans.is_empty()
    }

    /// Inserts the common case at once: new blocks after a known prefix, one copy of each on the
    /// GPU. Returns how many blocks that applied to, and the parent of the next.
    fn insert_run(
        &mut self,
        blocks: &[EngineHash],
        contents: &[ContentHash],
        prefix: Prefix,
    ) -> (usize, Prefix) {
        let Self { ledger, set, caps, .. } = self;
        let Prefix::Known(hash, parent) = prefix else { return (0, prefix) };
        let max = blocks.len().min(caps.blocks.saturating_sub(ledger.slab.weight()));
        if !ledger.slab.has_numbers(max) {
            return (0, prefix);
        }
        let from = set.len();
        set.extend(hash.chain(&contents[..max]));
        let (inserted, last) = ledger.slab.insert_run(&blocks[..max], &set[from..], parent);
        set.truncate(from + inserted);
        ledger.tiers[Tier::Gpu as usize].add_all(blocks[..inserted].iter().map(|engine| engine.0));
        ledger.blocks.add_all(set[from..].iter().map(|block| block.0));
        (
            inserted,
            Prefix::Known(set.last().filter(|_| inserted > 0).copied().unwrap_or(hash), last),
        )
    }

    fn insert_one(
        &mut self,
        engine: EngineHash,
        prefix: Prefix,
        contents: &[ContentHash],
        location: Option<Location>,
    ) -> Prefix {
        if let Some(number) = self.ledger.slab.find(engine) {
            self.add_copy(number, self.tier, location);
            return Prefix::Known(self.ledger.slab.get(number).block, number);
        }
        match prefix {
            Prefix::Known(..) if !self.has_capacity(contents.len()) => {
                self.ledger.counters.refused += 1;
                Prefix::Refused
            }
            Prefix::Known(hash, parent) => {
                let number = self.add_entry(engine, hash, parent, contents);
                self.add_copy(number, self.tier, location);
                if !self.ledger.orphans.is_empty() {
                    self.adopt_orphans(engine, number);
                }
                Prefix::Known(self.ledger.slab.get(number).block, number)
            }
            Prefix::Unknown(parent) => {
                if self.add_orphan(engine, contents.len(), location) {
                    self.ledger.orphans.link(engine, parent, contents);
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
            if let Some(number) = self.ledger.slab.find(*engine) {
                self.add_copy(number, self.tier, location);
            } else if !self.insert_again(*engine, location) {
                self.add_orphan(*engine, 1, location);
            }
        }
    }

    /// Inserts a block that was removed a moment ago, after its prefix: blocks before it that were
    /// removed as well become holes, until their names come. `false` if they are not remembered.
    fn insert_again(&mut self, engine: EngineHash, location: Option<Location>) -> bool {
        let mut path: Vec<RemovedBlock> = Vec::new();
        let mut weight = 0;
        let mut next = engine;
        let mut parent = loop {
            let Some(removed) = self.ledger.removed.find(next) else { return false };
            weight += self.ledger.removed.span(next).len() + 1;
            next = removed.parent;
            let is_first = removed.parent == removed.engine;
            path.push(removed);
            if is_first {
                break EntryId::NONE;
            }
            if let Some(number) = self.ledger.slab.find(next) {
                break number;
            }
            // Names that form a cycle end here.
            if path.len() > self.ledger.removed.len() {
                return false;
            }
        };
        if !self.has_capacity(weight) || !self.ledger.slab.has_numbers(path.len()) {
            return false;
        }
        let mut inserted = Vec::with_capacity(path.len());
        for RemovedBlock { engine, block, .. } in path.into_iter().rev() {
            let ledger = &mut *self.ledger;
            let number = ledger.slab.insert(engine, block, parent);
            let span = ledger.removed.span(engine);
            if !span.is_empty() {
                ledger.slab.set_span(number, span.into());
            }
            ledger.holes += 1;
            inserted.push((engine, number));
            parent = number;
        }
        self.add_copy(parent, self.tier, location);
        inserted.iter().for_each(|(_, number)| self.ledger.pod_holes.begin(*number));
        if !self.ledger.orphans.is_empty() {
            // They may be orphans of each other, so all are taken before children are looked for.
            for (engine, number) in &inserted {
                if let Some(orphan) = self.ledger.orphans.take(*engine) {
                    self.add_copies(*number, &orphan);
                }
            }
            for (engine, number) in inserted {
                self.adopt_orphans(engine, number);
            }
        }
        true
    }

    fn native(&mut self, blocks: &[EngineHash], locations: &[Location]) {
        for (at, engine) in blocks.iter().enumerate() {
            let location = locations.get(at).copied();
            let known = self.ledger.slab.find(*engine);
            if known.is_none() && !self.has_capacity(1) {
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
            self.add_copy(number, self.tier, location);
            if !self.ledger.orphans.is_empty() {
                self.adopt_orphans(*engine, number);
            }
        }
    }

    /// Whether an entry that covers `blocks` blocks may be added.
    fn has_capacity(&self, blocks: usize) -> bool {
        let slab = &self.ledger.slab;
        slab.weight() + blocks <= self.caps.blocks && !slab.is_full()
    }

    /// Adds an entry, held by no tier yet, after a known prefix.
    fn add_entry(
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
            ledger.slab.set_span(number, span);
            number
        };
        ledger.holes += 1;
        number
    }

    fn add_copy(&mut self, number: EntryId, tier: Tier, location: Option<Location>) {
        let ledger = &mut *self.ledger;
        let entry = ledger.slab.get_mut(number);
        let first = self.counting == Counting::Snapshot && entry.mark_seen(tier);
        if entry.is_held_in(tier) {
            if first {
                ledger.replicas.reset(number, tier);
            } else if self.counting != Counting::Presence {
                entry.mark(Flag::Extra);
                ledger.replicas.add(number, tier);
            }
        } else {
            let was_held = entry.is_held();
            entry.set_held(tier, true);
            ledger.tiers[tier as usize].add(entry.engine.0);
            if !was_held {
                ledger.blocks.add(entry.block.0);
                ledger.holes -= 1;
                ledger.pod_holes.end(number);
                self.set.extend(ledger.slab.blocks_of(number));
            }
        }
        if let Some(location) = location {
            ledger.slab.get_mut(number).mark(Flag::Extra);
            ledger.replicas.set_location(number, tier, location);
        }
        ledger.note_special(number);
    }

    /// Adds a copy of an orphan of `blocks` blocks, in the place of older ones if the limit is
    /// reached; `false` if it exceeds the limit alone.
    fn add_orphan(
        &mut self,
        engine: EngineHash,
        blocks: usize,
        location: Option<Location>,
    ) -> bool {
        let orphans = &mut self.ledger.orphans;
        let dropped = orphans.make_room(engine, blocks, self.caps.orphans);
        self.ledger.counters.refused += dropped.unwrap_or(1);
        if dropped.is_none() {
            return false;
        }
        let orphan = orphans.entry(engine);
        let count = &mut orphan.copies[self.tier as usize];
        *count = if self.counting == Counting::Presence { 1 } else { *count + 1 };
        orphan.locations[self.tier as usize] = location;
        true
    }

    /// A block has become known: adds the copies stored under its name, then inserts its orphaned
    /// children.
    fn adopt_orphans(&mut self, engine: EngineHash, number: EntryId) {
        if let Some(orphan) = self.ledger.orphans.take(engine) {
            self.add_copies(number, &orphan);
        }
        let mut known = vec![(engine, number)];
        while let Some((engine, parent)) = known.pop() {
            for (child, orphan) in self.ledger.orphans.take_children(engine) {
                let Some((_, contents)) = &orphan.link else { continue };
                if !self.has_capacity(contents.len()) {
                    self.ledger.counters.refused += 1;
                    continue;
                }
                let prefix = self.ledger.slab.get(parent).block;
                let number = self.add_entry(child, prefix, parent, contents);
                self.add_copies(number, &orphan);
                known.push((child, number));
            }
            let entry = self.ledger.slab.get(parent);
            if entry.is_hole() {
                self.ledger.pod_holes.begin(parent);
            } else if !entry.is_held() {
                self.ledger.free(parent);
            }
        }
    }

    fn add_copies(&mut self, number: EntryId, orphan: &Orphan) {
        for tier in Tier::ALL {
            for _ in 0..orphan.copies[tier as usize] {
                self.add_copy(number, tier, orphan.locations[tier as usize]);
            }
        }
    }
}
