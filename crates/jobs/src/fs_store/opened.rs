//! What is read stays open for a while: a batch reads its input line by line, and results are downloaded in pieces.

use crate::problem::StoreError;
use std::sync::Arc;

/// Open at once of a kind: the inputs of batches that run, and some that are downloaded.
const MOST: usize = 8;

/// What is open, by name; what was asked for last is last.
pub(super) struct OpenedStore<T: ?Sized>(Vec<(String, Arc<T>)>);

impl<T: ?Sized> Default for OpenedStore<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: ?Sized> OpenedStore<T> {
    /// Something by its name, which is opened if it is not.
    pub(super) fn get(
        &mut self,
        name: &str,
        open: impl FnOnce() -> Result<Box<T>, StoreError>,
    ) -> Result<Arc<T>, StoreError> {
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
