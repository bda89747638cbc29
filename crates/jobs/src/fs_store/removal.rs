//! What leaves the folder: the journal forgets it first, then its bytes go.

use super::{FsStore, JournalEntry, StoreInner};
use crate::batch::UnixTime;
use crate::problem::StoreError;
use crate::store::still_needed;
use std::path::{Path, PathBuf};

/// How the files of a store are called. What is called otherwise is somebody else's, and stays.
const FILE: &str = "file-";
const BATCH: &str = "batch_";

impl FsStore {
    /// Begins the journal if it has nothing. Where files of a store lie beside such a journal, it was lost, and what it
    /// said of them with it.
    pub(super) fn found(&self) -> Result<(), StoreError> {
        let mut inner = self.lock();
        if inner.journal.frames() > 0 {
            return Ok(());
        }
        if !self.own("files", FILE)?.is_empty() || !self.own("results", BATCH)?.is_empty() {
            let (path, what) =
                (self.folder.join("journal"), "it is empty, and files of a store lie beside it");
            return Err(StoreError::Damaged { path, offset: 0, what });
        }
        inner.note(JournalEntry::Founded)
    }

    /// Removes files and results that the journal does not know: a crash came between.
    pub(super) fn remove_unknown(&self) -> Result<(), StoreError> {
        let inner = self.lock();
        let is_file = |name: &str| inner.known.files.contains_key(name);
        let is_result =
            |name: &str| inner.known.begun.contains_key(name.split('.').next().unwrap_or(""));
        let files = self.own("files", FILE)?.into_iter().filter(|(name, _)| !is_file(name));
        let results = self.own("results", BATCH)?.into_iter().filter(|(name, _)| !is_result(name));
        for (_, path) in files.chain(results) {
            self.disk.remove(&path).map_err(StoreError::io("remove", &path))?;
        }
        Ok(())
    }

    /// What a folder has that is called as ours is, by name.
    fn own(&self, folder: &str, prefix: &str) -> Result<Vec<(String, PathBuf)>, StoreError> {
        let folder = self.folder.join(folder);
        let listed = self.disk.list(&folder).map_err(StoreError::io("list", &folder))?;
        let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
        let named = listed.into_iter().filter_map(|path| Some((name(&path)?, path)));
        Ok(named.filter(|(name, _)| name.starts_with(prefix)).collect())
    }

    /// Removes a file that no batch reads; with the last file of a batch's results, those too.
    pub(super) fn remove_one(&self, inner: &mut StoreInner, id: &str) -> Result<(), StoreError> {
        let of = inner.known.file(id)?.of.clone();
        let mut batches = inner.known.batches.values();
        if let Some(batch) =
            batches.find(|batch| batch.input_file_id == id && !batch.status().is_final())
        {
            return Err(still_needed(id, batch));
        }
        inner.note(JournalEntry::Gone(id.to_owned()))?;
        inner.opened.close(id);
        let Some((batch, _)) = of else {
            let path = self.path_of(id);
            return self.disk.remove(&path).map_err(StoreError::io("remove", &path));
        };
        let is_of = |of: &Option<(String, _)>| of.as_ref().is_some_and(|(of, _)| *of == batch);
        let has_more = inner.known.files.values().any(|file| is_of(&file.of));
        let has_ended = inner.known.batches.get(&batch).is_some_and(|it| it.status().is_final());
        if has_more || !has_ended {
            return Ok(());
        }
        inner.note(JournalEntry::Dropped(batch.clone()))?;
        self.remove_results(inner, &batch)
    }

    /// Removes what is past its time, and says how much that was.
    pub(super) fn remove_old(
        &self,
        inner: &mut StoreInner,
        now: UnixTime,
        keep: u64,
    ) -> Result<usize, StoreError> {
        let batches = inner.known.batches.values();
        let is_old = |ended: UnixTime| ended.saturating_add(keep) <= now;
        let old = batches.filter(|batch| batch.ended_at().is_some_and(is_old));
        let old: Vec<_> = old.map(|batch| batch.id.clone()).collect();
        for batch in &old {
            inner.note(JournalEntry::Forgotten(batch.clone()))?;
            self.remove_results(inner, batch)?;
        }
        let files = inner.known.files.values();
        let over = files.filter(|file| file.expires_at.is_some_and(|time| time <= now));
        let over: Vec<_> = over.map(|file| file.id.clone()).collect();
        let mut removed = old.len();
        for file in &over {
            match self.remove_one(inner, file) {
                Ok(()) => removed += 1,
                // A batch still reads it: next time.
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        inner.tidy(&*self.disk)?;
        Ok(removed)
    }

    fn remove_results(&self, inner: &mut StoreInner, batch: &str) -> Result<(), StoreError> {
        inner.results.remove(batch);
        inner.ended.close(batch);
        let paths = self.paths_of(batch);
        for path in [&paths.output, &paths.errors, &paths.log] {
            self.disk.remove(path).map_err(StoreError::io("remove", path))?;
        }
        Ok(())
    }
}
