//! One block of one pod, as its slab stores it.

use wornpath_blocks::BlockHash;

use crate::event::{EngineHash, Tier};

/// Number of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EntryId(pub(crate) u32);

impl EntryId {
    /// No entry.
    pub(crate) const NONE: EntryId = EntryId(u32::MAX);

    /// The number as an array index.
    pub(crate) fn position(self) -> usize {
        self.0 as usize
    }
}

const CHILDREN_SHIFT: u32 = 12;
const MAX_CHILDREN: u32 = u32::MAX >> CHILDREN_SHIFT;
const TIERS: u32 = 0xf;
const SEEN_SHIFT: u32 = 4;

/// Properties of an entry.
#[derive(Clone, Copy)]
pub(crate) enum Flag {
    /// [`crate::replicas`] stores more about its copies.
    Extra = 1 << 8,
    /// It covers several blocks of the index.
    Span = 1 << 9,
    /// Its parent is unknown.
    Unlinked = 1 << 10,
}

/// Set in every used entry.
pub(crate) const IN_USE: u32 = 1 << 11;

/// An entry with one copy on the GPU and one child.
pub(crate) const PLAIN_WITH_CHILD: u32 = IN_USE | 1 << Tier::Gpu as u32 | 1 << CHILDREN_SHIFT;

/// One block of one pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlabEntry {
    pub(crate) engine: EngineHash,
    pub(crate) block: BlockHash,
    /// Its parent; in a free entry, the next free entry.
    pub(crate) parent: EntryId,
    /// children (20 bits, sticky at the top) · flags · seen in a snapshot (4) · tiers (4)
    pub(crate) bits: u32,
}

impl SlabEntry {
    /// Whether it represents a block, held or not.
    pub(crate) fn is_used(&self) -> bool {
        self.bits & IN_USE != 0
    }

    pub(crate) fn is_held(&self) -> bool {
        self.bits & TIERS != 0
    }

    pub(crate) fn is_held_in(&self, tier: Tier) -> bool {
        self.bits & 1 << tier as u32 != 0
    }

    pub(crate) fn set_held(&mut self, tier: Tier, held: bool) {
        let bit = 1 << tier as u32;
        self.bits = if held { self.bits | bit } else { self.bits & !bit };
    }

    /// Whether its only copy is on the GPU.
    pub(crate) fn is_plain(&self) -> bool {
        self.bits & TIERS == 1 << Tier::Gpu as u32
    }

    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.bits & flag as u32 != 0
    }

    pub(crate) fn mark(&mut self, flag: Flag) {
        self.bits |= flag as u32;
    }

    /// Records that a snapshot lists a copy on `tier`; `true` for the first one.
    pub(crate) fn mark_seen(&mut self, tier: Tier) -> bool {
        let before = self.bits;
        self.bits |= 1 << (tier as u32 + SEEN_SHIFT);
        self.bits != before
    }

    /// The tiers that hold it but that the snapshot did not list; resets what the snapshot listed.
    pub(crate) fn take_unseen(&mut self) -> impl Iterator<Item = Tier> + use<> {
        let unseen = self.bits & !(self.bits >> SEEN_SHIFT) & TIERS;
        self.bits &= !(TIERS << SEEN_SHIFT);
        Tier::ALL.into_iter().filter(move |tier| unseen & 1 << *tier as u32 != 0)
    }

    pub(crate) fn has_children(&self) -> bool {
        self.bits >> CHILDREN_SHIFT != 0
    }

    /// Whether it is not held, but has children.
    pub(crate) fn is_hole(&self) -> bool {
        self.is_used() && !self.is_held() && self.has_children()
    }

    pub(crate) fn add_child(&mut self) {
        if self.bits >> CHILDREN_SHIFT < MAX_CHILDREN {
            self.bits += 1 << CHILDREN_SHIFT;
        }
    }

    pub(crate) fn remove_child(&mut self) {
        if self.bits >> CHILDREN_SHIFT < MAX_CHILDREN {
            self.bits -= 1 << CHILDREN_SHIFT;
        }
    }
}
