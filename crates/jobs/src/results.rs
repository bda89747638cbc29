//! The results of one input: two plain files, and a log that says what in them counts.
//!
//! Readers want lines of JSON that appear as they are ready; a crash must neither lose nor double one. So the
//! lines go to `output` and `errors`, are synced, and only then a frame in the log says whose they are and
//! where the files end. That frame is the publication: whatever stands behind the ends it names does not
//! count and is cut off. One frame per group makes it cheap, and a line that has a record never gets another.

use crate::disk::{Disk, StoredFile};
use crate::journal::Journal;
use crate::problem::StoreError;
use crate::record::{Counts, LineRecord, Publish, RecordKind, TokenUsage};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where results are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResultPaths {
    /// Answered lines.
    pub output: PathBuf,
    /// Failed lines.
    pub errors: PathBuf,
    /// What of both counts.
    pub log: PathBuf,
}

/// What the results are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InputMark {
    /// Bytes of the input.
    pub bytes: u64,
    /// Its hash.
    pub hash: u64,
    /// Lines with a request.
    pub lines: u32,
}

/// A group of records, as the log has it.
#[derive(Serialize, Deserialize)]
struct ResultGroup {
    /// Line, where to, and bytes with the newline.
    records: Vec<(u32, RecordKind, u32)>,
    /// Where the files end.
    ends: [u64; 2],
    /// Of the group's bytes in each file.
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

/// Where a line's record stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResultPosition {
    /// Which line of the input.
    pub line: u32,
    /// In which file.
    pub kind: RecordKind,
    /// From where.
    pub offset: u64,
    /// How many bytes, with the newline.
    pub bytes: u32,
}

/// Results that grow.
pub struct Results {
    paths: ResultPaths,
    /// Output and errors.
    files: [Box<dyn StoredFile>; 2],
    log: Journal,
    input: InputMark,
    /// Where the files end, as far as they count.
    ends: [u64; 2],
    /// Whether something may stand behind the ends.
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
    /// Opens what has been published of an input, or begins it.
    ///
    /// # Errors
    /// If another process has it, it is of another input, it is damaged, or the file system refuses.
    pub fn open(
        disk: &dyn Disk,
        paths: &ResultPaths,
        input: InputMark,
    ) -> Result<Self, StoreError> {
        let mut found = FoundResult::of(input);
        let mut log = Journal::open(disk, &paths.log, |payload| found.entry(payload, &mut |_| {}))?;
        found.check(paths)?;
        if found.mark.is_none() {
            check_nothing_published(disk, paths)?;
        }
        let mut files = Vec::with_capacity(2);
        for (path, end) in [&paths.output, &paths.errors].into_iter().zip(found.ends) {
            files.push(settled(disk, path, end)?);
        }
        let files: [Box<dyn StoredFile>; 2] =
            files.try_into().ok().expect("one file was opened for each of two paths");
        let folder = paths.output.parent().unwrap_or(Path::new("."));
        disk.sync_folder(folder).map_err(StoreError::io("sync", folder))?;
        found.check_last(&files, paths)?;
        if found.mark.is_none() {
            log.append(&json(&ResultEntry::Of(input)))?;
        }
        let FoundResult { ends, done, counts, usage, .. } = found;
        let paths = paths.clone();
        Ok(Self { paths, files, log, input, ends, is_dirty: false, done, counts, usage })
    }

    /// Whether a line has its record.
    #[must_use]
    pub fn is_done(&self, line: u32) -> bool {
        self.done.get(line as usize).copied().unwrap_or(true)
    }

    /// Bytes of output and of errors that count.
    #[must_use]
    pub const fn ends(&self) -> [u64; 2] {
        self.ends
    }

    /// What it is of.
    #[must_use]
    pub const fn input(&self) -> InputMark {
        self.input
    }

    /// Reads what counts of a file, from `offset` on.
    ///
    /// # Errors
    /// If the file system refuses.
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

