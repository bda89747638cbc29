//! Chains of hashes on disk, for inputs whose chains are more than memory should hold.
//!
//! The queue keeps chains until they are too many. Then they are sorted, appended to a file, and let go; at the end the sorted
//! parts are merged as they are read. The order is the same as without a file. A chain is written without what it shares with
//! the one before it, so prefixes that many lines share are written once a part.
//!
//! The file has no name: it is removed as soon as it is open, so the system takes its bytes back however the process ends.

use crate::problem::StoreError;
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

/// Chains that do not fit on disk either, or cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum ExternalSortError {
    /// No room. Nothing was sent, and nothing is left of the file.
    #[error(
        "its prompts are too many to be planned in memory, and {} has no room for more than {} MiB of their hashes; free some there, or {cure}",
        folder.display(), written >> 20
    )]
    Full {
        /// Where.
        folder: PathBuf,
        /// Bytes that had room.
        written: u64,
        /// What else would help.
        cure: &'static str,
    },
    /// The file system refuses.
    #[error(
        "its prompts are too many to be planned in memory, and a file for their hashes in {} cannot be used: {cause}",
        folder.display()
    )]
    Io {
        /// Where.
        folder: PathBuf,
        /// Why not.
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

/// Where chains go, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SortScratch {
    /// Under which name the file is made, before it loses it.
    pub path: PathBuf,
    /// What to do when there is no room, beside making some.
    pub cure: &'static str,
    /// Bytes of chains in memory at most.
    pub memory: usize,
}

/// Chains of a queue, some of them on disk.
#[derive(Debug, Default)]
pub struct ExternalSort {
    /// None if memory holds all, however many.
    scratch: Option<SortScratch>,
    file: Option<File>,
    /// Where each sorted part is in the file.
    parts: Vec<Range<u64>>,
}

impl ExternalSort {
    /// To a scratch file, if it has to be.
    #[must_use]
    pub const fn to(scratch: SortScratch) -> Self {
        Self { scratch: Some(scratch), file: None, parts: Vec::new() }
    }

    /// Whether there is anything on disk.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.file.is_some()
    }

    /// Takes chains from a queue that has too many.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn relieve(&mut self, queue: &mut Queue) -> Result<(), ExternalSortError> {
        match self.scratch.as_ref().is_some_and(|scratch| queue.chain_bytes() > scratch.memory) {
            true => self.take(queue),
            false => Ok(()),
        }
    }

    /// Takes the last chains, if others have been taken.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn finish(&mut self, queue: &mut Queue) -> Result<(), ExternalSortError> {
        if self.is_used() {
            self.take(queue)?;
            queue.shrink();
        }
        Ok(())
    }

    /// The forest of those requests of a finished queue that are wanted.
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

    fn take(&mut self, queue: &mut Queue) -> Result<(), ExternalSortError> {
        let written = self.append(queue).map_err(|cause| self.error(cause))?;
        self.parts.push(written);
        queue.drop_chains();
        Ok(())
    }

    /// Writes a sorted part, and says where.
    fn append(&mut self, queue: &Queue) -> io::Result<Range<u64>> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                none.insert(nameless(self.scratch.as_ref().map_or(Path::new(""), |it| &it.path))?)
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

/// A file that goes with the process. One of the same name was left by a process that died before it took the name away.
fn nameless(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// A sorted part, read one chain after the other.
struct SortedFile<'a> {
    bytes: BufReader<FileRange<'a>>,
    /// What the next chain has behind what it shares with the one before.
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
        let (job, shared, rest) = (JobId(number()?), number()?, number()?);
        self.rest.resize(8 * rest as usize, 0);
        self.bytes.read_exact(&mut self.rest)?;
        chain.truncate(shared as usize);
        let (hashes, _) = self.rest.as_chunks();
        chain.extend(hashes.iter().map(|bytes| BlockHash(u64::from_le_bytes(*bytes))));
        Ok(Some(job))
    }
}

/// A stretch of a file that others read elsewhere at the same time.
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
    use crate::{Identical, Input, InputError, InputRules, LineForm, PromptHasher};
    use std::num::NonZeroUsize;
    use wornpath_blocks::HashKey;

    const RULES: InputRules = InputRules {
        form: LineForm::Free,
        most_lines: 1_000,
        output_tokens: 9,
        most_problems: 1,
        identical: Identical::Each,
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
        let sketcher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(4).unwrap(), None);
        let scratch = SortScratch { path: folder.join("spill"), cure: "wait", memory };
        Input::read_long(text.as_bytes(), &RULES, &sketcher, ExternalSort::to(scratch))
    }

    #[test]
    fn an_input_longer_than_memory_has_the_same_forest_and_leaves_no_file() {
        let folder = folder("longer");
        std::fs::write(folder.join("spill"), "left by somebody who died").unwrap();
        let whole = read(&folder, usize::MAX).unwrap();
        assert!(!whole.spill.is_used() && folder.join("spill").exists(), "nothing was needed");
        for memory in [0, 500, 3_000] {
            let long = read(&folder, memory).unwrap();
            let parts = long.spill.parts.len();
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
    fn a_folder_that_takes_no_file_is_named() {
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
            "/there has no room for more than 0 MiB of their hashes; free some there, or wait"
        ));
        assert!(StoreError::from(full).is_passing());
    }
}
