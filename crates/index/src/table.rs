//! One shard's table: block hash → number of the set of pods that hold it.
//!
//! A query is a handful of cache misses and little else, so a bucket is one cache line of six entries.
//! The shard says eight bits of a key, so an entry keeps the other 56, and 24 bits of a set's number:
//! ten bytes, and the whole key is compared. Sixteen bits of a key are its tag. Tags lie together, in
//! two words, and are compared at once, so that one entry is looked at or none.
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
//! a multiple of 32,768 changes of one line, in the middle of one read of it, to be fooled. What passed
//! by is noted without a new version: a key that stands further on was noted before it came and until
//! after it went, so a reader that misses the note has seen the key absent.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::sync::{AtomicU64, Ordering, pause};

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

// The control word, from the top: version (15 bits) · writing (1) · first halves of the tags (8 for each
// way, zero if it is free).
const VERSION: u64 = 1 << 49;
const WRITING: u64 = 1 << 48;
/// The lowest bit of each tag, and the highest.
const LOW: u64 = 0x0101_0101_0101_0101 >> (64 - 8 * WAYS);
const HIGH: u64 = LOW << 7;

// The last word, from the top: marks of keys that passed by (8) · how many those are (8, sticky at the
// top) · second halves of the tags (8 for each way).
const MARKS_SHIFT: u32 = 56;
const MARKS: u64 = 0xff << MARKS_SHIFT;
const PASSED: u64 = 0xff << 48;
const ONE_PASSED: u64 = 1 << 48;

/// Number of a set of pods; see [`crate::sets`]. Zero is the empty set and marks a free place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SetId(pub(crate) u32);

impl SetId {
    pub(crate) const EMPTY: SetId = SetId(0);
}

/// Where a hash belongs: its shard, and its key within the shard.
///
/// Fibonacci hashing: the product spreads any regularity over the top bits. Multiplying by an odd
/// number loses nothing, so shard (8 bits) and key (55 bits and one that is always set) together are
/// the whole hash but for one bit.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    key: Key,
}

/// What tells hashes of one shard apart, in the upper part of the word. From the top: 40 bits that stand
/// in the entry, and the second and the first half of the tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Place {
    #[inline]
    pub(crate) fn of(hash: BlockHash) -> Self {
        let mixed = hash.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let shard = if SHARDS == 1 { 0 } else { (mixed >> 56) as usize };
        // No tag is zero, which marks a free place. It costs one bit of 64.
        Self { shard, key: Key(mixed << 8 | 1 << 8) }
    }
}

impl Key {
    /// The home bucket among `buckets`: any number of them, so a table can grow by half.
    #[inline]
    fn home(self, buckets: usize) -> usize {
        ((u128::from(self.0) * buckets as u128) >> 64) as usize
    }

    /// The halves of the tag, each in every byte.
    #[inline]
    fn tags(self) -> (u64, u64) {
        (LOW.wrapping_mul(self.0 >> 8 & 0xff), LOW.wrapping_mul(self.0 >> 16 & 0xff))
    }

    /// The rest of the key, as it stands in an entry.
    #[inline]
    fn rest(self) -> u64 {
        self.0 & !SET
    }

    /// The mark a key leaves where it passes by: one of eight bits, by bits that do not choose a home.
    #[inline]
    fn mark(self) -> u64 {
        MARK[(self.0 >> 24 & 7) as usize]
    }
}

/// Each of the eight marks; to look one up is cheaper than to shift by a variable.
const MARK: [u64; 8] = {
    let mut marks = [0; 8];
    let mut at = 0;
    while at < 8 {
        marks[at] = 1 << (at as u32 + MARKS_SHIFT);
        at += 1;
    }
    marks
};

/// One cache line: the entries, then the last word, then (they are eight words if there are six ways)
/// the control word.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Bucket {
    /// key (40 bits) · number of the set (24). The last word follows the last way, so that a way that
    /// was not found can be looked at like another.
    words: [AtomicU64; WAYS + 1],
    control: AtomicU64,
}

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

/// A key about to be looked up: its home is known, the line is on its way.
#[derive(Clone, Copy)]
pub(crate) struct Probe<'a> {
    home: &'a Bucket,
    key: Key,
}

