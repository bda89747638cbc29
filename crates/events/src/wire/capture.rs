//! Recorded event streams: the multipart messages of a socket in order.
//!
//! Each record is a big-endian `u32` number of frames, and for each frame a `u32` length and its
//! bytes.

use super::error::DecodeError;

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
