//! One shard's table: block hash → number of the set of pods that hold it.
//!
//! A query is a handful of cache misses and little else, so a bucket is one cache line of six entries.
//! The shard says eight bits of a key, so an entry keeps the other 56, and 24 bits of a set's number:
//! ten bytes, and the whole key is compared. What is left of the line is a control word.
//!
//! A key lives in its home bucket or, when that is full, in one of the following, its neighbour first:
//! the processor fetches lines in pairs. Every bucket counts the keys that passed it by and remembers
//! three bits of each, so a search that fails normally ends at the first line.
//!
//! Readers take no lock. Each bucket is a sequence lock: the writer (one at a time, under the shard's
//! lock) raises a flag in the control word, changes the line, and lowers the flag with the next
//! version; a reader that sees the flag or two different versions reads again. All accesses to the
//! line are acquire loads and release stores: a reader that saw any part of a change sees the raised
//! flag or the new version too. The version has 15 bits: a reader would have to sleep through exactly
//! a multiple of 32,768 changes of one line, in the middle of one read of it, to be fooled.

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
const WAYS: usize = 6;
#[cfg(loom)]
const WAYS: usize = 2;

/// One more than the largest number of a set: an entry has 24 bits for it.
pub(crate) const SETS: u32 = 1 << 24;

// The control word, from the top: version (15 bits) · writing (1) · marks of keys that passed by (8) ·
// how many those are (8, sticky at the top).
const VERSION: u32 = 1 << 17;
const WRITING: u32 = 1 << 16;
const MARKS_SHIFT: u32 = 8;
const MARKS: u32 = 0xff << MARKS_SHIFT;
const PASSED: u32 = 0xff;

/// Number of a set of pods; see [`crate::sets`]. Zero is the empty set and marks a free place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SetId(pub(crate) u32);

impl SetId {
    pub(crate) const EMPTY: SetId = SetId(0);
}

/// Where a hash belongs: its shard, and its key within the shard.
///
/// Fibonacci hashing: the product spreads any regularity over the top bits. Multiplying by an odd
/// number loses nothing, so shard (8 bits) and key (56 bits) together are the whole hash.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    key: Key,
}

/// What tells hashes of one shard apart: 56 bits, in the upper part of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(u64);

impl Place {
    #[inline]
    pub(crate) fn of(hash: BlockHash) -> Self {
        let mixed = hash.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let shard = if SHARDS == 1 { 0 } else { (mixed >> 56) as usize };
        // Zero marks a free place, so one hash in 2^56 is taken for its neighbour.
        Self { shard, key: Key((mixed << 8).max(1 << 8)) }
    }
}

impl Key {
    /// The home bucket among `buckets`: any number of them, so a table can grow by half.
    #[inline]
    fn home(self, buckets: usize) -> usize {
        ((u128::from(self.0) * buckets as u128) >> 64) as usize
    }

    /// The mark a key leaves where it passes by: one of eight bits, by bits that do not choose a home.
    #[inline]
    fn mark(self) -> u32 {
        1 << ((self.0 >> 8 & 7) as u32 + MARKS_SHIFT)
    }
}

/// One cache line.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Bucket {
    /// key (56 bits) · low part of the set's number (8). All zero in a free place.
    entries: [AtomicU64; WAYS],
    /// The high parts of the numbers, 16 bits each, two in a word.
    high: [AtomicU32; HIGHS],
    control: AtomicU32,
}

/// Words of high parts, two parts in each.
const HIGHS: usize = WAYS.div_ceil(2);

/// A shard's buckets. Cloning shares them.
pub(crate) type Table = Arc<[Bucket]>;

/// The smallest table: half a kilobyte.
#[cfg(not(loom))]
pub(crate) const SMALLEST: usize = 8;
#[cfg(loom)]
pub(crate) const SMALLEST: usize = 2;

/// An empty table.
pub(crate) fn table(buckets: usize) -> Table {
    (0..buckets.next_multiple_of(2).max(SMALLEST)).map(|_| Bucket::new()).collect()
}

