//! The two files of results, as far as their log commits them.

use crate::byte_check::ByteCheck;
use crate::disk::{Disk, StoredFile};
use crate::growing_crc::GrowingCrc;
use crate::record::{Counts, RecordKind};
use crate::result_log::{InputMark, LogScan, ResultPaths};
use crate::store_error::StoreError;
use std::io;

/// Open files of results.
pub(crate) struct CommittedFiles {
    pub(crate) paths: ResultPaths,
    /// `output` and `errors`.
    pub(crate) files: [Box<dyn StoredFile>; 2],
    /// Their committed bytes.
    pub(crate) crcs: [GrowingCrc; 2],
}

impl CommittedFiles {
    /// Opens the results of a batch that ended with these counts, and changes nothing in them: a
    /// log that has lost its end must not let the files be cut.
    pub(crate) fn open_ended(
        disk: &dyn Disk,
        paths: &ResultPaths,
        input: InputMark,
        counts: Counts,
    ) -> Result<Self, StoreError> {
        let log = LogScan::read(disk, paths, input)?;
        log.check_counts(paths, counts)?;
        let open = |kind| {
            let path = paths.of(kind);
            disk.open_existing(path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    let what = "it is missing";
                    StoreError::Damaged { path: path.clone(), offset: 0, what }
                }
                _ => StoreError::io("open", path)(error),
            })
        };
        let files = [open(RecordKind::Output)?, open(RecordKind::Error)?];
        Ok(Self { paths: paths.clone(), files, crcs: log.crcs })
    }

    /// The committed bytes of `output` and `errors`.
    pub(crate) fn ends(&self) -> [u64; 2] {
        self.crcs.each_ref().map(|crc| crc.now().at)
    }

    /// The checksum of the committed part of a file.
    pub(crate) fn crc(&self, kind: RecordKind) -> u32 {
        self.crcs[kind.index()].now().crc
    }

    /// A check of the committed part of a file, which begins at `offset` or before.
    pub(crate) fn check(&self, batch: &str, kind: RecordKind, offset: u64) -> ByteCheck {
        let crc = &self.crcs[kind.index()];
        ByteCheck::results(batch, crc.before(offset), crc.now())
    }

    /// Reads the committed part of a file, from `offset` on.
    pub(crate) fn read(
        &self,
        kind: RecordKind,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError> {
        let at = kind.index();
        let left = self.ends()[at].saturating_sub(offset);
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let path = self.paths.of(kind);
        self.files[at].read_at(&mut buffer[..most], offset).map_err(StoreError::io("read", path))
    }
}
