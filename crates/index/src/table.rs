//! One shard's table: block hash → number of the set of pods that hold it.
//!
//! A query costs a handful of cache misses and little else, so a bucket is one cache line of six
//! entries. The shard determines eight bits of a key, so an entry stores the other 56, and 24 bits
//! of a set number: ten bytes, and the whole key is compared. Sixteen bits of a key are its tag.
//! The tags of a bucket lie together in two words and are compared at once, so a lookup reads one
//! entry or none.
//!
//! A key is stored in its home bucket or, if that is full, in a following one, the neighbour first:
//! the processor fetches lines in pairs. Each bucket counts the keys that overflowed past it and
//! stores three bits of each, so a search for an absent key normally ends at the first line.
//!
//! Readers take no lock, and the one writer of a shard never leaves a line unreadable. Changing the
//! set of a key is one store. For a new key the writer stores the entry and half of the tag before
//! the other half, which makes the key visible. Removing a key clears that half first, and the same
//! store increments the version of the line. So a reader can be misled only if a key is removed and
//! another inserted in its place between its reads, and then the version differs: it reads again.
//! The version has 16 bits: to miss the change, a reader would have to sleep through an exact
//! multiple of 65,536 removals from one line in the middle of one read. All accesses to the line
//! are acquire loads and release stores. Overflow marks need no new version: they are set before a
//! displaced key is inserted and cleared after it is removed, so a reader that misses a mark has
//! seen the key absent.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::prefetch::{prefetch, prefetch_to_write};
use crate::steps::step;
use crate::sync::{AtomicU64, Ordering, spin};

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

// The control word, from the top: version (16 bits) · first halves of the tags (8 for each way,
// zero if it is free).
const VERSION_SHIFT: u32 = 48;
const ONE_VERSION: u64 = 1 << VERSION_SHIFT;
/// The lowest bit of each tag, and the highest.
const LOW: u64 = 0x0101_0101_0101_0101 >> (64 - 8 * WAYS);
const HIGH: u64 = LOW << 7;

// The last word, from the top: marks of overflowed keys (8) · their number (8, sticky at the top) ·
// second halves of the tags (8 for each way).
const MARKS_SHIFT: u32 = 56;
const MARKS: u64 = 0xff << MARKS_SHIFT;
const OVERFLOWED: u64 = 0xff << 48;
const ONE_OVERFLOW: u64 = 1 << 48;

/// Number of a set of pods; see [`crate::sets`]. Zero is the empty set and marks a free way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SetId(pub(crate) u32);

impl SetId {
    pub(crate) const EMPTY: SetId = SetId(0);
}

/// A block hash split into its shard and its key within the shard.
///
/// Fibonacci hashing: the product spreads any regularity over the top bits. Multiplying by an odd
/// number loses nothing, so shard (8 bits) and key (55 bits and one that is always set) together
/// are the whole hash but for one bit.
#[derive(Clone, Copy)]
pub(crate) struct TableKey {
    pub(crate) shard: usize,
    key: TableHash,
}

/// What tells hashes of one shard apart, in the upper part of the word. From the top: 40 bits that
/// stand in the entry, and the second and the first half of the tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableHash(u64);

impl TableKey {
    #[inline]
    pub(crate) fn of(hash: BlockHash) -> Self {
        let mixed = hash.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let shard = if SHARDS == 1 { 0 } else { (mixed >> 56) as usize };
        // A tag is never zero, which marks a free way. It costs one bit of 64.
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

    /// The half of the tag in the control word; never zero.
    #[inline]
    fn first_half(self) -> u64 {
        self.0 >> 8 & 0xff
    }

    /// The half of the tag in the last word.
    #[inline]
    fn second_half(self) -> u64 {
        self.0 >> 16 & 0xff
    }

    /// The rest of the key, as stored in an entry.
    #[inline]
    fn rest(self) -> u64 {
        self.0 & !SET
    }

    /// The mark of an overflowed key: one of eight bits, chosen by bits that do not choose the
    /// home.
    #[inline]
    fn mark(self) -> u64 {
        MARK[(self.0 >> 24 & 7) as usize]
    }
}

/// The eight marks; a table lookup is cheaper than a shift by a variable.
const MARK: [u64; 8] = {
    let mut marks = [0; 8];
    let mut at = 0;
    while at < 8 {
        marks[at] = 1 << (at as u32 + MARKS_SHIFT);
        at += 1;
    }
    marks
};

/// One cache line: the entries, then the last word, then (they are eight words if there are six
/// ways) the control word.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct TableBucket {
    /// key (40 bits) · number of the set (24). The last word follows the last way, so that a way
    /// that was not found can be read like any other.
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

/// Whether a table with `len` entries must grow: the load is at most seven tenths.
#[inline]
pub(crate) fn is_crowded(table: &[TableBucket], len: usize) -> bool {
    len * 10 > table.len() * WAYS * 7
}

/// Whether a table with `len` entries must shrink: the load is at least one eighth.
#[inline]
pub(crate) fn is_sparse(table: &[TableBucket], len: usize) -> bool {
    len * 8 < table.len() * WAYS && table.len() > SMALLEST
}

/// The new size of a table that no longer fits its `len` entries: doubled, or two fifths.
pub(crate) fn better_size(buckets: usize, len: usize) -> usize {
    if len * 2 < buckets * WAYS { buckets * 2 / 5 } else { buckets * 2 }
}

/// A lookup of a key: its home bucket is known and may be prefetched.
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

