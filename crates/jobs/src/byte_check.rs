//! Compares bytes, as they are read, with the length and the checksum that the store recorded.
//!
//! A file can be cut, changed or lost after it was stored: by a failing disk, a restored backup or
//! a hand that helps. Its readers must not take what is left for the whole. A check is fed with the
//! bytes from its beginning to its end, and fails if one is missing, surplus or different.

use crate::file_entry::FileEntry;
use crate::growing_crc::CrcPoint;
use crate::store_error::StoreError;
use crc32fast::Hasher;

/// A check of the bytes from [`ByteCheck::at`] to [`ByteCheck::end`].
#[derive(Clone, Debug)]
pub struct ByteCheck {
    name: String,
    at: u64,
    end: u64,
    hasher: Hasher,
    /// None if no checksum was recorded: an older version stored the file, or a database keeps it.
    crc: Option<u32>,
}

impl ByteCheck {
    /// A check of a whole file.
    #[must_use]
    pub fn file(entry: &FileEntry) -> Self {
        let name = format!("file `{}`", entry.id);
        Self { name, at: 0, end: entry.bytes, hasher: Hasher::new(), crc: entry.crc }
    }

    /// A check of the results of a batch between two points.
    pub(crate) fn results(batch: &str, from: CrcPoint, until: CrcPoint) -> Self {
        let name = format!("result of batch `{batch}`");
        let hasher = from.hasher();
        Self { name, at: from.at, end: until.at, hasher, crc: Some(until.crc) }
    }

    /// A check of results that there are none of.
    pub(crate) fn nothing(batch: &str) -> Self {
        Self::results(batch, CrcPoint::default(), CrcPoint::default())
    }

    /// A check of lengths only.
    #[cfg(feature = "postgres")]
    pub(crate) fn length_only(batch: &str, at: u64, end: u64) -> Self {
        let name = format!("result of batch `{batch}`");
        Self { name, at, end, hasher: Hasher::new(), crc: None }
    }

    /// The offset of the next byte.
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// The offset behind the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Checks the bytes that follow; none at all is the end of the file.
    ///
    /// # Errors
    /// If there are too few, or with the last ones the checksum differs.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.at += bytes.len() as u64;
        self.hasher.update(bytes);
        if bytes.is_empty() && self.at < self.end || self.at > self.end {
            return Err(self.wrong_length(self.at));
        }
        match self.crc {
            Some(crc) if self.at == self.end && crc != self.hasher.clone().finalize() => {
                Err(self.damaged("its checksum is not the recorded one".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the last byte is there, before any is read.
    ///
    /// # Errors
    /// If it is not, or `read`, which fills a buffer from an offset on, fails.
    pub fn has_end(
        &self,
        read: impl FnOnce(u64, &mut [u8]) -> Result<usize, StoreError>,
    ) -> Result<(), StoreError> {
        if self.end > self.at && read(self.end - 1, &mut [0])? == 0 {
            return Err(self.damaged(format!("less than {} bytes are there", self.end)));
        }
        Ok(())
    }

    /// Compares the length of a file that must have no other bytes.
    pub(crate) fn has_length(&self, length: u64) -> Result<(), StoreError> {
        match length == self.end {
            true => Ok(()),
            false => Err(self.wrong_length(length)),
        }
    }

    /// The error of a file that does not exist.
    pub(crate) fn lost(&self) -> StoreError {
        self.damaged("it is missing on disk".to_owned())
    }

    fn wrong_length(&self, found: u64) -> StoreError {
        self.damaged(format!("{found} bytes are there, and {} were stored", self.end))
    }

    fn damaged(&self, what: String) -> StoreError {
        StoreError::DamagedFile { name: self.name.clone(), what }
    }
}
