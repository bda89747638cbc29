//! The store of files and batches: one interface for a folder and for a database.
//!
//! Accepted means durable: when a call returns, its effect survives a crash. A batch consists of
//! segments, parts of its planned order, and a runner holds a [`Lease`] on the segments that it
//! computes. Each lease has a higher epoch than those before, and writing needs the latest: a
//! runner that was presumed dead and comes back writes nothing, so every line is published by
//! exactly one runner.

use crate::batch::{Batch, BatchStatus, UnixTime};
use crate::byte_check::ByteCheck;
use crate::file_entry::FileEntry;
use crate::record::{Counts, LineRecord, Publish, RecordKind, TokenUsage};
use crate::result_log::InputMark;
use crate::store_error::StoreError;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

/// The right to compute segments of a batch, until another runner takes one of them over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The batch id.
    pub batch: String,
    /// The fencing token: higher than that of every earlier lease.
    pub epoch: u64,
    /// The leased segments, in ascending order.
    pub segments: Vec<u32>,
    /// The number of segments of the batch.
    pub of: u32,
}

impl Lease {
    /// Whether it covers the whole batch.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.segments.len() == self.of as usize
    }

    /// Whether the request at `position` of `all`, in the planned order, is in one of its segments.
    #[must_use]
    pub fn covers(&self, position: usize, all: usize) -> bool {
        let segment = position * self.of as usize / all.max(1);
        self.segments.binary_search(&(segment as u32)).is_ok()
    }
}

/// The published results of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchState {
    /// The lines by their state.
    pub counts: Counts,
    /// The tokens of the published records.
    pub usage: TokenUsage,
    /// Lines without a record.
    pub missing: Vec<u32>,
}

/// Stores files and batches.
pub trait Store: Send + Sync {
    /// Adds a file, and sets its length and its checksum. A result file of a batch has the
    /// published bytes, and replaces one of the same id.
    ///
    /// # Errors
    /// If it cannot be stored.
    fn add_file(&self, entry: FileEntry, content: &mut dyn Read) -> Result<FileEntry, StoreError>;

    /// The metadata of a file.
    ///
    /// # Errors
    /// If there is none.
    fn file(&self, id: &str) -> Result<FileEntry, StoreError>;

    /// All files of an owner, newest first.
    ///
    /// # Errors
    /// If the store is unreachable.
    fn files(&self, owner: &str) -> Result<Vec<FileEntry>, StoreError>;

    /// Reads from a file.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    fn read_file(&self, id: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError>;

    /// A check of a file as it was stored.
    ///
    /// # Errors
    /// If there is none.
    fn check_file(&self, id: &str) -> Result<ByteCheck, StoreError> {
        Ok(ByteCheck::file(&self.file(id)?))
    }

    /// Removes a file.
    ///
    /// # Errors
    /// If there is none.
    fn remove_file(&self, id: &str) -> Result<(), StoreError>;

    /// Adds a batch.
    ///
    /// # Errors
    /// If it cannot be stored, or its input file does not exist.
    fn add_batch(&self, batch: Batch) -> Result<(), StoreError>;

    /// A batch with its current counts.
    ///
    /// # Errors
    /// If there is none.
    fn batch(&self, id: &str) -> Result<Batch, StoreError>;

    /// All batches of an owner, newest first.
    ///
    /// # Errors
    /// If the store is unreachable.
    fn batches(&self, owner: &str) -> Result<Vec<Batch>, StoreError>;

    /// The bytes of the entries of an owner's files and batches, ended ones included: names,
    /// metadata, states. Their contents and results do not count.
    ///
    /// # Errors
    /// If the store is unreachable.
    fn entry_bytes(&self, owner: &str) -> Result<u64, StoreError>;

    /// All batches that have not ended, of all owners. The caller counts as a runner for one lease
    /// term, so that the others leave it a share.
    ///
    /// # Errors
    /// If the store is unreachable.
    fn unfinished(&self) -> Result<Vec<Batch>, StoreError>;

    /// The published bytes of a batch's output or errors.
    ///
    /// # Errors
    /// If there is no such batch.
    fn result_bytes(&self, batch: &str, kind: RecordKind) -> Result<u64, StoreError>;

    /// Changes a batch on behalf of its owner.
    ///
    /// # Errors
    /// The error of `change`; the batch is unchanged then.
    fn change(
        &self,
        id: &str,
        change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
    ) -> Result<Batch, StoreError>;

