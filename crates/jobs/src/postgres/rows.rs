//! Rows of the tables as values: numbers, and the JSON entries of files and batches.

use crate::batch::Batch;
use crate::file_entry::FileEntry;
use crate::store_error::StoreError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;

/// PostgreSQL has no unsigned integers.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The tables hold no negative numbers.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(super) fn json(entry: &impl Serialize) -> String {
    serde_json::to_string(entry).expect("entries are always JSON")
}

/// The file whose entry is the first column.
pub(super) fn file_entry(row: &Row) -> Result<FileEntry, StoreError> {
    entry(row, "file")
}

/// The batch whose entry is the first column, without its counts.
pub(super) fn batch_entry(row: &Row) -> Result<Batch, StoreError> {
    entry(row, "batch")
}

pub(super) fn missing_file(id: &str) -> StoreError {
    StoreError::Missing(format!("file `{id}`"))
}

pub(super) fn missing_batch(id: &str) -> StoreError {
    StoreError::Missing(format!("batch `{id}`"))
}

fn entry<T: DeserializeOwned>(row: &Row, kind: &str) -> Result<T, StoreError> {
    serde_json::from_str(row.get(0))
        .map_err(|error| StoreError::Refused(format!("entry of a {kind} is unreadable: {error}")))
}
