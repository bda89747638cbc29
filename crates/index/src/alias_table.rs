//! A hash table from an engine's block hash to the number of the block's entry, in about six bytes
//! per entry.
//!
//! Open addressing with linear probing. A bucket is one cache line of fifteen slots, filled from
//! the first. A slot holds eight bits of the hash, its tag, and the number of an entry; the hash
//! itself is in the entry, which is read only if the tags match. Tags lie together and are compared
//! sixteen bytes at once. Unlike an ordinary map, this one can prefetch a line ahead of its use.
//!
//! Invariant: a number is in its home bucket, or every bucket from its home up to its own is full.
//! So a probe ends at the first bucket with a free slot, and the table needs neither tombstones nor
//! overflow counts. A removal keeps the invariant by backward shifting: it fills the freed slot
//! with a number displaced past that bucket, and continues with the slot that this number freed. So
//! the fill of each bucket depends on the homes of the current numbers alone, not on earlier
//! insertions and removals: a table that has been full for months has the probe lengths of a new
//! one.
//!
//! Every probe visits each bucket at most once. There is always a free slot, because
//! [`AliasTable::fits`] bounds the load.
//!
//! A new table gets its buckets as they are used, from the first: those that it lacks are empty. So
//! a large one costs nothing before numbers are moved to it ([`crate::aliases`]).

use crate::prefetch::prefetch;
use crate::steps::step;

/// Slots in a bucket. The byte after their tags counts the slots in use.
const WAYS: usize = 15;
const COUNT: usize = 15;
/// One more than the largest number: numbers have three bytes.
pub(crate) const NUMBERS: u32 = 1 << 24;

/// The maximal load in sixteenths. At 12 a search for an unknown hash visits 1.3 buckets and a
/// removal shifts 0.3 numbers back; at 14 it is 2.8 and 1.3.
const LOAD: usize = 12;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = LOW << 7;

#[repr(align(64))]
#[derive(Clone, Debug)]
struct Bucket {
    /// Fifteen tags, and how many of them are in use.
    tags: [u8; 16],
    /// Three bytes for each slot, and one to spare.
    numbers: [u8; 46],
    /// A bit for each slot whose number has another home.
    displaced: u16,
}

const EMPTY: Bucket = Bucket { tags: [0; 16], numbers: [0; 46], displaced: 0 };

/// The keyed hash of an engine's block hash.
#[derive(Clone, Copy)]
pub(crate) struct AliasHash(pub(crate) u64);

impl AliasHash {
    /// The low bits, which do not choose the bucket and so distinguish the hashes of one bucket.
    #[inline]
    fn tag(self) -> u8 {
        self.0 as u8
    }

    #[inline]
    fn home(self, buckets: usize) -> usize {
        ((u128::from(self.0) * buckets as u128) >> 64) as usize
    }
}

/// One slot of the table.
#[derive(Clone, Copy)]
struct AliasSlot {
    bucket: usize,
    way: usize,
}

#[derive(Debug, Default)]
pub(crate) struct AliasTable {
    /// The first of its buckets; the others are empty.
    buckets: Vec<Bucket>,
    /// The number of buckets.
    count: usize,
    len: usize,
}

impl AliasTable {
    /// An empty table whose buckets are added as they are used.
    pub(crate) fn with_buckets(count: usize) -> Self {
        Self { buckets: Vec::with_capacity(count), count, len: 0 }
    }

    /// Adds all buckets that are missing.
    pub(crate) fn complete(&mut self) {
        self.buckets.resize(self.count, EMPTY);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of buckets.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn home(&self, hash: AliasHash) -> usize {
        hash.home(self.count)
    }

    /// The bucket after this one.
    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.count { 0 } else { at + 1 }
    }

    /// The number of buckets from `home` to `at`.
    #[inline]
    fn distance(&self, home: usize, at: usize) -> usize {
        if at >= home { at - home } else { at + self.count - home }
    }

