//! Orphans: stored blocks whose prefix is not known yet.
//!
//! A block's hash depends on its parent's, so a stored event with an unknown parent cannot be
//! inserted. It must not be lost either: the parent may arrive later (events out of order, an
//! offload tier that reports first). The block is kept here, and no query reports it meanwhile. A
//! name without content is kept likewise, until an event tells its content. At the limit, the
//! oldest orphans are dropped: what they wait for may never come.
//!
//! An orphan that is removed again may be the parent of other orphans; it then stays, held by no
//! tier, until they are removed.

use std::collections::{BTreeMap, VecDeque};

use wornpath_blocks::ContentHash;

use crate::event::{EngineHash, Location, Tier};

/// A block whose prefix is unknown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orphan {
    /// Its parent and its contents; `None` for a bare name.
    pub(crate) link: Option<(EngineHash, Box<[ContentHash]>)>,
    /// Copies per tier.
    pub(crate) copies: [u32; 4],
    pub(crate) locations: [Option<Location>; 4],
    /// Distinguishes it from earlier orphans of the same name.
    number: u64,
}

impl Orphan {
    fn is_held(&self) -> bool {
        self.copies.iter().any(|count| *count > 0)
    }

    /// The blocks of the index that it stands for, as far as that is known.
    fn weight(&self) -> usize {
        self.link.as_ref().map_or(1, |(_, contents)| contents.len())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// No hash table: a full one doubles after its entries have come and gone often enough.
    blocks: BTreeMap<EngineHash, Orphan>,
    /// Oldest first, as they are dropped.
    children: BTreeMap<EngineHash, VecDeque<EngineHash>>,
    /// The sum of all weights.
    weight: usize,
    /// Oldest first, with names that are no longer orphans.
    order: VecDeque<(EngineHash, u64)>,
    /// How many orphans there have been.
    created: u64,
}

impl Orphans {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The blocks of the index that all orphans stand for.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Drops the oldest orphans until one of `blocks` blocks fits below `most`. Returns how many
    /// were dropped, or `None` if it does not fit at all.
    pub(crate) fn make_room(
        &mut self,
        engine: EngineHash,
        blocks: usize,
        most: usize,
    ) -> Option<u64> {
        let mut dropped = 0;
        while !self.blocks.contains_key(&engine) && self.weight + blocks > most {
            let (oldest, number) = self.order.pop_front()?;
            if self.is_current(oldest, number) {
                self.take(oldest);
                dropped += 1;
            }
        }
        Some(dropped)
    }

    /// The orphan of this name, created if absent.
    pub(crate) fn entry(&mut self, engine: EngineHash) -> &mut Orphan {
        if !self.blocks.contains_key(&engine) {
            self.weight += 1;
            self.created += 1;
            self.order.push_back((engine, self.created));
            if self.order.len() > 2 * self.blocks.len() + 64 {
                let order = std::mem::take(&mut self.order);
                self.order =
                    order.into_iter().filter(|(name, it)| self.is_current(*name, *it)).collect();
                self.order.push_back((engine, self.created));
            }
        }
        let number = self.created;
        self.blocks.entry(engine).or_insert_with(|| Orphan { number, ..Orphan::default() })
    }

    fn is_current(&self, engine: EngineHash, number: u64) -> bool {
        self.blocks.get(&engine).is_some_and(|orphan| orphan.number == number)
    }

    fn remove_entry(&mut self, engine: EngineHash) -> Option<Orphan> {
        let orphan = self.blocks.remove(&engine)?;
        self.weight -= orphan.weight();
        Some(orphan)
    }

    /// Sets the parent and the contents of an orphan, unless they are known.
    pub(crate) fn link(
        &mut self,
        engine: EngineHash,
        parent: EngineHash,
        contents: &[ContentHash],
    ) {
        let orphan = self.entry(engine);
        if orphan.link.is_none() && parent != engine {
            orphan.link = Some((parent, contents.into()));
            self.weight += contents.len() - 1;
            self.children.entry(parent).or_default().push_back(engine);
        }
    }

    /// Removes a block that has become known.
    pub(crate) fn take(&mut self, engine: EngineHash) -> Option<Orphan> {
        let orphan = self.remove_entry(engine)?;
        if let Some((parent, _)) = &orphan.link {
            self.unlink(*parent, engine);
        }
        Some(orphan)
    }

    /// Removes the orphans whose parent is `parent`.
    pub(crate) fn take_children(&mut self, parent: EngineHash) -> Vec<(EngineHash, Orphan)> {
        let children = self.children.remove(&parent).unwrap_or_default();
        let orphan = |child| self.remove_entry(child).map(|orphan| (child, orphan));
        children.into_iter().filter_map(orphan).collect()
    }

    /// Removes copies of an orphan: one, or all if the source does not count copies. `false` if
    /// there was none.
    pub(crate) fn remove(&mut self, engine: EngineHash, tier: Tier, all: bool) -> bool {
        let Some(orphan) = self.blocks.get_mut(&engine) else { return false };
        let count = &mut orphan.copies[tier as usize];
        if *count == 0 {
            return false;
        }
        *count = if all { 0 } else { *count - 1 };
        self.drop_unused(engine);
        true
    }

    /// Each iteration removes an orphan, so names that form a cycle end the loop too.
    fn drop_unused(&mut self, mut engine: EngineHash) {
        while let Some(orphan) = self.blocks.get(&engine)
            && !orphan.is_held()
            && !self.children.contains_key(&engine)
        {
            let Some(Orphan { link: Some((parent, _)), .. }) = self.remove_entry(engine) else {
                return;
            };
            self.unlink(parent, engine);
            engine = parent;
        }
    }

    fn unlink(&mut self, parent: EngineHash, child: EngineHash) {
        if let Some(children) = self.children.get_mut(&parent) {
            if let Some(at) = children.iter().position(|other| *other == child) {
                children.remove(at);
            }
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
    }
}
