//! External merge sort of block hash chains, for inputs whose chains do not fit in memory.
//!
//! The queue keeps chains until they are too many. Then they are sorted, appended to a file and
//! dropped; at the end the sorted parts are merged as they are read. The order is the same as
//! without a file. A chain is written without the prefix that it shares with the one before it, so
//! shared prefixes are written once per part.
//!
//! The file has no name: it is unlinked as soon as it is open, so the system frees it however the
//! process ends.

use crate::store_error::StoreError;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use wornpath_blocks::BlockHash;
use wornpath_planner::{Forest, JobId, Queue, SortedPart};

/// Bytes of a part that are read at once.
const READ_AHEAD: usize = 256 << 10;

/// Why chains cannot be kept on disk.
#[derive(Debug, thiserror::Error)]
pub enum ExternalSortError {
    /// The disk is full. No request was sent, and nothing is left of the file.
    #[error(
        "too many prompts to plan in memory, and disk full: {} has no space for more than {} MiB of their hashes; free some there, or {cure}",
        folder.display(), written >> 20
    )]
    Full {
        /// The folder of the file.
        folder: PathBuf,
        /// The bytes that were written.
        written: u64,
        /// What else helps.
        cure: &'static str,
    },
    /// The file system failed.
    #[error(
        "too many prompts to plan in memory, and a file for their hashes in {} cannot be used: {cause}",
        folder.display()
    )]
    Io {
        /// The folder of the file.
        folder: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
}

impl From<ExternalSortError> for StoreError {
    fn from(error: ExternalSortError) -> Self {
        match error {
            ExternalSortError::Full { folder, .. } => Self::Full { path: folder },
            ExternalSortError::Io { folder, cause } => Self::io("keep hashes in", &folder)(cause),
        }
    }
}

/// Where chains are kept on disk, and from when on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SortScratch {
    /// The path of the file until it is unlinked.
    pub path: PathBuf,
    /// What helps when the disk is full, besides freeing space.
    pub cure: &'static str,
    /// The most bytes of chains in memory.
    pub memory: usize,
}

/// The chains of a queue that are on disk.
#[derive(Debug, Default)]
pub struct ExternalSort {
    /// None if all chains stay in memory.
    scratch: Option<SortScratch>,
    file: Option<File>,
    /// The range of each sorted part in the file.
    parts: Vec<Range<u64>>,
}

impl ExternalSort {
    /// Sorts on disk if memory does not suffice.
    #[must_use]
    pub const fn to(scratch: SortScratch) -> Self {
        Self { scratch: Some(scratch), file: None, parts: Vec::new() }
    }

    /// Whether any chain is on disk.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.file.is_some()
    }

    /// Moves the chains of a queue to disk if they are too many.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn relieve(&mut self, queue: &mut Queue) -> Result<(), ExternalSortError> {
        match self.scratch.as_ref().is_some_and(|scratch| queue.chain_bytes() > scratch.memory) {
            true => self.flush(queue),
            false => Ok(()),
        }
    }

    /// Moves the last chains to disk, if others are there.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn finish(&mut self, queue: &mut Queue) -> Result<(), ExternalSortError> {
        if self.is_used() {
            self.flush(queue)?;
            queue.shrink();
        }
        Ok(())
    }

    /// The prefix forest of the wanted requests of a finished queue.
    ///
    /// # Errors
    /// If chains cannot be read back.
    pub fn forest(
        &self,
        queue: &Queue,
        wanted: impl Fn(JobId) -> bool,
    ) -> Result<Forest, ExternalSortError> {
        let Some(file) = &self.file else {
            return Ok(Forest::of_jobs(queue, queue.jobs().filter(|job| wanted(*job)).collect()));
        };
        let part = |range: &Range<u64>| SortedFile {
            bytes: BufReader::with_capacity(READ_AHEAD, FileRange { file, range: range.clone() }),
            rest: Vec::new(),
        };
        let merged = Forest::merge(queue, self.parts.iter().map(part).collect(), wanted);
        merged.map_err(|cause| self.error(cause))
    }

    fn flush(&mut self, queue: &mut Queue) -> Result<(), ExternalSortError> {
        let written = self.append(queue).map_err(|cause| self.error(cause))?;
        self.parts.push(written);
        queue.drop_chains();
        Ok(())
    }

    /// Writes a sorted part. Returns its range in the file.
    fn append(&mut self, queue: &Queue) -> io::Result<Range<u64>> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                none.insert(unlinked(self.scratch.as_ref().map_or(Path::new(""), |it| &it.path))?)
            }
        };
        let start = self.parts.last().map_or(0, |part| part.end);
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let sorted = Forest::with_copies(queue, queue.jobs_with_chains().collect());
        let mut bytes = 0;
        for (job, shared) in sorted.order().iter().zip(sorted.shared()) {
            let rest = &queue.chain(*job)[*shared as usize..];
            for number in [job.0, *shared, rest.len() as u32] {
                out.write_all(&number.to_le_bytes())?;
            }
            for hash in rest {
                out.write_all(&hash.0.to_le_bytes())?;
            }
            bytes += 12 + 8 * rest.len() as u64;
        }
        out.flush()?;
        Ok(start..start + bytes)
    }

    fn error(&self, cause: io::Error) -> ExternalSortError {
        let (path, cure) = match &self.scratch {
            Some(scratch) => (scratch.path.as_path(), scratch.cure),
            None => (Path::new(""), ""),
        };
        let folder = path.parent().unwrap_or(path).to_owned();
        let written = self.parts.last().map_or(0, |part| part.end);
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ExternalSortError::Full { folder, written, cure }
            }
            _ => ExternalSortError::Io { folder, cause },
        }
    }
}

