//! From an engine's name to the number of an entry, in about six bytes an entry.
//!
//! A bucket is one cache line of fifteen places. A place is eight bits of a name's hash and the number
//! of an entry; the name itself stands in the entry, which is looked at only when those bits agree.
//! The eight-bit tags lie together and are compared eight at a time. A full bucket lets names pass on
//! to the next and counts them, as in [`crate::table`]. Unlike an ordinary map, this one can be asked
//! to bring a line into the cache ahead of its use, and grows by half, not to twice its size.

/// Places in a bucket. The sixteenth tag is a count.
const WAYS: usize = 15;
/// One more than the largest number: numbers have three bytes.
pub(crate) const NUMBERS: u32 = 1 << 24;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = LOW << 7;
/// What of a tag word are tags: the last byte of the second is the count.
const TAGS: [u64; 2] = [HIGH, HIGH >> 8];
const PASSED: u64 = 0xff << 56;
const ONE_PASSED: u64 = 1 << 56;

#[repr(align(64))]
#[derive(Clone, Debug)]
struct Bucket {
    /// Fifteen tags, zero for a free place, and how many names passed by (sticky at the top).
    tags: [u64; 2],
    numbers: [[u8; 3]; 16],
}

/// The hash of a name, as [`Aliases`] uses it.
#[derive(Clone, Copy)]
pub(crate) struct Spread(pub(crate) u64);

impl Spread {
    /// The low bits choose no bucket, so they tell names in one bucket apart. Never zero.
    #[inline]
    fn tag(self) -> u64 {
        (self.0 & 0xff).max(1)
    }

    #[inline]
    fn home(self, buckets: usize) -> usize {
        ((u128::from(self.0) * buckets as u128) >> 64) as usize
    }
}

/// A free place in a name's home bucket.
#[derive(Clone, Copy)]
pub(crate) struct Vacancy {
    at: usize,
    way: usize,
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

    /// Brings a name's line into the cache without waiting for it; the value means nothing.
    #[inline]
    pub(crate) fn touch(&self, spread: Spread) -> u64 {
        self.buckets.get(self.home(spread)).map_or(0, |bucket| bucket.tags[0])
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
                    if is_it(number) {
                        return Some((at, way, number));
                    }
                    fits &= fits - 1;
                }
            }
            if bucket.tags[1] & PASSED == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a number whose name is new. `false` when the table must grow first.
    #[inline]
    pub(crate) fn insert(&mut self, spread: Spread, number: u32) -> bool {
        if !self.has_room(1) {
            return false;
        }
        self.put(spread, number);
        true
    }

    /// Adds a number whose name is new. There must be room.
    #[inline]
    pub(crate) fn put(&mut self, spread: Spread, number: u32) {
        let mut at = self.home(spread);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(way) = bucket.free() {
                bucket.set(way, spread, number);
                self.len += 1;
                return;
            }
            bucket.pass_by();
            at = self.after(at);
        }
    }

    /// Takes a number out.
    pub(crate) fn remove(&mut self, spread: Spread, number: u32) {
        let Some((found, way, _)) = self.locate(spread, |other| other == number) else { return };
        self.buckets[found].tags[way / 8] &= !(0xff << (way % 8 * 8));
        let mut at = self.home(spread);
        while at != found {
            self.buckets[at].unpass();
            at = self.after(at);
        }
        self.len -= 1;
    }

    /// A place for a name in its home bucket; `None` if the name may be known, or has to go elsewhere.
    #[inline]
    pub(crate) fn vacancy(&self, spread: Spread) -> Option<Vacancy> {
        let at = self.home(spread);
        let bucket = self.buckets.get(at)?;
        let known = bucket.fits(0, spread.tag()) | bucket.fits(1, spread.tag());
        if known | bucket.tags[1] & PASSED != 0 {
            return None;
        }
        bucket.free().map(|way| Vacancy { at, way })
    }

    /// Puts a new name into the place that was found for it, with nothing added since.
    #[inline]
    pub(crate) fn fill(&mut self, vacancy: Vacancy, spread: Spread, number: u32) {
        self.buckets[vacancy.at].set(vacancy.way, spread, number);
        self.len += 1;
    }

    /// Whether so many more names fit.
    #[inline]
    pub(crate) fn has_room(&self, more: usize) -> bool {
        (self.len + more) * 8 <= self.buckets.len() * WAYS * 7
    }

    /// Begins a larger table, for all entries to be added to.
    pub(crate) fn larger(&self) -> Larger {
        let buckets = (self.buckets.len() * 3 / 2).max(self.buckets.len() + 1);
        let nothing = Bucket { tags: [0; 2], numbers: [[0; 3]; 16] };
        Larger { buckets: vec![nothing; buckets], filled: vec![0; buckets] }
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }
}

/// A table in the making: no place in it becomes free, so they are filled from the first.
pub(crate) struct Larger {
    buckets: Vec<Bucket>,
    filled: Vec<u8>,
}

impl Larger {
    #[inline]
    pub(crate) fn add(&mut self, spread: Spread, number: u32) {
        let mut at = spread.home(self.buckets.len());
        while usize::from(self.filled[at]) == WAYS {
            self.buckets[at].pass_by();
            at = if at + 1 == self.buckets.len() { 0 } else { at + 1 };
        }
        self.buckets[at].set(usize::from(self.filled[at]), spread, number);
        self.filled[at] += 1;
    }

    pub(crate) fn done(self) -> Aliases {
        let len = self.filled.iter().map(|filled| usize::from(*filled)).sum();
        Aliases { buckets: self.buckets.into(), len }
    }
}

impl Bucket {
    /// Marks the places of a half whose tag fits, by the high bit of their byte: a byte is zero exactly
    /// if neither it nor the sum of its low bits and 0x7f has that bit.
    #[inline]
    fn fits(&self, half: usize, tag: u64) -> u64 {
        let differ = self.tags[half] ^ LOW.wrapping_mul(tag);
        !((differ & !HIGH).wrapping_add(!HIGH) | differ) & TAGS[half]
    }

    #[inline]
    fn free(&self) -> Option<usize> {
        let (first, second) = (self.fits(0, 0), self.fits(1, 0));
        if first != 0 {
            Some(first.trailing_zeros() as usize / 8)
        } else if second != 0 {
            Some(8 + second.trailing_zeros() as usize / 8)
        } else {
            None
        }
    }

    #[inline]
    fn number(&self, way: usize) -> u32 {
        let [low, middle, high] = self.numbers[way];
        u32::from_le_bytes([low, middle, high, 0])
    }

    /// Fills a free place.
    #[inline]
    fn set(&mut self, way: usize, spread: Spread, number: u32) {
        self.tags[way / 8] |= spread.tag() << (way % 8 * 8);
        let [low, middle, high, _] = number.to_le_bytes();
        self.numbers[way] = [low, middle, high];
    }

    fn pass_by(&mut self) {
        if self.tags[1] & PASSED != PASSED {
            self.tags[1] += ONE_PASSED;
        }
    }

    /// A count that reached the top can no longer be counted down; it goes when the table grows.
    fn unpass(&mut self) {
        if self.tags[1] & PASSED != PASSED {
            self.tags[1] -= ONE_PASSED;
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
                if !aliases.insert(Spread(name), number) {
                    let mut larger = aliases.larger();
                    for (name, number) in &numbers {
                        larger.add(Spread(*name), *number);
                    }
                    aliases = larger.done();
                }
            }
            assert_eq!(aliases.len, numbers.len());
        }
    }
}
