//! A file as the multipart body of an upload, read while it is sent.

use crate::input;
use crate::progress::{BYTES, bar};
use anyhow::{Context as _, ensure};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

const BOUNDARY: &str = "wornpath-6f1d0c52b7";
pub(super) const CONTENT_TYPE: &str = "multipart/form-data; boundary=wornpath-6f1d0c52b7";
/// Bytes of a file that are read at once.
const CHUNK: usize = 256 << 10;

/// The parts of the form: what comes before the file, the file, and what comes after it.
pub(super) struct FileUpload {
    head: Option<Bytes>,
    file: File,
    left: u64,
    tail: Option<Bytes>,
    progress: ProgressBar,
}

impl FileUpload {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let cannot_read = || format!("cannot read {}", path.display());
        // The length must be known, and opening a pipe without a writer would block.
        ensure!(
            std::fs::metadata(path).with_context(cannot_read)?.is_file(),
            "{} is not a regular file; write the lines to one first",
            path.display()
        );
        input::refuse_gzip(path)?;
        let file = File::open(path).with_context(cannot_read)?;
        let left = file.metadata().with_context(cannot_read)?.len();
        let name = path.file_name().map_or_else(|| "file".into(), |name| name.to_string_lossy());
        let name = name.replace(['"', '\r', '\n'], "_");
        let head = format!(
            "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
        );
        let tail = format!("\r\n--{BOUNDARY}--\r\n");
        let progress = bar(left, BYTES).with_prefix("upload ");
        Ok(Self { head: Some(head.into()), file, left, tail: Some(tail.into()), progress })
    }
}

impl Body for FileUpload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(head) = self.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        if self.left == 0 {
            return Poll::Ready(self.tail.take().map(|tail| Ok(Frame::data(tail))));
        }
        let mut chunk = vec![0; CHUNK.min(self.left as usize)];
        // A blocking read: this process does nothing else meanwhile.
        Poll::Ready(Some(self.file.read(&mut chunk).and_then(|read| {
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            chunk.truncate(read);
            self.left -= read as u64;
            self.progress.inc(read as u64);
            Ok(Frame::data(chunk.into()))
        })))
    }

    fn size_hint(&self) -> SizeHint {
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len) as u64;
        SizeHint::with_exact(length(&self.head) + self.left + length(&self.tail))
    }
}
