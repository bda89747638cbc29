//! From an engine's name to the number of an entry, in about six bytes an entry.
//!
//! A bucket is one cache line of fifteen places. A place is the number of an entry and eight bits of
//! its name's hash; the name itself stands in the entry, which is looked at only when those bits
//! agree. A full bucket lets names pass on to the next and counts them, as in [`crate::table`]. Lines
//! can be asked for ahead of their use, which an ordinary map does not allow, and the table grows by
//! half, not to twice its size.

/// Places in a bucket.
const WAYS: usize = 15;
/// Numbers are below this; zero is a free place.
pub(crate) const MOST: u32 = (1 << TAG_SHIFT) - 1;
const TAG_SHIFT: u32 = 24;

#[repr(align(64))]
#[derive(Clone, Debug)]
struct Bucket {
    places: [u32; WAYS],
    /// Names that belong before or here and stand further on.
    passed: u32,
}

/// The hash of a name, as [`Aliases`] uses it.
#[derive(Clone, Copy)]
pub(crate) struct Spread(pub(crate) u64);

#[derive(Debug, Default)]
pub(crate) struct Aliases {
    buckets: Box<[Bucket]>,
    len: usize,
}

impl Aliases {
    #[inline]
    fn home(&self, spread: Spread) -> usize {
        ((u128::from(spread.0) * self.buckets.len() as u128) >> 64) as usize
    }

    /// The low bits choose no bucket, so they tell names in one bucket apart.
    #[inline]
    fn tag(spread: Spread) -> u32 {
        (spread.0 as u32) << TAG_SHIFT
    }

    /// Brings a name's line into the cache without waiting for it; the value means nothing.
    #[inline]
    pub(crate) fn touch(&self, spread: Spread) -> u32 {
        if self.buckets.is_empty() { 0 } else { self.buckets[self.home(spread)].passed }
    }

    /// The number for which `is_it` says yes, among those whose hash fits.
    #[inline]
    pub(crate) fn find(&self, spread: Spread, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.locate(spread, is_it).map(|(_, _, number)| number)
    }

    #[inline]
    fn locate(&self, spread: Spread, is_it: impl Fn(u32) -> bool) -> Option<(usize, usize, u32)> {
        if self.buckets.is_empty() {
            return None;
        }
        let (home, tag) = (self.home(spread), Self::tag(spread));
        for steps in 0..self.buckets.len() {
            let bucket = &self.buckets[(home + steps) % self.buckets.len()];
            let mut fits = 0u32;
            for (way, place) in bucket.places.iter().enumerate() {
                let fit = place & !MOST == tag && *place & MOST != 0;
                fits |= u32::from(fit) << way;
            }
            while fits != 0 {
                let way = fits.trailing_zeros() as usize;
                let number = (bucket.places[way] & MOST) - 1;
                if is_it(number) {
                    return Some((steps, way, number));
                }
                fits &= fits - 1;
            }
            if bucket.passed == 0 {
                return None;
            }
        }
        None
    }

    /// Adds a number whose name is new. `false` when the table must be rebuilt first.
    #[inline]
    pub(crate) fn insert(&mut self, spread: Spread, number: u32) -> bool {
        if (self.len + 1) * 5 > self.buckets.len() * WAYS * 4 {
            return false;
        }
        self.put(spread, number);
        true
    }

    #[inline]
    fn put(&mut self, spread: Spread, number: u32) {
        let (mut at, buckets) = (self.home(spread), self.buckets.len());
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(free) = bucket.places.iter_mut().find(|place| **place == 0) {
                *free = Self::tag(spread) | (number + 1);
                self.len += 1;
                return;
            }
            bucket.passed += 1;
            at = (at + 1) % buckets;
        }
    }

    /// Takes a number out.
    pub(crate) fn remove(&mut self, spread: Spread, number: u32) {
        let Some((steps, way, _)) = self.locate(spread, |other| other == number) else { return };
        let (home, buckets) = (self.home(spread), self.buckets.len());
        self.buckets[(home + steps) % buckets].places[way] = 0;
        for step in 0..steps {
            self.buckets[(home + step) % buckets].passed -= 1;
        }
        self.len -= 1;
    }

    /// Makes a larger table and fills it from all entries.
    pub(crate) fn grow(&mut self, entries: impl Iterator<Item = (Spread, u32)>) {
        let buckets = (self.buckets.len() * 3 / 2).max(self.buckets.len() + 1);
        self.buckets = vec![Bucket { places: [0; WAYS], passed: 0 }; buckets].into();
        self.len = 0;
        for (spread, number) in entries {
            self.put(spread, number);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }
}