    /// Writes the lines, and syncs them.
    fn write(&mut self, lines: &[Vec<u8>; 2]) -> Result<(), StoreError> {
        let paths = [&self.paths.output, &self.paths.errors];
        for ((file, path), (lines, end)) in
            self.files.iter_mut().zip(paths).zip(lines.iter().zip(self.ends))
        {
            if self.is_dirty {
                file.truncate(end).map_err(StoreError::io("cut back", path))?;
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
        let (ends, usage, new) = (group.ends, group.usage, group.records.len());
        let marks: Vec<_> = group.records.iter().map(|(line, kind, _)| (*line, *kind)).collect();
        let written =
            self.write(&lines).and_then(|()| self.log.append(&json(&ResultEntry::Group(group))));
        // Until the log has it, it does not count, however much of it stands in the files.
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

/// Where every record stands, in the order of publication. For readers: nothing is changed.
///
/// # Errors
/// If the log is in use, damaged, or cannot be read.
pub fn places(
    disk: &dyn Disk,
    paths: &ResultPaths,
    input: InputMark,
) -> Result<Vec<ResultPosition>, StoreError> {
    let (mut found, mut places) = (FoundResult::of(input), Vec::new());
    Journal::open(disk, &paths.log, |payload| {
        found.entry(payload, &mut |place| places.push(place))
    })?;
    found.check(paths)?;
    Ok(places)
}

/// What a log says, as it is read.
struct FoundResult {
    expected: InputMark,
    mark: Option<InputMark>,
    ends: [u64; 2],
    done: Vec<bool>,
    counts: Counts,
    usage: TokenUsage,
    /// Where the last group begins, and its checksums.
    last: Option<([u64; 2], [u32; 2])>,
}

impl FoundResult {
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
        let group = match serde_json::from_slice(payload).map_err(|_| "no entry of a result log")? {
            ResultEntry::Of(mark) if self.mark.is_none() => {
                self.mark = Some(mark);
                return Ok(());
            }
            ResultEntry::Of(_) => return Err("the input is named twice"),
            ResultEntry::Group(group) => group,
        };
        if self.mark != Some(self.expected) {
            // Told apart below, with what differs.
            return Ok(());
        }
        self.last = Some((self.ends, group.crcs));
        for (line, kind, bytes) in group.records {
            match self.done.get_mut(line as usize) {
                Some(done @ false) => *done = true,
                Some(true) => return Err("a line has two records"),
                None => return Err("a record of a line that there is not"),
            }
            let end = &mut self.ends[usize::from(kind == RecordKind::Error)];
            each(ResultPosition { line, kind, offset: *end, bytes });
            *end += u64::from(bytes);
            self.counts.add(kind);
        }
        self.usage += group.usage;
        if self.ends == group.ends { Ok(()) } else { Err("the records do not fill the files") }
    }

    fn check(&self, paths: &ResultPaths) -> Result<(), StoreError> {
        let Some(mark) = self.mark.filter(|mark| *mark != self.expected) else { return Ok(()) };
        let (was, is) = (mark.lines, self.expected.lines);
        let what = match was == is {
            true => "it was begun with another input of as many lines".to_owned(),
            false => format!("it was begun with an input of {was} lines, and this one has {is}"),
        };
        Err(StoreError::OtherInput { path: paths.log.clone(), what })
    }

    /// The last group is what a crash could have touched.
    fn check_last(
        &self,
        files: &[Box<dyn StoredFile>; 2],
        paths: &ResultPaths,
    ) -> Result<(), StoreError> {
        let Some((begins, crcs)) = self.last else { return Ok(()) };
        for (at, path) in [&paths.output, &paths.errors].into_iter().enumerate() {
            let (offset, length) = (begins[at], self.ends[at] - begins[at]);
            let mut bytes = vec![0; length as usize];
            files[at].read_at(&mut bytes, offset).map_err(StoreError::io("read", path))?;
            if crc32fast::hash(&bytes) != crcs[at] {
                let what = "the last group of records is not what was written";
                return Err(StoreError::Damaged { path: path.clone(), offset, what });
            }
        }
        Ok(())
    }
}

/// The log names its input before anything is published: one that does not is no log of what is there.
fn check_nothing_published(disk: &dyn Disk, paths: &ResultPaths) -> Result<(), StoreError> {
    for path in [&paths.output, &paths.errors] {
        if !disk.exists(path) {
            continue;
        }
        let file = disk.open(path).map_err(StoreError::io("open", path))?;
        if file.length().map_err(StoreError::io("read", path))? > 0 {
            let what = "it does not say what it is of, and there are results";
            return Err(StoreError::Damaged { path: paths.log.clone(), offset: 0, what });
        }
    }
    Ok(())
}

/// A file, cut back to what counts of it.
fn settled(disk: &dyn Disk, path: &Path, end: u64) -> Result<Box<dyn StoredFile>, StoreError> {
    let mut file = disk.open(path).map_err(StoreError::io("open", path))?;
    let length = file.length().map_err(StoreError::io("read", path))?;
    if length < end {
        let what = "it ends here, and more was published";
        return Err(StoreError::Damaged { path: path.to_owned(), offset: length, what });
    }
    if length > end {
        file.truncate(end).map_err(StoreError::io("cut back", path))?;
    }
    file.sync().map_err(StoreError::io("sync", path))?;
    Ok(file)
}

fn json(entry: &ResultEntry) -> Vec<u8> {
    serde_json::to_vec(entry).expect("numbers and names are always JSON")
}