/// The size at which a table with `len` entries should be rebuilt, if it should: it grows when it is
/// seven tenths full, by half (a small one doubles), and shrinks when it is an eighth full.
pub(crate) fn better_size(table: &[Bucket], len: usize) -> Option<usize> {
    let (buckets, places) = (table.len(), table.len() * WAYS);
    if len * 10 > places * 7 {
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
    table[place.key.home(table.len())].control.load(Ordering::Relaxed)
}

/// A key about to be looked up: its home is known, the line is on its way.
#[derive(Clone, Copy)]
pub(crate) struct Probe<'a> {
    home: &'a Bucket,
    hash: BlockHash,
}

impl<'a> Probe<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a [Table; SHARDS], hash: BlockHash) -> Self {
        let place = Place::of(hash);
        let table = &*tables[place.shard];
        Self { home: &table[place.key.home(table.len())], hash }
    }

    /// Asks for the line without waiting for it; the value means nothing.
    #[inline]
    pub(crate) fn touch(self) -> u32 {
        self.home.control.load(Ordering::Relaxed)
    }

    /// The set of the key.
    ///
    /// Almost always the home line settles it at the first read. That case is one branch: a query
    /// makes dozens of these reads of unrelated keys, and each guess that fails costs as much as ten.
    #[inline]
    pub(crate) fn read(self, tables: &[Table; SHARDS]) -> SetId {
        let key = Place::of(self.hash).key;
        let before = self.home.control.load(Ordering::Acquire);
        let set = self.home.scan(key);
        let after = self.home.control.load(Ordering::Relaxed);
        let further = if set == SetId::EMPTY { before & key.mark() } else { 0 };
        if (before ^ after) | (before & WRITING) | further == 0 {
            set
        } else {
            find_slowly(tables, self.hash)
        }
    }
}

#[cold]
#[inline(never)]
fn find_slowly(tables: &[Table; SHARDS], hash: BlockHash) -> SetId {
    let Place { shard, key } = Place::of(hash);
    let table = &*tables[shard];
    let home = key.home(table.len());
    for steps in 0..table.len() {
        let (set, further) = table[bucket_at(home, steps, table.len())].read(key);
        if set != SetId::EMPTY || !further {
            return set;
        }
    }
    SetId::EMPTY
}

/// The bucket after `steps` steps from home: first its neighbour in the same pair of lines, which the
/// processor fetches along with it, then the following pairs. The number of buckets is even.
#[inline]
fn bucket_at(home: usize, steps: usize, buckets: usize) -> usize {
    (((home & !1) + (steps & !1)) % buckets) | ((home ^ steps) & 1)
}

/// Where a key stands, or would stand. Only for the holder of the shard's lock.
pub(crate) struct Spot {
    key: Key,
    home: usize,
    steps: usize,
    way: usize,
    /// The set that stands there; empty when the key is absent.
    pub(crate) set: SetId,
}

/// Looks a key up for writing. `None` when it is absent and no place is free.
#[inline]
pub(crate) fn locate(table: &[Bucket], place: Place) -> Option<Spot> {
    let key = place.key;
    let home = key.home(table.len());
    let mut free = None;
    for steps in 0..table.len() {
        let bucket = &table[bucket_at(home, steps, table.len())];
        let (mut here, mut empty) = (0u32, 0u32);
        for way in 0..WAYS {
            let set = bucket.set(way);
            let equal = bucket.entries[way].load(Ordering::Relaxed) & KEY == key.0;
            empty |= u32::from(set == SetId::EMPTY) << way;
            here |= u32::from(equal & (set != SetId::EMPTY)) << way;
        }
        if here != 0 {
            let way = here.trailing_zeros() as usize;
            return Some(Spot { key, home, steps, way, set: bucket.set(way) });
        }
        if free.is_none() && empty != 0 {
            let way = empty.trailing_zeros() as usize;
            free = Some(Spot { key, home, steps, way, set: SetId::EMPTY });
        }
        if free.is_some() && bucket.control.load(Ordering::Relaxed) & key.mark() == 0 {
            break;
        }
    }
    free
}

