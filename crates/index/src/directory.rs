//! Where the tables and pages are, for readers that take no lock.
//!
//! A reader keeps a [`View`] of its own and looks at two counters. `published` says at the start of a
//! query whether something has been replaced since the view was taken. A table that has been replaced
//! is never written again, so a query that began with the old one reads the state at the moment of
//! replacement, which lies within the query. `recycled` says at the end whether anything the query
//! read may have come to mean something else meanwhile (a row of a set, a pod's slot); then the query
//! starts again.
//!
//! No unsafe code and no hazard pointers are needed: what a view holds lives as long as the view. The
//! price is that an idle reader keeps what it last saw; refresh it now and then, or drop it.

use std::sync::Arc;

use crate::prefetch::prefetch_to_write;
use crate::sets::{Numbering, SetPage};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock, stand_aside};
use crate::table::{SHARDS, SMALLEST, Table, table};

/// The pages of sets, in the order of their numbers, as they were at some moment.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pages: Arc<[Arc<SetPage>]>,
    changed: u64,
}

/// A shard of the map. Writers take turns at it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Shard {
    /// Twice the number of times its table was replaced, and one more during a turn: so a single
    /// exchange begins a turn and tells that the writer knows the shard's present table.
    turn: AtomicU64,
    /// Entries in the table. Only changed in a turn.
    len: AtomicU64,
    table: Mutex<Table>,
}

/// A writer's turn at a shard: until it ends, nobody else changes the shard.
pub(crate) struct ShardGuard<'a> {
    shard: &'a Shard,
    replaced: u64,
}

impl ShardGuard<'_> {
    /// The number of entries after one came.
    #[inline]
    pub(crate) fn one_more(&self) -> usize {
        self.count(self.shard.len.load(Ordering::Relaxed) + 1)
    }

    /// The number of entries after one went.
    #[inline]
    pub(crate) fn one_less(&self) -> usize {
        self.count(self.shard.len.load(Ordering::Relaxed) - 1)
    }

    #[inline]
    fn count(&self, len: u64) -> usize {
        self.shard.len.store(len, Ordering::Relaxed);
        len as usize
    }
}

impl Drop for ShardGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.shard.turn.store(self.replaced, Ordering::Release);
    }
}

/// The tables of all shards, as they were when each had been replaced so many times.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    tables: Box<[Table; SHARDS]>,
    /// Twice those numbers.
    replaced: Box<[u64; SHARDS]>,
    /// Everything published up to here is known.
    published: u64,
}

impl std::ops::Deref for Tables {
    type Target = [Table; SHARDS];

    #[inline]
    fn deref(&self) -> &[Table; SHARDS] {
        &self.tables
    }
}

impl Tables {
    /// Waits for a turn at a shard, with its present table at hand.
    #[inline]
    pub(crate) fn turn<'a>(&mut self, directory: &'a Directory, shard: usize) -> ShardGuard<'a> {
        loop {
            let (free, taken) = (self.replaced[shard], self.replaced[shard] | 1);
            let turn = &directory.shards[shard].turn;
            if turn.compare_exchange(free, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return ShardGuard { shard: &directory.shards[shard], replaced: free };
            }
            self.await_turn(directory, shard);
        }
    }

    #[cold]
    #[inline(never)]
    fn await_turn(&mut self, directory: &Directory, shard: usize) {
        stand_aside();
        self.renew(directory, shard);
    }

    fn renew(&mut self, directory: &Directory, shard: usize) {
        let Shard { turn, table, .. } = &directory.shards[shard];
        if turn.load(Ordering::Acquire) & !1 != self.replaced[shard] {
            let table = lock(table);
            self.replaced[shard] = turn.load(Ordering::Acquire) & !1;
            self.tables[shard] = Arc::clone(&table);
        }
    }

    #[cold]
    fn renew_all(&mut self, directory: &Directory) {
        self.published = directory.published.load(Ordering::Acquire);
        for shard in 0..SHARDS {
            self.renew(directory, shard);
        }
    }

    /// Puts another table in the place of the shard's whose turn this is.
    pub(crate) fn replace(
        &mut self,
        directory: &Directory,
        shard: usize,
        turn: &mut ShardGuard<'_>,
        table: Table,
    ) {
        let mut present = lock(&turn.shard.table);
        *present = Arc::clone(&table);
        turn.replaced = turn.replaced.wrapping_add(2);
        turn.shard.turn.store(turn.replaced | 1, Ordering::Release);
        drop(present);
        // Who knew everything before knows everything now.
        if directory.published.fetch_add(1, Ordering::AcqRel) == self.published {
            self.published += 1;
        }
        self.replaced[shard] = turn.replaced;
        self.tables[shard] = table;
    }
}

