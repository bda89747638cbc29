//! What there is to say of a pod's copies beyond "one, on the GPU": the exceptions.
//!
//! Engines announce each physical copy, and concurrent identical prefixes make several under one
//! hash, so copies are counted per tier. Almost all counts are one and almost all copies lie on the
//! GPU without a stated location; only what differs is stored here.

use std::collections::HashMap;

use wornpath_blocks::BlockHash;

use crate::block_map::BlockMap;
use crate::event::{Location, Tier};
use crate::slab::EntryId;

/// What is known of the copies of one block on one tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaDetails {
    pub(crate) count: u32,
    pub(crate) location: Option<Location>,
}

/// A block as its pod holds it: which tiers, and where on the fastest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLocation {
    /// The fastest tier that holds it.
    pub tier: Tier,
    /// Where on that tier, when the engine says so.
    pub location: Option<Location>,
}

#[derive(Debug, Default)]
pub(crate) struct Replicas {
    extras: HashMap<(EntryId, Tier), ReplicaDetails>,
    /// Entries that are not simply on the GPU, to find them by our hash; one block can have several.
    special: BlockMap<Vec<EntryId>>,
}

impl Replicas {
    pub(crate) fn is_empty(&self) -> bool {
        self.extras.is_empty() && self.special.is_empty()
    }

    /// One more copy on a tier that already holds one.
    pub(crate) fn add(&mut self, number: EntryId, tier: Tier) {
        let extra = self
            .extras
            .entry((number, tier))
            .or_insert(ReplicaDetails { count: 1, location: None });
        extra.count = extra.count.saturating_add(1);
    }

    /// How many copies there are on a tier that holds one.
    pub(crate) fn count(&self, number: EntryId, tier: Tier) -> u32 {
        self.extras.get(&(number, tier)).map_or(1, |extra| extra.count)
    }

    /// Says how many copies there are on a tier.
    pub(crate) fn set_count(&mut self, number: EntryId, tier: Tier, count: u32) {
        self.extras.insert((number, tier), ReplicaDetails { count, location: None });
    }

    /// Back to a single copy, wherever it lies.
    pub(crate) fn reset(&mut self, number: EntryId, tier: Tier) {
        self.extras.remove(&(number, tier));
    }

    pub(crate) fn locate(&mut self, number: EntryId, tier: Tier, location: Location) {
        let extra = self
            .extras
            .entry((number, tier))
            .or_insert(ReplicaDetails { count: 1, location: None });
        extra.location = Some(location);
    }

    /// Takes one copy of several away; `false` when there is but one.
    pub(crate) fn take_one_of_several(&mut self, number: EntryId, tier: Tier) -> bool {
        match self.extras.get_mut(&(number, tier)) {
            Some(extra) if extra.count > 1 => {
                extra.count -= 1;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn location(&self, number: EntryId, tier: Tier) -> Option<Location> {
        self.extras.get(&(number, tier)).and_then(|extra| extra.location)
    }

    pub(crate) fn is_located(&self, number: EntryId) -> bool {
        Tier::ALL.iter().any(|tier| self.location(number, *tier).is_some())
    }

    pub(crate) fn set_special(&mut self, block: BlockHash, number: EntryId) {
        let numbers = self.special.entry(block).or_default();
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }

    pub(crate) fn unset_special(&mut self, block: BlockHash, number: EntryId) {
        if let Some(numbers) = self.special.get_mut(&block) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.special.remove(&block);
            }
        }
    }

    /// The entries of a block that are not simply on the GPU.
    pub(crate) fn special(&self, block: BlockHash) -> &[EntryId] {
        self.special.get(&block).map_or(&[], |numbers| numbers)
    }
}
