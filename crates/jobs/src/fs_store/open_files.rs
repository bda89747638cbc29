//! A cache of open files: a batch reads its input line by line, and results are downloaded in
//! pieces.

use crate::store_error::StoreError;
use std::sync::Arc;

/// The most open files of a kind: the inputs of running batches, and some downloads.
const MAX_OPEN: usize = 8;

/// Open files by name, least recently used first.
pub(super) struct OpenFiles<T: ?Sized>(Vec<(String, Arc<T>)>);

impl<T: ?Sized> Default for OpenFiles<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: ?Sized> OpenFiles<T> {
    /// A file by its name, which is opened if it is not open.
    pub(super) fn get(
        &mut self,
        name: &str,
        open: impl FnOnce() -> Result<Box<T>, StoreError>,
    ) -> Result<Arc<T>, StoreError> {
        let (name, file) = match self.0.iter().position(|(known, _)| known == name) {
            Some(at) => self.0.remove(at),
            None => (name.to_owned(), Arc::from(open()?)),
        };
        if self.0.len() == MAX_OPEN {
            self.0.remove(0);
        }
        self.0.push((name, Arc::clone(&file)));
        Ok(file)
    }

    pub(super) fn close(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }
}
