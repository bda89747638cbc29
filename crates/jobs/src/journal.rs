//! A file of frames that only grows: what was appended survives, in order, or was never there. It can be replaced by
//! a shorter one, as a whole.

use crate::disk::{Disk, StoredFile};
use crate::frame::{Tail, frame, scan};
use crate::problem::StoreError;
use std::path::{Path, PathBuf};

/// An open journal, which no other process has.
pub(crate) struct Journal {
    path: PathBuf,
    file: Box<dyn StoredFile>,
    /// Where the last synced frame ends.
    end: u64,
    /// Whether something may stand behind it that does not count.
    is_dirty: bool,
    /// How many frames it has.
    frames: usize,
    /// What had its name before it was replaced: whoever opened that may not believe that nobody has it.
    former: Option<Box<dyn StoredFile>>,
}

impl Journal {
    /// Opens a journal, makes it if need be, and gives every payload in it to `each`.
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
            return Err(damaged(end, "no frame, and a frame behind it"));
        }
        let mut offset = 0;
        for payload in &found.payloads {
            each(payload).map_err(|what| damaged(offset, what))?;
            offset += frame(payload).len() as u64;
        }
        // What has no whole frame may be anything: it stays until its owner has decided to write here.
        let is_foreign = found.tail == Tail::Torn && found.payloads.is_empty();
        if found.tail == Tail::Torn && !is_foreign {
            file.truncate(end).map_err(StoreError::io("cut back", path))?;
        }
        // A process that was killed may have written a frame without syncing it. From here on it counts.
        file.sync().map_err(StoreError::io("sync", path))?;
        let frames = found.payloads.len();
        Ok(Self { path: path.to_owned(), file, end, is_dirty: is_foreign, frames, former: None })
    }

    /// How many frames it has.
    pub(crate) const fn frames(&self) -> usize {
        self.frames
    }

    /// Puts another in its place, which has these payloads; a crash leaves the one or the other. After an error it
    /// is what it was.
    pub(crate) fn replace(
        &mut self,
        disk: &dyn Disk,
        payloads: &[Vec<u8>],
    ) -> Result<(), StoreError> {
        let (path, folder) =
            (self.path.with_extension("new"), self.path.parent().unwrap_or(Path::new(".")));
        // What a crash left there was never one.
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
        (self.end, self.is_dirty, self.frames) = (bytes.len() as u64, false, payloads.len());
        disk.sync_folder(folder).map_err(StoreError::io("sync", folder))
    }

    /// Appends a frame; when this returns, it survives. After an error nothing counts, and it can be
    /// tried again.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), StoreError> {
        if self.is_dirty {
            self.file.truncate(self.end).map_err(StoreError::io("cut back", &self.path))?;
        }
        self.is_dirty = true;
        let bytes = frame(payload);
        let written = self.file.append(&bytes).map_err(StoreError::io("write", &self.path));
        let synced =
            written.and_then(|()| self.file.sync().map_err(StoreError::io("sync", &self.path)));
        if synced.is_err() {
            // At once rather than with the next frame: a refused one should not come back after a restart.
            self.is_dirty = self.file.truncate(self.end).is_err();
            return synced;
        }
        (self.end, self.is_dirty) = (self.end + bytes.len() as u64, false);
        self.frames += 1;
        Ok(())
    }
}

fn whole(file: &dyn StoredFile) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.length()?).unwrap_or(usize::MAX)];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
