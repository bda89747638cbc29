//! Copies of a pod's blocks that are not just one on the GPU.
//!
//! Engines report each physical copy, and concurrent identical prefixes create several under one
//! hash, so copies are counted per tier. Almost all counts are one, and almost all copies are on
//! the GPU without a stated location; only the exceptions are stored here.

use std::collections::HashMap;

use wornpath_blocks::BlockHash;

use crate::block_map::BlockMap;
use crate::entry::EntryId;
use crate::event::{Location, Tier};

/// The copies of one block on one tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaDetails {
    pub(crate) count: u32,
    pub(crate) location: Option<Location>,
}

/// The fastest copy of a block on a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLocation {
    /// The fastest tier that holds the block.
    pub tier: Tier,
    /// Its location on that tier, if the engine reports it.
    pub location: Option<Location>,
}

#[derive(Debug, Default)]
pub(crate) struct Replicas {
    extras: HashMap<(EntryId, Tier), ReplicaDetails>,
    /// Entries with copies elsewhere than on the GPU, or with a location, by our hash; one block
    /// can have several.
    special: BlockMap<Vec<EntryId>>,
}

impl Replicas {
    pub(crate) fn is_empty(&self) -> bool {
        self.extras.is_empty() && self.special.is_empty()
    }

    /// Adds a copy to a tier that already holds one.
    pub(crate) fn add(&mut self, number: EntryId, tier: Tier) {
        let extra = self
            .extras
            .entry((number, tier))
            .or_insert(ReplicaDetails { count: 1, location: None });
        extra.count = extra.count.saturating_add(1);
    }

    /// The number of copies on a tier that holds one.
    pub(crate) fn count(&self, number: EntryId, tier: Tier) -> u32 {
        self.extras.get(&(number, tier)).map_or(1, |extra| extra.count)
    }

    pub(crate) fn set_count(&mut self, number: EntryId, tier: Tier, count: u32) {
        self.extras.insert((number, tier), ReplicaDetails { count, location: None });
    }

    /// Resets a tier to a single copy without location.
    pub(crate) fn reset(&mut self, number: EntryId, tier: Tier) {
        self.extras.remove(&(number, tier));
    }

    pub(crate) fn set_location(&mut self, number: EntryId, tier: Tier, location: Location) {
        let extra = self
            .extras
            .entry((number, tier))
            .or_insert(ReplicaDetails { count: 1, location: None });
        extra.location = Some(location);
    }

    /// Removes one copy of several; `false` if there is only one.
    pub(crate) fn remove_one_of_several(&mut self, number: EntryId, tier: Tier) -> bool {
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

    /// The entries of a block that [`Self::set_special`] added.
    pub(crate) fn special(&self, block: BlockHash) -> &[EntryId] {
        self.special.get(&block).map_or(&[], |numbers| numbers)
    }
}
