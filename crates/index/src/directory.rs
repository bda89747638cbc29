//! The current tables, and the pages of sets, for readers that take no lock.
//!
//! Each reader keeps its own [`View`] and reads two counters. At the start of a query, `published`
//! tells whether a table was replaced since the view was taken. A replaced table is never written
//! again, so a query that began with the old one reads the state at the moment of replacement,
//! which lies within the query. At the end, `recycled` tells whether the meaning of anything the
//! query read (a row of a set, a pod's slot) may have changed meanwhile; then the query retries.
//!
//! This needs no unsafe code and no hazard pointers: a view keeps its tables alive. The price is
//! that an idle reader keeps old tables in memory; refresh it now and then, or drop it.
//!
//! Set numbers `1..=pods` are the sets of one pod; they need no storage. Larger numbers name a row
//! of a page, which [`crate::sets`] allocates.

use std::sync::Arc;

use crate::pod::PodSlot;
use crate::prefetch::prefetch_to_write;
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock, yield_now};
use crate::table::{SHARDS, SMALLEST, SetId, Table, table};

/// Rows in a page.
#[cfg(not(loom))]
pub(crate) const ROWS: usize = 256;
#[cfg(loom)]
pub(crate) const ROWS: usize = 2;

/// The widest set, in words.
pub(crate) const MAX_WORDS: usize = 64;

/// The pages of sets in the order of their numbers, as of some moment.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pages: Arc<[Arc<SetPage>]>,
    changed: u64,
}

/// A shard of the table, written by one writer at a time.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Shard {
    /// The version of the table (twice the number of replacements), plus one while a writer holds
    /// the shard: so one compare-and-swap both takes the lock and proves that the writer's table is
    /// current.
    lock: AtomicU64,
    /// Entries in the table. Only the holder of the lock changes it.
    len: AtomicU64,
    table: Mutex<Table>,
}

/// A locked shard: no other writer changes it until the guard is dropped.
pub(crate) struct ShardGuard<'a> {
    shard: &'a Shard,
    version: u64,
}

impl ShardGuard<'_> {
    /// Counts an inserted entry; returns the number of entries.
    #[inline]
    pub(crate) fn add_entry(&self) -> usize {
        self.set_len(self.shard.len.load(Ordering::Relaxed) + 1)
    }

    /// Counts a removed entry; returns the number of entries.
    #[inline]
    pub(crate) fn remove_entry(&self) -> usize {
        self.set_len(self.shard.len.load(Ordering::Relaxed) - 1)
    }

    #[inline]
    fn set_len(&self, len: u64) -> usize {
        self.shard.len.store(len, Ordering::Relaxed);
        len as usize
    }
}

impl Drop for ShardGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.shard.lock.store(self.version, Ordering::Release);
    }
}

/// The tables of all shards, each as of some version.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    tables: Box<[Table; SHARDS]>,
    versions: Box<[u64; SHARDS]>,
    /// The value of [`Directory::published`] up to which all tables are current.
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
    /// Locks a shard and makes its table in this view current.
    #[inline]
    pub(crate) fn lock_shard<'a>(
        &mut self,
        directory: &'a Directory,
        shard: usize,
    ) -> ShardGuard<'a> {
        loop {
            let version = self.versions[shard];
            let locked = version | 1;
            let lock = &directory.shards[shard].lock;
            if lock.compare_exchange(version, locked, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return ShardGuard { shard: &directory.shards[shard], version };
            }
            self.wait_for_shard(directory, shard);
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_shard(&mut self, directory: &Directory, shard: usize) {
        yield_now();
        self.refresh_shard(directory, shard);
    }

    fn refresh_shard(&mut self, directory: &Directory, shard: usize) {
        let shared = &directory.shards[shard];
        if shared.lock.load(Ordering::Acquire) & !1 != self.versions[shard] {
            let table = lock(&shared.table);
            self.versions[shard] = shared.lock.load(Ordering::Acquire) & !1;
            self.tables[shard] = Arc::clone(&table);
        }
    }

    #[cold]
    fn refresh_all(&mut self, directory: &Directory) {
        self.published = directory.published.load(Ordering::Acquire);
        for shard in 0..SHARDS {
            self.refresh_shard(directory, shard);
        }
    }

    /// Replaces the table of a locked shard.
    pub(crate) fn replace(
        &mut self,
        directory: &Directory,
        shard: usize,
        guard: &mut ShardGuard<'_>,
        table: Table,
    ) {
        let mut current = lock(&guard.shard.table);
        *current = Arc::clone(&table);
        guard.version = guard.version.wrapping_add(2);
        guard.shard.lock.store(guard.version | 1, Ordering::Release);
        drop(current);
        // A view that was current before is current after its own replacement.
        if directory.published.fetch_add(1, Ordering::AcqRel) == self.published {
            self.published += 1;
        }
        self.versions[shard] = guard.version;
        self.tables[shard] = table;
    }
}

