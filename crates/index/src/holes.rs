//! Known holes: evicted blocks that held blocks follow, for queries to check.
//!
//! A query that skips blocks relies on prefixes without holes. A pod with a hole is not a reason to
//! read every block: a block's hash names its whole prefix, so it stands at one position of every
//! chain that contains it. A query compares its chain at that position with the hash. If they
//! differ, the hole is on another chain, and the pod holds what the search finds; if they are
//! equal, the pod holds exactly the blocks before the first such position.
//!
//! There is room for a few holes in all ([`Holes`]) and per pod ([`PodHoles`]), so that a query
//! stays fast. A pod with more is a suspect: its part of the answer comes from a walk over the
//! chain, and that of all other pods from the search. So is a pod while its holes change.

use std::collections::HashSet;

use wornpath_blocks::BlockHash;

use crate::entry::{EntryId, Flag};
use crate::pod::PodSlot;
use crate::slab::Slab;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// Holes of all pods that queries can check.
#[cfg(not(loom))]
const ALL: usize = 64;
#[cfg(loom)]
const ALL: usize = 1;

/// Holes of one pod that queries can check.
const PER_POD: usize = 8;

/// Blocks before a hole that are counted to find its position.
const MAX_POSITION: usize = 1 << 14;

/// The holes that queries can check.
#[derive(Debug)]
pub(crate) struct Holes {
    places: Box<[HolePlace]>,
    /// No place from here on was ever used.
    end: AtomicU32,
    free: Mutex<Vec<u16>>,
}

#[derive(Debug)]
struct HolePlace {
    block: AtomicU64,
    /// used (1 bit) · pod (16) · position (32)
    hole: AtomicU64,
}

const USED: u64 = 1 << 63;

/// A hole on the chain of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoleOnChain {
    pub(crate) slot: PodSlot,
    pub(crate) position: u32,
}

impl Holes {
    pub(crate) fn new() -> Self {
        let place = |_| HolePlace { block: AtomicU64::new(0), hole: AtomicU64::new(0) };
        Self {
            places: (0..ALL).map(place).collect(),
            end: AtomicU32::new(0),
            free: Mutex::new((0..ALL as u16).rev().collect()),
        }
    }

    /// Finds the holes that may be on a chain. The caller must be able to tell whether a place was
    /// given back meanwhile.
    #[inline]
    pub(crate) fn on_chain(&self, chain: &[BlockHash], mut found: impl FnMut(HoleOnChain)) {
        for place in &self.places[..self.end.load(Ordering::Acquire) as usize] {
            let hole = place.hole.load(Ordering::Acquire);
            let position = hole as u32;
            if hole & USED != 0
                && chain
                    .get(position as usize)
                    .is_some_and(|block| block.0 == place.block.load(Ordering::Acquire))
            {
                found(HoleOnChain { slot: PodSlot((hole >> 32) as u16), position });
            }
        }
    }

    /// Makes a hole known to queries, if there is room.
    fn take(&self, slot: PodSlot, block: BlockHash, position: u32) -> Option<u16> {
        let taken = lock(&self.free).pop()?;
        let place = &self.places[usize::from(taken)];
        place.block.store(block.0, Ordering::Release);
        let hole = USED | u64::from(slot.0) << 32 | u64::from(position);
        place.hole.store(hole, Ordering::Release);
        self.end.fetch_max(u32::from(taken) + 1, Ordering::AcqRel);
        Some(taken)
    }

    fn give_back(&self, taken: u16) {
        self.places[usize::from(taken)].hole.store(0, Ordering::Release);
        lock(&self.free).push(taken);
    }
}

/// The holes of one pod.
#[derive(Debug, Default)]
pub(crate) struct PodHoles {
    known: Vec<KnownHole>,
    /// Holes for which there is no room, or whose position is not known.
    others: HashSet<EntryId>,
    /// Entries that became holes since the last [`PodHoles::settle`], and may have ended since.
    fresh: Vec<EntryId>,
    /// Places of ended holes.
    ended: Vec<u16>,
}

#[derive(Debug)]
struct KnownHole {
    entry: EntryId,
    /// One place for each block that the entry covers.
    places: Vec<u16>,
}

impl PodHoles {
    /// An entry with children is no longer held.
    pub(crate) fn begin(&mut self, entry: EntryId) {
        self.fresh.push(entry);
    }

    /// An entry that was not held is held again, or freed.
    #[inline]
    pub(crate) fn end(&mut self, entry: EntryId) {
        if self.known.is_empty() && self.others.is_empty() {
            return;
        }
        if let Some(at) = self.known.iter().position(|hole| hole.entry == entry) {
            self.ended.append(&mut self.known.swap_remove(at).places);
        } else {
            self.others.remove(&entry);
        }
    }

    /// All entries of the pod are gone.
    pub(crate) fn end_all(&mut self) {
        self.fresh.clear();
        self.others = HashSet::new();
        self.ended.extend(self.known.drain(..).flat_map(|hole| hole.places));
    }

    /// Whether queries cannot check all holes.
    pub(crate) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Whether holes appeared, if only for a moment, since the last [`PodHoles::settle`].
    pub(crate) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Whether places are to be given back.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Makes new holes known to queries, and those that ended unknown. The pod's bits have changed
    /// already; if a hole is new, the pod is a suspect, and if one has ended, the caller has
    /// announced that.
    pub(crate) fn settle(&mut self, holes: &Holes, slot: PodSlot, slab: &Slab) {
        let has_room = self.has_ended();
        self.ended.drain(..).for_each(|place| holes.give_back(place));
        for entry in std::mem::take(&mut self.fresh) {
            let is_known = self.known.iter().any(|hole| hole.entry == entry);
            if slab.get(entry).is_hole() && !is_known && !self.others.contains(&entry) {
                self.add(holes, slot, slab, entry);
            }
        }
        if has_room && let Some(entry) = self.others.iter().next().copied() {
            self.others.remove(&entry);
            self.add(holes, slot, slab, entry);
        }
    }

    fn add(&mut self, holes: &Holes, slot: PodSlot, slab: &Slab, entry: EntryId) {
        let blocks = slab.span(entry).len() + 1;
        if self.known.len() < PER_POD
            && blocks <= PER_POD
            && let Some(first) = position(slab, entry)
        {
            let mut places = Vec::with_capacity(blocks);
            for (block, position) in slab.blocks_of(entry).zip(first..) {
                places.extend(holes.take(slot, block, position));
            }
            if places.len() == blocks {
                self.known.push(KnownHole { entry, places });
                return;
            }
            places.into_iter().for_each(|place| holes.give_back(place));
        }
        self.others.insert(entry);
    }
}

/// The position of an entry's first block in its chain, unless it is far from the root or its
/// prefix is unknown.
fn position(slab: &Slab, entry: EntryId) -> Option<u32> {
    let mut position = 0;
    let mut at = slab.get(entry);
    while at.parent != EntryId::NONE {
        position += slab.span(at.parent).len() + 1;
        if position > MAX_POSITION {
            return None;
        }
        at = slab.get(at.parent);
    }
    (!at.has(Flag::Unlinked)).then_some(position as u32)
}
