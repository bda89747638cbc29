//! A file of the store as bytes and as lines.

use bytes::Bytes;
use std::io::{self, Read};
use std::sync::Arc;
use wornpath_jobs::{Source, Span, Store, StoreError};

/// A stored file as bytes in a row.
pub(super) struct StoredBytes<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) file: &'a str,
    pub(super) offset: u64,
}

impl Read for StoredBytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read =
            self.store.read_file(self.file, self.offset, buffer).map_err(io::Error::other)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// Whether a file is there that something is to be made of; if not, who asked is told what cannot be done for lack of it.
pub(super) fn needed(store: &dyn Store, file: &str, what: &str) -> Result<(), StoreError> {
    match store.file(file) {
        Ok(_) => Ok(()),
        Err(StoreError::Missing(_)) => {
            Err(StoreError::Conflict(format!("{what}, because file `{file}` is gone")))
        }
        Err(error) => Err(error),
    }
}

/// A stored file as lines.
pub(super) struct StoredLines {
    pub(super) store: Arc<dyn Store>,
    pub(super) file: String,
    pub(super) spans: Vec<Span>,
}

impl Source for StoredLines {
    fn line(&self, line: u32) -> Result<Bytes, StoreError> {
        let span = self.spans[line as usize];
        let mut bytes = vec![0; span.bytes as usize];
        let read = self.store.read_file(&self.file, span.offset, &mut bytes)?;
        if read < bytes.len() {
            let what = format!("line {} in file `{}` any more", span.number, self.file);
            return Err(StoreError::Missing(what));
        }
        Ok(bytes.into())
    }
}
