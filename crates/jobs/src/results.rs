//! The results of one input: two plain files, and a log that commits what is in them.
//!
//! Readers want lines of JSON that appear as they are ready; a crash must neither lose nor
//! duplicate one. So the lines go to `output` and `errors`, are synced, and only then a frame in
//! the log names their lines and the ends of the files. That frame is the commit: bytes behind the
//! ends that it names do not count and are truncated. One frame per group makes it cheap, and a
//! line that has a record never gets another.

use crate::disk::{Disk, StoredFile};
use crate::journal::Journal;
use crate::record::{Counts, LineRecord, Publish, RecordKind, TokenUsage};
use crate::store_error::StoreError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

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
struct ResultGroup {
    /// Line, file, and bytes with the newline.
    records: Vec<(u32, RecordKind, u32)>,
    /// The ends of the files after the group.
    ends: [u64; 2],
    /// The CRC-32 of the group's bytes in each file.
    crcs: [u32; 2],
    usage: TokenUsage,
}

#[derive(Serialize, Deserialize)]
enum ResultEntry {
    #[serde(rename = "of")]
    Of(InputMark),
    #[serde(rename = "group")]
    Group(ResultGroup),
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

/// Open results, to which records are published.
pub struct Results {
    paths: ResultPaths,
    /// `output` and `errors`.
    files: [Box<dyn StoredFile>; 2],
    log: Journal,
    /// The committed ends of the files.
    ends: [u64; 2],
    /// Whether there may be bytes behind the ends.
    is_dirty: bool,
    done: Vec<bool>,
    counts: Counts,
    usage: TokenUsage,
}

impl std::fmt::Debug for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Results({:?} of {:?})", self.counts, self.paths.output)
    }
}

impl Results {
    /// Opens the results of an input, or creates them.
    ///
    /// # Errors
    /// If another process has them open, they belong to another input or are damaged, or the file
    /// system fails.
    pub fn open(
        disk: &dyn Disk,
        paths: &ResultPaths,
        input: InputMark,
    ) -> Result<Self, StoreError> {
        let mut found = LogScan::of(input);
        let mut log = Journal::open(disk, &paths.log, |payload| found.entry(payload, &mut |_| {}))?;
        found.check(paths)?;
        if found.mark.is_none() {
            check_nothing_published(disk, paths)?;
        }
        let mut files = Vec::with_capacity(2);
        for (path, end) in [&paths.output, &paths.errors].into_iter().zip(found.ends) {
            files.push(open_truncated(disk, path, end)?);
        }
        let files: [Box<dyn StoredFile>; 2] =
            files.try_into().ok().expect("one file was opened for each of two paths");
        let folder = paths.output.parent().unwrap_or(Path::new("."));
        disk.sync_folder(folder).map_err(StoreError::io("sync", folder))?;
        found.check_last(&files, paths)?;
        if found.mark.is_none() {
            log.append(&json(&ResultEntry::Of(input)))?;
        }
        let LogScan { ends, done, counts, usage, .. } = found;
        let paths = paths.clone();
        Ok(Self { paths, files, log, ends, is_dirty: false, done, counts, usage })
    }

    /// Whether a line has its record.
    #[must_use]
    pub fn is_done(&self, line: u32) -> bool {
        self.done.get(line as usize).copied().unwrap_or(true)
    }

    /// The committed bytes of `output` and `errors`.
    #[must_use]
    pub const fn ends(&self) -> [u64; 2] {
        self.ends
    }

