//! An append-only log of frames: an appended frame is durable, or was never there. A journal can be
//! replaced by a shorter one, atomically.

use crate::disk::{Disk, StoredFile};
use crate::frame::{Tail, frame, scan};
use crate::store_error::StoreError;
use std::path::{Path, PathBuf};

/// An open journal, locked against other processes.
pub(crate) struct Journal {
    path: PathBuf,
    file: Box<dyn StoredFile>,
    /// Where the last synced frame ends.
    end: u64,
    /// Whether there may be bytes behind `end` that do not count.
    is_dirty: bool,
    frames: usize,
    /// The file that was replaced stays locked: a process that had opened it must not take it for
    /// free.
    former: Option<Box<dyn StoredFile>>,
}

impl Journal {
    /// Opens a journal, creates it if it does not exist, and passes every payload to `each`.
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &Path,
        mut each: impl FnMut(&[u8]) -> Result<(), &'static str>,
    ) -> Result<Self, StoreError> {
        let mut file = disk.open(path).map_err(StoreError::io("open", path))?;
        if !file.lock().map_err(StoreError::io("lock", path))? {
            return Err(StoreError::Busy { path: path.to_owned() });
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        disk.sync_folder(folder).map_err(StoreError::io("sync", folder))?;
        let bytes = whole(&*file).map_err(StoreError::io("read", path))?;
        let found = scan(&bytes);
        let end = found.end as u64;
        let damaged = |offset, what| StoreError::Damaged { path: path.to_owned(), offset, what };
        if found.tail == Tail::Damaged {
            return Err(damaged(end, "bytes that are no frame, followed by a frame"));
        }
        let mut offset = 0;
        for payload in &found.payloads {
            each(payload).map_err(|what| damaged(offset, what))?;
            offset += frame(payload).len() as u64;
        }
        // A file without a whole frame may be no journal: it stays as it is until the first append.
        let is_foreign = found.tail == Tail::Torn && found.payloads.is_empty();
        if found.tail == Tail::Torn && !is_foreign {
            file.truncate(end).map_err(StoreError::io("truncate", path))?;
        }
        // A process that was killed may have written a frame without syncing it. From now on it
        // counts.
        file.sync().map_err(StoreError::io("sync", path))?;
        let frames = found.payloads.len();
        Ok(Self { path: path.to_owned(), file, end, is_dirty: is_foreign, frames, former: None })
    }

    /// The number of frames.
    pub(crate) const fn frames(&self) -> usize {
        self.frames
    }

    /// The bytes of its frames.
    pub(crate) const fn bytes(&self) -> u64 {
        self.end
    }

    /// Replaces the journal by one with these payloads; a crash leaves the one or the other. After
    /// an error the journal is unchanged.
    pub(crate) fn replace(
        &mut self,
        disk: &dyn Disk,
        payloads: &[Vec<u8>],
    ) -> Result<(), StoreError> {
        let path = self.path.with_extension("new");
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // A file that a crash left there was never the journal.
        disk.remove(&path).map_err(StoreError::io("remove", &path))?;
        let mut file = disk.open(&path).map_err(StoreError::io("open", &path))?;
        if !file.lock().map_err(StoreError::io("lock", &path))? {
            return Err(StoreError::Busy { path });
        }
        let bytes: Vec<u8> = payloads.iter().flat_map(|payload| frame(payload)).collect();
        file.append(&bytes).map_err(StoreError::io("write", &path))?;
        file.sync().map_err(StoreError::io("sync", &path))?;
        disk.rename(&path, &self.path).map_err(StoreError::io("rename", &path))?;
        self.former = Some(std::mem::replace(&mut self.file, file));
        self.end = bytes.len() as u64;
        self.is_dirty = false;
        self.frames = payloads.len();
        disk.sync_folder(folder).map_err(StoreError::io("sync", folder))
    }

    /// Appends a frame; when this returns, it is durable. After an error the frame does not count,
    /// and a retry is safe.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), StoreError> {
        if self.is_dirty {
            self.file.truncate(self.end).map_err(StoreError::io("truncate", &self.path))?;
        }
        self.is_dirty = true;
        let bytes = frame(payload);
        let written = self.file.append(&bytes).map_err(StoreError::io("write", &self.path));
        let synced =
            written.and_then(|()| self.file.sync().map_err(StoreError::io("sync", &self.path)));
        if synced.is_err() {
            // At once rather than with the next frame: a refused frame must not appear after a
            // restart.
            self.is_dirty = self.file.truncate(self.end).is_err();
            return synced;
        }
        self.end += bytes.len() as u64;
        self.is_dirty = false;
        self.frames += 1;
        Ok(())
    }
}

/// Passes every payload of a journal to `each`, and changes nothing. Bytes that a crash left behind
/// the last frame are no damage.
pub(crate) fn replay(
    file: &dyn StoredFile,
    path: &Path,
    mut each: impl FnMut(&[u8]) -> Result<(), &'static str>,
) -> Result<(), StoreError> {
    let bytes = whole(file).map_err(StoreError::io("read", path))?;
    let found = scan(&bytes);
    let damaged = |offset, what| StoreError::Damaged { path: path.to_owned(), offset, what };
    let mut offset = 0;
    for payload in &found.payloads {
        each(payload).map_err(|what| damaged(offset, what))?;
        offset += frame(payload).len() as u64;
    }
    match found.tail {
        Tail::Damaged => Err(damaged(offset, "bytes that are no frame, followed by a frame")),
        Tail::Torn if found.payloads.is_empty() => Err(damaged(0, "it has no frame")),
        Tail::Clean | Tail::Torn => Ok(()),
    }
}

fn whole(file: &dyn StoredFile) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.length()?).unwrap_or(usize::MAX)];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