    /// Prefetches the home bucket of a hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: AliasHash) {
        if let Some(bucket) = self.buckets.get(self.home(hash)) {
            prefetch(bucket);
        }
    }

    /// The number for which `matches` is true, among those with the same tag.
    #[inline]
    pub(crate) fn find(&self, hash: AliasHash, matches: impl Fn(u32) -> bool) -> Option<u32> {
        let slot = self.locate(hash, matches)?;
        Some(self.buckets[slot.bucket].number(slot.way))
    }

    #[inline]
    fn locate(&self, hash: AliasHash, matches: impl Fn(u32) -> bool) -> Option<AliasSlot> {
        let mut at = self.home(hash);
        for _ in 0..self.count {
            step();
            let bucket = self.buckets.get(at)?;
            for half in 0..2 {
                let mut tags = bucket.matching_tags(half, hash.tag());
                while tags != 0 {
                    let way = half * 8 + tags.trailing_zeros() as usize / 8;
                    if way < bucket.used() && matches(bucket.number(way)) {
                        return Some(AliasSlot { bucket: at, way });
                    }
                    tags &= tags - 1;
                }
            }
            if !bucket.is_full() {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a number if no tag on its probe path matches, so that its hash is new for sure. The
    /// caller checks [`Self::fits`]. Returns `false` and adds nothing if the hash may be
    /// known.
    #[inline]
    pub(crate) fn add_new(&mut self, hash: AliasHash, number: u32) -> bool {
        step();
        let home = self.home(hash);
        let bucket = self.bucket(home);
        if bucket.may_have(hash.tag()) {
            return false;
        }
        if bucket.is_full() {
            return self.add_new_after(hash, number, home);
        }
        bucket.push(hash.tag(), number);
        self.len += 1;
        true
    }

    /// [`Self::add_new`] with a full home bucket.
    #[cold]
    #[inline(never)]
    fn add_new_after(&mut self, hash: AliasHash, number: u32, home: usize) -> bool {
        let mut at = self.after(home);
        while at != home {
            step();
            let bucket = self.bucket(at);
            if bucket.may_have(hash.tag()) {
                return false;
            }
            if !bucket.is_full() {
                bucket.push_displaced(hash.tag(), number);
                self.len += 1;
                return true;
            }
            at = self.after(at);
        }
        unreachable!("the load keeps slots free")
    }

    /// Adds a number whose hash is new. The caller checks [`Self::fits`].
    #[inline]
    pub(crate) fn put(&mut self, hash: AliasHash, number: u32) {
        step();
        let home = self.home(hash);
        self.len += 1;
        let bucket = self.bucket(home);
        if bucket.is_full() {
            let at = self.first_with_free_slot(home);
            self.buckets[at].push_displaced(hash.tag(), number);
        } else {
            bucket.push(hash.tag(), number);
        }
    }

    /// A bucket to write to, which is added if it is missing.
    #[inline]
    fn bucket(&mut self, at: usize) -> &mut Bucket {
        if at >= self.buckets.len() {
            self.add_buckets(at);
        }
        &mut self.buckets[at]
    }

    #[cold]
    #[inline(never)]
    fn add_buckets(&mut self, last: usize) {
        self.buckets.resize(last + 1, EMPTY);
    }

    /// The first bucket after a full home that has a free slot.
    #[cold]
    #[inline(never)]
    fn first_with_free_slot(&mut self, home: usize) -> usize {
        let mut at = self.after(home);
        while at != home && self.bucket(at).is_full() {
            step();
            at = self.after(at);
        }
        debug_assert_ne!(at, home, "the load keeps slots free");
        at
    }

    /// Removes a number. `hash_of` gives the hash of every other number in the table.
    pub(crate) fn remove(
        &mut self,
        hash: AliasHash,
        number: u32,
        hash_of: impl Fn(u32) -> AliasHash,
    ) {
        let Some(mut free) = self.locate(hash, |other| other == number) else { return };
        self.len -= 1;
        // Numbers are displaced past full buckets only, and each iteration continues with a later
        // bucket of one run of full buckets.
        while self.buckets[free.bucket].is_full()
            && let Some(passed) = self.first_displaced(free.bucket, &hash_of)
        {
            let moved = &self.buckets[passed.bucket];
            let tag = moved.tags[passed.way];
            let number = moved.number(passed.way);
            let is_displaced = self.home(hash_of(number)) != free.bucket;
            self.buckets[free.bucket].replace(free.way, tag, number, is_displaced);
            free = passed;
        }
        self.buckets[free.bucket].remove(free.way);
    }

    /// The slot of the nearest number that was displaced past a full bucket.
    fn first_displaced(
        &self,
        full: usize,
        hash_of: &impl Fn(u32) -> AliasHash,
    ) -> Option<AliasSlot> {
        let mut at = self.after(full);
        while at != full {
            step();
            let bucket = self.buckets.get(at)?;
            let mut displaced = bucket.displaced;
            while displaced != 0 {
                step();
                let way = displaced.trailing_zeros() as usize;
                let home = self.home(hash_of(bucket.number(way)));
                if self.distance(home, at) >= self.distance(full, at) {
                    return Some(AliasSlot { bucket: at, way });
                }
                displaced &= displaced - 1;
            }
            if !bucket.is_full() {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// All numbers, in the order of their buckets.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let used = |bucket: &'_ Bucket| 0..bucket.used();
        self.buckets.iter().flat_map(move |it| used(it).map(|way| it.number(way)))
    }

    /// Takes out all numbers whose home is this bucket.
    pub(crate) fn take_home(
        &mut self,
        home: usize,
        hash_of: &impl Fn(u32) -> AliasHash,
        mut take: impl FnMut(AliasHash, u32),
    ) {
        let is_simple = self.buckets.get(home).is_none_or(|bucket| bucket.displaced == 0);
        while let Some(number) = self.number_of(home, is_simple, hash_of) {
            let hash = hash_of(number);
            self.remove(hash, number, hash_of);
            take(hash, number);
        }
        if is_simple && let Some(bucket) = self.buckets.get_mut(home) {
            step();
            (0..bucket.used()).map(|way| bucket.number(way)).for_each(|it| take(hash_of(it), it));
            self.len -= bucket.used();
            *bucket = EMPTY;
        }
    }

    /// A number whose home is this bucket; only one that is displaced, if `displaced`.
    fn number_of(
        &self,
        home: usize,
        displaced: bool,
        hash_of: &impl Fn(u32) -> AliasHash,
    ) -> Option<u32> {
        let mut at = home;
        loop {
            step();
            let bucket = self.buckets.get(at)?;
            let is_of_home = |way: &usize| match bucket.displaced >> way & 1 != 0 {
                true => at != home && self.home(hash_of(bucket.number(*way))) == home,
                false => at == home && !displaced,
            };
            if let Some(way) = (0..bucket.used()).rev().find(is_of_home) {
                return Some(bucket.number(way));
            }
            at = self.after(at);
            if !bucket.is_full() || at == home {
                return None;
            }
        }
    }

    /// Whether the load allows this many hashes.
    #[inline]
    pub(crate) fn fits(&self, len: usize) -> bool {
        len * 16 <= self.count * WAYS * LOAD
    }

    /// How many buckets have half of the maximal load with `len` hashes.
    pub(crate) fn ample_buckets(len: usize) -> usize {
        len * 16 * 2 / (WAYS * LOAD) + 1
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }
}

impl Bucket {
    /// Whether the bucket may contain a tag; a free slot or the count may look like it.
    #[inline]
    fn may_have(&self, tag: u8) -> bool {
        self.tags.iter().fold(false, |found, other| found | (*other == tag))
    }

    /// Flags the slots of a half with a matching tag, by the high bit of their byte: a byte is zero
    /// exactly if neither it nor the sum of its low bits and 0x7f has that bit.
    #[inline]
    fn matching_tags(&self, half: usize, tag: u8) -> u64 {
        let (halves, _) = self.tags.as_chunks::<8>();
        let differ = u64::from_le_bytes(halves[half]) ^ LOW.wrapping_mul(u64::from(tag));
        !((differ & !HIGH).wrapping_add(!HIGH) | differ) & HIGH
    }

    #[inline]
    fn used(&self) -> usize {
        usize::from(self.tags[COUNT])
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.used() == WAYS
    }

    #[inline]
    fn number(&self, way: usize) -> u32 {
        let number = self.numbers[3 * way..].first_chunk().copied().unwrap_or_default();
        u32::from_le_bytes(number) & (NUMBERS - 1)
    }

    /// Uses the first free slot; there must be one.
    #[inline]
    fn push(&mut self, tag: u8, number: u32) {
        let way = self.used();
        // The fourth byte is the first of the next slot, which is free.
        if let Some(slot) = self.numbers[3 * way..].first_chunk_mut() {
            *slot = number.to_le_bytes();
        }
        self.tags[way] = tag;
        self.tags[COUNT] += 1;
    }

    /// The same for a number whose home is another bucket.
    #[inline]
    fn push_displaced(&mut self, tag: u8, number: u32) {
        self.displaced |= 1 << self.used();
        self.push(tag, number);
    }

    /// Replaces the number in a used slot.
    fn replace(&mut self, way: usize, tag: u8, number: u32, is_displaced: bool) {
        self.numbers[3 * way..3 * way + 3].copy_from_slice(&number.to_le_bytes()[..3]);
        self.tags[way] = tag;
        self.displaced = self.displaced & !(1 << way) | u16::from(is_displaced) << way;
    }

    /// Frees a slot: the last one in use moves to it.
    fn remove(&mut self, way: usize) {
        let last = self.used() - 1;
        let is_displaced = self.displaced >> last & 1 != 0;
        self.replace(way, self.tags[last], self.number(last), is_displaced);
        self.displaced &= !(1 << last);
        self.tags[COUNT] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Names are their own hashes here, with few buckets and tags.
    #[test]
    fn aliases_agree_with_a_map_through_growth_removal_and_crowding() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        let mut names: Vec<u64> = vec![];
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let mut aliases = AliasTable::default();
        for _ in 0..200_000 {
            let name = (random() % 7) << 60 | (random() % 40) << 20 | (random() % 3);
            let matches = |number: u32| names[number as usize] == name;
            let found = aliases.find(AliasHash(name), matches);
            assert_eq!(found, numbers.get(&name).copied());
            if let Some(number) = found {
                if random() % 2 == 0 {
                    aliases
                        .remove(AliasHash(name), number, |other| AliasHash(names[other as usize]));
                    numbers.remove(&name);
                }
            } else {
                names.push(name);
                let number = names.len() as u32 - 1;
                numbers.insert(name, number);
                if !aliases.fits(aliases.len + 1) {
                    let mut larger = AliasTable::with_buckets(aliases.count * 7 / 4 + 1);
                    for (name, number) in numbers.iter().filter(|(other, _)| **other != name) {
                        larger.put(AliasHash(*name), *number);
                    }
                    aliases = larger;
                }
                if random() % 2 == 0 || !aliases.add_new(AliasHash(name), number) {
                    aliases.put(AliasHash(name), number);
                }
            }
            assert_eq!(aliases.len, numbers.len());
        }
    }

    impl AliasTable {
        /// Every number is in its home bucket or behind full buckets, and marked as displaced only
        /// then.
        fn check(&self, hash_of: impl Fn(u32) -> AliasHash) {
            for (at, bucket) in self.buckets.iter().enumerate() {
                for way in 0..bucket.used() {
                    let home = self.home(hash_of(bucket.number(way)));
                    assert_eq!(bucket.displaced >> way & 1 != 0, at != home);
                    let mut passed = home;
                    while passed != at {
                        assert!(self.buckets[passed].is_full());
                        passed = self.after(passed);
                    }
                }
                assert_eq!(bucket.displaced >> bucket.used(), 0);
            }
        }
    }

    /// At maximal load, with every hash replaced again and again, the table keeps its invariant,
    /// and its buckets are filled like those of a table built from the same hashes.
    #[test]
    fn a_full_table_after_long_churn_looks_like_a_new_one() {
        let hash =
            |number: u32| AliasHash((u64::from(number) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for buckets in [1, 2, 3, 7, 40] {
            let complete = || {
                let mut table = AliasTable::with_buckets(buckets);
                table.complete();
                table
            };
            let mut aliases = complete();
            let mut live = std::collections::VecDeque::new();
            for number in 0..2_000 * buckets as u32 {
                if !aliases.fits(aliases.len + 1) {
                    // Not always the oldest, so that some stay for long.
                    let at = number as usize * 7 % live.len().div_ceil(3);
                    let gone = live.remove(at).expect("the index is below the length");
                    aliases.remove(hash(gone), gone, hash);
                }
                if !aliases.add_new(hash(number), number) {
                    aliases.put(hash(number), number);
                }
                live.push_back(number);
            }
            aliases.check(hash);
            let mut fresh = complete();
            live.iter().for_each(|number| fresh.put(hash(*number), *number));
            let used =
                |table: &AliasTable| table.buckets.iter().map(Bucket::used).collect::<Vec<_>>();
            assert_eq!(used(&aliases), used(&fresh));
            for number in live {
                assert_eq!(aliases.find(hash(number), |other| other == number), Some(number));
            }
        }
    }
}
