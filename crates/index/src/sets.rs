//! Sets of pods, each stored once.
//!
//! Most blocks are held by one pod, and blocks that lie on one path are mostly held by the same pods.
//! So an entry of the table does not carry a bitmap, it carries the number of one: entries stay small
//! whatever the number of pods, and two blocks are held by the same pods exactly if their numbers are
//! equal, which is what a search for drop-off depths compares.
//!
//! Numbers `1..=pods` are the sets of one pod; they need no storage. Larger ones name a row of a page.
//! Rows are counted by the entries that use them. A row that nobody uses waits in limbo with its words
//! intact, because a reader may still be looking at it; only when enough have gathered does the index
//! announce a recycling (readers under way then start again) and let them be overwritten.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::directory::{Directory, Pages};
use crate::pod::{PodSlot, place};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};
use crate::table::{SETS, SetId};

/// Rows in a page.
#[cfg(not(loom))]
pub(crate) const ROWS: usize = 256;
#[cfg(loom)]
pub(crate) const ROWS: usize = 2;

/// How many unused rows gather before they are recycled, at least.
#[cfg(not(loom))]
const LIMBO: usize = 64;
#[cfg(loom)]
const LIMBO: usize = 1;

/// Storage for some sets of more than one pod.
#[derive(Debug)]
pub(crate) struct SetPage {
    words: Box<[AtomicU64]>,
    uses: [AtomicU32; ROWS],
    /// Where in a chain each set was last seen to end: a hint for the next search.
    ends: [AtomicU32; ROWS],
}

impl SetPage {
    fn new(words: usize) -> Self {
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
}

impl SetPage {
    #[inline]
    pub(crate) fn end(&self, row: usize) -> u32 {
        self.ends[row].load(Ordering::Relaxed)
    }

    pub(crate) fn remember_end(&self, row: usize, position: u32) {
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
    pub(crate) fn read(self, set: SetId) -> NamedSet {
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

    fn row(self, row: usize) -> SetId {
        SetId(self.pods + 1 + row as u32)
    }
}

/// The register of sets: finds the number of a set, gives out and takes back rows.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    register: Mutex<Register>,
}

#[derive(Debug, Default)]
struct Register {
    /// Rows in use, found by the hash of their words.
    rows: HashTable<u32>,
    /// Each row's hash, so that it need not be computed again.
    hashes: Vec<u64>,
    free: Vec<u32>,
    limbo: Vec<u32>,
}

impl Sets {
    /// How many sets of more than one pod there are.
    pub(crate) fn len(&self) -> usize {
        lock(&self.register).rows.len()
    }

    /// The set `set` with `slot` added; one use of it is the caller's.
    pub(crate) fn with(&self, rows: &mut Rows<'_>, set: SetId, slot: PodSlot) -> SetId {
        if set == SetId::EMPTY {
            return Numbering::single(slot);
        }
        self.changed(rows, set, |words| {
            let (word, bit) = place(slot);
            words[word] |= bit;
        })
    }

    /// The set `set` with `slot` taken out; one use of it is the caller's.
    pub(crate) fn without(&self, rows: &mut Rows<'_>, set: SetId, slot: PodSlot) -> SetId {
        self.changed(rows, set, |words| {
            let (word, bit) = place(slot);
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
            assert!(last.0 < SETS, "the cap on blocks allows fewer sets than there are numbers");
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
        numbering.row(row as usize)
    }

    /// Takes more uses of a set that the caller already uses.
    #[inline]
    pub(crate) fn retain(rows: &mut Rows<'_>, set: SetId, uses: u32) {
        if let NamedSet::Row(row) = rows.directory.numbering.read(set) {
            rows.uses(row).fetch_add(uses, Ordering::Relaxed);
        }
    }

    /// Gives uses back.
    #[inline]
    pub(crate) fn release(&self, rows: &mut Rows<'_>, set: SetId, uses: u32) {
        if let NamedSet::Row(row) = rows.directory.numbering.read(set)
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
            return; // somebody took it up and gave it back meanwhile, and retired it first
        };
        if rows.uses(row).load(Ordering::Acquire) > 0 {
            return; // somebody has taken it up again
        }
        entry.remove();
        register.limbo.push(row as u32);
        if register.limbo.len() >= LIMBO.max(register.rows.len() / 4) {
            rows.directory.recycle();
            let Register { free, limbo, .. } = &mut *register;
            free.append(limbo);
        }
    }

    /// Gives all memory back if no row is in use: when the pods have left.
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

/// The widest set, in words.
pub(crate) const MAX_WORDS: usize = 64;

/// A writer's access to the rows of sets that are in use.
///
/// Pages go only when no row is used, and every row asked for here is used by the entry or the hand
/// that names it: so a list that is up to date when it is asked stays right while it is read.
pub(crate) struct Rows<'a> {
    pub(crate) directory: &'a Directory,
    pub(crate) pages: &'a mut Pages,
}

impl Rows<'_> {
    fn page(&mut self, page: usize) -> &SetPage {
        self.pages.refresh(self.directory);
        self.pages.get(page).expect("a row in use lies on a page that was published before it")
    }

    fn uses(&mut self, row: usize) -> &AtomicU32 {
        &self.page(row / ROWS).uses[row % ROWS]
    }

    fn words(&mut self, row: usize) -> &[AtomicU64] {
        self.page(row / ROWS).row(row % ROWS)
    }

    fn equal(&mut self, row: usize, words: &[u64]) -> bool {
        let stored = self.words(row).iter();
        stored.zip(words).all(|(stored, word)| stored.load(Ordering::Relaxed) == *word)
    }

    fn copy(&mut self, set: SetId, words: &mut [u64]) {
        match self.directory.numbering.read(set) {
            NamedSet::Empty => {}
            NamedSet::Single(slot) => {
                let (word, bit) = place(slot);
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
        match self.directory.numbering.read(set) {
            NamedSet::Empty => false,
            NamedSet::Single(other) => other == slot,
            NamedSet::Row(row) => {
                let (word, bit) = place(slot);
                self.words(row)[word].load(Ordering::Relaxed) & bit != 0
            }
        }
    }
}
