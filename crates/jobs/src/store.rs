//! Where files and batches are kept: one interface, whatever is behind it.
//!
//! Accepted means durable: when a call returns, what it did survives. A batch consists of segments, pieces of its
//! planned order, and whoever runs some of them holds a [`Lease`] on those. Each lease has a higher number than
//! those before, and writing needs the latest: a runner that was thought dead and comes back writes nothing, so
//! every line is published by exactly one of them.

use crate::batch::{Batch, BatchStatus, UnixTime};
use crate::problem::StoreError;
use crate::record::{Counts, LineRecord, Publish, RecordKind, TokenUsage};
use crate::results::InputMark;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

/// What is known of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name.
    pub id: String,
    /// Whose it is; empty if nobody is told apart.
    pub owner: String,
    /// What its owner calls it.
    pub filename: String,
    /// What it is for.
    pub purpose: String,
    /// Its bytes.
    pub bytes: u64,
    /// When it came.
    pub created_at: UnixTime,
    /// When it goes.
    pub expires_at: Option<UnixTime>,
    /// Set if it is a batch's own: whose, and which of its two.
    pub of: Option<(String, RecordKind)>,
}

impl FileEntry {
    /// As clients see it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": null,
        })
    }
}

/// The right to run segments of a batch, until another takes one of them over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Of which.
    pub batch: String,
    /// Higher than that of every earlier lease.
    pub epoch: u64,
    /// Which segments, in ascending order.
    pub segments: Vec<u32>,
    /// Of how many.
    pub of: u32,
}

impl Lease {
    /// Whether nobody else runs anything of the batch.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.segments.len() == self.of as usize
    }

    /// Whether the `place`th of `all` requests, in the planned order, is in one of its segments.
    #[must_use]
    pub fn covers(&self, place: usize, all: usize) -> bool {
        let segment = place * self.of as usize / all.max(1);
        self.segments.binary_search(&(segment as u32)).is_ok()
    }
}

/// How far a batch's results are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchState {
    /// How many lines have their records.
    pub counts: Counts,
    /// Tokens of those.
    pub usage: TokenUsage,
    /// Lines without a record.
    pub missing: Vec<u32>,
}

/// Keeps files and batches.
pub trait Store: Send + Sync {
    /// Takes a file in; `entry.bytes` is what `content` turns out to have. A file of a batch's results replaces one of the same
    /// name.
    ///
    /// # Errors
    /// If it cannot be kept.
    fn add_file(&self, entry: FileEntry, content: &mut dyn Read) -> Result<FileEntry, StoreError>;

    /// What is known of a file.
    ///
    /// # Errors
    /// If there is none.
    fn file(&self, id: &str) -> Result<FileEntry, StoreError>;

    /// All files of an owner, newest first.
    ///
    /// # Errors
    /// If the store does not answer.
    fn files(&self, owner: &str) -> Result<Vec<FileEntry>, StoreError>;

    /// Reads from a file.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    fn read_file(&self, id: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, StoreError>;

    /// Takes a file away.
    ///
    /// # Errors
    /// If there is none.
    fn remove_file(&self, id: &str) -> Result<(), StoreError>;

    /// Takes a batch in.
    ///
    /// # Errors
    /// If it cannot be kept, or its input is not there.
    fn add_batch(&self, batch: Batch) -> Result<(), StoreError>;

    /// A batch, as it is now.
    ///
    /// # Errors
    /// If there is none.
    fn batch(&self, id: &str) -> Result<Batch, StoreError>;

    /// All batches of an owner, newest first.
    ///
    /// # Errors
    /// If the store does not answer.
    fn batches(&self, owner: &str) -> Result<Vec<Batch>, StoreError>;

    /// All batches that have not ended, whoever owns them. Who asks this counts among those who run them, for a
    /// while: others then leave it a share.
    ///
    /// # Errors
    /// If the store does not answer.
    fn unfinished(&self) -> Result<Vec<Batch>, StoreError>;

