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
//! Readers take no lock, and writers (one at a time: they take turns at a shard) never leave a line that
//! cannot be read. Another set for a key is one store. A new key's entry stands there, and half of its
//! tag, before the store of the other half makes it found. A key that goes loses that half first, and
//! the same store gives the line its next version. So a reader can be misled only if a key goes and
//! another comes in its place between its reads, and then the version is another: it reads again. It
//! has 16 bits: the reader would have to sleep through exactly a multiple of 65,536 removals from one
//! line, in the middle of one read of it, to be fooled. All accesses to the line are acquire loads and
//! release stores. What passed by is noted without a new version: a key that stands further on was
//! noted before it came and until after it went, so a reader that misses the note has seen the key
//! absent.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::prefetch::{prefetch, prefetch_to_write};
use crate::steps::step;
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

// The control word, from the top: version (16 bits) · first halves of the tags (8 for each way, zero if
// it is free).
const VERSION_SHIFT: u32 = 48;
const ONE_VERSION: u64 = 1 << VERSION_SHIFT;
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
pub(crate) struct TableKey {
    pub(crate) shard: usize,
    key: TableHash,
}

/// What tells hashes of one shard apart, in the upper part of the word. From the top: 40 bits that stand
/// in the entry, and the second and the first half of the tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableHash(u64);

impl TableKey {
    #[inline]
    pub(crate) fn of(hash: BlockHash) -> Self {
        let mixed = hash.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let shard = if SHARDS == 1 { 0 } else { (mixed >> 56) as usize };
        // No tag is zero, which marks a free place. It costs one bit of 64.
        Self { shard, key: TableHash(mixed << 8 | 1 << 8) }
    }
}

impl TableHash {
    /// The home bucket among `buckets`: any number of them, so a table can grow by half.
    #[inline]
    fn home(self, buckets: usize) -> usize {
        ((u128::from(self.0) * buckets as u128) >> 64) as usize
    }

    /// The halves of the tag, each in every byte.
    #[inline]
    fn tags(self) -> (u64, u64) {
        (LOW.wrapping_mul(self.first_half()), LOW.wrapping_mul(self.second_half()))
    }

    /// The half of the tag that stands in the control word, and never is zero.
    #[inline]
    fn first_half(self) -> u64 {
        self.0 >> 8 & 0xff
    }

    /// The half of the tag that stands in the last word.
    #[inline]
    fn second_half(self) -> u64 {
        self.0 >> 16 & 0xff
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
pub(crate) struct TableBucket {
    /// key (40 bits) · number of the set (24). The last word follows the last way, so that a way that
    /// was not found can be looked at like another.
    words: [AtomicU64; WAYS + 1],
    control: AtomicU64,
}

/// A shard's buckets. Cloning shares them.
pub(crate) type Table = Arc<[TableBucket]>;

/// The smallest table: half a kilobyte.
#[cfg(not(loom))]
pub(crate) const SMALLEST: usize = 8;
#[cfg(loom)]
pub(crate) const SMALLEST: usize = 2;

/// An empty table.
pub(crate) fn table(buckets: usize) -> Table {
    (0..buckets.next_multiple_of(2).max(SMALLEST)).map(|_| TableBucket::new()).collect()
}

/// Whether a table with `len` entries is to grow: it is at most seven tenths full.
#[inline]
pub(crate) fn is_crowded(table: &[TableBucket], len: usize) -> bool {
    len * 10 > table.len() * WAYS * 7
}

/// Whether a table with `len` entries is to shrink: it is at least an eighth full.
#[inline]
pub(crate) fn is_deserted(table: &[TableBucket], len: usize) -> bool {
    len * 8 < table.len() * WAYS && table.len() > SMALLEST
}

/// The size for a table that no longer fits its `len` entries: it doubles, or shrinks to two fifths.
pub(crate) fn better_size(buckets: usize, len: usize) -> usize {
    if len * 2 < buckets * WAYS { buckets * 2 / 5 } else { buckets * 2 }
}

/// A key about to be looked up: its home is known, the line is on its way.
#[derive(Clone, Copy)]
pub(crate) struct Probe<'a> {
    home: &'a TableBucket,
    key: TableHash,
}

impl<'a> Probe<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a [Table; SHARDS], hash: BlockHash) -> Self {
        let TableKey { shard, key } = TableKey::of(hash);
        let table = &*tables[shard];
        Self { home: &table[key.home(table.len())], key }
    }

    /// Asks for the line without waiting for it.
    #[inline]
    pub(crate) fn prefetch(self) {
        prefetch(self.home);
    }

    /// The same for a line that is going to be changed.
    #[inline]
    pub(crate) fn prefetch_to_write(self) {
        prefetch_to_write(self.home);
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
        let settled = (control ^ again) >> VERSION_SHIFT | further == 0;
        settled.then_some(SetId(set as u32))
    }
}

