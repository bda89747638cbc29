//! Checkpoint files, replaced atomically.

use super::format;
use super::{CheckpointError, PodCheckpoint};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What a checkpoint contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckpointSize {
    /// Pods with a record.
    pub pods: usize,
    /// Pods without one: see the limits of a checkpoint.
    pub left_out: usize,
    /// Blocks in all records.
    pub blocks: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Writes the pods' records in order, and replaces the file atomically. `None` stands for a pod
/// that has nothing worth keeping. Records are taken one at a time, so that only one of them is in
/// memory.
///
/// # Errors
/// The file system's. The previous file is unchanged then.
pub fn write(
    path: &Path,
    pods: impl Iterator<Item = Option<PodCheckpoint>>,
) -> io::Result<CheckpointSize> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let mut written = CheckpointSize::default();
    let mut buffer = Vec::new();
    format::header(&mut buffer);
    for pod in pods {
        match pod {
            Some(record) => {
                written.pods += 1;
                written.blocks += record.blocks.len();
                format::frame(&record, &mut buffer);
            }
            None => written.left_out += 1,
        }
        written.bytes += buffer.len() as u64;
        file.write_all(&buffer)?;
        buffer.clear();
    }
    format::trailer(written.pods as u64, &mut buffer);
    written.bytes += buffer.len() as u64;
    file.write_all(&buffer)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The rename is durable only once the folder is synced.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(written)
}

/// Why a checkpoint file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file system's error.
    #[error("cannot read the file: {0}")]
    Io(#[from] io::Error),
    /// The bytes are not a valid checkpoint.
    #[error(transparent)]
    Format(#[from] CheckpointError),
}

/// Reads a checkpoint; no file is an empty one.
///
/// # Errors
/// Why the file cannot be used. Callers start without it.
pub fn read(path: &Path) -> Result<Vec<PodCheckpoint>, ReadError> {
    match fs::read(path) {
        Ok(bytes) => Ok(format::decode(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
