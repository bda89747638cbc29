//! The file of failed lines, read while it grows and when the run has ended.

use crate::failures::{FailureKind, FailureTally};
use anyhow::Context;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes that are read of the file at a time while lines are being computed.
const READ_AT_ONCE: u64 = 1 << 20;

/// The kinds of failures that are new in a file that grows.
pub(super) struct NewFailures {
    path: PathBuf,
    /// What has been read; lines of an earlier run are not new.
    offset: u64,
    tally: FailureTally,
    /// Kinds that were reported.
    reported: usize,
}

impl NewFailures {
    pub(super) fn of(path: PathBuf) -> Self {
        let offset = std::fs::metadata(&path).map_or(0, |found| found.len());
        Self { path, offset, tally: FailureTally::default(), reported: 0 }
    }

    /// The first failure of every kind that is new, a sentence each.
    pub(super) fn read(&mut self) -> Vec<String> {
        let mut read = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.offset))?;
            io::copy(&mut file.take(READ_AT_ONCE), &mut self.tally)
        };
        // What cannot be read now is read when the run has ended, and reported then.
        self.offset += read().unwrap_or(0);
        let new = &self.tally.kinds()[self.reported..];
        let first = new.iter().map(FailureKind::first).collect();
        self.reported = self.tally.kinds().len();
        first
    }
}

/// Counts all failed lines of a file.
pub(super) fn count(path: &Path) -> anyhow::Result<FailureTally> {
    let cannot_read = || format!("cannot read {}", path.display());
    let mut file = BufReader::new(File::open(path).with_context(cannot_read)?);
    let mut tally = FailureTally::default();
    io::copy(&mut file, &mut tally).with_context(cannot_read)?;
    Ok(tally)
}
