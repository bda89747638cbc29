//! Cuts a stream into whole events.
//!
//! A client of a stream that may be continued gets whole events only: the rest of half an event
//! could come from no other engine. Engines send whole events, so nothing waits for that.

use bytes::{Bytes, BytesMut};

/// The beginning of an event whose end has not come yet.
#[derive(Debug, Default)]
pub(super) struct EventBuffer {
    held: BytesMut,
}

impl EventBuffer {
    /// The whole events up to the end of these bytes; the rest is held.
    pub(super) fn whole(&mut self, data: Bytes) -> Bytes {
        let mut all = if self.held.is_empty() {
            data
        } else {
            self.held.extend_from_slice(&data);
            self.held.split().freeze()
        };
        let end = last_end(&all);
        if end < all.len() {
            self.held.extend_from_slice(&all.split_off(end));
        }
        all
    }

    /// The bytes that are held.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Takes the bytes that are held.
    pub(super) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

/// The position after the last event that is whole.
fn last_end(data: &[u8]) -> usize {
    let mut end = 0;
    while let Some(next) = first_end(&data[end..]) {
        end += next;
    }
    end
}

/// The position after the first blank line.
pub(super) fn first_end(data: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', data).find_map(|at| match &data[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_events_pass_wherever_chunks_are_split() {
        for line in ["\n", "\r\n"] {
            let stream = format!("data: a{line}{line}: b{line}{line}data: c{line}{line}data: d");
            for first in 0..stream.len() {
                for second in first..stream.len() {
                    let mut buffer = EventBuffer::default();
                    let mut out = Vec::new();
                    for part in [&stream[..first], &stream[first..second], &stream[second..]] {
                        let whole = buffer.whole(Bytes::copy_from_slice(part.as_bytes()));
                        assert!(whole.is_empty() || whole.ends_with(line.as_bytes()));
                        out.extend_from_slice(&whole);
                    }
                    assert_eq!(out, stream.as_bytes()[..stream.len() - 7], "{first} {second}");
                    assert_eq!(buffer.rest(), "data: d");
                }
            }
        }
    }
}
