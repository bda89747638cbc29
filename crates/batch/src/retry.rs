//! The failed lines of a batch, as a batch of their own.

use crate::batches::Batches;
use crate::error::BatchError;
use crate::file_reader::{StoredBytes, needed};
use crate::storage_quota::StorageReservation;
use crate::upload::{over_quota, room};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use wornpath_gateway::proxy::unix_time;
use wornpath_jobs::{Batch, FileEntry, Interface, NewBatch, RecordKind, Store, StoreError};

/// Makes a batch of the lines that failed.
pub(crate) async fn retry(
    batches: &Arc<Batches>,
    old: Batch,
    turn: Option<OwnedSemaphorePermit>,
) -> Result<Batch, BatchError> {
    if !old.status().is_final() || old.counts.failed == 0 {
        let status = old.status().word();
        let message = format!(
            "batch `{}` is {status} with {} failed lines; only an ended one with failures can be retried",
            old.id, old.counts.failed
        );
        return Err(BatchError::from(StoreError::Conflict(message)));
    }
    let (file_id, id) = (batches.new_id("file-"), batches.new_id("batch_"));
    let own = Arc::clone(batches);
    let batch = batches
        .ask(move |store| {
            let _turn = turn;
            let cannot = format!("batch `{}` cannot be retried", old.id);
            for file in std::iter::once(&old.input_file_id).chain(&old.error_file_id) {
                needed(store, file, &cannot)?;
            }
            let failed = failed_lines(BufReader::new(Errors { store, batch: &old.id, offset: 0 }))
                .map_err(|error| StoreError::Unreachable(error.to_string()))?;
            let now = unix_time();
            let entry = FileEntry {
                id: file_id,
                owner: old.owner.clone(),
                filename: format!("{}_failed.jsonl", old.id),
                purpose: "batch".to_owned(),
                bytes: 0,
                created_at: now,
                expires_at: None,
                of: None,
            };
            let lines = FailedLines {
                input: BufReader::new(StoredBytes { store, file: &old.input_file_id, offset: 0 }),
                failed,
                next: 0,
                line: Vec::new(),
                at: 0,
            };
            let taken = own.rooms.enter(&old.owner);
            taken.measure(room(store, &old.owner, own.rules.quota.bytes)?);
            let mut lines = Bounded { lines, taken, is_full: false };
            let file = match store.add_file(entry, &mut lines) {
                Err(_) if lines.is_full => return Ok(Err(over_quota(&own))),
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
                // Nobody knows of it.
                let _ = store.remove_file(&file.id);
                return Err(error);
            }
            lines.taken.keep(file.bytes);
            Ok(Ok(batch))
        })
        .await??;
    crate::task::start(batches, batch.id.clone());
    Ok(batch)
}

/// The lines that failed. Records are named after their lines; what owners call them stands in a record only if its line could
/// be read.
fn failed_lines(mut errors: impl BufRead) -> std::io::Result<BTreeSet<u32>> {
    let (mut lines, mut record) = (BTreeSet::new(), Vec::new());
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

struct Errors<'a> {
    store: &'a dyn Store,
    batch: &'a str,
    offset: u64,
}

impl Read for Errors<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.store.read_results(self.batch, RecordKind::Error, self.offset, buffer);
        let read = read.map_err(std::io::Error::other)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// The lines of an input that failed, as bytes in a row.
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
            (self.line, self.at) = (Vec::new(), 0);
            if self.input.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(0);
            }
            // A byte order mark is no request either.
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

/// Lines, as many as their owner has room for.
struct Bounded<'a, R> {
    lines: R,
    taken: StorageReservation<'a>,
    is_full: bool,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.lines.read(buffer)?;
        self.is_full = !self.taken.take(count as u64);
        if self.is_full { Err(std::io::Error::other("there is no room for it")) } else { Ok(count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_jobs::Owner;

    #[test]
    fn lines_are_retried_by_their_numbers_whatever_their_records_call_them() {
        let record = |line, custom_id: &str| {
            let owner = Owner { line, custom_id: custom_id.into(), name: "00ff".into() };
            owner.error("unreadable", "the store does not answer").bytes
        };
        let errors = [record(3, "null"), record(0, "\"a\""), record(1, "null")].join(&b'\n');
        let failed = failed_lines(&errors[..]).unwrap();
        assert_eq!(failed, BTreeSet::from([0, 1, 3]));
        let input = "\u{feff}{\"custom_id\":\"a\"}\n\n{\"custom_id\":\"b\"}\n \r\n{\"custom_id\":\"c\"}\n{}";
        let (next, line, at) = (0, Vec::new(), 0);
        let mut lines = FailedLines { input: input.as_bytes(), failed, next, line, at };
        let mut text = String::new();
        lines.read_to_string(&mut text).unwrap();
        assert_eq!(text, "\u{feff}{\"custom_id\":\"a\"}\n{\"custom_id\":\"b\"}\n{}\n");
    }
}