    /// Reads the committed part of a file, from `offset` on.
    ///
    /// # Errors
    /// If the file system fails.
    pub fn read(
        &self,
        kind: RecordKind,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError> {
        let at = usize::from(kind == RecordKind::Error);
        let left = usize::try_from(self.ends[at].saturating_sub(offset)).unwrap_or(usize::MAX);
        let most = buffer.len().min(left);
        let path = [&self.paths.output, &self.paths.errors][at];
        self.files[at].read_at(&mut buffer[..most], offset).map_err(StoreError::io("read", path))
    }

    /// Appends the lines, and syncs them.
    fn write(&mut self, lines: &[Vec<u8>; 2]) -> Result<(), StoreError> {
        let paths = [&self.paths.output, &self.paths.errors];
        for ((file, path), (lines, end)) in
            self.files.iter_mut().zip(paths).zip(lines.iter().zip(self.ends))
        {
            if self.is_dirty {
                file.truncate(end).map_err(StoreError::io("truncate", path))?;
            }
            if !lines.is_empty() {
                file.append(lines).map_err(StoreError::io("write", path))?;
                file.sync().map_err(StoreError::io("sync", path))?;
            }
        }
        Ok(())
    }
}

impl Publish for Results {
    fn publish(&mut self, records: &[LineRecord]) -> Result<usize, StoreError> {
        let mut lines = [Vec::new(), Vec::new()];
        let mut group = ResultGroup {
            records: Vec::new(),
            ends: self.ends,
            crcs: [0; 2],
            usage: TokenUsage::default(),
        };
        for record in records {
            let is_twice = group.records.iter().any(|(line, ..)| *line == record.line);
            if self.is_done(record.line) || is_twice {
                continue;
            }
            let to = &mut lines[usize::from(record.kind == RecordKind::Error)];
            to.extend_from_slice(&record.bytes);
            to.push(b'\n');
            group.records.push((record.line, record.kind, record.bytes.len() as u32 + 1));
            group.usage += record.usage;
        }
        if group.records.is_empty() {
            return Ok(0);
        }
        for (at, lines) in lines.iter().enumerate() {
            group.ends[at] += lines.len() as u64;
            group.crcs[at] = crc32fast::hash(lines);
        }
        let ends = group.ends;
        let usage = group.usage;
        let new = group.records.len();
        let marks: Vec<_> = group.records.iter().map(|(line, kind, _)| (*line, *kind)).collect();
        let written =
            self.write(&lines).and_then(|()| self.log.append(&json(&ResultEntry::Group(group))));
        // Until the log has the group, its bytes in the files do not count.
        self.is_dirty = written.is_err();
        written?;
        for (line, kind) in marks {
            self.done[line as usize] = true;
            self.counts.add(kind);
        }
        self.ends = ends;
        self.usage += usage;
        Ok(new)
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn usage(&self) -> TokenUsage {
        self.usage
    }
}

/// The position of every record, in the order of publication. Changes nothing.
///
/// # Errors
/// If the log is in use, damaged, or cannot be read.
pub fn places(
    disk: &dyn Disk,
    paths: &ResultPaths,
    input: InputMark,
) -> Result<Vec<ResultPosition>, StoreError> {
    let mut found = LogScan::of(input);
    let mut positions = Vec::new();
    Journal::open(disk, &paths.log, |payload| {
        found.entry(payload, &mut |position| positions.push(position))
    })?;
    found.check(paths)?;
    Ok(positions)
}

/// The state of the results as the log is replayed.
struct LogScan {
    expected: InputMark,
    mark: Option<InputMark>,
    ends: [u64; 2],
    done: Vec<bool>,
    counts: Counts,
    usage: TokenUsage,
    last: Option<LastGroup>,
}

/// The begin of the last group in each file, and its checksums.
#[derive(Clone, Copy)]
struct LastGroup {
    begins: [u64; 2],
    crcs: [u32; 2],
}

impl LogScan {
    fn of(expected: InputMark) -> Self {
        Self {
            expected,
            mark: None,
            ends: [0; 2],
            done: vec![false; expected.lines as usize],
            counts: Counts { total: expected.lines, ..Counts::default() },
            usage: TokenUsage::default(),
            last: None,
        }
    }

    fn entry(
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
        self.last = Some(LastGroup { begins: self.ends, crcs: group.crcs });
        for (line, kind, bytes) in group.records {
            match self.done.get_mut(line as usize) {
                Some(done @ false) => *done = true,
                Some(true) => return Err("a line has two records"),
                None => return Err("a record of a line that does not exist"),
            }
            let end = &mut self.ends[usize::from(kind == RecordKind::Error)];
            each(ResultPosition { line, kind, offset: *end, bytes });
            *end += u64::from(bytes);
            self.counts.add(kind);
        }
        self.usage += group.usage;
        if self.ends == group.ends {
            Ok(())
        } else {
            Err("the lengths of the records do not add up")
        }
    }

    fn check(&self, paths: &ResultPaths) -> Result<(), StoreError> {
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
    fn check_last(
        &self,
        files: &[Box<dyn StoredFile>; 2],
        paths: &ResultPaths,
    ) -> Result<(), StoreError> {
        let Some(LastGroup { begins, crcs }) = self.last else { return Ok(()) };
        for (at, path) in [&paths.output, &paths.errors].into_iter().enumerate() {
            let offset = begins[at];
            let length = self.ends[at] - offset;
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

/// The log names its input before the first record: one that does not cannot belong to existing
/// results.
fn check_nothing_published(disk: &dyn Disk, paths: &ResultPaths) -> Result<(), StoreError> {
    for path in [&paths.output, &paths.errors] {
        if !disk.exists(path) {
            continue;
        }
        let file = disk.open(path).map_err(StoreError::io("open", path))?;
        if file.length().map_err(StoreError::io("read", path))? > 0 {
            let what = "it names no input, but there are results";
            return Err(StoreError::Damaged { path: paths.log.clone(), offset: 0, what });
        }
    }
    Ok(())
}

/// Opens a file and truncates it to its committed end.
fn open_truncated(
    disk: &dyn Disk,
    path: &Path,
    end: u64,
) -> Result<Box<dyn StoredFile>, StoreError> {
    let mut file = disk.open(path).map_err(StoreError::io("open", path))?;
    let length = file.length().map_err(StoreError::io("read", path))?;
    if length < end {
        let what = "it ends here, but more was published";
        return Err(StoreError::Damaged { path: path.to_owned(), offset: length, what });
    }
    if length > end {
        file.truncate(end).map_err(StoreError::io("truncate", path))?;
    }
    file.sync().map_err(StoreError::io("sync", path))?;
    Ok(file)
}

fn json(entry: &ResultEntry) -> Vec<u8> {
    serde_json::to_vec(entry).expect("numbers and names are always JSON")
}
