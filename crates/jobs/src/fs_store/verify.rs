//! Checks a folder offline: whether everything that its journal names is there, and as it was
//! stored. Changes nothing.
//!
//! The journal has the length and the checksum of each upload and of each result file. The logs of
//! results have those of each group of records, so the results of a batch that has not ended, or
//! that an older version wrote, are checked as well.

use super::layout::{file_path, result_paths};
use super::state::{JournalEntry, StoreState};
use crate::byte_check::ByteCheck;
use crate::disk::{Disk, StoredFile};
use crate::file_entry::FileEntry;
use crate::growing_crc::CrcPoint;
use crate::journal::replay;
use crate::record::RecordKind;
use crate::result_log::{InputMark, LogScan, ResultPaths};
use crate::store_error::StoreError;
use std::io;
use std::path::Path;

/// Bytes of one read.
const CHUNK: usize = 1 << 20;

/// What a check of a folder has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FolderReport {
    /// The uploads that were checked.
    pub files: usize,
    /// The batches whose results were checked.
    pub batches: usize,
    /// Uploads without a recorded checksum: only their length was checked.
    pub without_checksum: Vec<String>,
    /// What is damaged, and how.
    pub damaged: Vec<String>,
}

/// Checks the folder of a store that no process has open.
///
/// # Errors
/// If the folder has no journal, or another process has it open.
pub fn verify(disk: &dyn Disk, folder: &Path) -> Result<FolderReport, StoreError> {
    let mut report = FolderReport::default();
    let path = folder.join("journal");
    let journal = disk.open_existing(&path).map_err(StoreError::io("open", &path))?;
    if !journal.lock().map_err(StoreError::io("lock", &path))? {
        return Err(StoreError::Busy { path });
    }
    let mut state = StoreState::default();
    report.note(replay(&*journal, &path, |payload| {
        state.apply(serde_json::from_slice::<JournalEntry>(payload).map_err(|_| "not an entry")?);
        Ok(())
    }));
    let check = FolderCheck { disk, folder, state: &state };
    for entry in state.files.values().filter(|entry| entry.of.is_none()) {
        report.files += 1;
        if entry.crc.is_none() {
            report.without_checksum.push(format!("file `{}`", entry.id));
        }
        report.note(check.upload(entry));
    }
    for (batch, mark) in &state.begun {
        report.batches += 1;
        check.results(batch, *mark, &mut report);
    }
    Ok(report)
}

impl FolderReport {
    fn note<T>(&mut self, checked: Result<T, StoreError>) -> Option<T> {
        checked.map_err(|error| self.damaged.push(error.to_string())).ok()
    }
}

struct FolderCheck<'a> {
    disk: &'a dyn Disk,
    folder: &'a Path,
    state: &'a StoreState,
}

impl FolderCheck<'_> {
    fn upload(&self, entry: &FileEntry) -> Result<(), StoreError> {
        let check = ByteCheck::file(entry);
        let path = file_path(self.folder, &entry.id);
        let file = self.open(&path, &check)?;
        let length = file.length().map_err(StoreError::io("read", &path))?;
        check.has_length(length)?;
        read_all(&*file, &path, check)
    }

    /// Checks the results of a batch: their log, and the files that it commits.
    fn results(&self, batch: &str, mark: InputMark, report: &mut FolderReport) {
        let paths = result_paths(self.folder, batch);
        let has_ended = self.state.batches.get(batch).is_some_and(|it| it.status().is_final());
        if !has_ended && !self.disk.exists(&paths.log) && !self.disk.exists(&paths.output) {
            // The journal names a batch before its results are begun.
            return;
        }
        let log = report.note(self.log(&paths, batch, mark));
        for kind in [RecordKind::Output, RecordKind::Error] {
            let committed = log.as_ref().map(|log| log.crcs[kind.index()].now());
            report.note(self.result_file(paths.of(kind), batch, kind, committed));
        }
    }

    /// Replays the log of a batch, and compares it with the batch.
    fn log(
        &self,
        paths: &ResultPaths,
        batch: &str,
        mark: InputMark,
    ) -> Result<LogScan, StoreError> {
        let log = LogScan::read(self.disk, paths, mark)?;
        match self.state.batches.get(batch) {
            Some(ended) if ended.status().is_final() => log.check_counts(paths, ended.counts)?,
            _ => {}
        }
        Ok(log)
    }

    /// Checks one file of the results against its entry, or else against the log.
    fn result_file(
        &self,
        path: &Path,
        batch: &str,
        kind: RecordKind,
        committed: Option<CrcPoint>,
    ) -> Result<(), StoreError> {
        let is_it =
            |file: &&FileEntry| file.of.as_ref().is_some_and(|of| of.0 == batch && of.1 == kind);
        let entry = self.state.files.values().find(is_it);
        let check = match (entry, committed) {
            (Some(entry), None) => ByteCheck::file(entry),
            (Some(entry), Some(_)) if entry.crc.is_some() => ByteCheck::file(entry),
            (_, Some(committed)) => ByteCheck::results(batch, CrcPoint::default(), committed),
            // The log is damaged, and the entry was deleted: nothing says what should be there.
            (None, None) => return Ok(()),
        };
        if check.end() == 0 {
            return Ok(());
        }
        read_all(&*self.open(path, &check)?, path, check)
    }

    fn open(&self, path: &Path, check: &ByteCheck) -> Result<Box<dyn StoredFile>, StoreError> {
        self.disk.open_existing(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => check.lost(),
            _ => StoreError::io("open", path)(error),
        })
    }
}

/// Reads what a check needs.
fn read_all(file: &dyn StoredFile, path: &Path, mut check: ByteCheck) -> Result<(), StoreError> {
    let mut buffer = vec![0; CHUNK];
    while check.at() < check.end() {
        let most =
            buffer.len().min(usize::try_from(check.end() - check.at()).unwrap_or(usize::MAX));
        let read = file.read_at(&mut buffer[..most], check.at());
        check.feed(&buffer[..read.map_err(StoreError::io("read", path))?])?;
    }
    Ok(())
}
