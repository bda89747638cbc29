//! Sets of pods, each stored once.
//!
//! Most blocks are held by one pod, and blocks on one path are mostly held by the same pods. So a
//! table entry stores not a bitmap but the number of one: entries stay small for any number of
//! pods, and two blocks are held by the same pods exactly if their set numbers are equal, which is
//! what the search for drop-off depths compares.
//!
//! Rows are reference-counted by the entries that use them. An unused row keeps its words in limbo,
//! because a reader may still be reading it; once enough of them have gathered, the index announces
//! a recycling (queries in progress then retry) and lets them be overwritten.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::directory::{Directory, MAX_WORDS, NamedSet, Numbering, Pages, ROWS, SetPage};
use crate::pod::{PodSlot, word_and_bit};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};
use crate::table::{SETS, SetId};

/// The least number of unused rows that are recycled together.
#[cfg(not(loom))]
const LIMBO: usize = 64;
#[cfg(loom)]
const LIMBO: usize = 1;

/// The register of sets: finds the number of a set, allocates and frees rows.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    register: Mutex<Register>,
    /// Sets of more than one pod, as in the register.
    count: AtomicU64,
    /// Blocks that several pods hold: no fewer than there are sets of several pods.
    shared_blocks: AtomicU64,
}

#[derive(Debug, Default)]
struct Register {
    /// Rows in use, by the hash of their words.
    rows: HashTable<u32>,
    /// The hash of each row.
    hashes: Vec<u64>,
    free: Vec<u32>,
    limbo: Vec<u32>,
}

impl Sets {
    /// The number of sets of more than one pod.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed) as usize
    }

    /// The number of blocks that several pods hold.
    pub(crate) fn shared_blocks(&self) -> usize {
        self.shared_blocks.load(Ordering::Relaxed) as usize
    }

    /// Records that blocks went from one set to another.
    pub(crate) fn count_shared(&self, numbering: Numbering, from: SetId, to: SetId, blocks: u32) {
        let is_shared = |set| matches!(numbering.decode(set), NamedSet::Row(_));
        if is_shared(to) && !is_shared(from) {
            self.shared_blocks.fetch_add(blocks.into(), Ordering::Relaxed);
        } else if is_shared(from) && !is_shared(to) {
            self.shared_blocks.fetch_sub(blocks.into(), Ordering::Relaxed);
        }
    }

    /// The set `set` plus `slot`. The caller owns one use of the result.
    pub(crate) fn with(&self, rows: &mut Rows<'_>, set: SetId, slot: PodSlot) -> SetId {
        if set == SetId::EMPTY {
            return Numbering::single(slot);
        }
        self.changed(rows, set, |words| {
            let (word, bit) = word_and_bit(slot);
            words[word] |= bit;
        })
    }

    /// The set `set` minus `slot`. The caller owns one use of the result.
    pub(crate) fn without(&self, rows: &mut Rows<'_>, set: SetId, slot: PodSlot) -> SetId {
        self.changed(rows, set, |words| {
            let (word, bit) = word_and_bit(slot);
            words[word] &= !bit;
        })
    }

    fn changed(&self, rows: &mut Rows<'_>, set: SetId, change: impl Fn(&mut [u64])) -> SetId {
        let mut words = [0; MAX_WORDS];
        let words = &mut words[..rows.directory.numbering.words];
        rows.copy(set, words);
        change(words);
        match words.iter().map(|word| word.count_ones()).sum::<u32>() {
            0 => SetId::EMPTY,
            1 => {
                let word = words.iter().position(|word| *word != 0).unwrap_or_default();
                let bit = words[word].trailing_zeros();
                Numbering::single(PodSlot((word as u32 * 64 + bit) as u16))
            }
            _ => self.intern(rows, words),
        }
    }

    fn intern(&self, rows: &mut Rows<'_>, words: &[u64]) -> SetId {
        let hash = fold(words);
        let mut register = lock(&self.register);
        let numbering = rows.directory.numbering;
        if let Some(&row) = register.rows.find(hash, |row| rows.equal(*row as usize, words)) {
            rows.uses(row as usize).fetch_add(1, Ordering::Relaxed);
            return numbering.row(row as usize);
        }
        if register.free.is_empty() {
            let first = register.hashes.len();
            let last = numbering.row(first + ROWS - 1);
            assert!(last.0 < SETS, "MOST_SHARED allows fewer sets than there are numbers");
            register.hashes.resize(first + ROWS, 0);
            register.free.extend((first as u32..(first + ROWS) as u32).rev());
            rows.directory.add_page(Arc::new(SetPage::new(numbering.words)));
        }
        let row = register.free.pop().expect("a page of free rows was just added");
        for (stored, word) in rows.words(row as usize).iter().zip(words) {
            stored.store(*word, Ordering::Release);
        }
        rows.uses(row as usize).store(1, Ordering::Relaxed);
        let Register { rows: by_hash, hashes, .. } = &mut *register;
        hashes[row as usize] = hash;
        by_hash.insert_unique(hash, row, |row| hashes[*row as usize]);
        self.count.fetch_add(1, Ordering::Relaxed);
        numbering.row(row as usize)
    }

    /// Adds uses to a set of which the caller owns one.
    #[inline]
    pub(crate) fn retain(rows: &mut Rows<'_>, set: SetId, uses: u32) {
        if let NamedSet::Row(row) = rows.directory.numbering.decode(set) {
            rows.uses(row).fetch_add(uses, Ordering::Relaxed);
        }
    }

    /// Returns uses; frees the row with the last one.
    #[inline]
    pub(crate) fn release(&self, rows: &mut Rows<'_>, set: SetId, uses: u32) {
        if let NamedSet::Row(row) = rows.directory.numbering.decode(set)
            && uses > 0
            && rows.uses(row).fetch_sub(uses, Ordering::AcqRel) == uses
        {
            self.retire(rows, row);
        }
    }

    #[cold]
    fn retire(&self, rows: &mut Rows<'_>, row: usize) {
        let mut register = lock(&self.register);
        let hash = register.hashes.get(row).copied().unwrap_or_default();
        let Ok(entry) = register.rows.find_entry(hash, |other| *other as usize == row) else {
            return; // another writer used and retired it meanwhile
        };
        if rows.uses(row).load(Ordering::Acquire) > 0 {
            return; // another writer uses it again
        }
        entry.remove();
        self.count.fetch_sub(1, Ordering::Relaxed);
        register.limbo.push(row as u32);
        if register.limbo.len() >= LIMBO.max(register.rows.len() / 4) {
            rows.directory.recycle();
            let Register { free, limbo, .. } = &mut *register;
            free.append(limbo);
        }
    }

    /// Frees all memory if no row is in use, as after all pods have left.
    pub(crate) fn shrink(&self, directory: &Directory) {
        let mut register = lock(&self.register);
        if register.rows.is_empty() && !register.hashes.is_empty() {
            directory.drop_pages();
            *register = Register::default();
        }
    }
}

