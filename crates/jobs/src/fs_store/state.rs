//! The entries of a store in a folder, and the changes of them that the journal keeps.

use crate::batch::Batch;
use crate::file_entry::FileEntry;
use crate::result_log::InputMark;
use crate::store::Lease;
use crate::store_error::StoreError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A change in the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum JournalEntry {
    /// The first entry of a journal.
    Founded,
    File(FileEntry),
    Batch(Box<Batch>),
    Begun(String, InputMark),
    /// A file was removed.
    Gone(String),
    /// The results of a batch were removed, and the batch is kept.
    Dropped(String),
    /// A batch was removed, with its results and their files.
    Forgotten(String),
}

impl JournalEntry {
    pub(super) fn json(&self) -> Vec<u8> {
        json(self)
    }
}

/// What an entry takes in the journal besides its own JSON, about; and the mark of an input.
const FRAME_BYTES: u64 = 24;
const MARK_BYTES: u64 = 128;

/// The files and batches that the journal has.
#[derive(Default)]
pub(super) struct StoreState {
    pub(super) files: BTreeMap<String, FileEntry>,
    pub(super) batches: BTreeMap<String, Batch>,
    /// The input of each batch that has results.
    pub(super) begun: BTreeMap<String, InputMark>,
    /// The bytes of the entries of each owner.
    sizes: BTreeMap<String, u64>,
    /// Those of all owners.
    size: u64,
}

impl StoreState {
    pub(super) fn apply(&mut self, change: JournalEntry) {
        match change {
            JournalEntry::Founded => {}
            JournalEntry::File(file) => {
                self.remove_file(&file.id);
                self.grow(&file.owner, size(&file));
                self.files.insert(file.id.clone(), file);
            }
            JournalEntry::Batch(batch) => {
                self.remove_batch(&batch.id);
                self.grow(&batch.owner, size(&batch));
                self.batches.insert(batch.id.clone(), *batch);
            }
            JournalEntry::Begun(batch, mark) => drop(self.begun.insert(batch, mark)),
            JournalEntry::Gone(file) => self.remove_file(&file),
            JournalEntry::Dropped(batch) => drop(self.begun.remove(&batch)),
            JournalEntry::Forgotten(batch) => {
                self.remove_batch(&batch);
                self.begun.remove(&batch);
                let is_of =
                    |file: &&FileEntry| file.of.as_ref().is_some_and(|(of, _)| *of == batch);
                let files = self.files.values().filter(is_of);
                for file in files.map(|file| file.id.clone()).collect::<Vec<_>>() {
                    self.remove_file(&file);
                }
            }
        }
    }

    /// The shortest journal with this state.
    pub(super) fn changes(&self) -> impl Iterator<Item = JournalEntry> {
        let files = self.files.values().cloned().map(JournalEntry::File);
        let batches =
            self.batches.values().cloned().map(|batch| JournalEntry::Batch(Box::new(batch)));
        let begun =
            self.begun.iter().map(|(batch, mark)| JournalEntry::Begun(batch.clone(), *mark));
        std::iter::once(JournalEntry::Founded).chain(files).chain(batches).chain(begun)
    }

    pub(super) fn entries(&self) -> usize {
        self.files.len() + self.batches.len() + self.begun.len()
    }

    /// The bytes of the shortest journal, about.
    pub(super) fn bytes(&self) -> u64 {
        self.size + MARK_BYTES * self.begun.len() as u64
    }

    /// The bytes of the entries of an owner.
    pub(super) fn bytes_of(&self, owner: &str) -> u64 {
        self.sizes.get(owner).copied().unwrap_or(0)
    }

    pub(super) fn file(&self, id: &str) -> Result<&FileEntry, StoreError> {
        self.files.get(id).ok_or_else(|| StoreError::Missing(format!("file `{id}`")))
    }

    pub(super) fn batch(&self, id: &str) -> Result<&Batch, StoreError> {
        self.batches.get(id).ok_or_else(|| StoreError::Missing(format!("batch `{id}`")))
    }

    pub(super) fn leased(&self, lease: &Lease) -> Result<&Batch, StoreError> {
        let batch = self.batch(&lease.batch)?;
        if batch.epoch != lease.epoch || batch.status().is_final() {
            return Err(StoreError::Fenced(lease.batch.clone()));
        }
        Ok(batch)
    }

    fn remove_file(&mut self, id: &str) {
        if let Some(former) = self.files.remove(id) {
            self.shrink(&former.owner, size(&former));
        }
    }

    fn remove_batch(&mut self, id: &str) {
        if let Some(former) = self.batches.remove(id) {
            self.shrink(&former.owner, size(&former));
        }
    }

    fn grow(&mut self, owner: &str, bytes: u64) {
        *self.sizes.entry(owner.to_owned()).or_default() += bytes;
        self.size += bytes;
    }

    fn shrink(&mut self, owner: &str, bytes: u64) {
        self.size -= bytes;
        if let Some(size) = self.sizes.get_mut(owner) {
            *size -= bytes;
            if *size == 0 {
                self.sizes.remove(owner);
            }
        }
    }
}

fn json(entry: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(entry).expect("entries are always JSON")
}

/// The bytes of an entry in the journal, about.
fn size(entry: &impl Serialize) -> u64 {
    json(entry).len() as u64 + FRAME_BYTES
}