    /// Fetches the line without waiting for it.
    #[inline]
    pub(crate) fn prefetch(self) {
        prefetch(self.home);
    }

    /// The same for a line that will be written.
    #[inline]
    pub(crate) fn prefetch_to_write(self) {
        prefetch_to_write(self.home);
    }

    /// The set of the key, or `None` if one read of the home line does not decide it; then
    /// [`find_slowly`] does.
    ///
    /// Apart from that the code is branch-free: a query makes dozens of these reads of unrelated
    /// keys, and one branch misprediction costs as much as ten reads.
    #[inline]
    pub(crate) fn read(self) -> Option<SetId> {
        let control = self.home.control.load(Ordering::Acquire);
        let last = self.home.words[WAYS].load(Ordering::Acquire);
        let matches = matches(control, last, self.key);
        // Without a matching tag this is the last word, which is then not used.
        let way = (matches | 1 << (8 * WAYS)).trailing_zeros() as usize / 8;
        let word = self.home.words[way].load(Ordering::Acquire);
        let again = self.home.control.load(Ordering::Relaxed);
        let found = (matches != 0) & (word & !SET == self.key.rest());
        let further = if found { 0 } else { matches | last & self.key.mark() };
        let set = if found { word & SET } else { 0 };
        let settled = (control ^ again) >> VERSION_SHIFT | further == 0;
        settled.then_some(SetId(set as u32))
    }
}

/// The part of an entry that is a set's number.
const SET: u64 = SETS as u64 - 1;

/// Flags the ways whose tag matches, by the high bit of each way's byte; above a match there may be
/// a false positive.
#[inline]
fn matches(control: u64, last: u64, key: TableHash) -> u64 {
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

/// Flags the zero bytes by their high bits; above a zero byte there may be a false positive.
#[inline]
fn zeros(bytes: u64) -> u64 {
    bytes.wrapping_sub(LOW) & !bytes & HIGH
}

/// Finds the set of a key in any bucket; spins while a writer changes the line.
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

/// The bucket `steps` steps from home: first the neighbour in the same pair of lines, which the
/// processor fetches together, then the following pairs. The number of buckets is even and larger
/// than `steps`.
#[inline]
fn bucket_at(home: usize, steps: usize, buckets: usize) -> usize {
    let pair = (home & !1) + (steps & !1);
    let pair = if pair < buckets { pair } else { pair - buckets };
    pair | ((home ^ steps) & 1)
}

/// The position of a key in the table, or where to insert it. Only for the holder of the shard's
/// lock.
pub(crate) struct TableSlot {
    key: TableHash,
    /// Its bucket.
    at: usize,
    /// Steps from the home bucket to `at`.
    steps: usize,
    way: usize,
    /// The stored set; empty if the key is absent.
    pub(crate) set: SetId,
}

/// Looks a key up for writing. A table always has a free way.
#[inline]
pub(crate) fn locate(table: &[TableBucket], key: TableKey) -> TableSlot {
    let key = key.key;
    let home = key.home(table.len());
    let bucket = &table[home];
    let control = bucket.control.load(Ordering::Relaxed);
    let last = bucket.words[WAYS].load(Ordering::Relaxed);
    if let Some((way, set)) = bucket.way_of(control, last, key) {
        return TableSlot { key, at: home, steps: 0, way, set };
    }
    let free = zeros(control);
    if free != 0 && last & key.mark() == 0 {
        let way = free.trailing_zeros() as usize / 8;
        return TableSlot { key, at: home, steps: 0, way, set: SetId::EMPTY };
    }
    locate_further(table, key, home)
}

#[cold]
#[inline(never)]
fn locate_further(table: &[TableBucket], key: TableHash, home: usize) -> TableSlot {
    let mut free = None;
    for steps in 0..table.len() {
        step();
        let at = bucket_at(home, steps, table.len());
        let control = table[at].control.load(Ordering::Relaxed);
        let last = table[at].words[WAYS].load(Ordering::Relaxed);
        if let Some((way, set)) = table[at].way_of(control, last, key) {
            return TableSlot { key, at, steps, way, set };
        }
        let empty = zeros(control);
        if free.is_none() && empty != 0 {
            let way = empty.trailing_zeros() as usize / 8;
            free = Some(TableSlot { key, at, steps, way, set: SetId::EMPTY });
        }
        if free.is_some() && last & key.mark() == 0 {
            break;
        }
    }
    free.expect("a table grows before it is full")
}

/// Inserts a key at the free way that [`locate`] found.
#[inline]
pub(crate) fn insert(table: &[TableBucket], slot: &TableSlot, set: SetId) {
    // The marks that lead readers to a displaced key must be visible before the key.
    if slot.steps > 0 {
        slot.passed(table).for_each(|bucket| bucket.mark_overflow(slot.key));
    }
    let bucket = &table[slot.at];
    let shift = 8 * slot.way;
    let last = bucket.words[WAYS].load(Ordering::Relaxed) & !(0xff << shift);
    let control = bucket.control.load(Ordering::Relaxed);
    bucket.words[slot.way].store(slot.key.rest() | u64::from(set.0), Ordering::Release);
    bucket.words[WAYS].store(last | slot.key.second_half() << shift, Ordering::Release);
    bucket.control.store(control | slot.key.first_half() << shift, Ordering::Release);
}

/// Changes the set of the key at `slot` to another one, which is not empty.
#[inline]
pub(crate) fn change(table: &[TableBucket], slot: &TableSlot, set: SetId) {
    let word = slot.key.rest() | u64::from(set.0);
    table[slot.at].words[slot.way].store(word, Ordering::Release);
}

/// Removes the key at `slot`.
#[inline]
pub(crate) fn remove(table: &[TableBucket], slot: &TableSlot) {
    let control = &table[slot.at].control;
    let without = control.load(Ordering::Relaxed) & !(0xff << (8 * slot.way));
    control.store(without.wrapping_add(ONE_VERSION), Ordering::Release);
    // The marks that lead readers to a displaced key must stay visible as long as the key.
    if slot.steps > 0 {
        slot.passed(table).for_each(TableBucket::unmark_overflow);
    }
}

impl TableSlot {
    /// The full buckets between the home of the key and its own.
    fn passed<'a>(
        &self,
        table: &'a [TableBucket],
    ) -> impl Iterator<Item = &'a TableBucket> + use<'a> {
        let home = self.key.home(table.len());
        (0..self.steps).map(move |step| &table[bucket_at(home, step, table.len())])
    }
}

