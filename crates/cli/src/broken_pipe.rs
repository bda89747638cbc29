//! Output that may be left unread, as `wornpath run … | head -1` leaves it.

use std::io::{self, Write};

/// Output of a command whose exit code says more than it does: that nobody reads on changes nothing.
pub(crate) struct BrokenPipe<W>(pub(crate) W);

impl<W: Write> Write for BrokenPipe<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unread(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        unread(self.0.flush(), ())
    }
}

/// What came of writing, where it does not matter whether anybody reads.
pub(crate) fn unread<T>(result: io::Result<T>, instead: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(instead),
        other => other,
    }
}
