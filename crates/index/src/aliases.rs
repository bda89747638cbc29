//! From an engine's name to the number of an entry, in about six bytes an entry.
//!
//! A bucket is one cache line of fifteen places, filled from the first. A place is eight bits of a
//! name's hash, its tag, and the number of an entry; the name itself stands in the entry, which is
//! looked at only when those bits agree. Tags lie together, and whether one of them fits is a single
//! comparison of sixteen bytes. A full bucket lets names pass on to the next and counts them. Unlike
//! an ordinary map, this one can be asked for a line ahead of its use, and grows to less than twice its
//! size.

use crate::prefetch::prefetch;

/// Places in a bucket. Where a sixteenth tag would stand are two counts.
const WAYS: usize = 15;
const COUNTS: usize = 15;
/// One more than the largest number: numbers have three bytes.
pub(crate) const NUMBERS: u32 = 1 << 24;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = LOW << 7;

// The counts: names that passed by (four bits, sticky at the top) · places that are filled (four bits).
const FILLED: u8 = 0x0f;
const PASSED: u8 = 0xf0;
const ONE_PASSED: u8 = 0x10;

#[repr(align(64))]
#[derive(Clone, Debug)]
struct Bucket {
    /// Fifteen tags and the counts.
    tags: [u8; 16],
    /// Three bytes for each place, and a few to spare.
    numbers: [u8; 48],
}

/// The hash of a name, as [`Aliases`] uses it.
#[derive(Clone, Copy)]
pub(crate) struct Spread(pub(crate) u64);

impl Spread {
    /// The low bits choose no bucket, so they tell names in one bucket apart.
    #[inline]
    fn tag(self) -> u8 {
        self.0 as u8
    }

    #[inline]
    fn home(self, buckets: usize) -> usize {
        ((u128::from(self.0) * buckets as u128) >> 64) as usize
    }
}

#[derive(Debug, Default)]
pub(crate) struct Aliases {
    buckets: Box<[Bucket]>,
    len: usize,
}

impl Aliases {
    #[inline]
    fn home(&self, spread: Spread) -> usize {
        spread.home(self.buckets.len())
    }

    /// The bucket after this one.
    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// Asks for a name's line without waiting for it.
    #[inline]
    pub(crate) fn prefetch(&self, spread: Spread) {
        if let Some(bucket) = self.buckets.get(self.home(spread)) {
            prefetch(bucket);
        }
    }

    /// The number for which `is_it` says yes, among those whose hash fits.
    #[inline]
    pub(crate) fn find(&self, spread: Spread, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.locate(spread, is_it).map(|(_, _, number)| number)
    }