    /// Leases segments of a batch that no live runner holds; their former holder can no longer
    /// write. None if other runners hold all that is left. A batch that is expired or cancelled is
    /// leased as a whole, as soon as no runner holds any of it.
    ///
    /// # Errors
    /// If the batch does not exist, or has ended.
    fn lease(&self, batch: &str) -> Result<Option<Lease>, StoreError>;

    /// The time after which a lease expires that is not renewed.
    fn term(&self) -> Duration;

    /// Renews a lease. Returns the status of the batch.
    ///
    /// # Errors
    /// If the lease is not the latest.
    fn renew(&self, lease: &Lease) -> Result<BatchStatus, StoreError>;

    /// Marks the leased segments as settled: no more of them will be computed. The holder keeps the
    /// lease to finish the batch with, until it releases it.
    ///
    /// # Errors
    /// If the lease is not the latest.
    fn settle(&self, lease: &Lease) -> Result<(), StoreError>;

    /// Releases a lease: another runner may take the segments at once.
    ///
    /// # Errors
    /// If the store is unreachable.
    fn release(&self, lease: &Lease) -> Result<(), StoreError>;

    /// Changes a batch on behalf of its runner.
    ///
    /// # Errors
    /// If the lease is not the latest, or the error of `change`.
    fn change_leased(
        &self,
        lease: &Lease,
        change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
    ) -> Result<Batch, StoreError>;

    /// The published results; creates them if there are none.
    ///
    /// # Errors
    /// If the lease is not the latest, or the results are of another input.
    fn standing(&self, lease: &Lease, input: InputMark) -> Result<BatchState, StoreError>;

    /// The input of the published results, if a runner has begun them.
    ///
    /// # Errors
    /// If the batch does not exist.
    fn begun(&self, batch: &str) -> Result<Option<InputMark>, StoreError>;

    /// Publishes records: the first of each line and no other. Returns how many were new.
    ///
    /// # Errors
    /// If the lease is not the latest, or they cannot be written.
    fn publish(&self, lease: &Lease, records: &[LineRecord]) -> Result<usize, StoreError>;

    /// Reads the results of a batch that are published so far, whole lines only.
    ///
    /// # Errors
    /// If the batch does not exist, or its results cannot be read.
    fn read_results(
        &self,
        batch: &str,
        kind: RecordKind,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError>;

    /// A check of the results that are published so far. It begins at `offset` or before.
    ///
    /// # Errors
    /// If the batch does not exist, or its results are damaged.
    fn check_results(
        &self,
        batch: &str,
        kind: RecordKind,
        offset: u64,
    ) -> Result<ByteCheck, StoreError>;

    /// The newest time in the store: when a file or a batch was created, or a batch changed its
    /// status. None if the store is empty.
    ///
    /// # Errors
    /// If the store is unreachable.
    fn newest(&self) -> Result<Option<UnixTime>, StoreError>;

    /// Removes expired files, unless a batch still reads them, and batches that ended `keep`
    /// seconds ago or earlier, with their results. Returns how many.
    ///
    /// # Errors
    /// If the store is unreachable.
    fn sweep(&self, now: UnixTime, keep: u64) -> Result<usize, StoreError>;
}

/// The error of removing a file that a batch still reads.
pub(crate) fn still_needed(file: &str, batch: &Batch) -> StoreError {
    let status = batch.status().word();
    let batch = &batch.id;
    StoreError::Conflict(format!(
        "file `{file}` is the input of batch `{batch}`, which is {status}; cancel it first"
    ))
}

/// Publishes under a lease.
pub struct Leased {
    store: Arc<dyn Store>,
    lease: Lease,
    counts: Counts,
    usage: TokenUsage,
}

impl std::fmt::Debug for Leased {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leased({:?})", self.lease)
    }
}

impl Leased {
    /// Continues after the published results.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, lease: Lease, standing: &BatchState) -> Self {
        Self { store, lease, counts: standing.counts, usage: standing.usage }
    }
}

impl Publish for Leased {
    fn publish(&mut self, records: &[LineRecord]) -> Result<usize, StoreError> {
        let new = self.store.publish(&self.lease, records)?;
        let batch = self.store.batch(&self.lease.batch)?;
        self.counts = batch.counts;
        self.usage = batch.usage;
        Ok(new)
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn usage(&self) -> TokenUsage {
        self.usage
    }
}