/// Gives the key at `spot` another set: inserts it, changes it, or, with the empty set, removes it.
pub(crate) fn write(table: &[Bucket], spot: &Spot, set: SetId) {
    let bucket = &table[bucket_at(spot.home, spot.steps, table.len())];
    // A reader must find the way to a displaced key before the key is there, and as long as it is.
    if spot.set == SetId::EMPTY {
        for step in 0..spot.steps {
            table[bucket_at(spot.home, step, table.len())].pass_by(spot.key);
        }
    }
    let control = bucket.control.load(Ordering::Relaxed);
    bucket.control.store(control | WRITING, Ordering::Relaxed);
    bucket.put(spot.way, spot.key, set);
    bucket.control.store(control.wrapping_add(VERSION), Ordering::Release);
    if set == SetId::EMPTY {
        for step in 0..spot.steps {
            table[bucket_at(spot.home, step, table.len())].unpass();
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
            let set = bucket.set(way);
            if set != SetId::EMPTY {
                let key = Key(bucket.entries[way].load(Ordering::Relaxed) & KEY);
                place_new(&new, &mut filled, key, set);
            }
        }
    }
    new
}

/// Puts a key into a table that no reader knows yet; `filled` counts each bucket's places.
#[inline]
fn place_new(new: &[Bucket], filled: &mut [u8], key: Key, set: SetId) {
    let home = key.home(new.len());
    let (mut at, mut steps) = (home, 0);
    while usize::from(filled[at]) == WAYS {
        new[at].pass_by(key);
        steps += 1;
        at = bucket_at(home, steps, new.len());
    }
    new[at].put(usize::from(filled[at]), key, set);
    filled[at] += 1;
}

/// The part of an entry that is its key.
const KEY: u64 = !0xff;

impl Bucket {
    fn new() -> Self {
        Self {
            entries: std::array::from_fn(|_| AtomicU64::new(0)),
            high: std::array::from_fn(|_| AtomicU32::new(0)),
            control: AtomicU32::new(0),
        }
    }

    /// The set in a place.
    #[inline]
    fn set(&self, way: usize) -> SetId {
        let low = self.entries[way].load(Ordering::Acquire) as u32 & 0xff;
        SetId(low | self.high_part(way) << 8)
    }

    #[inline]
    fn high_part(&self, way: usize) -> u32 {
        self.high[way / 2].load(Ordering::Acquire) >> (way % 2 * 16) & 0xffff
    }

    /// Writes a place. The caller alone writes this bucket, and has raised the flag if it is read.
    fn put(&self, way: usize, key: Key, set: SetId) {
        let entry = if set == SetId::EMPTY { 0 } else { key.0 | u64::from(set.0 & 0xff) };
        let shift = way % 2 * 16;
        let high = self.high[way / 2].load(Ordering::Relaxed) & !(0xffff << shift);
        self.entries[way].store(entry, Ordering::Release);
        self.high[way / 2].store(high | (set.0 >> 8) << shift, Ordering::Release);
    }

    /// The set of `key` in this bucket, and whether it may stand further on.
    #[inline]
    fn read(&self, key: Key) -> (SetId, bool) {
        loop {
            let control = self.control.load(Ordering::Acquire);
            if control & WRITING == 0 {
                let set = self.scan(key);
                if self.control.load(Ordering::Relaxed) == control {
                    return (set, control & key.mark() != 0);
                }
            }
            pause();
        }
    }

    /// A free place is all zero and equals no key.
    #[inline]
    fn scan(&self, key: Key) -> SetId {
        let (mut found, mut at) = (0, 0);
        for way in 0..WAYS {
            let entry = self.entries[way].load(Ordering::Acquire);
            let equal = entry & KEY == key.0;
            found |= if equal { entry } else { 0 };
            at |= if equal { way } else { 0 };
        }
        let high = if found == 0 { 0 } else { self.high_part(at) };
        SetId(found as u32 & 0xff | high << 8)
    }

    fn pass_by(&self, key: Key) {
        let before = self.control.load(Ordering::Relaxed);
        let count = (before & PASSED).saturating_add(1).min(PASSED);
        let after = before & !PASSED | count | key.mark();
        self.control.store(after.wrapping_add(VERSION), Ordering::Release);
    }

    /// Marks are taken off with the last key that passed by; a count that reached the top stays there,
    /// with its marks, until the table is rebuilt: it can no longer be counted down.
    fn unpass(&self) {
        let before = self.control.load(Ordering::Relaxed);
        let passed = before & PASSED;
        let after = match passed {
            PASSED => before,
            1 => before & !(PASSED | MARKS),
            _ => before - 1,
        };
        self.control.store(after.wrapping_add(VERSION), Ordering::Release);
    }
}
