//! Output whose reader may close the pipe early, as in `wornpath run … | head -1`.

use std::io::{self, Write};

/// Output of a command whose exit status matters more: a closed pipe is not an error.
pub(crate) struct BrokenPipe<W>(pub(crate) W);

impl<W: Write> Write for BrokenPipe<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ignore_broken_pipe(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        ignore_broken_pipe(self.0.flush(), ())
    }
}

/// The result of writing, with `fallback` in place of a broken pipe.
pub(crate) fn ignore_broken_pipe<T>(result: io::Result<T>, fallback: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(fallback),
        other => other,
    }
}