impl<'a> Probe<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a [Table; SHARDS], hash: BlockHash) -> Self {
        let Place { shard, key } = Place::of(hash);
        let table = &*tables[shard];
        Self { home: &table[key.home(table.len())], key }
    }

    /// Asks for the line without waiting for it; the value means nothing.
    #[inline]
    pub(crate) fn peek(self) -> u64 {
        self.home.control.load(Ordering::Relaxed)
    }

    /// The set of the key, unless its home line does not settle that at the first read; then
    /// [`find_slowly`] knows.
    ///
    /// Everything but that is free of branches: a query makes dozens of these reads of unrelated keys,
    /// and each guess that fails costs as much as ten.
    #[inline]
    pub(crate) fn read(self) -> Option<SetId> {
        let control = self.home.control.load(Ordering::Acquire);
        let last = self.home.words[WAYS].load(Ordering::Acquire);
        let fits = fits(control, last, self.key);
        // With no tag that fits this is the last word, which is then not used.
        let way = (fits | 1 << (8 * WAYS)).trailing_zeros() as usize / 8;
        let word = self.home.words[way].load(Ordering::Acquire);
        let again = self.home.control.load(Ordering::Relaxed);
        let found = (fits != 0) & (word & !SET == self.key.rest());
        let further = if found { 0 } else { fits | last & self.key.mark() };
        let set = if found { word & SET } else { 0 };
        let settled = (control ^ again) | (control & WRITING) | further == 0;
        settled.then_some(SetId(set as u32))
    }
}

/// The part of an entry that is a set's number.
const SET: u64 = SETS as u64 - 1;

/// Marks the ways whose tag fits, by the high bit of each way's byte; above one that fits there may be
/// a mark too many.
#[inline]
fn fits(control: u64, last: u64, key: Key) -> u64 {
    let (first, second) = key.tags();
    zeros((control ^ first) | (last ^ second))
}

/// The part of a key that is its tag, and the tag of a way.
const TAG: u64 = 0xffff << 8;

#[inline]
fn tag(control: u64, last: u64, way: usize) -> u64 {
    (last >> (8 * way) & 0xff) << 16 | (control >> (8 * way) & 0xff) << 8
}

/// Marks the bytes that are zero, by their high bits; above one that is zero there may be a mark too
/// many.
#[inline]
fn zeros(bytes: u64) -> u64 {
    bytes.wrapping_sub(LOW) & !bytes & HIGH
}

/// Finds the set of a key wherever it stands, and waits for a writer if it must.
#[cold]
#[inline(never)]
pub(crate) fn find_slowly(tables: &[Table; SHARDS], hash: BlockHash) -> SetId {
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
/// processor fetches along with it, then the following pairs. The number of buckets is even, and there
/// are fewer steps than buckets.
#[inline]
fn bucket_at(home: usize, steps: usize, buckets: usize) -> usize {
    let pair = (home & !1) + (steps & !1);
    let pair = if pair < buckets { pair } else { pair - buckets };
    pair | ((home ^ steps) & 1)
}

/// Where a key stands, or would stand. Only for the holder of the shard's lock.
pub(crate) struct Spot {
    key: Key,
    /// Its bucket, and how many steps that is from its home.
    at: usize,
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
    let bucket = &table[home];
    let control = bucket.control.load(Ordering::Relaxed);
    let last = bucket.words[WAYS].load(Ordering::Relaxed);
    if let Some((way, set)) = bucket.way_of(control, last, key) {
        return Some(Spot { key, at: home, steps: 0, way, set });
    }
    let empty = zeros(control);
    if empty != 0 && last & key.mark() == 0 {
        let way = empty.trailing_zeros() as usize / 8;
        return Some(Spot { key, at: home, steps: 0, way, set: SetId::EMPTY });
    }
    locate_further(table, key, home)
}

#[cold]
fn locate_further(table: &[Bucket], key: Key, home: usize) -> Option<Spot> {
    let mut free = None;
    for steps in 0..table.len() {
        let at = bucket_at(home, steps, table.len());
        let control = table[at].control.load(Ordering::Relaxed);
        let last = table[at].words[WAYS].load(Ordering::Relaxed);
        if let Some((way, set)) = table[at].way_of(control, last, key) {
            return Some(Spot { key, at, steps, way, set });
        }
        let empty = zeros(control);
        if free.is_none() && empty != 0 {
            let way = empty.trailing_zeros() as usize / 8;
            free = Some(Spot { key, at, steps, way, set: SetId::EMPTY });
        }
        if free.is_some() && last & key.mark() == 0 {
            break;
        }
    }
    free
}

/// Gives the key at `spot` another set: inserts it, changes it, or, with the empty set, removes it.
#[inline]
pub(crate) fn write(table: &[Bucket], spot: &Spot, set: SetId) {
    let bucket = &table[spot.at];
    // A reader must find the way to a displaced key before the key is there, and as long as it is.
    if spot.steps > 0 && spot.set == SetId::EMPTY {
        spot.way_to(table).for_each(|passed| passed.pass_by(spot.key));
    }
    let control = bucket.control.load(Ordering::Relaxed);
    bucket.control.store(control | WRITING, Ordering::Relaxed);
    let control = bucket.put(control, spot.way, spot.key, set);
    bucket.control.store(control.wrapping_add(VERSION), Ordering::Release);
    if spot.steps > 0 && set == SetId::EMPTY {
        spot.way_to(table).for_each(Bucket::unpass);
    }
}

impl Spot {
    /// The buckets that the key passed by.
    fn way_to<'a>(&self, table: &'a [Bucket]) -> impl Iterator<Item = &'a Bucket> + use<'a> {
        let home = self.key.home(table.len());
        (0..self.steps).map(move |step| &table[bucket_at(home, step, table.len())])
    }
}

