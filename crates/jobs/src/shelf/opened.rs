//! Files that are read stay open for a while: a batch reads its input line by line.

use crate::disk::Stored;
use crate::problem::StoreError;
use std::sync::Arc;

/// Open at once: the inputs of batches that run, and some that are downloaded.
const MOST: usize = 8;

/// Open files by name; the one that was asked for last is last.
#[derive(Default)]
pub(super) struct Opened(Vec<(String, Arc<dyn Stored>)>);

impl Opened {
    /// A file, which is opened if it is not.
    pub(super) fn get(
        &mut self,
        name: &str,
        open: impl FnOnce() -> Result<Box<dyn Stored>, StoreError>,
    ) -> Result<Arc<dyn Stored>, StoreError> {
        let (name, file) = match self.0.iter().position(|(known, _)| known == name) {
            Some(at) => self.0.remove(at),
            None => (name.to_owned(), Arc::from(open()?)),
        };
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        self.0.push((name, Arc::clone(&file)));
        Ok(file)
    }

    pub(super) fn close(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }
}