/// The part of an entry that is a set's number.
const SET: u64 = SETS as u64 - 1;

/// Marks the ways whose tag fits, by the high bit of each way's byte; above one that fits there may be
/// a mark too many.
#[inline]
fn fits(control: u64, last: u64, key: TableHash) -> u64 {
    let (first, second) = key.tags();
    zeros((control ^ first) | (last ^ second))
}

/// The part of a key that is its tag, and of that the half that is never zero.
const TAG: u64 = 0xffff << 8;
const FIRST_HALF: u64 = 0xff << 8;

/// The tag of a way.
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
    let TableKey { shard, key } = TableKey::of(hash);
    let table = &*tables[shard];
    let home = key.home(table.len());
    for steps in 0..table.len() {
        step();
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

/// Where a key stands, or would stand. Only for the writer whose turn it is.
pub(crate) struct Slot {
    key: TableHash,
    /// Its bucket, and how many steps that is from its home.
    at: usize,
    steps: usize,
    way: usize,
    /// The set that stands there; empty when the key is absent.
    pub(crate) set: SetId,
}

/// Looks a key up for writing. A table always has a free place.
#[inline]
pub(crate) fn locate(table: &[TableBucket], place: TableKey) -> Slot {
    let key = place.key;
    let home = key.home(table.len());
    let bucket = &table[home];
    let control = bucket.control.load(Ordering::Relaxed);
    let last = bucket.words[WAYS].load(Ordering::Relaxed);
    if let Some((way, set)) = bucket.way_of(control, last, key) {
        return Slot { key, at: home, steps: 0, way, set };
    }
    let free = zeros(control);
    if free != 0 && last & key.mark() == 0 {
        let way = free.trailing_zeros() as usize / 8;
        return Slot { key, at: home, steps: 0, way, set: SetId::EMPTY };
    }
    locate_further(table, key, home)
}

#[cold]
#[inline(never)]
fn locate_further(table: &[TableBucket], key: TableHash, home: usize) -> Slot {
    let mut free = None;
    for steps in 0..table.len() {
        step();
        let at = bucket_at(home, steps, table.len());
        let control = table[at].control.load(Ordering::Relaxed);
        let last = table[at].words[WAYS].load(Ordering::Relaxed);
        if let Some((way, set)) = table[at].way_of(control, last, key) {
            return Slot { key, at, steps, way, set };
        }
        let empty = zeros(control);
        if free.is_none() && empty != 0 {
            let way = empty.trailing_zeros() as usize / 8;
            free = Some(Slot { key, at, steps, way, set: SetId::EMPTY });
        }
        if free.is_some() && last & key.mark() == 0 {
            break;
        }
    }
    free.expect("a table grows before it is full")
}

/// Puts a key at the free place that was found for it.
#[inline]
pub(crate) fn insert(table: &[TableBucket], spot: &Slot, set: SetId) {
    // A reader must find the way to a displaced key before the key is there.
    if spot.steps > 0 {
        spot.way_to(table).for_each(|passed| passed.pass_by(spot.key));
    }
    let bucket = &table[spot.at];
    let shift = 8 * spot.way;
    let last = bucket.words[WAYS].load(Ordering::Relaxed) & !(0xff << shift);
    let control = bucket.control.load(Ordering::Relaxed);
    bucket.words[spot.way].store(spot.key.rest() | u64::from(set.0), Ordering::Release);
    bucket.words[WAYS].store(last | spot.key.second_half() << shift, Ordering::Release);
    bucket.control.store(control | spot.key.first_half() << shift, Ordering::Release);
}

/// Gives the key that stands at `spot` another set, which is not empty.
#[inline]
pub(crate) fn change(table: &[TableBucket], spot: &Slot, set: SetId) {
    let word = spot.key.rest() | u64::from(set.0);
    table[spot.at].words[spot.way].store(word, Ordering::Release);
}

/// Takes away the key that stands at `spot`.
#[inline]
pub(crate) fn remove(table: &[TableBucket], spot: &Slot) {
    let control = &table[spot.at].control;
    let without = control.load(Ordering::Relaxed) & !(0xff << (8 * spot.way));
    control.store(without.wrapping_add(ONE_VERSION), Ordering::Release);
    // A reader must find the way to a displaced key as long as the key is there.
    if spot.steps > 0 {
        spot.way_to(table).for_each(TableBucket::unpass);
    }
}

impl Slot {
    /// The buckets that the key passed by.
    fn way_to<'a>(
        &self,
        table: &'a [TableBucket],
    ) -> impl Iterator<Item = &'a TableBucket> + use<'a> {
        let home = self.key.home(table.len());
        (0..self.steps).map(move |step| &table[bucket_at(home, step, table.len())])
    }
}

