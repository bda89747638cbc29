//! The store in a local folder.
//!
//! Files are in `files`, results in `results`, and a journal commits both: every change of a file's
//! or a batch's entry is a frame with the whole new entry. A file is synced before the journal
//! names it and removed after the journal has dropped it, so a crash leaves at most orphans, which
//! are removed when the store is opened. The journal has its first frame before there is any file:
//! an empty one next to files means that the journal was lost, and the store is refused. The
//! progress of a running batch is in its results alone. When most of the journal is outdated, it
//! is compacted ([`Journal::replace`]): at the start, by the sweep, and at once if it has grown to
//! several times what counts.
//!
//! Limit: the folder belongs to one process, so a lease always covers a whole batch, and lasts
//! until the next.

mod layout;
mod open_files;
mod removal;
mod state;
mod verify;

pub use verify::{FolderReport, verify};

use crate::batch::{Batch, BatchStatus, UnixTime};
use crate::byte_check::ByteCheck;
use crate::committed_files::CommittedFiles;
use crate::disk::{Disk, StoredFile};
use crate::file_entry::FileEntry;
use crate::journal::Journal;
use crate::record::{LineRecord, Publish, RecordKind};
use crate::result_log::{InputMark, ResultPaths};
use crate::results::Results;
use crate::store::{BatchState, Lease, Store};
use crate::store_error::StoreError;
use open_files::OpenFiles;
use state::{JournalEntry, StoreState};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The outdated entries and bytes that a journal may have before it is compacted.
const COMPACTION_SLACK: usize = 1_000;
const COMPACTION_SLACK_BYTES: u64 = 1 << 20;
/// How many times the bytes that count a journal may have, before the sweep compacts it,
const OUTDATED: u64 = 2;
/// and before the change that makes it so long does.
const OUTGROWN: u64 = 4;

/// A store in a local folder.
pub struct FsStore {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    inner: Mutex<StoreInner>,
}

struct StoreInner {
    disk: Arc<dyn Disk>,
    journal: Journal,
    state: StoreState,
    /// Of batches that have not ended and were accessed since the start.
    results: BTreeMap<String, Results>,
    /// Results of ended batches that are being read.
    ended: OpenFiles<CommittedFiles>,
    /// Files that are being read.
    opened: OpenFiles<dyn StoredFile>,
}

impl std::fmt::Debug for FsStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FsStore({})", self.folder.display())
    }
}

impl StoreInner {
    /// Appends a change to the journal, and only then applies it.
    fn commit(&mut self, change: JournalEntry) -> Result<(), StoreError> {
        self.journal.append(&change.json())?;
        self.state.apply(change);
        if self.is_longer(OUTGROWN) {
            // The change counts, whether or not the journal can be shortened now. The next one
            // tries again.
            let _ = self.compact();
        }
        Ok(())
    }

    /// Compacts the journal if most of its entries or bytes are outdated.
    fn compact_outdated(&mut self) -> Result<(), StoreError> {
        let is_outdated = self.journal.frames() > 2 * self.state.entries() + COMPACTION_SLACK;
        if is_outdated || self.is_longer(OUTDATED) { self.compact() } else { Ok(()) }
    }

    /// Whether the journal has more than so many times the bytes that count.
    fn is_longer(&self, times: u64) -> bool {
        self.journal.bytes() > times * self.state.bytes() + COMPACTION_SLACK_BYTES
    }

    fn compact(&mut self) -> Result<(), StoreError> {
        let entries: Vec<_> = self.state.changes().map(|entry| entry.json()).collect();
        self.journal.replace(&*self.disk, &entries)
    }
}

impl FsStore {
    /// Opens the store in a folder, or creates one.
    ///
    /// # Errors
    /// If another process has it open, it is damaged or its journal was lost, or the file system
    /// fails.
    pub fn open(disk: Arc<dyn Disk>, folder: &Path) -> Result<Self, StoreError> {
        for path in [folder.to_owned(), folder.join("files"), folder.join("results")] {
            disk.make_folder(&path).map_err(StoreError::io("create", &path))?;
        }
        let mut state = StoreState::default();
        let journal = Journal::open(&*disk, &folder.join("journal"), |payload| {
            state.apply(serde_json::from_slice(payload).map_err(|_| "not an entry of a store")?);
            Ok(())
        })?;
        let mut inner = StoreInner {
            disk: Arc::clone(&disk),
            journal,
            state,
            results: BTreeMap::new(),
            ended: OpenFiles::default(),
            opened: OpenFiles::default(),
        };
        inner.compact_outdated()?;
        let store = Self { disk, folder: folder.to_owned(), inner: Mutex::new(inner) };
        store.begin_journal()?;
        store.remove_orphans()?;
        Ok(store)
    }

