//! A disk in memory, so that parsers of files can be fuzzed without any.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wornpath_jobs::{Disk, StoredFile};

type Content = Arc<Mutex<Vec<u8>>>;

/// Files by their paths. It has no other users, and no operation fails.
#[derive(Clone, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<BTreeMap<PathBuf, Content>>>);

struct MemoryFile(Content);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryDisk {
    /// Adds a file.
    pub(crate) fn with(self, path: &str, content: Vec<u8>) -> Self {
        lock(&self.0).insert(path.into(), Arc::new(Mutex::new(content)));
        self
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        let file = Arc::clone(lock(&self.0).entry(path.to_owned()).or_default());
        Ok(Box::new(MemoryFile(file)))
    }

    fn exists(&self, path: &Path) -> bool {
        lock(&self.0).contains_key(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let files = lock(&self.0);
        Ok(files.keys().filter(|path| path.parent() == Some(folder)).cloned().collect())
    }

    fn make_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = lock(&self.0);
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        lock(&self.0).remove(path);
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl StoredFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        Ok(lock(&self.0).len() as u64)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        lock(&self.0).truncate(usize::try_from(length).map_err(io::Error::other)?);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = lock(&self.0);
        let start = usize::try_from(offset).map_or(content.len(), |at| at.min(content.len()));
        let count = buffer.len().min(content.len() - start);
        buffer[..count].copy_from_slice(&content[start..start + count]);
        Ok(count)
    }

    fn lock(&self) -> io::Result<bool> {
        Ok(true)
    }
}
