//! Frames: a byte of flags, a length, the bytes.

use super::error::ZmtpError;
use bytes::{Buf, BufMut, Bytes, BytesMut};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A whole message: the largest payload that the decoder accepts, and its other frames.
const MAX_BYTES: u64 = 33 << 20;
/// Frames of one message; those of events have at most four.
const MAX_FRAMES: u64 = 16;

/// One frame.
pub(super) enum Frame {
    /// A part of a message, and whether more parts follow.
    Part { body: Bytes, more: bool },
    /// A command of the protocol itself.
    Command(Bytes),
}

/// Flags and length of a frame.
struct FrameHeader {
    flags: u8,
    /// Bytes of the header itself.
    bytes: usize,
    /// Bytes of the body.
    length: u64,
}

/// Splits received bytes into frames.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) bytes: BytesMut,
    message_bytes: u64,
    message_frames: u64,
}

impl Inbox {
    /// The next frame, once it is complete.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, ZmtpError> {
        let Some(FrameHeader { flags, bytes: header, length }) = self.peek()? else {
            return Ok(None);
        };
        if ((self.bytes.len() - header) as u64) < length {
            return Ok(None);
        }
        self.bytes.advance(header);
        let body = self.bytes.split_to(length as usize).freeze();
        if flags & COMMAND != 0 {
            return Ok(Some(Frame::Command(body)));
        }
        let more = flags & MORE != 0;
        if more {
            self.message_bytes += length;
            self.message_frames += 1;
        } else {
            self.message_bytes = 0;
            self.message_frames = 0;
        }
        Ok(Some(Frame::Part { body, more }))
    }

    /// The next frame's header, once it is complete. Fails if the body would exceed a limit.
    fn peek(&self) -> Result<Option<FrameHeader>, ZmtpError> {
        let Some(flags) = self.bytes.first().copied() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(ZmtpError::unexpected("frame flags", &[flags], "0 to 4, or 6"));
        }
        let (bytes, length) = if flags & LONG != 0 {
            let Some(length) = self.bytes.get(1..9) else { return Ok(None) };
            (9, length.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        } else {
            let Some(length) = self.bytes.get(1) else { return Ok(None) };
            (2, u64::from(*length))
        };
        at_most("bytes of a message", self.message_bytes.saturating_add(length), MAX_BYTES)?;
        at_most("frames of a message", self.message_frames + 1, MAX_FRAMES)?;
        Ok(Some(FrameHeader { flags, bytes, length }))
    }
}

fn at_most(part: &'static str, found: u64, limit: u64) -> Result<(), ZmtpError> {
    if found > limit { Err(ZmtpError::TooLarge { part, found, limit }) } else { Ok(()) }
}

/// Writes a message.
pub(super) fn put_message<F: AsRef<[u8]>>(out: &mut BytesMut, frames: &[F]) {
    for (at, frame) in frames.iter().enumerate() {
        let more = if at + 1 < frames.len() { MORE } else { 0 };
        put(out, more, frame.as_ref());
    }
}

/// Writes a command.
pub(super) fn put_command(out: &mut BytesMut, name: &str, content: &[u8]) {
    let mut body = Vec::with_capacity(1 + name.len() + content.len());
    body.push(name.len() as u8);
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(content);
    put(out, COMMAND, &body);
}

/// Splits a command into its name and its content.
pub(super) fn command(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = body.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

fn put(out: &mut BytesMut, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => out.put_slice(&[flags, length]),
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8], cut: usize) -> Result<Vec<Vec<u8>>, ZmtpError> {
        let mut inbox = Inbox::default();
        let mut frames = Vec::new();
        for piece in bytes.chunks(cut) {
            inbox.bytes.extend_from_slice(piece);
            while let Some(frame) = inbox.next()? {
                match frame {
                    Frame::Part { body, .. } | Frame::Command(body) => frames.push(body.to_vec()),
                }
            }
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_round_trip_however_the_bytes_are_split(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..8),
            cut in 1..700_usize,
        ) {
            let mut bytes = BytesMut::new();
            put_message(&mut bytes, &frames);
            prop_assert_eq!(read(&bytes, cut).unwrap(), frames);
        }

        #[test]
        fn reading_any_bytes_does_not_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1..50_usize,
        ) {
            let _ = read(&bytes, cut);
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_the_body_arrives() {
        let claim = [[LONG, 0, 0, 0, 0xFF, 0, 0, 0, 0].as_slice(), b"few"].concat();
        let refusal = read(&claim, 100).unwrap_err().to_string();
        assert!(refusal.starts_with("bytes of a message: found 1095216660480"), "{refusal}");
    }

    #[test]
    fn an_endless_message_is_refused_by_the_number_of_frames_and_of_bytes() {
        let refusal = |frame: Vec<u8>| read(&frame.repeat(40), 1 << 20).unwrap_err().to_string();
        assert!(refusal(vec![MORE, 1, b'x']).starts_with("frames of a message: found 17"));
        let mut megabytes = vec![MORE | LONG, 0, 0, 0, 0, 0, 0x40, 0, 0];
        megabytes.resize(9 + (4 << 20), 0);
        assert!(refusal(megabytes).starts_with("bytes of a message"));
    }
}
