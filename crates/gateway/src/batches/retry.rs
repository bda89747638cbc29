//! The failed lines of a batch, as a batch of their own.

use super::Batches;
use super::stored::{StoredBytes, needed};
use super::trouble::Trouble;
use super::unix_time;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use wornpath_jobs::{Batch, FileEntry, Interface, Kind, NewBatch, Store, StoreError};

/// Makes a batch of the lines that failed.
pub(super) async fn retry(batches: &Arc<Batches>, old: Batch) -> Result<Batch, Trouble> {
    if !old.status().is_final() || old.counts.failed == 0 {
        let status = old.status().word();
        let message = format!(
            "batch `{}` is {status} with {} failed lines; only an ended one with failures can be retried",
            old.id, old.counts.failed
        );
        return Err(Trouble::from(StoreError::Conflict(message)));
    }
    let (file_id, id) = (batches.new_id("file-"), batches.new_id("batch_"));
    let batch = batches
        .ask(move |store| {
            let cannot = format!("batch `{}` cannot be retried", old.id);
            for file in std::iter::once(&old.input_file_id).chain(&old.error_file_id) {
                needed(store, file, &cannot)?;
            }
            let failed = failed_ids(store, &old.id)?;
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
            let mut lines = FailedLines {
                input: BufReader::new(StoredBytes { store, file: &old.input_file_id, offset: 0 }),
                failed,
                line: Vec::new(),
                at: 0,
            };
            let file = store.add_file(entry, &mut lines)?;
            let window = (old.completion_window.clone(), old.expires_at - old.created_at());
            let new = NewBatch {
                id,
                owner: old.owner.clone(),
                interface: Interface::at(&old.endpoint).unwrap_or(Interface::Chat),
                input_file_id: file.id,
                window,
                metadata: old.metadata.clone(),
            };
            let mut batch = Batch::new(new, now);
            batch.identical_once = old.identical_once;
            batch.output_expires_after = old.output_expires_after;
            store.add_batch(batch.clone())?;
            Ok(batch)
        })
        .await?;
    super::life::start(batches, batch.id.clone());
    Ok(batch)
}

/// What owners call the lines that failed, as JSON.
fn failed_ids(store: &dyn Store, batch: &str) -> Result<BTreeSet<Vec<u8>>, StoreError> {
    let unreadable = |error: std::io::Error| StoreError::Unreachable(error.to_string());
    let (mut ids, mut line) = (BTreeSet::new(), Vec::new());
    let mut errors = BufReader::new(Errors { store, batch, offset: 0 });
    while errors.read_until(b'\n', &mut line).map_err(unreadable)? > 0 {
        ids.extend(custom_id(&line));
        line.clear();
    }
    Ok(ids)
}

/// As compact JSON, whoever wrote it.
fn custom_id(line: &[u8]) -> Option<Vec<u8>> {
    let value: serde_json::Value = serde_json::from_slice(line).ok()?;
    Some(value["custom_id"].to_string().into_bytes())
}

struct Errors<'a> {
    store: &'a dyn Store,
    batch: &'a str,
    offset: u64,
}

impl Read for Errors<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.store.read_results(self.batch, Kind::Error, self.offset, buffer);
        let read = read.map_err(std::io::Error::other)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// The lines of an input that failed, as bytes in a row.
struct FailedLines<R> {
    input: R,
    failed: BTreeSet<Vec<u8>>,
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
            match custom_id(&self.line) {
                Some(id) if self.failed.contains(&id) => {
                    if !self.line.ends_with(b"\n") {
                        self.line.push(b'\n');
                    }
                }
                _ => self.line.clear(),
            }
        }
        let count = buffer.len().min(self.line.len() - self.at);
        buffer[..count].copy_from_slice(&self.line[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
