//! Checkpoint files, replaced atomically.

use super::format;
use super::{CheckpointError, PodCheckpoint};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The largest file that is read as a checkpoint: some hundred million blocks.
const MAX_BYTES: u64 = 8 << 30;

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
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it is not a regular file; give another path"));
    }
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
    /// A device, a pipe or a folder.
    #[error("it is not a regular file; give another path")]
    NotAFile,
    /// More bytes than a checkpoint has.
    #[error("it has {bytes} bytes, and a checkpoint at most {MAX_BYTES}; remove it")]
    TooLarge {
        /// Its length.
        bytes: u64,
    },
    /// The bytes are not a valid checkpoint.
    #[error(transparent)]
    Format(#[from] CheckpointError),
}

/// Reads a checkpoint; no file is an empty one.
///
/// # Errors
/// Why the file cannot be used. Callers start without it.
pub fn read(path: &Path) -> Result<Vec<PodCheckpoint>, ReadError> {
    // Before it is opened: opening a pipe waits for its writer.
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    if !found.is_file() {
        return Err(ReadError::NotAFile);
    }
    let bytes = found.len();
    if bytes > MAX_BYTES {
        return Err(ReadError::TooLarge { bytes });
    }
    let mut content = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut content)?;
    Ok(format::decode(&content)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read_or_replaced() {
        let folder =
            std::env::temp_dir().join(format!("wornpath-checkpoint-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()));
        for special in [Path::new("/dev/zero"), &pipe, &folder] {
            assert!(matches!(read(special), Err(ReadError::NotAFile)), "{}", special.display());
            assert!(write(special, std::iter::empty()).is_err(), "{}", special.display());
        }
        let sparse = folder.join("sparse");
        File::create(&sparse).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(matches!(read(&sparse), Err(ReadError::TooLarge { .. })));
        fs::remove_dir_all(folder).unwrap();
    }
}
