//! The frames around a payload: topic, sequence number, payload.
//!
//! Published messages are `[topic][sequence][payload]`. Replies to a replay request begin with an
//! empty frame; vLLM before 0.26 and SGLang omit their topic. Counted from the end all of these
//! agree, so they are parsed from the end.

use super::error::DecodeError;

/// One message of an engine's event stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireMessage<'a> {
    /// A batch of events.
    Batch {
        /// The publisher's topic, by convention `kv@<address>@<model>`; empty when it has none.
        topic: &'a [u8],
        /// The engine's own number of this batch, from 0 at its start.
        sequence: u64,
        /// The msgpack, for [`decode`](super::decode).
        payload: &'a [u8],
    },
    /// The end of a replay.
    ReplayEnd,
}

impl<'a> WireMessage<'a> {
    /// The sequence number of the message that ends a replay.
    pub const REPLAY_END: u64 = u64::MAX;

    /// Parses a multipart message.
    ///
    /// # Errors
    /// The frames are not those of an event stream.
    pub fn parse<F: AsRef<[u8]>>(frames: &'a [F]) -> Result<Self, DecodeError> {
        let (topic, sequence, payload): (&[u8], &[u8], &[u8]) = match frames {
            [sequence, payload] => (&[], sequence.as_ref(), payload.as_ref()),
            [topic, sequence, payload] => (topic.as_ref(), sequence.as_ref(), payload.as_ref()),
            [delimiter, topic, sequence, payload] => {
                if !delimiter.as_ref().is_empty() {
                    return Err(DecodeError::Frames { found: "four frames, the first not empty" });
                }
                (topic.as_ref(), sequence.as_ref(), payload.as_ref())
            }
            [] | [_] => return Err(DecodeError::Frames { found: "fewer than two frames" }),
            _ => return Err(DecodeError::Frames { found: "more than four frames" }),
        };
        let sequence: [u8; 8] = sequence.try_into().map_err(|_| DecodeError::Frames {
            found: "a sequence number that is not eight bytes long",
        })?;
        match u64::from_be_bytes(sequence) {
            Self::REPLAY_END => Ok(Self::ReplayEnd),
            sequence => Ok(Self::Batch { topic, sequence, payload }),
        }
    }
}

/// The messages of a recording, each as its frames. The iterator ends after an error.
pub fn records(recording: &[u8]) -> impl Iterator<Item = Result<Vec<&[u8]>, DecodeError>> {
    let mut rest = recording;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = next_record(&mut rest);
        if record.is_err() {
            rest = &[];
        }
        Some(record)
    })
}

fn next_record<'a>(rest: &mut &'a [u8]) -> Result<Vec<&'a [u8]>, DecodeError> {
    let count = next_u32(rest)?;
    // Not preallocated: the count is not trusted.
    let mut frames = Vec::new();
    for _ in 0..count {
        let length = next_u32(rest)?;
        let (frame, after) = rest.split_at_checked(length).ok_or_else(truncated)?;
        frames.push(frame);
        *rest = after;
    }
    Ok(frames)
}

fn next_u32(rest: &mut &[u8]) -> Result<usize, DecodeError> {
    let (digits, after) = rest.split_first_chunk().ok_or_else(truncated)?;
    *rest = after;
    Ok(u32::from_be_bytes(*digits) as usize)
}

const fn truncated() -> DecodeError {
    DecodeError::Frames { found: "a recording that ends within a record" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEVEN: [u8; 8] = 7_u64.to_be_bytes();

    #[test]
    fn a_published_message_and_both_forms_of_replay_parse_alike() {
        let expected = |topic| WireMessage::Batch { topic, sequence: 7, payload: b"p" };
        let parse = |frames: &'static [&'static [u8]]| WireMessage::parse(frames).unwrap();
        assert_eq!(parse(&[b"kv", &SEVEN, b"p"]), expected(b"kv"));
        assert_eq!(parse(&[b"", b"kv", &SEVEN, b"p"]), expected(b"kv"));
        assert_eq!(parse(&[b"", &SEVEN, b"p"]), expected(b""));
        assert_eq!(parse(&[&SEVEN, b"p"]), expected(b""));
    }

    #[test]
    fn the_end_of_a_replay_is_recognized_with_and_without_a_topic_frame() {
        let end = [0xFF_u8; 8];
        assert_eq!(WireMessage::parse(&[&[], &[], &end[..], &[]]), Ok(WireMessage::ReplayEnd));
        assert_eq!(WireMessage::parse(&[&[], &end[..], &[]]), Ok(WireMessage::ReplayEnd));
    }

    #[test]
    fn other_shapes_are_refused_with_what_is_wrong() {
        let refusal = |frames: &[&[u8]]| WireMessage::parse(frames).unwrap_err().to_string();
        assert!(refusal(&[b"p"]).contains("fewer than two frames"));
        assert!(refusal(&[b"kv", b"7", b"p"]).contains("not eight bytes long"));
        assert!(refusal(&[b"id", b"kv", &SEVEN, b"p"]).contains("the first not empty"));
        assert!(refusal(&[b"", b"", b"kv", &SEVEN, b"p"]).contains("more than four"));
    }

    #[test]
    fn records_are_split_into_their_frames() {
        let recording = b"\0\0\0\x02\0\0\0\x01a\0\0\0\x00\0\0\0\x01\0\0\0\x02bc";
        let all: Result<Vec<_>, _> = records(recording).collect();
        assert_eq!(all, Ok(vec![vec![&b"a"[..], b""], vec![&b"bc"[..]]]));
    }

    #[test]
    fn a_truncated_recording_gives_an_error_unless_it_ends_between_records() {
        let recording = b"\0\0\0\x02\0\0\0\x01a\0\0\0\x00\0\0\0\x01\0\0\0\x02bc";
        for end in 0..recording.len() {
            let last = records(&recording[..end]).last();
            let between = end == 0 || end == 13;
            assert_eq!(last.is_none_or(|record| record.is_ok()), between, "cut at {end}");
        }
    }
}