/// A larger or smaller table with the same entries. Homes keep their order, so both tables are
/// traversed sequentially.
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
                insert_unpublished(&new, &mut filled, TableHash(word & !SET | tag), word);
            }
        }
    }
    new
}

/// Inserts a key into a table that no reader knows yet; `filled` counts the used ways of each
/// bucket.
#[inline]
fn insert_unpublished(new: &[TableBucket], filled: &mut [u8], key: TableHash, word: u64) {
    let mut at = key.home(new.len());
    if usize::from(filled[at]) == WAYS {
        at = pass_full(new, filled, key, at);
    }
    let way = usize::from(filled[at]) % WAYS;
    filled[at] += 1;
    let bucket = &new[at];
    let shift = 8 * way;
    bucket.words[way].store(word, Ordering::Relaxed);
    let last = bucket.words[WAYS].load(Ordering::Relaxed);
    bucket.words[WAYS].store(last | key.second_half() << shift, Ordering::Relaxed);
    let control = bucket.control.load(Ordering::Relaxed);
    bucket.control.store(control | key.first_half() << shift, Ordering::Relaxed);
}

/// The first bucket after a full home that is not full; marks the key in all before it.
#[cold]
fn pass_full(new: &[TableBucket], filled: &[u8], key: TableHash, home: usize) -> usize {
    let mut at = home;
    let mut steps = 0;
    while usize::from(filled[at]) == WAYS {
        step();
        new[at].mark_overflow(key);
        steps += 1;
        at = bucket_at(home, steps, new.len());
    }
    at
}

impl TableBucket {
    fn new() -> Self {
        Self { words: std::array::from_fn(|_| AtomicU64::new(0)), control: AtomicU64::new(0) }
    }

    /// The way of a key in this bucket, and its set.
    #[inline]
    fn way_of(&self, control: u64, last: u64, key: TableHash) -> Option<(usize, SetId)> {
        let mut matches = matches(control, last, key);
        while matches != 0 {
            let way = matches.trailing_zeros() as usize / 8;
            let word = self.words[way].load(Ordering::Acquire);
            if word & !SET == key.rest() && tag(control, last, way) == key.0 & TAG {
                return Some((way, SetId((word & SET) as u32)));
            }
            matches &= matches - 1;
        }
        None
    }

    /// The set of `key` in this bucket, and whether a later bucket may have it.
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
            spin();
        }
    }

    fn mark_overflow(&self, key: TableHash) {
        let before = self.words[WAYS].load(Ordering::Relaxed);
        let count = if before & OVERFLOWED == OVERFLOWED { 0 } else { ONE_OVERFLOW };
        self.words[WAYS].store((before | key.mark()) + count, Ordering::Release);
    }

    /// Clears the marks with the last overflowed key. A saturated count stays, with its marks,
    /// until the table is rebuilt, because it can no longer be decremented.
    fn unmark_overflow(&self) {
        let before = self.words[WAYS].load(Ordering::Relaxed);
        let after = match before & OVERFLOWED {
            OVERFLOWED => before,
            ONE_OVERFLOW => before & !(OVERFLOWED | MARKS),
            _ => before - ONE_OVERFLOW,
        };
        self.words[WAYS].store(after, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
