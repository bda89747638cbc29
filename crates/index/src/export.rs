//! Exports a pod's ledger as a plain list, for a checkpoint that is restored after a restart.
//!
//! The list contains what events would take hours to report again: every block under the engine's
//! hash and ours, its parent, and its copies. It leaves out what comes back by itself: locations of
//! copies, speculative blocks, early batches. A pod with orphans has no export, since their
//! prefixes are unknown.
//!
//! The list may be damaged when it comes back, so it is restored completely or not at all.

use wornpath_blocks::BlockHash;

use crate::entry::{EntryId, Flag};
use crate::event::{EngineHash, Tier};
use crate::ledger::{Ledger, LedgerLimits};
use crate::state::PodRemoved;

/// A block of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportedBlock {
    /// The engine's hash of it.
    pub engine: EngineHash,
    /// Our hash of it; of its last part, if it covers several blocks of the index.
    pub block: BlockHash,
    /// Our hashes of its other parts, in order.
    pub parts: Box<[BlockHash]>,
    /// Its parent.
    pub before: ExportedParent,
    /// Copies on each tier. All zero for a removed block that still has children.
    pub copies: [u32; 4],
}

/// The parent of an [`ExportedBlock`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportedParent {
    /// None: the block starts a prompt.
    Start,
    /// The item at this position of the list, which comes before the child.
    Item(u32),
    /// Not known.
    Unknown,
}

/// Why an export was not restored. The pod holds nothing then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// The pod was removed.
    #[error(transparent)]
    Gone(#[from] PodRemoved),
    /// The export exceeds a limit of the index.
    #[error("item {at} exceeds the block limit of the index")]
    LimitReached {
        /// The first item beyond the limit.
        at: usize,
    },
    /// Two items have the same engine hash.
    #[error("item {at} repeats the engine hash of an earlier item; engine hashes must be unique")]
    Duplicate {
        /// The later item.
        at: usize,
    },
    /// An item comes before its parent.
    #[error("item {at} comes before its parent; parents must come first")]
    Order {
        /// The child.
        at: usize,
    },
    /// An item has neither copies nor children.
    #[error("item {at} has neither copies nor children")]
    Unused {
        /// The item.
        at: usize,
    },
}

impl Ledger {
    /// All blocks, parents first; `None` if there are orphans.
    pub(crate) fn export(&self) -> Option<Vec<ExportedBlock>> {
        if !self.orphans.is_empty() {
            return None;
        }
        let mut items = Vec::with_capacity(self.slab.len());
        let mut positions = vec![None; self.slab.numbers(0).count()];
        let mut path = Vec::new();
        for number in self.slab.numbers(0).filter(|number| self.slab.get(*number).is_used()) {
            let mut at = number;
            while at != EntryId::NONE && positions[at.position()].is_none() {
                path.push(at);
                at = self.slab.get(at).parent;
            }
            while let Some(number) = path.pop() {
                positions[number.position()] = Some(items.len() as u32);
                items.push(self.item(number, &positions));
            }
        }
        Some(items)
    }

    fn item(&self, number: EntryId, positions: &[Option<u32>]) -> ExportedBlock {
        let entry = self.slab.get(number);
        let before = match entry.parent {
            EntryId::NONE if entry.has(Flag::Unlinked) => ExportedParent::Unknown,
            EntryId::NONE => ExportedParent::Start,
            parent => {
                positions[parent.position()].map_or(ExportedParent::Unknown, ExportedParent::Item)
            }
        };
        let mut copies = [0; 4];
        for tier in Tier::ALL.into_iter().filter(|tier| entry.is_held_in(*tier)) {
            copies[tier as usize] = self.replicas.count(number, tier);
        }
        let parts = self.slab.span(number).into();
        ExportedBlock { engine: entry.engine, block: entry.block, parts, before, copies }
    }

    /// Restores an export into an empty ledger; `set` receives the blocks that the pod now holds.
    /// After an error the caller must clear the ledger.
    pub(crate) fn restore(
        &mut self,
        items: &[ExportedBlock],
        caps: LedgerLimits,
        set: &mut Vec<BlockHash>,
    ) -> Result<(), RestoreError> {
        let mut numbers = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let weight = self.slab.weight() + item.parts.len();
            if weight >= caps.blocks || self.slab.is_full() {
                return Err(RestoreError::LimitReached { at });
            }
            if self.slab.find(item.engine).is_some() {
                return Err(RestoreError::Duplicate { at });
            }
            let parent = match item.before {
                ExportedParent::Start | ExportedParent::Unknown => EntryId::NONE,
                ExportedParent::Item(before) => {
                    *numbers.get(before as usize).ok_or(RestoreError::Order { at })?
                }
            };
            let number = self.slab.insert(item.engine, item.block, parent);
            numbers.push(number);
            self.restore_item(number, item, set);
        }
        let is_unused = |number: &EntryId| {
            let entry = self.slab.get(*number);
            !entry.is_held() && !entry.has_children()
        };
        match numbers.iter().position(is_unused) {
            Some(at) => Err(RestoreError::Unused { at }),
            None => Ok(()),
        }
    }

    fn restore_item(&mut self, number: EntryId, item: &ExportedBlock, set: &mut Vec<BlockHash>) {
        if item.before == ExportedParent::Unknown {
            self.slab.get_mut(number).mark(Flag::Unlinked);
            self.unlinked += 1;
        }
        if !item.parts.is_empty() {
            self.slab.set_span(number, item.parts.clone());
        }
        let entry = self.slab.get_mut(number);
        for (tier, count) in Tier::ALL.into_iter().zip(item.copies) {
            if count == 0 {
                continue;
            }
            entry.set_held(tier, true);
            self.tiers[tier as usize].add(item.engine.0);
            if count > 1 {
                entry.mark(Flag::Extra);
                self.replicas.set_count(number, tier, count);
            }
        }
        if entry.is_held() {
            self.blocks.add(item.block.0);
            set.extend(self.slab.blocks_of(number));
        } else {
            self.holes += 1;
            self.pod_holes.begin(number);
        }
        self.note_special(number);
    }
}
