//! One shard's table: block hash → number of the set of pods that hold it.
//!
//! A query is a handful of cache misses and little else, so an entry is twelve bytes and a bucket is
//! one cache line: five hashes, five set numbers, one control word. A key lives in its home bucket or,
//! when that is full, in one of the following; every bucket counts the keys that passed it by, so a
//! miss normally ends after one line.
//!
//! Readers take no lock. Each bucket is a sequence lock: the writer (one at a time, under the shard's
//! lock) raises a flag in the control word, changes the line, and lowers the flag with the next
//! version; a reader that sees the flag or two different versions reads again. All accesses to the
//! line are acquire loads and release stores: a reader that saw any part of a change sees the raised
//! flag or the new version too. The version has 23 bits: a reader would have to sleep through exactly
//! a multiple of 8 million changes of one line, in the middle of one read of it, to be fooled.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::sync::{AtomicU32, AtomicU64, Ordering, pause};

/// The number of shards: a power of two, so that the top bits of a product choose one.
#[cfg(not(loom))]
pub(crate) const SHARDS: usize = 256;
#[cfg(loom)]
pub(crate) const SHARDS: usize = 1;

/// Keys per bucket: as many as fit in 64 bytes.
#[cfg(not(loom))]
const WAYS: usize = 5;
#[cfg(loom)]
const WAYS: usize = 2;

const WRITING: u32 = 1 << 8;
const VERSION: u32 = 1 << 9;
const PASSED: u32 = 0xff;

/// Number of a set of pods; see [`crate::sets`]. Zero is the empty set and marks a free place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SetId(pub(crate) u32);

impl SetId {
    pub(crate) const EMPTY: SetId = SetId(0);
}

/// Where a hash belongs: its shard, and its place within the shard as a fraction of 2^64.
///
/// Fibonacci hashing: the product spreads any regularity over the top bits. Multiplying by an odd
/// number loses nothing, so the shard (8 bits) and the place (the bits below them) are independent.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    fraction: u64,
}

impl Place {
    #[inline]
    pub(crate) fn of(hash: BlockHash) -> Self {
        const BITS: u32 = SHARDS.trailing_zeros();
        let mixed = hash.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let shard = if BITS == 0 { 0 } else { (mixed >> (64 - BITS)) as usize };
        Self { shard, fraction: mixed << BITS }
    }

    /// The home bucket among `buckets`: any number of them, so a table can grow by half.
    #[inline]
    fn home(self, buckets: usize) -> usize {
        ((u128::from(self.fraction) * buckets as u128) >> 64) as usize
    }
}

/// One cache line.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Bucket {
    hashes: [AtomicU64; WAYS],
    sets: [AtomicU32; WAYS],
    /// version (23 bits) · writing (1) · keys that passed by (8, sticky at the top)
    control: AtomicU32,
}

/// A shard's buckets. Cloning shares them.
pub(crate) type Table = Arc<[Bucket]>;

/// The smallest table: half a kilobyte.
#[cfg(not(loom))]
pub(crate) const SMALLEST: usize = 8;
#[cfg(loom)]
pub(crate) const SMALLEST: usize = 1;

/// An empty table.
pub(crate) fn table(buckets: usize) -> Table {
    (0..buckets.max(SMALLEST)).map(|_| Bucket::new()).collect()
}

/// The size at which a table with `len` entries should be rebuilt, if it should: it grows when it is
/// four fifths full, by half (a small one doubles), and shrinks when it is an eighth full.
pub(crate) fn better_size(table: &[Bucket], len: usize) -> Option<usize> {
    let (buckets, places) = (table.len(), table.len() * WAYS);
    if len * 5 > places * 4 {
        Some(if buckets < 256 { buckets * 2 } else { buckets * 3 / 2 })
    } else if len * 8 < places && buckets > SMALLEST {
        Some(buckets * 2 / 5)
    } else {
        None
    }
}

/// Brings a key's home line into the cache without waiting for it; the value means nothing.
#[inline]
pub(crate) fn touch(table: &[Bucket], place: Place) -> u32 {
    table[place.home(table.len())].control.load(Ordering::Relaxed)
}

/// A key about to be looked up: the place is known, the line is on its way.
#[derive(Clone, Copy)]
pub(crate) struct Probe<'a> {
    table: &'a [Bucket],
    home: usize,
    hash: BlockHash,
}

impl<'a> Probe<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a [Table; SHARDS], hash: BlockHash) -> Self {
        let place = Place::of(hash);
        let table = &*tables[place.shard];
        Self { table, home: place.home(table.len()), hash }
    }

    /// Asks for the line without waiting for it; the value means nothing.
    #[inline]
    pub(crate) fn touch(self) -> u32 {
        self.table[self.home].control.load(Ordering::Relaxed)
    }

    /// The set of the key.
    ///
    /// Almost always the home line settles it at the first read. That case is one branch: a query
    /// makes dozens of these reads of unrelated keys, and each guess that fails costs as much as ten.
    #[inline]
    pub(crate) fn read(self) -> SetId {
        let bucket = &self.table[self.home];
        let before = bucket.control.load(Ordering::Acquire);
        let set = bucket.scan(self.hash);
        let after = bucket.control.load(Ordering::Relaxed);
        let passed = if set == SetId::EMPTY { before & PASSED } else { 0 };
        if (before ^ after) | (before & WRITING) | passed == 0 {
            set
        } else {
            find_slowly(self.table, self.home, self.hash)
        }
    }
}

#[cold]
#[inline(never)]
fn find_slowly(table: &[Bucket], home: usize, hash: BlockHash) -> SetId {
    for step in 0..table.len() {
        let (set, passed) = table[(home + step) % table.len()].read(hash);
        if set != SetId::EMPTY || !passed {
            return set;
        }
    }
    SetId::EMPTY
}

