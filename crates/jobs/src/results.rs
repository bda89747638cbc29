//! The results of one input: two plain files, and a log that commits what is in them.
//!
//! Readers want lines of JSON that appear as they are ready; a crash must neither lose nor
//! duplicate one. So the lines go to `output` and `errors`, are synced, and only then a frame in
//! the log names their lines and the ends of the files. That frame is the commit: bytes behind the
//! ends that it names do not count and are truncated. One frame per group makes it cheap, and a
//! line that has a record never gets another.

use crate::committed_files::CommittedFiles;
use crate::disk::{Disk, StoredFile};
use crate::journal::Journal;
use crate::record::{Counts, LineRecord, Publish, TokenUsage};
use crate::result_log::{
    InputMark, LogScan, ResultEntry, ResultGroup, ResultPaths, ResultPosition,
};
use crate::store_error::StoreError;
use std::path::Path;

/// Open results, to which records are published.
pub struct Results {
    committed: CommittedFiles,
    log: Journal,
    /// Whether there may be bytes behind the ends.
    is_dirty: bool,
    done: Vec<bool>,
    counts: Counts,
    usage: TokenUsage,
}

impl std::fmt::Debug for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Results({:?} of {:?})", self.counts, self.committed.paths.output)
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
        for (path, end) in [&paths.output, &paths.errors].into_iter().zip(found.ends()) {
            files.push(open_truncated(disk, path, end)?);
        }
        let files: [Box<dyn StoredFile>; 2] =
            files.try_into().ok().expect("one file was opened for each of two paths");
        let folder = paths.output.parent().unwrap_or(Path::new("."));
        disk.sync_folder(folder).map_err(StoreError::io("sync", folder))?;
        found.check_last(&files, paths)?;
        if found.mark.is_none() {
            log.append(&ResultEntry::Of(input).json())?;
        }
        let LogScan { crcs, done, counts, usage, .. } = found;
        let committed = CommittedFiles { paths: paths.clone(), files, crcs };
        Ok(Self { committed, log, is_dirty: false, done, counts, usage })
    }

    /// Whether a line has its record.
    #[must_use]
    pub fn is_done(&self, line: u32) -> bool {
        self.done.get(line as usize).copied().unwrap_or(true)
    }

    /// The committed bytes of `output` and `errors`.
    #[must_use]
    pub fn ends(&self) -> [u64; 2] {
        self.committed.ends()
    }

    /// The files, as far as they are committed.
    pub(crate) const fn committed(&self) -> &CommittedFiles {
        &self.committed
    }

    /// Appends the lines, and syncs them.
    fn write(&mut self, lines: &[Vec<u8>; 2]) -> Result<(), StoreError> {
        let ends = self.committed.ends();
        let CommittedFiles { paths, files, .. } = &mut self.committed;
        let paths = [&paths.output, &paths.errors];
        for ((file, path), (lines, end)) in files.iter_mut().zip(paths).zip(lines.iter().zip(ends))
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
            ends: self.committed.ends(),
            crcs: [0; 2],
            usage: TokenUsage::default(),
        };
        for record in records {
            let is_twice = group.records.iter().any(|(line, ..)| *line == record.line);
            if self.is_done(record.line) || is_twice {
                continue;
            }
            let to = &mut lines[record.kind.index()];
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
        let crcs = group.crcs;
        let usage = group.usage;
        let new = group.records.len();
        let marks: Vec<_> = group.records.iter().map(|(line, kind, _)| (*line, *kind)).collect();
        let written =
            self.write(&lines).and_then(|()| self.log.append(&ResultEntry::Group(group).json()));
        // Until the log has the group, its bytes in the files do not count.
        self.is_dirty = written.is_err();
        written?;
        for (line, kind) in marks {
            self.done[line as usize] = true;
            self.counts.add(kind);
        }
        for (at, lines) in lines.iter().enumerate() {
            self.committed.crcs[at].append(lines.len() as u64, crcs[at]);
        }
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
