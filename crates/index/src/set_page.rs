//! Set numbers, and the pages that store sets of more than one pod.
//!
//! Numbers `1..=pods` are the sets of one pod; they need no storage. Larger numbers name a row of a
//! page. [`crate::sets`] allocates rows; readers find them through [`crate::directory`].

use crate::pod::PodSlot;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::table::SetId;

/// Rows in a page.
#[cfg(not(loom))]
pub(crate) const ROWS: usize = 256;
#[cfg(loom)]
pub(crate) const ROWS: usize = 2;

/// The widest set, in words.
pub(crate) const MAX_WORDS: usize = 64;

/// Storage for some sets of more than one pod.
#[derive(Debug)]
pub(crate) struct SetPage {
    words: Box<[AtomicU64]>,
    /// By row: how many entries of the map use it.
    uses: [AtomicU32; ROWS],
    /// By row: the position in a chain where the set last ended, a hint for the next search.
    ends: [AtomicU32; ROWS],
}

impl SetPage {
    pub(crate) fn new(words: usize) -> Self {
        Self {
            words: (0..ROWS * words).map(|_| AtomicU64::new(0)).collect(),
            uses: std::array::from_fn(|_| AtomicU32::new(0)),
            ends: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// The words of a row.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &[AtomicU64] {
        let width = self.words.len() / ROWS;
        &self.words[row * width..(row + 1) * width]
    }

    #[inline]
    pub(crate) fn uses(&self, row: usize) -> &AtomicU32 {
        &self.uses[row]
    }

    #[inline]
    pub(crate) fn end_hint(&self, row: usize) -> u32 {
        self.ends[row].load(Ordering::Relaxed)
    }

    /// Writes only a hint that changes, so that readers do not invalidate each other's cache lines.
    pub(crate) fn set_end_hint(&self, row: usize, position: u32) {
        if self.ends[row].load(Ordering::Relaxed) != position {
            self.ends[row].store(position, Ordering::Relaxed);
        }
    }
}

/// What a set number stands for.
#[derive(Clone, Copy)]
pub(crate) enum NamedSet {
    Empty,
    Single(PodSlot),
    Row(usize),
}

/// How set numbers are divided between single pods and rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbering {
    pods: u32,
    pub(crate) words: usize,
}

impl Numbering {
    pub(crate) fn new(words: usize) -> Self {
        Self { pods: words as u32 * 64, words }
    }

    #[inline]
    pub(crate) fn decode(self, set: SetId) -> NamedSet {
        if set.0 > self.pods {
            NamedSet::Row((set.0 - self.pods - 1) as usize)
        } else if set.0 == 0 {
            NamedSet::Empty
        } else {
            NamedSet::Single(PodSlot((set.0 - 1) as u16))
        }
    }

    #[inline]
    pub(crate) fn single(slot: PodSlot) -> SetId {
        SetId(u32::from(slot.0) + 1)
    }

    pub(crate) fn row(self, row: usize) -> SetId {
        SetId(self.pods + 1 + row as u32)
    }
}
