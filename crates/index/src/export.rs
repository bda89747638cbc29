//! A pod's ledger as a plain list, to be written down and entered again after a restart.
//!
//! The list has what events would need hours to say again: every block under the engine's name and ours, what it
//! follows, and its copies. It does not have what comes again by itself: where copies lie, what is expected, batches
//! before their turn. A pod with blocks that wait for their prefix has no inventory, since they are no part of what
//! is known.
//!
//! Whoever kept the list may have damaged it, so it is entered whole or not at all.

use wornpath_blocks::BlockHash;

use crate::event::{EngineHash, Tier};
use crate::index::PodRemoved;
use crate::ledger::{Caps, Ledger};
use crate::slab::{EntryId, Flag};

/// One of the engine's blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportedBlock {
    /// What the engine calls it.
    pub engine: EngineHash,
    /// Our hash of it; of its last part, if it covers several of the index's blocks.
    pub block: BlockHash,
    /// Our hashes of its other parts, in order.
    pub parts: Box<[BlockHash]>,
    /// What it follows.
    pub before: ExportedParent,
    /// Copies on each tier. None on any: others follow it that are still there.
    pub copies: [u32; 4],
}

/// What an [`ExportedBlock`] follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportedParent {
    /// Nothing: it starts a prompt.
    Start,
    /// The item at this place in the list, which is before its own.
    Item(u32),
    /// Something that is not known.
    Unknown,
}

/// Why an inventory was not entered. The pod holds nothing then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is no such pod.
    #[error(transparent)]
    Gone(#[from] PodRemoved),
    /// It is more than the caps allow.
    #[error("item {at} has no room: the caps on blocks are reached")]
    NoRoom {
        /// The first that has none.
        at: usize,
    },
    /// Two items have one name.
    #[error("item {at} has the name of one before it; names are unique")]
    Twice {
        /// The later.
        at: usize,
    },
    /// An item follows one that does not come before it.
    #[error("item {at} follows one that does not come before it")]
    Order {
        /// The item.
        at: usize,
    },
    /// An item that is held nowhere, and that nothing follows.
    #[error("item {at} is held nowhere and nothing follows it")]
    Useless {
        /// The item.
        at: usize,
    },
}

impl Ledger {
    /// Everything that is known, parents first; nothing if something waits to become known.
    pub(crate) fn inventory(&self) -> Option<Vec<ExportedBlock>> {
        if !self.waiting.is_empty() {
            return None;
        }
        let mut items = Vec::with_capacity(self.slab.len());
        let mut places = vec![None; self.slab.numbers(0).count()];
        let mut path = Vec::new();
        for number in self.slab.numbers(0).filter(|number| self.slab.get(*number).is_used()) {
            let mut at = number;
            while at != EntryId::NONE && places[at.position()].is_none() {
                path.push(at);
                at = self.slab.get(at).parent;
            }
            while let Some(number) = path.pop() {
                places[number.position()] = Some(items.len() as u32);
                items.push(self.item(number, &places));
            }
        }
        Some(items)
    }

    fn item(&self, number: EntryId, places: &[Option<u32>]) -> ExportedBlock {
        let entry = self.slab.get(number);
        let before = match entry.parent {
            EntryId::NONE if entry.has(Flag::Unlinked) => ExportedParent::Unknown,
            EntryId::NONE => ExportedParent::Start,
            parent => {
                places[parent.position()].map_or(ExportedParent::Unknown, ExportedParent::Item)
            }
        };
        let mut copies = [0; 4];
        for tier in Tier::ALL.into_iter().filter(|tier| entry.is_held_in(*tier)) {
            copies[tier as usize] = self.copies.count(number, tier);
        }
        let span = entry.has(Flag::Span).then(|| self.spans[&number].clone());
        let parts = span.unwrap_or_default();
        ExportedBlock { engine: entry.engine, block: entry.block, parts, before, copies }
    }

    /// Enters an inventory into a ledger that is empty; `set` receives the blocks that the pod now holds. After an
    /// error the ledger is to be cleared.
    pub(crate) fn restore(
        &mut self,
        items: &[ExportedBlock],
        room: Caps,
        set: &mut Vec<BlockHash>,
    ) -> Result<(), RestoreError> {
        let mut numbers = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            if self.slab.len() >= room.entries || self.slab.is_full() {
                return Err(RestoreError::NoRoom { at });
            }
            if self.slab.find(item.engine).is_some() {
                return Err(RestoreError::Twice { at });
            }
            let parent = match item.before {
                ExportedParent::Start | ExportedParent::Unknown => EntryId::NONE,
                ExportedParent::Item(before) => {
                    *numbers.get(before as usize).ok_or(RestoreError::Order { at })?
                }
            };
            let number = self.slab.insert(item.engine, item.block, parent);
            numbers.push(number);
            self.enter_item(number, item, set);
        }
        let useless = |number: &EntryId| {
            let entry = self.slab.get(*number);
            !entry.is_held() && !entry.has_children()
        };
        match numbers.iter().position(useless) {
            Some(at) => Err(RestoreError::Useless { at }),
            None => Ok(()),
        }
    }

    fn enter_item(&mut self, number: EntryId, item: &ExportedBlock, set: &mut Vec<BlockHash>) {
        let entry = self.slab.get_mut(number);
        if item.before == ExportedParent::Unknown {
            entry.mark(Flag::Unlinked);
            self.unlinked += 1;
        }
        if !item.parts.is_empty() {
            entry.mark(Flag::Span);
            self.spans.insert(number, item.parts.clone());
        }
        for (tier, count) in Tier::ALL.into_iter().zip(item.copies) {
            if count == 0 {
                continue;
            }
            entry.set_held(tier, true);
            self.tiers[tier as usize].add(item.engine.0);
            if count > 1 {
                entry.mark(Flag::Extra);
                self.copies.set_count(number, tier, count);
            }
        }
        if entry.is_held() {
            self.blocks.add(item.block.0);
            self.blocks_of(number, |block| set.push(block));
        } else {
            self.holes += 1;
        }
        self.note_special(number);
    }
}