/// A larger (or smaller) table with the same entries. Homes keep their order, so both tables are gone
/// through from one end to the other.
pub(crate) fn rebuild(old: &[Bucket], buckets: usize) -> Table {
    let new = table(buckets);
    let mut filled = vec![0u8; new.len()];
    for bucket in old {
        let control = bucket.control.load(Ordering::Relaxed);
        let last = bucket.words[WAYS].load(Ordering::Relaxed);
        for way in 0..WAYS {
            let word = bucket.words[way].load(Ordering::Relaxed);
            if word != 0 {
                let key = Key(word & !SET | tag(control, last, way));
                place_new(&new, &mut filled, key, SetId((word & SET) as u32));
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
    let control = new[at].control.load(Ordering::Relaxed);
    let control = new[at].put(control, usize::from(filled[at]), key, set);
    new[at].control.store(control, Ordering::Relaxed);
    filled[at] += 1;
}

impl Bucket {
    fn new() -> Self {
        Self { words: std::array::from_fn(|_| AtomicU64::new(0)), control: AtomicU64::new(0) }
    }

    /// Where a key stands in this bucket, and its set.
    #[inline]
    fn way_of(&self, control: u64, last: u64, key: Key) -> Option<(usize, SetId)> {
        let mut fits = fits(control, last, key);
        while fits != 0 {
            let way = fits.trailing_zeros() as usize / 8;
            let word = self.words[way].load(Ordering::Acquire);
            if word & !SET == key.rest() && tag(control, last, way) == key.0 & TAG {
                return Some((way, SetId((word & SET) as u32)));
            }
            fits &= fits - 1;
        }
        None
    }

    /// Writes a place and returns the control word that is then right. The caller alone writes this
    /// bucket, and has raised the flag if it is read.
    #[inline]
    fn put(&self, control: u64, way: usize, key: Key, set: SetId) -> u64 {
        let shift = 8 * way;
        let last = self.words[WAYS].load(Ordering::Relaxed) & !(0xff << shift);
        let control = control & !(0xff << shift);
        if set == SetId::EMPTY {
            self.words[way].store(0, Ordering::Release);
            self.words[WAYS].store(last, Ordering::Release);
            return control;
        }
        self.words[way].store(key.rest() | u64::from(set.0), Ordering::Release);
        self.words[WAYS].store(last | (key.0 >> 16 & 0xff) << shift, Ordering::Release);
        control | (key.0 >> 8 & 0xff) << shift
    }

    /// The set of `key` in this bucket, and whether it may stand further on.
    #[inline]
    fn read(&self, key: Key) -> (SetId, bool) {
        loop {
            let control = self.control.load(Ordering::Acquire);
            if control & WRITING == 0 {
                let last = self.words[WAYS].load(Ordering::Acquire);
                let found = self.way_of(control, last, key);
                if self.control.load(Ordering::Relaxed) == control {
                    let set = found.map_or(SetId::EMPTY, |(_, set)| set);
                    return (set, last & key.mark() != 0);
                }
            }
            pause();
        }
    }

    fn pass_by(&self, key: Key) {
        let before = self.words[WAYS].load(Ordering::Relaxed);
        let count = if before & PASSED == PASSED { 0 } else { ONE_PASSED };
        self.words[WAYS].store((before | key.mark()) + count, Ordering::Release);
    }

    /// Marks are taken off with the last key that passed by; a count that reached the top stays there,
    /// with its marks, until the table is rebuilt: it can no longer be counted down.
    fn unpass(&self) {
        let before = self.words[WAYS].load(Ordering::Relaxed);
        let after = match before & PASSED {
            PASSED => before,
            ONE_PASSED => before & !(PASSED | MARKS),
            _ => before - ONE_PASSED,
        };
        self.words[WAYS].store(after, Ordering::Release);
    }
}