fn fold(words: &[u64]) -> u64 {
    words.iter().fold(0x243F_6A88_85A3_08D3, |hash: u64, word| {
        let product = u128::from(hash ^ word) * 0x9E37_79B9_7F4A_7C15;
        (product as u64) ^ ((product >> 64) as u64).rotate_left(23)
    })
}

/// A writer's access to the rows of sets that are in use.
///
/// Pages are freed only when no row is in use, and the entry or the caller that names a row uses
/// it: so a page list that is current at the call stays valid while the row is read.
pub(crate) struct Rows<'a> {
    pub(crate) directory: &'a Directory,
    pub(crate) pages: &'a mut Pages,
}

impl Rows<'_> {
    fn page(&mut self, page: usize) -> &SetPage {
        self.pages.refresh(self.directory);
        self.pages.get(page).expect("the page of a row in use was published before the row")
    }

    fn uses(&mut self, row: usize) -> &AtomicU32 {
        self.page(row / ROWS).uses(row % ROWS)
    }

    fn words(&mut self, row: usize) -> &[AtomicU64] {
        self.page(row / ROWS).row(row % ROWS)
    }

    fn equal(&mut self, row: usize, words: &[u64]) -> bool {
        let stored = self.words(row).iter();
        stored.zip(words).all(|(stored, word)| stored.load(Ordering::Relaxed) == *word)
    }

    fn copy(&mut self, set: SetId, words: &mut [u64]) {
        match self.directory.numbering.decode(set) {
            NamedSet::Empty => {}
            NamedSet::Single(slot) => {
                let (word, bit) = word_and_bit(slot);
                words[word] = bit;
            }
            NamedSet::Row(row) => {
                for (word, stored) in words.iter_mut().zip(self.words(row)) {
                    *word = stored.load(Ordering::Relaxed);
                }
            }
        }
    }

    /// Whether `slot` is in the set.
    pub(crate) fn contains(&mut self, set: SetId, slot: PodSlot) -> bool {
        match self.directory.numbering.decode(set) {
            NamedSet::Empty => false,
            NamedSet::Single(other) => other == slot,
            NamedSet::Row(row) => {
                let (word, bit) = word_and_bit(slot);
                self.words(row)[word].load(Ordering::Relaxed) & bit != 0
            }
        }
    }
}