/// The tables and pages as they were when `published` had this value.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) tables: Tables,
    pub(crate) pages: Pages,
    pub(crate) numbering: Numbering,
}

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Directory {
    published: AtomicU64,
    recycled: AtomicU64,
    pages_changed: AtomicU64,
    recycling: Mutex<()>,
    pages: Mutex<Arc<[Arc<SetPage>]>>,
    shards: Box<[Shard]>,
    pub(crate) numbering: Numbering,
}

impl Directory {
    pub(crate) fn new(numbering: Numbering) -> Self {
        let shard = |_| Shard {
            turn: AtomicU64::new(0),
            len: AtomicU64::new(0),
            table: Mutex::new(table(SMALLEST)),
        };
        Self {
            published: AtomicU64::new(0),
            recycled: AtomicU64::new(0),
            pages_changed: AtomicU64::new(0),
            recycling: Mutex::new(()),
            pages: Mutex::new(Arc::new([])),
            shards: (0..SHARDS).map(shard).collect(),
            numbering,
        }
    }

    /// How often something was given a new meaning.
    #[inline]
    pub(crate) fn recycled(&self) -> u64 {
        self.recycled.load(Ordering::Acquire)
    }

    /// Announces that rows or slots are about to mean something else.
    pub(crate) fn recycle(&self) {
        let _turn = lock(&self.recycling);
        self.recycled.fetch_add(1, Ordering::AcqRel);
    }

    /// While the guard lives nothing is recycled.
    pub(crate) fn forbid_recycling(&self) -> MutexGuard<'_, ()> {
        lock(&self.recycling)
    }

    /// Asks for what a turn at a shard needs: mostly another thread has had the last one.
    #[inline]
    pub(crate) fn prefetch_turn(&self, shard: usize) {
        prefetch_to_write(&self.shards[shard]);
    }

    /// The number of entries in all tables, and the bytes of these.
    pub(crate) fn size(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(entries, bytes), shard| {
            let len = shard.len.load(Ordering::Relaxed) as usize;
            (entries + len, bytes + size_of_val(&**lock(&shard.table)))
        })
    }

    pub(crate) fn add_page(&self, page: Arc<SetPage>) {
        let mut pages = lock(&self.pages);
        *pages = pages.iter().cloned().chain([page]).collect();
        self.pages_changed.fetch_add(1, Ordering::Release);
    }

    /// Gives the memory of all pages back. Their numbers will mean other rows, hence the recycling.
    pub(crate) fn drop_pages(&self) {
        *lock(&self.pages) = Arc::new([]);
        self.pages_changed.fetch_add(1, Ordering::Release);
        self.recycle();
    }
}

impl View {
    pub(crate) fn new(directory: &Directory) -> Self {
        let mut view = Self {
            tables: Tables {
                tables: Box::new(std::array::from_fn(|_| Table::from([]))),
                replaced: Box::new([u64::MAX; SHARDS]),
                published: u64::MAX,
            },
            pages: Pages { pages: Arc::new([]), changed: u64::MAX },
            numbering: directory.numbering,
        };
        view.refresh(directory);
        view
    }

    /// Brings the view up to date with everything published before this call.
    #[inline]
    pub(crate) fn refresh(&mut self, directory: &Directory) {
        if directory.published.load(Ordering::Acquire) != self.tables.published {
            self.tables.renew_all(directory);
        }
        self.pages.refresh(directory);
    }
}

impl Pages {
    /// Brings the list up to date; whatever locks the caller holds.
    #[inline]
    pub(crate) fn refresh(&mut self, directory: &Directory) {
        if directory.pages_changed.load(Ordering::Acquire) != self.changed {
            self.renew(directory);
        }
    }

    #[cold]
    fn renew(&mut self, directory: &Directory) {
        let pages = lock(&directory.pages);
        self.changed = directory.pages_changed.load(Ordering::Acquire);
        self.pages = Arc::clone(&pages);
    }

    /// A page, if the list is new enough to have it.
    #[inline]
    pub(crate) fn get(&self, page: usize) -> Option<&SetPage> {
        self.pages.get(page).map(|page| &**page)
    }
}