/// A file without a name. One that exists under `path` was left by a process that crashed before it
/// unlinked it.
fn unlinked(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// A sorted part, read one chain after the other.
struct SortedFile<'a> {
    bytes: BufReader<FileRange<'a>>,
    /// The part of the next chain that it does not share with the one before.
    rest: Vec<u8>,
}

impl SortedPart for SortedFile<'_> {
    type Error = io::Error;

    fn next(&mut self, chain: &mut Vec<BlockHash>) -> io::Result<Option<JobId>> {
        if self.bytes.buffer().is_empty() && self.bytes.get_ref().range.is_empty() {
            return Ok(None);
        }
        let mut number = || {
            let mut bytes = [0; 4];
            self.bytes.read_exact(&mut bytes).map(|()| u32::from_le_bytes(bytes))
        };
        let job = JobId(number()?);
        let shared = number()?;
        let rest = number()?;
        self.rest.resize(8 * rest as usize, 0);
        self.bytes.read_exact(&mut self.rest)?;
        chain.truncate(shared as usize);
        let (hashes, _) = self.rest.as_chunks();
        chain.extend(hashes.iter().map(|bytes| BlockHash(u64::from_le_bytes(*bytes))));
        Ok(Some(job))
    }
}

/// A range of a file whose other ranges are read at the same time.
struct FileRange<'a> {
    file: &'a File,
    range: Range<u64>,
}

impl Read for FileRange<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.range.end - self.range.start;
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..most], self.range.start)?;
        self.range.start += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DueTime, Identical, Input, InputError, InputRules, LineForm, PromptHasher};
    use std::num::NonZeroUsize;
    use wornpath_blocks::HashKey;

    const RULES: InputRules = InputRules {
        form: LineForm::Free,
        most_lines: 1_000,
        output_tokens: 9,
        most_problems: 1,
        identical: Identical::Each,
        due: DueTime::OPEN,
    };

    /// A folder of its own, with nothing in it.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("wornpath-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn read(folder: &Path, memory: usize) -> Result<Input, InputError> {
        let line = |number: usize| {
            let document = format!("document {} ", number % 7).repeat(1 + number % 5 * 3);
            format!("{{\"prompt\":\"{document}{}\"}}\n", number % 50)
        };
        let text: String = (0..300).map(line).collect();
        let hasher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(4).unwrap(), None);
        let scratch = SortScratch { path: folder.join("spill"), cure: "wait", memory };
        Input::read_long(text.as_bytes(), &RULES, &hasher, ExternalSort::to(scratch))
    }

    #[test]
    fn an_input_longer_than_memory_has_the_same_forest_and_leaves_no_file() {
        let folder = folder("longer");
        std::fs::write(folder.join("spill"), "left by a process that crashed").unwrap();
        let whole = read(&folder, usize::MAX).unwrap();
        assert!(!whole.chains.is_used() && folder.join("spill").exists(), "nothing was needed");
        for memory in [0, 500, 3_000] {
            let long = read(&folder, memory).unwrap();
            let parts = long.chains.parts.len();
            assert!(parts > 3, "{parts} parts with {memory} bytes");
            assert_eq!(long.queue.chain_bytes(), 0);
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "it has no name");
            for step in [1, 3] {
                let wanted = |line: u32| line.is_multiple_of(step);
                assert_eq!(long.forest(wanted).unwrap(), whole.forest(wanted).unwrap());
            }
        }
        std::fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn an_unusable_folder_is_named() {
        let gone = folder("gone");
        std::fs::remove_dir(&gone).unwrap();
        let error = read(&gone, 0).unwrap_err().to_string();
        assert!(
            error.contains(&format!("a file for their hashes in {}", gone.display())),
            "{error}"
        );
        let full =
            ExternalSort::to(SortScratch { path: "/there/spill".into(), cure: "wait", memory: 0 });
        let full = full.error(io::ErrorKind::StorageFull.into());
        assert!(full.to_string().ends_with(
            "/there has no space for more than 0 MiB of their hashes; free some there, or wait"
        ));
        assert!(StoreError::from(full).is_passing());
    }
}
