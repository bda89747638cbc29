//! The file system under a store, as a trait, so that tests can inject a crash at any point.
//!
//! Files are only appended to or truncated; names change by renaming. Nothing is durable until it
//! is synced: the bytes of a file by [`StoredFile::sync`], a new name by [`Disk::sync_folder`].

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file system.
pub trait Disk: Send + Sync {
    /// Opens a file to read and to append to; creates it if it does not exist.
    ///
    /// # Errors
    /// The error of the system.
    fn open(&self, path: &Path) -> io::Result<Box<dyn StoredFile>>;

    /// Opens a file to read.
    ///
    /// # Errors
    /// The error of the system, also if it does not exist.
    fn open_existing(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        if self.exists(path) { self.open(path) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Whether the file exists.
    fn exists(&self, path: &Path) -> bool;

    /// The files in a folder.
    ///
    /// # Errors
    /// The error of the system.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;

    /// Creates a folder, and those above it.
    ///
    /// # Errors
    /// The error of the system.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Renames a file atomically, and replaces a file of that name.
    ///
    /// # Errors
    /// The error of the system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; one that does not exist is no error.
    ///
    /// # Errors
    /// The error of the system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// The error of the system.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// An open file.
pub trait StoredFile: Send + Sync {
    /// The length in bytes.
    ///
    /// # Errors
    /// The error of the system.
    fn length(&self) -> io::Result<u64>;

    /// Appends bytes. After an error, some of them may be in the file.
    ///
    /// # Errors
    /// The error of the system.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Shortens the file.
    ///
    /// # Errors
    /// The error of the system.
    fn truncate(&mut self, length: u64) -> io::Result<()>;

    /// Makes its bytes durable.
    ///
    /// # Errors
    /// The error of the system.
    fn sync(&mut self) -> io::Result<()>;

    /// Reads from `offset` on; fills the buffer unless the file ends.
    ///
    /// # Errors
    /// The error of the system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Locks the file against other processes while it is open. False if another process has it
    /// locked.
    ///
    /// # Errors
    /// The error of the system.
    fn lock(&self) -> io::Result<bool>;
}

/// The file system of the machine. Prompts and responses are private: files get mode 0600 and
/// folders 0700, whatever the umask allows.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        Ok(Box::new(file))
    }

    fn open_existing(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        Ok(Box::new(File::open(path)?))
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        File::open(path)?.sync_all()
    }
}

impl StoredFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match FileExt::read_at(self, &mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn lock(&self) -> io::Result<bool> {
        match self.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_and_folders_are_closed_to_other_users() {
        let root = std::env::temp_dir().join(format!("wornpath-disk-{}", std::process::id()));
        let folder = root.join("a/b");
        let file = folder.join("journal");
        RealDisk.make_folder(&folder).unwrap();
        drop(RealDisk.open(&file).unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&root), mode(&folder), mode(&file)), (0o700, 0o700, 0o600));
        std::fs::remove_dir_all(root).unwrap();
    }
}