    #[inline]
    fn locate(&self, spread: Spread, is_it: impl Fn(u32) -> bool) -> Option<(usize, usize, u32)> {
        let mut at = self.home(spread);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for half in 0..2 {
                let mut fits = bucket.fits(half, spread.tag());
                while fits != 0 {
                    let way = half * 8 + fits.trailing_zeros() as usize / 8;
                    let number = bucket.number(way);
                    if way < bucket.filled() && is_it(number) {
                        return Some((at, way, number));
                    }
                    fits &= fits - 1;
                }
            }
            if bucket.tags[COUNTS] & PASSED == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a number if its name is surely new; there must be room. `false` when it may be known.
    #[inline]
    pub(crate) fn add_new(&mut self, spread: Spread, number: u32) -> bool {
        let home = self.home(spread);
        let bucket = &mut self.buckets[home];
        if bucket.may_have(spread.tag()) {
            return false;
        }
        // With nothing passed by the counts are the number of filled places.
        if usize::from(bucket.tags[COUNTS]) >= WAYS {
            return self.add_new_further(spread, number, home);
        }
        bucket.push(spread, number);
        self.len += 1;
        true
    }

    /// The same when the home is full, or was.
    #[cold]
    #[inline(never)]
    fn add_new_further(&mut self, spread: Spread, number: u32, home: usize) -> bool {
        let mut at = home;
        while self.buckets[at].tags[COUNTS] & PASSED != 0 {
            at = self.after(at);
            if self.buckets[at].may_have(spread.tag()) {
                return false;
            }
        }
        self.put(spread, number);
        true
    }

    /// Adds a number whose name is new. There must be room.
    #[inline]
    pub(crate) fn put(&mut self, spread: Spread, number: u32) {
        let mut at = self.home(spread);
        if self.buckets[at].filled() == WAYS {
            at = self.pass_full(at);
        }
        self.buckets[at].push(spread, number);
        self.len += 1;
    }

    /// The first bucket from `at` that is not full; those before it count a name that passes by.
    #[cold]
    #[inline(never)]
    fn pass_full(&mut self, mut at: usize) -> usize {
        while self.buckets[at].filled() == WAYS {
            self.buckets[at].pass_by();
            at = self.after(at);
        }
        at
    }

    /// Takes a number out.
    pub(crate) fn remove(&mut self, spread: Spread, number: u32) {
        let Some((found, way, _)) = self.locate(spread, |other| other == number) else { return };
        self.buckets[found].take(way);
        let mut at = self.home(spread);
        while at != found {
            self.buckets[at].unpass();
            at = self.after(at);
        }
        self.len -= 1;
    }

    /// Whether so many more names fit.
    #[inline]
    pub(crate) fn has_room(&self, more: usize) -> bool {
        (self.len + more) * 8 <= self.buckets.len() * WAYS * 7
    }

    /// An empty table that is larger, to put all names into.
    pub(crate) fn larger(&self) -> Self {
        let buckets = self.buckets.len() * 7 / 4 + 1;
        let nothing = Bucket { tags: [0; 16], numbers: [0; 48] };
        Self { buckets: vec![nothing; buckets].into(), len: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }
}

impl Bucket {
    /// Whether a tag may be among these; a free place or the counts may look like it.
    #[inline]
    fn may_have(&self, tag: u8) -> bool {
        self.tags.iter().fold(false, |found, other| found | (*other == tag))
    }

    /// Marks the places of a half whose tag fits, by the high bit of their byte: a byte is zero exactly
    /// if neither it nor the sum of its low bits and 0x7f has that bit.
    #[inline]
    fn fits(&self, half: usize, tag: u8) -> u64 {
        let (halves, _) = self.tags.as_chunks::<8>();
        let differ = u64::from_le_bytes(halves[half]) ^ LOW.wrapping_mul(u64::from(tag));
        !((differ & !HIGH).wrapping_add(!HIGH) | differ) & HIGH
    }

    #[inline]
    fn filled(&self) -> usize {
        usize::from(self.tags[COUNTS] & FILLED)
    }

    #[inline]
    fn number(&self, way: usize) -> u32 {
        let number = self.numbers[3 * way..].first_chunk().copied().unwrap_or_default();
        u32::from_le_bytes(number) & (NUMBERS - 1)
    }

    /// Fills the first free place; there must be one.
    #[inline]
    fn push(&mut self, spread: Spread, number: u32) {
        let way = self.filled();
        // The fourth byte is the first of the next place, which is free.
        if let Some(place) = self.numbers[3 * way..].first_chunk_mut() {
            *place = number.to_le_bytes();
        }
        self.tags[way] = spread.tag();
        self.tags[COUNTS] += 1;
    }

    /// Empties a place: what stands in the last takes it.
    fn take(&mut self, way: usize) {
        let last = self.filled() - 1;
        self.numbers.copy_within(3 * last..3 * last + 3, 3 * way);
        self.tags[way] = self.tags[last];
        self.tags[COUNTS] -= 1;
    }

    fn pass_by(&mut self) {
        if self.tags[COUNTS] & PASSED != PASSED {
            self.tags[COUNTS] += ONE_PASSED;
        }
    }

    /// A count that reached the top can no longer be counted down; it goes when the table grows.
    fn unpass(&mut self) {
        if self.tags[COUNTS] & PASSED != PASSED {
            self.tags[COUNTS] -= ONE_PASSED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Names are their own hashes here, crowded into few buckets and tags.
    #[test]
    fn aliases_agree_with_a_map_through_growth_removal_and_crowding() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        let mut names: Vec<u64> = vec![];
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let mut aliases = Aliases::default();
        for _ in 0..200_000 {
            let name = (random() % 7) << 60 | (random() % 40) << 20 | (random() % 3);
            let is_it = |number: u32| names[number as usize] == name;
            let found = aliases.find(Spread(name), is_it);
            assert_eq!(found, numbers.get(&name).copied());
            if let Some(number) = found {
                if random() % 2 == 0 {
                    aliases.remove(Spread(name), number);
                    numbers.remove(&name);
                }
            } else {
                names.push(name);
                let number = names.len() as u32 - 1;
                numbers.insert(name, number);
                if !aliases.has_room(1) {
                    let mut larger = aliases.larger();
                    for (name, number) in numbers.iter().filter(|(other, _)| **other != name) {
                        larger.put(Spread(*name), *number);
                    }
                    aliases = larger;
                }
                if random() % 2 == 0 || !aliases.add_new(Spread(name), number) {
                    aliases.put(Spread(name), number);
                }
            }
            assert_eq!(aliases.len, numbers.len());
        }
    }
}
