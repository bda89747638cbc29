//! A pod's alias table, which grows and shrinks in steps.
//!
//! Moving a million numbers to a larger table at once would delay the pod's events by a tenth of a
//! second. So the old table stays, and every store and removal moves the numbers of a few of its
//! buckets, in the order of their homes. Both tables order hashes alike, so that order also tells
//! where a hash is: with a home before the next one to move, in the new table, otherwise in the old
//! one. A search reads one table at any time.
//!
//! The new table is so much larger that the old one is moved long before it is full. Small tables
//! are moved at once.

use crate::alias_table::{AliasHash, AliasTable};

/// A table shrinks when this many times its numbers would fit: far from where it grows.
const SPARSE: usize = 4;
/// Buckets of a table that is not worth shrinking.
const SMALL: usize = 16;
/// Buckets of a table that is moved at once, which takes less than moving them one by one: a third
/// of a millisecond.
const AT_ONCE: usize = if cfg!(test) { 4 } else { 1 << 10 };

#[derive(Debug, Default)]
pub(crate) struct Aliases {
    table: AliasTable,
    old: Option<OldTable>,
}

/// A table whose numbers are being moved.
#[derive(Debug)]
struct OldTable {
    table: AliasTable,
    /// The next bucket to move; all numbers with homes before it are moved.
    next: usize,
}

impl Aliases {
    fn len(&self) -> usize {
        self.table.len() + self.old.as_ref().map_or(0, |old| old.table.len())
    }

    /// The table that has a hash, if it is known, and gets it otherwise.
    #[inline]
    fn table_of(&self, hash: AliasHash) -> &AliasTable {
        match &self.old {
            Some(old) if old.table.home(hash) >= old.next => &old.table,
            _ => &self.table,
        }
    }

    #[inline]
    fn table_of_mut(&mut self, hash: AliasHash) -> &mut AliasTable {
        match &mut self.old {
            Some(old) if old.table.home(hash) >= old.next => &mut old.table,
            _ => &mut self.table,
        }
    }

    /// Prefetches the home bucket of a hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: AliasHash) {
        self.table_of(hash).prefetch(hash);
    }

    /// See [`AliasTable::find`].
    #[inline]
    pub(crate) fn find(&self, hash: AliasHash, matches: impl Fn(u32) -> bool) -> Option<u32> {
        self.table_of(hash).find(hash, matches)
    }

    /// See [`AliasTable::add_new`]. The caller has called [`Self::reserve`].
    #[inline]
    pub(crate) fn add_new(&mut self, hash: AliasHash, number: u32) -> bool {
        self.table_of_mut(hash).add_new(hash, number)
    }

    /// Adds a number whose hash is new. The caller has called [`Self::reserve`].
    #[inline]
    pub(crate) fn put(&mut self, hash: AliasHash, number: u32) {
        self.table_of_mut(hash).put(hash, number);
    }

    /// Makes room for `more` hashes, and moves a bucket for each of them if the table is growing.
    /// `hash_of` gives the hash of every number in the table.
    #[inline]
    pub(crate) fn reserve(&mut self, more: usize, hash_of: impl Fn(u32) -> AliasHash) {
        if self.old.is_some() || !self.table.fits(self.table.len() + more) {
            self.reserve_slowly(more, &hash_of);
        }
    }

    #[cold]
    #[inline(never)]
    fn reserve_slowly(&mut self, more: usize, hash_of: &impl Fn(u32) -> AliasHash) {
        self.advance(more, hash_of);
        let len = self.len() + more;
        if !self.table.fits(len) {
            // Only a batch that is as large as the table gets here before all is moved.
            self.advance(usize::MAX, hash_of);
            let larger = self.table.count() * 7 / 4 + 1;
            self.resize(larger.max(AliasTable::ample_buckets(len)), hash_of);
            self.advance(more, hash_of);
        }
    }

    /// Removes a number. `hash_of` gives the hash of every number in the table.
    pub(crate) fn remove(
        &mut self,
        hash: AliasHash,
        number: u32,
        hash_of: impl Fn(u32) -> AliasHash,
    ) {
        self.table_of_mut(hash).remove(hash, number, &hash_of);
        if self.old.is_some() {
            self.advance(1, &hash_of);
        } else if self.table.count() > SMALL && self.table.fits(self.table.len() * SPARSE) {
            self.resize(AliasTable::ample_buckets(self.table.len()), &hash_of);
        }
    }

    /// Begins to move all numbers to a table of another size.
    fn resize(&mut self, buckets: usize, hash_of: &impl Fn(u32) -> AliasHash) {
        let table = std::mem::replace(&mut self.table, AliasTable::with_buckets(buckets));
        if table.count() > AT_ONCE {
            self.old = Some(OldTable { table, next: 0 });
        } else {
            self.table.complete();
            table.numbers().for_each(|number| self.table.put(hash_of(number), number));
        }
    }

    /// Moves the numbers of up to `buckets` buckets.
    fn advance(&mut self, buckets: usize, hash_of: &impl Fn(u32) -> AliasHash) {
        for _ in 0..buckets {
            let Some(old) = &mut self.old else { return };
            old.table.take_home(old.next, hash_of, |hash, number| self.table.put(hash, number));
            old.next += 1;
            if old.next >= old.table.count() {
                self.table.complete();
                self.old = None;
            }
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes() + self.old.as_ref().map_or(0, |old| old.table.bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::steps::within_steps;

    fn hash(number: u32) -> AliasHash {
        AliasHash((u64::from(number) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Numbers and their hashes agree with a map while the table grows and shrinks again and again,
    /// and no operation moves more than a few buckets.
    #[test]
    fn a_table_that_grows_and_shrinks_finds_every_number_and_moves_few_at_a_time() {
        let mut random = {
            let mut state = 7u64;
            move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u32
            }
        };
        let mut aliases = Aliases::default();
        let mut known: BTreeMap<u32, ()> = BTreeMap::new();
        let mut next = 0;
        for phase in 0..8 {
            let target = if phase % 2 == 0 { 3_000 * (phase + 1) } else { 40 * phase };
            while known.len() != target {
                if known.len() < target {
                    within_steps(400, || {
                        aliases.reserve(1, hash);
                        if !aliases.add_new(hash(next), next) {
                            aliases.put(hash(next), next);
                        }
                    });
                    known.insert(next, ());
                    next += 1;
                } else {
                    let any = random() % next;
                    let (gone, ()) = known.range(any..).next().unwrap_or((&0, &()));
                    let gone = *gone;
                    if known.remove(&gone).is_some() {
                        within_steps(400, || aliases.remove(hash(gone), gone, hash));
                    }
                }
                let asked = random() % next;
                let found = aliases.find(hash(asked), |number| number == asked);
                assert_eq!(found, known.contains_key(&asked).then_some(asked));
                assert_eq!(aliases.len(), known.len());
            }
            for number in 0..next {
                let found = aliases.find(hash(number), |other| other == number);
                assert_eq!(found.is_some(), known.contains_key(&number));
            }
        }
        assert!(aliases.bytes() < 100_000, "{}", aliases.bytes());
    }

    #[test]
    fn a_batch_larger_than_the_table_fits() {
        let mut aliases = Aliases::default();
        let mut len = 0;
        for batch in [1, 50, 5_000, 20_000] {
            aliases.reserve(batch, hash);
            for number in len..len + batch as u32 {
                aliases.put(hash(number), number);
            }
            len += batch as u32;
        }
        assert!((0..len).all(|it| aliases.find(hash(it), |number| number == it) == Some(it)));
    }
}