    fn lock(&self) -> MutexGuard<'_, StoreInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path_of(&self, file: &str) -> PathBuf {
        layout::file_path(&self.folder, file)
    }

    fn paths_of(&self, batch: &str) -> ResultPaths {
        layout::result_paths(&self.folder, batch)
    }

    fn open_file(&self, path: &Path) -> Result<Box<dyn StoredFile>, StoreError> {
        self.disk.open(path).map_err(StoreError::io("open", path))
    }

    /// Opens a stored file to read. Unlike a file system that is unwell, one that does not have the
    /// file will not have it later.
    fn open_stored(&self, entry: &FileEntry) -> Result<Box<dyn StoredFile>, StoreError> {
        let path = match &entry.of {
            Some((batch, kind)) => self.paths_of(batch).of(*kind).clone(),
            None => self.path_of(&entry.id),
        };
        self.disk.open_existing(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ByteCheck::file(entry).lost(),
            _ => StoreError::io("open", &path)(error),
        })
    }

    /// The results of a batch that has not ended, if it has any.
    fn results<'a>(
        &self,
        inner: &'a mut StoreInner,
        batch: &str,
    ) -> Result<&'a mut Results, StoreError> {
        let StoreInner { state, results, .. } = inner;
        if !results.contains_key(batch) {
            let mark = begun_as(state, batch)?;
            let opened = Results::open(&*self.disk, &self.paths_of(batch), mark)?;
            results.insert(batch.to_owned(), opened);
        }
        Ok(results.get_mut(batch).expect("it was inserted if it was not there"))
    }

    /// Reads from the results of a batch; none if it has none yet.
    fn with_results<T>(
        &self,
        batch: &str,
        read: impl FnOnce(&CommittedFiles) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let mut inner = self.lock();
        let counts = inner.state.batch(batch)?.counts;
        let has_ended = inner.state.batch(batch)?.status().is_final();
        if !inner.state.begun.contains_key(batch) {
            return Ok(None);
        }
        if !has_ended {
            return read(self.results(&mut inner, batch)?.committed()).map(Some);
        }
        let StoreInner { state, ended, .. } = &mut *inner;
        let files = ended.get(batch, || {
            let mark = begun_as(state, batch)?;
            let paths = self.paths_of(batch);
            CommittedFiles::open_ended(&*self.disk, &paths, mark, counts).map(Box::new)
        })?;
        read(&files).map(Some)
    }

    /// A batch with the counts of its results.
    fn with_counts(&self, inner: &mut StoreInner, mut batch: Batch) -> Result<Batch, StoreError> {
        // The entry of an ended batch has its counts.
        if inner.state.begun.contains_key(&batch.id) && !batch.status().is_final() {
            match self.results(inner, &batch.id) {
                Ok(results) => {
                    batch.counts = results.counts();
                    batch.usage = results.usage();
                }
                // The batch is there, whatever became of its results.
                Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(batch)
    }

    /// The result file of a batch that has ended, unless its owner has deleted it.
    fn result_file(&self, batch: &str, kind: RecordKind) -> Result<Option<String>, StoreError> {
        let inner = self.lock();
        let ended = inner.state.batch(batch)?;
        let id = match kind {
            RecordKind::Output => &ended.output_file_id,
            RecordKind::Error => &ended.error_file_id,
        };
        let is_there =
            |id: &&String| ended.status().is_final() && inner.state.files.contains_key(*id);
        Ok(id.as_ref().filter(is_there).cloned())
    }

    /// Writes a file, and makes it durable. Sets its length and checksum.
    fn write_file(&self, entry: &mut FileEntry, content: &mut dyn Read) -> Result<(), StoreError> {
        let path = &*self.path_of(&entry.id);
        let mut file = self.open_file(path)?;
        let mut buffer = vec![0; 1 << 16];
        let mut crc = crc32fast::Hasher::new();
        let mut bytes = 0;
        loop {
            let count = content.read(&mut buffer).map_err(StoreError::io("receive", path))?;
            if count == 0 {
                break;
            }
            file.append(&buffer[..count]).map_err(StoreError::io("write", path))?;
            crc.update(&buffer[..count]);
            bytes += count as u64;
        }
        file.sync().map_err(StoreError::io("sync", path))?;
        let folder = self.folder.join("files");
        self.disk.sync_folder(&folder).map_err(StoreError::io("sync", &folder))?;
        entry.bytes = bytes;
        entry.crc = Some(crc.finalize());
        Ok(())
    }
}

/// The input that the results of a batch were begun with.
fn begun_as(state: &StoreState, batch: &str) -> Result<InputMark, StoreError> {
    let mark = state.begun.get(batch).copied();
    mark.ok_or_else(|| StoreError::Missing(format!("result of `{batch}`")))
}

impl Store for FsStore {
    fn add_file(
        &self,
        mut entry: FileEntry,
        content: &mut dyn Read,
    ) -> Result<FileEntry, StoreError> {
        if let Some((batch, kind)) = entry.of.clone() {
            let published = self
                .with_results(&batch, |files| Ok((files.ends()[kind.index()], files.crc(kind))))?;
            if let Some((bytes, crc)) = published {
                entry.bytes = bytes;
                entry.crc = Some(crc);
            }
            self.lock().commit(JournalEntry::File(entry.clone()))?;
            return Ok(entry);
        }
        let written = self.write_file(&mut entry, content);
        let committed =
            written.and_then(|()| self.lock().commit(JournalEntry::File(entry.clone())));
        if let Err(error) = committed {
            // A file that cannot be removed now is removed at the next start.
            let _ = self.disk.remove(&self.path_of(&entry.id));
            return Err(error);
        }
        Ok(entry)
    }

    fn file(&self, id: &str) -> Result<FileEntry, StoreError> {
        self.lock().state.file(id).cloned()
    }

    fn files(&self, owner: &str) -> Result<Vec<FileEntry>, StoreError> {
        let inner = self.lock();
        let own = inner.state.files.values().filter(|file| file.owner == owner);
        let mut files: Vec<_> = own.cloned().collect();
        files.sort_by(|one, other| (other.created_at, &other.id).cmp(&(one.created_at, &one.id)));
        Ok(files)
    }

    fn read_file(&self, id: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        let mut inner = self.lock();
        let entry = inner.state.file(id)?.clone();
        let mut most = buffer.len();
        if let Some((batch, kind)) = &entry.of {
            let of = inner.state.batches.get(batch);
            if !of.is_some_and(|batch| batch.status().is_final()) {
                drop(inner);
                return self.read_results(batch, *kind, offset, buffer);
            }
            // Bytes behind the committed end do not count.
            let left = entry.bytes.saturating_sub(offset);
            most = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        let file = inner.opened.get(id, || self.open_stored(&entry))?;
        // Reads do not hold the lock.
        drop(inner);
        let read = file.read_at(&mut buffer[..most], offset);
        read.map_err(StoreError::io("read", &self.path_of(id)))
    }

    fn remove_file(&self, id: &str) -> Result<(), StoreError> {
        self.remove_one(&mut self.lock(), id)
    }

    fn add_batch(&self, batch: Batch) -> Result<(), StoreError> {
        let mut inner = self.lock();
        inner.state.file(&batch.input_file_id)?;
        inner.commit(JournalEntry::Batch(Box::new(batch)))
    }

    fn batch(&self, id: &str) -> Result<Batch, StoreError> {
        let mut inner = self.lock();
        let batch = inner.state.batch(id)?.clone();
        self.with_counts(&mut inner, batch)
    }

    fn batches(&self, owner: &str) -> Result<Vec<Batch>, StoreError> {
        let mut inner = self.lock();
        let own = inner.state.batches.values().filter(|batch| batch.owner == owner);
        let mut batches: Vec<_> = own.cloned().collect();
        batches.sort_by(|one, other| {
            (other.created_at(), &other.id).cmp(&(one.created_at(), &one.id))
        });
        batches.into_iter().map(|batch| self.with_counts(&mut inner, batch)).collect()
    }

    fn entry_bytes(&self, owner: &str) -> Result<u64, StoreError> {
        Ok(self.lock().state.bytes_of(owner))
    }

    fn unfinished(&self) -> Result<Vec<Batch>, StoreError> {
        let inner = self.lock();
        let open = inner.state.batches.values().filter(|batch| !batch.status().is_final());
        Ok(open.cloned().collect())
    }

    fn result_bytes(&self, batch: &str, kind: RecordKind) -> Result<u64, StoreError> {
        let ends = self.with_results(batch, |files| Ok(files.ends()))?.unwrap_or_default();
        Ok(ends[kind.index()])
    }

    fn change(
        &self,
        id: &str,
        change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
    ) -> Result<Batch, StoreError> {
        let mut inner = self.lock();
        let batch = inner.state.batch(id)?.clone();
        let mut batch = self.with_counts(&mut inner, batch)?;
        change(&mut batch)?;
        inner.commit(JournalEntry::Batch(Box::new(batch.clone())))?;
        if batch.status().is_final() {
            inner.results.remove(id);
        }
        Ok(batch)
    }

    fn lease(&self, batch: &str) -> Result<Option<Lease>, StoreError> {
        let changed = self.change(batch, &mut |batch| match batch.status().is_final() {
            true => Err(StoreError::Conflict(format!("batch `{}` has ended", batch.id))),
            false => {
                batch.epoch += 1;
                Ok(())
            }
        })?;
        let epoch = changed.epoch;
        Ok(Some(Lease { batch: batch.to_owned(), epoch, segments: vec![0], of: 1 }))
    }

    fn term(&self) -> Duration {
        Duration::MAX
    }

    fn renew(&self, lease: &Lease) -> Result<BatchStatus, StoreError> {
        Ok(self.lock().state.leased(lease)?.status())
    }

    fn settle(&self, lease: &Lease) -> Result<(), StoreError> {
        self.renew(lease).map(drop)
    }

    fn release(&self, _lease: &Lease) -> Result<(), StoreError> {
        // The next lease replaces it anyway.
        Ok(())
    }

    fn change_leased(
        &self,
        lease: &Lease,
        change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
    ) -> Result<Batch, StoreError> {
        self.change(&lease.batch, &mut |batch| {
            if batch.epoch != lease.epoch || batch.status().is_final() {
                return Err(StoreError::Fenced(lease.batch.clone()));
            }
            change(batch)
        })
    }

    fn standing(&self, lease: &Lease, input: InputMark) -> Result<BatchState, StoreError> {
        let mut inner = self.lock();
        inner.state.leased(lease)?;
        match inner.state.begun.get(&lease.batch) {
            None => inner.commit(JournalEntry::Begun(lease.batch.clone(), input))?,
            Some(begun) if *begun != input => {
                let path = self.folder.join("results");
                let what = "it was started with another input".to_owned();
                return Err(StoreError::OtherInput { path, what });
            }
            Some(_) => {}
        }
        let results = self.results(&mut inner, &lease.batch)?;
        let missing = (0..input.lines).filter(|line| !results.is_done(*line)).collect();
        Ok(BatchState { counts: results.counts(), usage: results.usage(), missing })
    }

    fn begun(&self, batch: &str) -> Result<Option<InputMark>, StoreError> {
        let inner = self.lock();
        inner.state.batch(batch)?;
        Ok(inner.state.begun.get(batch).copied())
    }

    fn publish(&self, lease: &Lease, records: &[LineRecord]) -> Result<usize, StoreError> {
        let mut inner = self.lock();
        inner.state.leased(lease)?;
        self.results(&mut inner, &lease.batch)?.publish(records)
    }

    fn read_results(
        &self,
        batch: &str,
        kind: RecordKind,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError> {
        if let Some(file) = self.result_file(batch, kind)? {
            return self.read_file(&file, offset, buffer);
        }
        let read = self.with_results(batch, |files| files.read(kind, offset, buffer))?;
        Ok(read.unwrap_or(0))
    }

    fn check_results(
        &self,
        batch: &str,
        kind: RecordKind,
        offset: u64,
    ) -> Result<ByteCheck, StoreError> {
        if let Some(file) = self.result_file(batch, kind)? {
            return self.check_file(&file);
        }
        let check = self.with_results(batch, |files| Ok(files.check(batch, kind, offset)))?;
        Ok(check.unwrap_or_else(|| ByteCheck::nothing(batch)))
    }

    fn newest(&self) -> Result<Option<UnixTime>, StoreError> {
        let inner = self.lock();
        let files = inner.state.files.values().map(|file| file.created_at);
        Ok(files.chain(inner.state.batches.values().map(Batch::changed_at)).max())
    }

    fn sweep(&self, now: UnixTime, keep: u64) -> Result<usize, StoreError> {
        self.remove_old(&mut self.lock(), now, keep)
    }
}