/// Where a key stands, or would stand. Only for the holder of the shard's lock.
pub(crate) struct Spot {
    home: usize,
    steps: usize,
    way: usize,
    /// The set that stands there; empty when the key is absent.
    pub(crate) set: SetId,
}

/// Looks a key up for writing. `None` when it is absent and no place is free.
#[inline]
pub(crate) fn locate(table: &[Bucket], place: Place, hash: BlockHash) -> Option<Spot> {
    let home = place.home(table.len());
    let mut free = None;
    for steps in 0..table.len() {
        let bucket = &table[(home + steps) % table.len()];
        let (mut here, mut empty) = (0u32, 0u32);
        for way in 0..WAYS {
            let is_empty = bucket.sets[way].load(Ordering::Relaxed) == 0;
            let equal = bucket.hashes[way].load(Ordering::Relaxed) == hash.0;
            empty |= u32::from(is_empty) << way;
            here |= u32::from(equal & !is_empty) << way;
        }
        if here != 0 {
            let way = here.trailing_zeros() as usize;
            let set = SetId(bucket.sets[way].load(Ordering::Relaxed));
            return Some(Spot { home, steps, way, set });
        }
        if free.is_none() && empty != 0 {
            let way = empty.trailing_zeros() as usize;
            free = Some(Spot { home, steps, way, set: SetId::EMPTY });
        }
        if bucket.control.load(Ordering::Relaxed) & PASSED == 0 && free.is_some() {
            break;
        }
    }
    free
}

/// Gives the key at `spot` another set: inserts it, changes it, or, with the empty set, removes it.
pub(crate) fn write(table: &[Bucket], spot: &Spot, hash: BlockHash, set: SetId) {
    let bucket = &table[(spot.home + spot.steps) % table.len()];
    let inserts = spot.set == SetId::EMPTY && set != SetId::EMPTY;
    let removes = spot.set != SetId::EMPTY && set == SetId::EMPTY;
    // A reader must find the way to a displaced key before the key is there, and as long as it is.
    if inserts {
        pass_by(table, spot, 1);
    }
    let control = bucket.control.load(Ordering::Relaxed);
    bucket.control.store(control | WRITING, Ordering::Relaxed);
    if inserts {
        bucket.hashes[spot.way].store(hash.0, Ordering::Release);
    }
    bucket.sets[spot.way].store(set.0, Ordering::Release);
    bucket.control.store(control.wrapping_add(VERSION), Ordering::Release);
    if removes {
        pass_by(table, spot, -1);
    }
}

/// Counts a key in or out of the buckets between its home and its place. A count that reached the
/// top stays there until the table is rebuilt: it can no longer be counted down.
fn pass_by(table: &[Bucket], spot: &Spot, change: i32) {
    for step in 0..spot.steps {
        let control = &table[(spot.home + step) % table.len()].control;
        let before = control.load(Ordering::Relaxed);
        let passed = (before & PASSED) as i32;
        if passed != PASSED as i32 {
            let after = before & !PASSED | (passed + change) as u32;
            control.store(after.wrapping_add(VERSION), Ordering::Release);
        }
    }
}

/// A larger (or smaller) table with the same entries. Homes keep their order, so both tables are gone
/// through from one end to the other.
pub(crate) fn rebuild(old: &[Bucket], buckets: usize) -> Table {
    let new = table(buckets);
    let mut filled = vec![0u8; new.len()];
    for bucket in old {
        for way in 0..WAYS {
            let set = SetId(bucket.sets[way].load(Ordering::Relaxed));
            if set != SetId::EMPTY {
                place_new(&new, &mut filled, bucket.hashes[way].load(Ordering::Relaxed), set);
            }
        }
    }
    new
}

/// Puts a key into a table that no reader knows yet; `filled` counts each bucket's places.
#[inline]
fn place_new(new: &[Bucket], filled: &mut [u8], hash: u64, set: SetId) {
    let mut at = Place::of(BlockHash(hash)).home(new.len());
    while usize::from(filled[at]) == WAYS {
        let control = &new[at].control;
        let passed = control.load(Ordering::Relaxed);
        control.store((passed + 1).min(PASSED), Ordering::Relaxed);
        at = if at + 1 == new.len() { 0 } else { at + 1 };
    }
    let way = usize::from(filled[at]);
    new[at].hashes[way].store(hash, Ordering::Relaxed);
    new[at].sets[way].store(set.0, Ordering::Relaxed);
    filled[at] += 1;
}

impl Bucket {
    fn new() -> Self {
        Self {
            hashes: std::array::from_fn(|_| AtomicU64::new(0)),
            sets: std::array::from_fn(|_| AtomicU32::new(0)),
            control: AtomicU32::new(0),
        }
    }

    /// The set of `hash` in this bucket, and whether a key that belongs here may stand further on.
    #[inline]
    fn read(&self, hash: BlockHash) -> (SetId, bool) {
        loop {
            let control = self.control.load(Ordering::Acquire);
            if control & WRITING == 0 {
                let set = self.scan(hash);
                if self.control.load(Ordering::Relaxed) == control {
                    return (set, control & PASSED != 0);
                }
            }
            pause();
        }
    }

    /// A free place keeps the hash that stood there last, with the empty set: it adds nothing.
    #[inline]
    fn scan(&self, hash: BlockHash) -> SetId {
        let mut set = 0;
        for way in 0..WAYS {
            let equal = self.hashes[way].load(Ordering::Acquire) == hash.0;
            let here = self.sets[way].load(Ordering::Acquire);
            set |= if equal { here } else { 0 };
        }
        SetId(set)
    }
}
