//! The log of results: which lines have their record, and what the files must contain.
//!
//! Each frame names a group of records, the ends of both files after it, and the checksums of its
//! bytes. From those follow the checksums of the files as a whole ([`GrowingCrc`]), so a file is
//! checked without a second log and without reading it again at the end of a batch.

use crate::disk::{Disk, StoredFile};
use crate::growing_crc::GrowingCrc;
use crate::journal::replay;
use crate::record::{Counts, RecordKind, TokenUsage};
use crate::store_error::StoreError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The files of the results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResultPaths {
    /// The records of lines that succeeded.
    pub output: PathBuf,
    /// The records of lines that failed.
    pub errors: PathBuf,
    /// The log that commits both.
    pub log: PathBuf,
}

impl ResultPaths {
    /// The file of the records of a kind.
    #[must_use]
    pub const fn of(&self, kind: RecordKind) -> &PathBuf {
        match kind {
            RecordKind::Output => &self.output,
            RecordKind::Error => &self.errors,
        }
    }
}

/// The identity of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InputMark {
    /// The length in bytes.
    pub bytes: u64,
    /// The hash of its bytes.
    pub hash: u64,
    /// The number of lines with a request.
    pub lines: u32,
}

/// A group of records in the log.
#[derive(Serialize, Deserialize)]
pub(crate) struct ResultGroup {
    /// Line, file, and bytes with the newline.
    pub(crate) records: Vec<(u32, RecordKind, u32)>,
    /// The ends of the files after the group.
    pub(crate) ends: [u64; 2],
    /// The CRC-32 of the group's bytes in each file.
    pub(crate) crcs: [u32; 2],
    pub(crate) usage: TokenUsage,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum ResultEntry {
    #[serde(rename = "of")]
    Of(InputMark),
    #[serde(rename = "group")]
    Group(ResultGroup),
}

impl ResultEntry {
    pub(crate) fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and names are always JSON")
    }
}

/// The position of a line's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResultPosition {
    /// The line of the input.
    pub line: u32,
    /// The file of the record.
    pub kind: RecordKind,
    /// The offset in that file.
    pub offset: u64,
    /// The length, with the newline.
    pub bytes: u32,
}

/// The state of the results as the log is replayed.
pub(crate) struct LogScan {
    expected: InputMark,
    pub(crate) mark: Option<InputMark>,
    /// The committed bytes of each file.
    pub(crate) crcs: [GrowingCrc; 2],
    pub(crate) done: Vec<bool>,
    pub(crate) counts: Counts,
    pub(crate) usage: TokenUsage,
    pub(crate) last: Option<LastGroup>,
}

/// The begin of the last group in each file, and its checksums.
#[derive(Clone, Copy)]
pub(crate) struct LastGroup {
    begins: [u64; 2],
    crcs: [u32; 2],
}

impl LogScan {
    pub(crate) fn of(expected: InputMark) -> Self {
        Self {
            expected,
            mark: None,
            crcs: Default::default(),
            done: vec![false; expected.lines as usize],
            counts: Counts { total: expected.lines, ..Counts::default() },
            usage: TokenUsage::default(),
            last: None,
        }
    }

    /// Replays a log, and changes nothing.
    pub(crate) fn read(
        disk: &dyn Disk,
        paths: &ResultPaths,
        expected: InputMark,
    ) -> Result<Self, StoreError> {
        let file = disk.open_existing(&paths.log).map_err(StoreError::io("open", &paths.log))?;
        let mut found = Self::of(expected);
        replay(&*file, &paths.log, |payload| found.entry(payload, &mut |_| {}))?;
        found.check(paths)?;
        Ok(found)
    }

    /// Compares the records with those of a batch that has ended.
    pub(crate) fn check_counts(
        &self,
        paths: &ResultPaths,
        ended: Counts,
    ) -> Result<(), StoreError> {
        if self.counts == ended {
            return Ok(());
        }
        let offset = 0;
        let what = "it has other records than the batch had when it ended";
        Err(StoreError::Damaged { path: paths.log.clone(), offset, what })
    }

    /// The committed ends of the files.
    pub(crate) fn ends(&self) -> [u64; 2] {
        self.crcs.each_ref().map(|crc| crc.now().at)
    }

    pub(crate) fn entry(
        &mut self,
        payload: &[u8],
        each: &mut dyn FnMut(ResultPosition),
    ) -> Result<(), &'static str> {
        let group =
            match serde_json::from_slice(payload).map_err(|_| "not an entry of a result log")? {
                ResultEntry::Of(mark) if self.mark.is_none() => {
                    self.mark = Some(mark);
                    return Ok(());
                }
                ResultEntry::Of(_) => return Err("a second input mark"),
                ResultEntry::Group(group) => group,
            };
        if self.mark != Some(self.expected) {
            // `check` reports the difference.
            return Ok(());
        }
        let begins = self.ends();
        self.last = Some(LastGroup { begins, crcs: group.crcs });
        let mut ends = begins;
        for (line, kind, bytes) in group.records {
            match self.done.get_mut(line as usize) {
                Some(done @ false) => *done = true,
                Some(true) => return Err("a line has two records"),
                None => return Err("a record of a line that does not exist"),
            }
            let end = &mut ends[kind.index()];
            each(ResultPosition { line, kind, offset: *end, bytes });
            *end += u64::from(bytes);
            self.counts.add(kind);
        }
        self.usage += group.usage;
        if ends != group.ends {
            return Err("the lengths of the records do not add up");
        }
        for (at, crc) in self.crcs.iter_mut().enumerate() {
            crc.append(ends[at] - begins[at], group.crcs[at]);
        }
        Ok(())
    }

    pub(crate) fn check(&self, paths: &ResultPaths) -> Result<(), StoreError> {
        let Some(mark) = self.mark.filter(|mark| *mark != self.expected) else { return Ok(()) };
        let was = mark.lines;
        let is = self.expected.lines;
        let what = match was == is {
            true => "it was started with another input of as many lines".to_owned(),
            false => format!("it was started with an input of {was} lines, and this one has {is}"),
        };
        Err(StoreError::OtherInput { path: paths.log.clone(), what })
    }

    /// Compares the last group with its checksums: only that one can a crash have damaged.
    pub(crate) fn check_last(
        &self,
        files: &[Box<dyn StoredFile>; 2],
        paths: &ResultPaths,
    ) -> Result<(), StoreError> {
        let Some(LastGroup { begins, crcs }) = self.last else { return Ok(()) };
        for (at, path) in [&paths.output, &paths.errors].into_iter().enumerate() {
            let offset = begins[at];
            let length = self.ends()[at] - offset;
            let mut bytes = vec![0; length as usize];
            files[at].read_at(&mut bytes, offset).map_err(StoreError::io("read", path))?;
            if crc32fast::hash(&bytes) != crcs[at] {
                let what = "the checksum of the last group of records does not match";
                return Err(StoreError::Damaged { path: path.clone(), offset, what });
            }
        }
        Ok(())
    }
}