    /// Bytes that have been published of a batch's output or errors.
    ///
    /// # Errors
    /// If there is no such batch.
    fn result_bytes(&self, batch: &str, kind: RecordKind) -> Result<u64, StoreError>;

    /// Changes a batch on behalf of its owner.
    ///
    /// # Errors
    /// What `change` says; nothing has changed then.
    fn change(
        &self,
        id: &str,
        change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
    ) -> Result<Batch, StoreError>;

    /// Takes over what of a batch nobody else runs: whoever had it before writes no more. None if others run all
    /// that is left. What is past its time or cancelled is taken whole, as soon as nobody runs any of it.
    ///
    /// # Errors
    /// If there is none, or it has ended.
    fn lease(&self, batch: &str) -> Result<Option<Lease>, StoreError>;

    /// How long a lease lasts if nothing is heard of its holder.
    fn term(&self) -> Duration;

    /// Says that its holder is alive, and hears in what state the batch is.
    ///
    /// # Errors
    /// If the lease is not the latest.
    fn renew(&self, lease: &Lease) -> Result<BatchStatus, StoreError>;

    /// Its holder computes no more: what it leased is done, or will not be computed any more. The lease stays its own, to end
    /// the batch with, until it is given back.
    ///
    /// # Errors
    /// If the lease is not the latest.
    fn settle(&self, lease: &Lease) -> Result<(), StoreError>;

    /// Its holder gives it back: another may take it at once.
    ///
    /// # Errors
    /// If the store does not answer.
    fn release(&self, lease: &Lease) -> Result<(), StoreError>;

    /// Changes a batch on behalf of its runner.
    ///
    /// # Errors
    /// If the lease is not the latest, or what `change` says.
    fn change_leased(
        &self,
        lease: &Lease,
        change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
    ) -> Result<Batch, StoreError>;

    /// How far the results are; begins them if there are none.
    ///
    /// # Errors
    /// If the lease is not the latest, or the results are of another input.
    fn standing(&self, lease: &Lease, input: InputMark) -> Result<BatchState, StoreError>;

    /// Publishes records: each line's first and no other. Returns how many were new.
    ///
    /// # Errors
    /// If the lease is not the latest, or they cannot be written.
    fn publish(&self, lease: &Lease, records: &[LineRecord]) -> Result<usize, StoreError>;

    /// Reads what has been published of a batch so far, whole lines only.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    fn read_results(
        &self,
        batch: &str,
        kind: RecordKind,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError>;

    /// Removes what nobody may want any more: files past their time, unless a batch still reads them, and
    /// batches that ended `keep` seconds ago or earlier, with their results. Returns how many.
    ///
    /// # Errors
    /// If the store does not answer.
    fn sweep(&self, now: UnixTime, keep: u64) -> Result<usize, StoreError>;
}

/// A file that a batch reads is not removed.
pub(crate) fn still_needed(file: &str, batch: &Batch) -> StoreError {
    let (batch, status) = (&batch.id, batch.status().word());
    StoreError::Conflict(format!(
        "file `{file}` is the input of batch `{batch}`, which is {status}; cancel it first"
    ))
}

/// Publishes under a lease.
pub struct Leased {
    store: Arc<dyn Store>,
    lease: Lease,
    standing: (Counts, TokenUsage),
}

impl std::fmt::Debug for Leased {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leased({:?})", self.lease)
    }
}

impl Leased {
    /// Goes on from where the results are.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, lease: Lease, standing: &BatchState) -> Self {
        Self { store, lease, standing: (standing.counts, standing.usage) }
    }
}

impl Publish for Leased {
    fn publish(&mut self, records: &[LineRecord]) -> Result<usize, StoreError> {
        let new = self.store.publish(&self.lease, records)?;
        let batch = self.store.batch(&self.lease.batch)?;
        self.standing = (batch.counts, batch.usage);
        Ok(new)
    }

    fn counts(&self) -> Counts {
        self.standing.0
    }

    fn usage(&self) -> TokenUsage {
        self.standing.1
    }
}
