//! A file of the store as bytes and as lines.

use bytes::Bytes;
use std::io::{self, Read};
use std::sync::Arc;
use wornpath_jobs::{ByteCheck, LineSource, LineSpan, Store, StoreError};

/// Maximum bytes and lines of one read.
const PIECE: u64 = 1 << 20;
const MOST_LINES: usize = 1_024;

/// A stored file as a byte stream, which ends with an error unless it is as it was stored.
pub(crate) struct StoredBytes<'a> {
    store: &'a dyn Store,
    file: &'a str,
    check: ByteCheck,
}

impl<'a> StoredBytes<'a> {
    pub(crate) fn open(store: &'a dyn Store, file: &'a str) -> Result<Self, StoreError> {
        let check = store.check_file(file)?;
        check.has_end(|offset, byte| store.read_file(file, offset, byte))?;
        Ok(Self { store, file, check })
    }
}

impl Read for StoredBytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let read = self.store.read_file(self.file, self.check.at(), buffer);
        let read = read.map_err(io::Error::other)?;
        self.check.feed(&buffer[..read]).map_err(io::Error::other)?;
        Ok(read)
    }
}

/// The error of the store that a byte stream failed with.
pub(crate) fn store_error(error: io::Error) -> StoreError {
    let is_unknown = |error: io::Error| StoreError::Unreachable(error.to_string());
    error.downcast::<StoreError>().unwrap_or_else(is_unknown)
}

/// Fails with a conflict if a file does not exist. `what` is the consequence, for the client.
pub(crate) fn require_file(store: &dyn Store, file: &str, what: &str) -> Result<(), StoreError> {
    match store.file(file) {
        Ok(_) => Ok(()),
        Err(StoreError::Missing(_)) => {
            Err(StoreError::Conflict(format!("{what}: file `{file}` was deleted")))
        }
        Err(error) => Err(error),
    }
}

/// A stored file as lines.
pub(crate) struct StoredLines {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) file: String,
    pub(crate) spans: Vec<LineSpan>,
}

impl StoredLines {
    /// Reads lines, in ascending order, with one call to the store.
    pub(crate) fn piece(&self, lines: &[u32]) -> Result<Vec<Bytes>, StoreError> {
        let spans: Vec<_> = lines.iter().map(|line| self.spans[*line as usize]).collect();
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
            return Ok(Vec::new());
        };
        let length = last.offset + u64::from(last.bytes) - first.offset;
        let mut bytes = vec![0; length as usize];
        let read = self.store.read_file(&self.file, first.offset, &mut bytes)?;
        if read < bytes.len() {
            let what = format!("line {} of file `{}`", last.number, self.file);
            return Err(StoreError::Missing(what));
        }
        let bytes = Bytes::from(bytes);
        let begin = first.offset;
        let line = |span: &LineSpan| {
            let start = (span.offset - begin) as usize;
            bytes.slice(start..start + span.bytes as usize)
        };
        Ok(spans.iter().map(line).collect())
    }

    /// Splits lines, in ascending order, into runs that one read can cover.
    pub(crate) fn pieces<'a>(&'a self, lines: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
        let end = |line: u32| {
            let span = self.spans[line as usize];
            span.offset + u64::from(span.bytes)
        };
        let mut rest = lines;
        std::iter::from_fn(move || {
            let begin = self.spans[*rest.first()? as usize].offset;
            let fits = |line: &&u32| end(**line) - begin <= PIECE;
            // A line that is longer than the limit is read alone.
            let count = rest.iter().take(MOST_LINES).take_while(fits).count().max(1);
            let piece;
            (piece, rest) = rest.split_at(count);
            Some(piece)
        })
    }
}

impl LineSource for StoredLines {
    fn line(&self, line: u32) -> Result<Bytes, StoreError> {
        Ok(self.piece(&[line])?.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_jobs::{FileEntry, FsStore, RealDisk};

    #[test]
    fn lines_are_read_in_large_pieces_each_once_and_in_order() {
        let folder = std::env::temp_dir().join(format!("wornpath-stored-{}", std::process::id()));
        let store: Arc<dyn Store> = Arc::new(FsStore::open(Arc::new(RealDisk), &folder).unwrap());
        let text = |number: u32| match number {
            7_000 => "x".repeat(3 << 20),
            _ => format!("line {number}"),
        };
        let mut spans = Vec::new();
        let mut content = Vec::new();
        for number in 0..20_000 {
            let offset = content.len() as u64;
            let line = text(number);
            spans.push(LineSpan { offset, bytes: line.len() as u32, number: number + 1 });
            content.extend_from_slice(line.as_bytes());
            content.push(b'\n');
        }
        let entry = FileEntry {
            id: "file-a".into(),
            owner: String::new(),
            filename: "in.jsonl".into(),
            purpose: "batch".into(),
            bytes: 0,
            created_at: 1,
            expires_at: None,
            crc: None,
            of: None,
        };
        store.add_file(entry, &mut &content[..]).unwrap();
        let source = StoredLines { store, file: "file-a".into(), spans };
        let wanted: Vec<u32> = (0..20_000).filter(|line| line % 3 == 1).collect();
        let pieces: Vec<_> = source.pieces(&wanted).collect();
        assert_eq!(pieces.concat(), wanted);
        assert!(pieces.len() <= 10, "{} pieces of {} lines", pieces.len(), wanted.len());
        for piece in pieces {
            let expected: Vec<_> = piece.iter().map(|line| Bytes::from(text(*line))).collect();
            assert_eq!(source.piece(piece).unwrap(), expected);
        }
        assert_eq!(source.line(19_999).unwrap(), "line 19999");
        let _ = std::fs::remove_dir_all(folder);
    }
}
