//! The pods of a set as the words of a bitmap, and what a query does with them.

use std::array::from_fn;

use crate::directory::{NamedSet, ROWS, View};
use crate::pod::word_and_bit;
use crate::sync::{AtomicU64, Ordering};
use crate::table::SetId;

/// The query read a row that its view does not have yet.
pub(crate) struct LookupRaced;

#[inline]
pub(crate) fn mask<const WORDS: usize>(words: &[AtomicU64]) -> [u64; WORDS] {
    from_fn(|at| words.get(at).map_or(0, |word| word.load(Ordering::Acquire)))
}

#[inline]
pub(crate) fn intersect<const WORDS: usize>(
    one: [u64; WORDS],
    other: [u64; WORDS],
) -> [u64; WORDS] {
    from_fn(|word| one[word] & other[word])
}

/// What is in `one` and not in `other`.
#[inline]
pub(crate) fn without<const WORDS: usize>(one: [u64; WORDS], other: [u64; WORDS]) -> [u64; WORDS] {
    from_fn(|word| one[word] & !other[word])
}

/// The pods in a set. A row on a page that the view lacks is newer than the view.
#[inline]
pub(crate) fn members<const WORDS: usize>(
    view: &View,
    set: SetId,
) -> Result<[u64; WORDS], LookupRaced> {
    match view.numbering.decode(set) {
        NamedSet::Empty => Ok([0; WORDS]),
        NamedSet::Single(slot) => {
            let mut words = [0; WORDS];
            let (word, bit) = word_and_bit(slot);
            words[word] = bit;
            Ok(words)
        }
        NamedSet::Row(row) => {
            let page = view.pages.get(row / ROWS).ok_or(LookupRaced)?;
            Ok(mask(page.row(row % ROWS)))
        }
    }
}
