//! A checkpoint in a file: whole or not there.

use super::format;
use super::{CheckpointError, PodCheckpoint};
use crate::pods::EventPods;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckpointSize {
    /// Pods of which there is a record.
    pub pods: usize,
    /// Pods that were left out: see the limits of a checkpoint.
    pub left_out: usize,
    /// Blocks in all records.
    pub blocks: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Writes down what is known of all pods, one after another, and puts the file in the place of the one before.
///
/// # Errors
/// The system's. The file before is as it was then.
pub fn write(path: &Path, pods: &EventPods) -> io::Result<CheckpointSize> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let (mut written, mut buffer) = (CheckpointSize::default(), Vec::new());
    format::head(&mut buffer);
    for pod in pods.names() {
        match pods.record(&pod) {
            Some(record) => {
                written.pods += 1;
                written.blocks += record.items.len();
                format::frame(&record, &mut buffer);
            }
            None => written.left_out += 1,
        }
        written.bytes += buffer.len() as u64;
        file.write_all(&buffer)?;
        buffer.clear();
    }
    format::end(written.pods as u64, &mut buffer);
    written.bytes += buffer.len() as u64;
    file.write_all(&buffer)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The name is safe only with its folder.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(written)
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is no checkpoint.
    #[error(transparent)]
    Format(#[from] CheckpointError),
}

/// Reads what was written down; nothing if there is no file.
///
/// # Errors
/// Why the file cannot be used. Whoever starts goes on without it.
pub fn read(path: &Path) -> Result<Vec<PodCheckpoint>, ReadError> {
    match fs::read(path) {
        Ok(bytes) => Ok(format::decode(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
