//! Retries the failed lines of a batch as a new batch.

use crate::batches::Batches;
use crate::error::BatchError;
use crate::file_reader::{StoredBytes, require_file, store_error};
use crate::storage_quota::StorageReservation;
use crate::upload::{bytes_left, quota_exceeded};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use wornpath_gateway::proxy::unix_time;
use wornpath_jobs::{Batch, FileEntry, Interface, NewBatch, StoreError};

/// Creates a batch of the failed lines.
pub(crate) async fn retry(
    batches: &Arc<Batches>,
    old: Batch,
    permit: Option<OwnedSemaphorePermit>,
) -> Result<Batch, BatchError> {
    if !old.status().is_final() || old.counts.failed == 0 {
        let status = old.status().word();
        let message = format!(
            "cannot retry batch `{}` with status `{status}` and {} failed lines; it must be finished and have failed lines",
            old.id, old.counts.failed
        );
        return Err(BatchError::from(StoreError::Conflict(message)));
    }
    let file_id = batches.new_id("file-");
    let id = batches.new_id("batch_");
    let service = Arc::clone(batches);
    let batch = batches
        .with_store(move |store| {
            let _permit = permit;
            let consequence = format!("cannot retry batch `{}`", old.id);
            for file in std::iter::once(&old.input_file_id).chain(&old.error_file_id) {
                require_file(store, file, &consequence)?;
            }
            let errors = old.error_file_id.as_ref().ok_or_else(|| {
                StoreError::Conflict(format!("{consequence}: it has no error file"))
            })?;
            let failed = failed_lines(BufReader::new(StoredBytes::open(store, errors)?))
                .map_err(store_error)?;
            let now = unix_time();
            let entry = FileEntry {
                id: file_id,
                owner: old.owner.clone(),
                filename: format!("{}_failed.jsonl", old.id),
                purpose: "batch".to_owned(),
                bytes: 0,
                created_at: now,
                expires_at: None,
                crc: None,
                of: None,
            };
            let lines = FailedLines {
                input: BufReader::new(StoredBytes::open(store, &old.input_file_id)?),
                failed,
                next: 0,
                line: Vec::new(),
                at: 0,
            };
            let reservation = service.storage_quotas.begin(&old.owner);
            reservation.set_left(bytes_left(store, &old.owner, service.rules.quota.bytes)?);
            let mut lines = Bounded { lines, reservation, is_full: false };
            let file = match store.add_file(entry, &mut lines) {
                Err(_) if lines.is_full => return Ok(Err(quota_exceeded(&service))),
                added => added?,
            };
            let window = (old.completion_window.clone(), old.expires_at - old.created_at());
            let new = NewBatch {
                id,
                owner: old.owner.clone(),
                interface: Interface::at(&old.endpoint).unwrap_or(Interface::Chat),
                input_file_id: file.id.clone(),
                window,
                metadata: old.metadata.clone(),
            };
            let mut batch = Batch::new(new, now);
            batch.identical_once = old.identical_once;
            batch.output_expires_after = old.output_expires_after;
            if let Err(error) = store.add_batch(batch.clone()) {
                // No batch refers to the file.
                let _ = store.remove_file(&file.id);
                return Err(error);
            }
            lines.reservation.commit(file.bytes);
            Ok(Ok(batch))
        })
        .await??;
    crate::task::start(batches, &batch);
    Ok(batch)
}

/// The numbers of the failed lines, from the ids of their records. A record has a `custom_id` only
/// if its line could be read.
fn failed_lines(mut errors: impl BufRead) -> std::io::Result<BTreeSet<u32>> {
    let mut lines = BTreeSet::new();
    let mut record = Vec::new();
    while errors.read_until(b'\n', &mut record)? > 0 {
        lines.extend(line_of(&record));
        record.clear();
    }
    Ok(lines)
}

fn line_of(record: &[u8]) -> Option<u32> {
    let record: serde_json::Value = serde_json::from_slice(record).ok()?;
    let id = record["id"].as_str()?;
    u32::from_str_radix(id.get(id.len().checked_sub(8)?..)?, 16).ok()
}

/// The failed lines of an input, as a byte stream.
struct FailedLines<R> {
    input: R,
    failed: BTreeSet<u32>,
    /// The number of the next line.
    next: u32,
    line: Vec<u8>,
    at: usize,
}

impl<R: BufRead> Read for FailedLines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.at == self.line.len() {
            self.line = Vec::new();
            self.at = 0;
            if self.input.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(0);
            }
            // A byte order mark is not a request.
            let text = self.line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&self.line);
            if text.trim_ascii().is_empty() {
                self.line.clear();
                continue;
            }
            if !self.failed.contains(&self.next) {
                self.line.clear();
            } else if !self.line.ends_with(b"\n") {
                self.line.push(b'\n');
            }
            self.next += 1;
        }
        let count = buffer.len().min(self.line.len() - self.at);
        buffer[..count].copy_from_slice(&self.line[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Limits lines to their owner's storage quota.
struct Bounded<'a, R> {
    lines: R,
    reservation: StorageReservation<'a>,
    is_full: bool,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.lines.read(buffer)?;
        self.is_full = !self.reservation.reserve(count as u64);
        if self.is_full { Err(std::io::Error::other("storage quota exceeded")) } else { Ok(count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_jobs::Owner;

    #[test]
    fn lines_are_retried_by_number_whatever_their_custom_ids_are() {
        let record = |line, custom_id: &str| {
            let owner = Owner { line, custom_id: custom_id.into(), name: "00ff".into() };
            owner.error("unreadable", "store unreachable").bytes
        };
        let errors = [record(3, "null"), record(0, "\"a\""), record(1, "null")].join(&b'\n');
        let failed = failed_lines(&errors[..]).unwrap();
        assert_eq!(failed, BTreeSet::from([0, 1, 3]));
        let input = "\u{feff}{\"custom_id\":\"a\"}\n\n{\"custom_id\":\"b\"}\n \r\n{\"custom_id\":\"c\"}\n{}";
        let input = input.as_bytes();
        let mut lines = FailedLines { input, failed, next: 0, line: Vec::new(), at: 0 };
        let mut text = String::new();
        lines.read_to_string(&mut text).unwrap();
        assert_eq!(text, "\u{feff}{\"custom_id\":\"a\"}\n{\"custom_id\":\"b\"}\n{}\n");
    }
}