/// A larger (or smaller) table with the same entries. Homes keep their order, so both tables are gone
/// through from one end to the other.
pub(crate) fn rebuild(old: &[TableBucket], buckets: usize) -> Table {
    let new = table(buckets);
    let mut filled = vec![0u8; new.len()];
    for bucket in old {
        let control = bucket.control.load(Ordering::Relaxed);
        let last = bucket.words[WAYS].load(Ordering::Relaxed);
        for way in 0..WAYS {
            let tag = tag(control, last, way);
            if tag & FIRST_HALF != 0 {
                let word = bucket.words[way].load(Ordering::Relaxed);
                place_new(&new, &mut filled, TableHash(word & !SET | tag), word);
            }
        }
    }
    new
}

/// Puts a key and its entry into a table that no reader knows yet; `filled` counts each bucket's places.
#[inline]
fn place_new(new: &[TableBucket], filled: &mut [u8], key: TableHash, word: u64) {
    let mut at = key.home(new.len());
    if usize::from(filled[at]) == WAYS {
        at = pass_full(new, filled, key, at);
    }
    let way = usize::from(filled[at]) % WAYS;
    filled[at] += 1;
    let (bucket, shift) = (&new[at], 8 * way);
    bucket.words[way].store(word, Ordering::Relaxed);
    let last = bucket.words[WAYS].load(Ordering::Relaxed);
    bucket.words[WAYS].store(last | key.second_half() << shift, Ordering::Relaxed);
    let control = bucket.control.load(Ordering::Relaxed);
    bucket.control.store(control | key.first_half() << shift, Ordering::Relaxed);
}

/// The first bucket after a full home that is not full; those before it note the key.
#[cold]
fn pass_full(new: &[TableBucket], filled: &[u8], key: TableHash, home: usize) -> usize {
    let (mut at, mut steps) = (home, 0);
    while usize::from(filled[at]) == WAYS {
        step();
        new[at].pass_by(key);
        steps += 1;
        at = bucket_at(home, steps, new.len());
    }
    at
}

impl TableBucket {
    fn new() -> Self {
        Self { words: std::array::from_fn(|_| AtomicU64::new(0)), control: AtomicU64::new(0) }
    }

    /// Where a key stands in this bucket, and its set.
    #[inline]
    fn way_of(&self, control: u64, last: u64, key: TableHash) -> Option<(usize, SetId)> {
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

    /// The set of `key` in this bucket, and whether it may stand further on.
    #[inline]
    fn read(&self, key: TableHash) -> (SetId, bool) {
        loop {
            let control = self.control.load(Ordering::Acquire);
            let last = self.words[WAYS].load(Ordering::Acquire);
            let found = self.way_of(control, last, key);
            let again = self.control.load(Ordering::Relaxed);
            if (control ^ again) >> VERSION_SHIFT == 0 {
                let set = found.map_or(SetId::EMPTY, |(_, set)| set);
                return (set, last & key.mark() != 0);
            }
            pause();
        }
    }

    fn pass_by(&self, key: TableHash) {
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
