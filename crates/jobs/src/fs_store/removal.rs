//! Removal from the folder: the journal drops the entry first, then the bytes are removed.

use super::state::JournalEntry;
use super::{FsStore, StoreInner};
use crate::batch::UnixTime;
use crate::store::still_needed;
use crate::store_error::StoreError;
use std::path::{Path, PathBuf};

/// The name prefixes of the store's files. Files with other names do not belong to it, and stay.
const FILE: &str = "file-";
const BATCH: &str = "batch_";

impl FsStore {
    /// Writes the first entry of an empty journal. Files of a store next to an empty journal mean
    /// that the journal was lost.
    pub(super) fn begin_journal(&self) -> Result<(), StoreError> {
        let mut inner = self.lock();
        if inner.journal.frames() > 0 {
            return Ok(());
        }
        if !self.own("files", FILE)?.is_empty() || !self.own("results", BATCH)?.is_empty() {
            let path = self.folder.join("journal");
            let what = "it is empty, but there are files of a store next to it";
            return Err(StoreError::Damaged { path, offset: 0, what });
        }
        inner.commit(JournalEntry::Founded)
    }

    /// Removes files and results that are not in the journal: a crash left them.
    pub(super) fn remove_orphans(&self) -> Result<(), StoreError> {
        let inner = self.lock();
        let is_file = |name: &str| inner.state.files.contains_key(name);
        let is_result =
            |name: &str| inner.state.begun.contains_key(name.split('.').next().unwrap_or(""));
        let files = self.own("files", FILE)?.into_iter().filter(|(name, _)| !is_file(name));
        let results = self.own("results", BATCH)?.into_iter().filter(|(name, _)| !is_result(name));
        for (_, path) in files.chain(results) {
            self.disk.remove(&path).map_err(StoreError::io("remove", &path))?;
        }
        Ok(())
    }

    /// The files of a folder with one of our prefixes, by name.
    fn own(&self, folder: &str, prefix: &str) -> Result<Vec<(String, PathBuf)>, StoreError> {
        let folder = self.folder.join(folder);
        let listed = self.disk.list(&folder).map_err(StoreError::io("list", &folder))?;
        let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
        let named = listed.into_iter().filter_map(|path| Some((name(&path)?, path)));
        Ok(named.filter(|(name, _)| name.starts_with(prefix)).collect())
    }

    /// Removes a file that no batch reads; with the last result file of a batch, its results too.
    pub(super) fn remove_one(&self, inner: &mut StoreInner, id: &str) -> Result<(), StoreError> {
        let of = inner.state.file(id)?.of.clone();
        let mut batches = inner.state.batches.values();
        if let Some(batch) =
            batches.find(|batch| batch.input_file_id == id && !batch.status().is_final())
        {
            return Err(still_needed(id, batch));
        }
        inner.commit(JournalEntry::Gone(id.to_owned()))?;
        inner.opened.close(id);
        let Some((batch, _)) = of else {
            let path = self.path_of(id);
            return self.disk.remove(&path).map_err(StoreError::io("remove", &path));
        };
        let is_of = |of: &Option<(String, _)>| of.as_ref().is_some_and(|(of, _)| *of == batch);
        let has_more = inner.state.files.values().any(|file| is_of(&file.of));
        let has_ended = inner.state.batches.get(&batch).is_some_and(|it| it.status().is_final());
        if has_more || !has_ended {
            return Ok(());
        }
        inner.commit(JournalEntry::Dropped(batch.clone()))?;
        self.remove_results(inner, &batch)
    }

    /// Removes what has expired. Returns how many files and batches.
    pub(super) fn remove_old(
        &self,
        inner: &mut StoreInner,
        now: UnixTime,
        keep: u64,
    ) -> Result<usize, StoreError> {
        let batches = inner.state.batches.values();
        let is_old = |ended: UnixTime| ended.saturating_add(keep) <= now;
        let old = batches.filter(|batch| batch.ended_at().is_some_and(is_old));
        let old: Vec<_> = old.map(|batch| batch.id.clone()).collect();
        for batch in &old {
            inner.commit(JournalEntry::Forgotten(batch.clone()))?;
            self.remove_results(inner, batch)?;
        }
        let files = inner.state.files.values();
        let over = files.filter(|file| file.expires_at.is_some_and(|time| time <= now));
        let over: Vec<_> = over.map(|file| file.id.clone()).collect();
        let mut removed = old.len();
        for file in &over {
            match self.remove_one(inner, file) {
                Ok(()) => removed += 1,
                // A batch still reads it: the next sweep removes it.
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        inner.compact_outdated()?;
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