/// A reader's or writer's own references to all tables and pages.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) tables: Tables,
    pub(crate) pages: Pages,
    pub(crate) numbering: Numbering,
}

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Directory {
    /// How often a table was replaced.
    published: AtomicU64,
    recycled: AtomicU64,
    pages_changed: AtomicU64,
    recycling: Mutex<()>,
    pages: Mutex<Arc<[Arc<SetPage>]>>,
    shards: Box<[Shard]>,
    pub(crate) numbering: Numbering,
}

/// The size of the table over all shards.
#[derive(Clone, Copy)]
pub(crate) struct MapSize {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

impl Directory {
    pub(crate) fn new(numbering: Numbering) -> Self {
        let shard = |_| Shard {
            lock: AtomicU64::new(0),
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

    /// How often rows or slots were recycled.
    #[inline]
    pub(crate) fn recycled(&self) -> u64 {
        self.recycled.load(Ordering::Acquire)
    }

    /// Announces that rows or slots are about to be reused.
    pub(crate) fn recycle(&self) {
        let _guard = lock(&self.recycling);
        self.recycled.fetch_add(1, Ordering::AcqRel);
    }

    /// Blocks recycling until the guard is dropped.
    pub(crate) fn forbid_recycling(&self) -> MutexGuard<'_, ()> {
        lock(&self.recycling)
    }

    /// Prefetches the lock of a shard, which another core has mostly written last.
    #[inline]
    pub(crate) fn prefetch_shard(&self, shard: usize) {
        prefetch_to_write(&self.shards[shard]);
    }

    /// The size of all tables.
    pub(crate) fn size(&self) -> MapSize {
        let mut size = MapSize { entries: 0, bytes: 0 };
        for shard in &self.shards {
            size.entries += shard.len.load(Ordering::Relaxed) as usize;
            size.bytes += size_of_val(&**lock(&shard.table));
        }
        size
    }

    pub(crate) fn add_page(&self, page: Arc<SetPage>) {
        let mut pages = lock(&self.pages);
        *pages = pages.iter().cloned().chain([page]).collect();
        self.pages_changed.fetch_add(1, Ordering::Release);
    }

    /// Frees all pages. Their row numbers will be reused, hence the recycling.
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
                versions: Box::new([u64::MAX; SHARDS]),
                published: u64::MAX,
            },
            pages: Pages { pages: Arc::new([]), changed: u64::MAX },
            numbering: directory.numbering,
        };
        view.refresh(directory);
        view
    }

    /// Makes the view current as of this call.
    #[inline]
    pub(crate) fn refresh(&mut self, directory: &Directory) {
        if directory.published.load(Ordering::Acquire) != self.tables.published {
            self.tables.refresh_all(directory);
        }
        self.pages.refresh(directory);
    }
}

impl Pages {
    /// Makes the list current. The caller may hold any lock but that of the pages.
    #[inline]
    pub(crate) fn refresh(&mut self, directory: &Directory) {
        if directory.pages_changed.load(Ordering::Acquire) != self.changed {
            self.reload(directory);
        }
    }

    #[cold]
    fn reload(&mut self, directory: &Directory) {
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

/// Storage for some sets of more than one pod.
#[derive(Debug)]
pub(crate) struct SetPage {
    words: Box<[AtomicU64]>,
    /// By row: how many entries of the table use it.
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
