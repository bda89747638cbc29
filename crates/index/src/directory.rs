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

use crate::sets::{Numbering, Page};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::table::{SHARDS, SMALLEST, Table, table};

/// The pages of sets, in the order of their numbers, as they were at some moment.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pages: Arc<[Arc<Page>]>,
    changed: u64,
}

/// A shard of the map: all writing to its table happens under its lock.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Shard {
    replaced: AtomicU64,
    state: Mutex<ShardState>,
}

#[derive(Debug)]
pub(crate) struct ShardState {
    pub(crate) table: Table,
    /// Entries in the table.
    pub(crate) len: usize,
}

/// The tables and pages as they were when `published` had this value.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) tables: Box<[Table; SHARDS]>,
    replaced: Box<[u64]>,
    published: u64,
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
    pages: Mutex<Arc<[Arc<Page>]>>,
    shards: Box<[Shard]>,
    pub(crate) numbering: Numbering,
}

impl Directory {
    pub(crate) fn new(numbering: Numbering) -> Self {
        let shard = |_| Shard {
            replaced: AtomicU64::new(0),
            state: Mutex::new(ShardState { table: table(SMALLEST), len: 0 }),
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

    pub(crate) fn shard(&self, shard: usize) -> MutexGuard<'_, ShardState> {
        lock(&self.shards[shard].state)
    }

    /// Puts another table in the place of a shard's. The caller holds the shard's lock.
    pub(crate) fn replace_table(&self, shard: usize, state: &mut ShardState, table: Table) {
        state.table = table;
        self.shards[shard].replaced.fetch_add(1, Ordering::Release);
        self.published.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn add_page(&self, page: Arc<Page>) {
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
            tables: Box::new(std::array::from_fn(|_| Table::from([]))),
            replaced: vec![u64::MAX; SHARDS].into(),
            published: u64::MAX,
            pages: Pages { pages: Arc::new([]), changed: u64::MAX },
            numbering: directory.numbering,
        };
        view.refresh(directory);
        view
    }

    /// Brings the view up to date with everything published before this call. Takes shards' locks:
    /// not for a caller who holds one.
    #[inline]
    pub(crate) fn refresh(&mut self, directory: &Directory) {
        if directory.published.load(Ordering::Acquire) != self.published {
            self.renew(directory);
        }
        self.pages.refresh(directory);
    }

    #[cold]
    fn renew(&mut self, directory: &Directory) {
        self.published = directory.published.load(Ordering::Acquire);
        for (position, shard) in directory.shards.iter().enumerate() {
            if shard.replaced.load(Ordering::Acquire) != self.replaced[position] {
                let state = lock(&shard.state);
                self.replaced[position] = shard.replaced.load(Ordering::Acquire);
                self.tables[position] = Arc::clone(&state.table);
            }
        }
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
    pub(crate) fn get(&self, page: usize) -> Option<&Page> {
        self.pages.get(page).map(|page| &**page)
    }
}
