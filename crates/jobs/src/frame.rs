//! Frames: records of a log that a reader sees as a whole or not at all.
//!
//! A frame is a magic number, the length of its payload, a CRC-32 of length and payload, and the
//! payload. (The CRC of an empty payload alone would be zero, and a page that was never written is
//! full of zeros.) Writers sync one frame before they write the next, so after a crash at most the
//! last frame is torn. Bytes that are no frame and have a frame behind them were damaged after they
//! had been written, and that is an error.
//!
//! Limit: payloads are JSON, in which the zero bytes of a length never occur, so no payload
//! contains a frame.

const MAGIC: [u8; 4] = *b"wpf1";
const HEADER_BYTES: usize = 12;

/// What follows the last whole frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tail {
    /// The end of the file.
    Clean,
    /// A part of a frame, or other bytes that a crash left.
    Torn,
    /// Bytes that are no frame, and behind them a frame.
    Damaged,
}

/// The frames of a log.
#[derive(Debug)]
pub(crate) struct FrameScan<'a> {
    pub(crate) payloads: Vec<&'a [u8]>,
    /// Where the last whole frame ends.
    pub(crate) end: usize,
    pub(crate) tail: Tail,
}

/// Encodes a payload as a frame. All logs of this crate consist of frames.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("groups are bounded far below 4 GiB");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&checksum(length, payload).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Finds the frames of a log.
pub(crate) fn scan(bytes: &[u8]) -> FrameScan<'_> {
    let mut payloads = Vec::new();
    let mut end = 0;
    while let Some(payload) = first(&bytes[end..]) {
        payloads.push(payload);
        end += HEADER_BYTES + payload.len();
    }
    let rest = &bytes[end..];
    let is_damaged = || (1..rest.len()).any(|at| first(&rest[at..]).is_some());
    let tail = match rest.is_empty() {
        true => Tail::Clean,
        false if is_damaged() => Tail::Damaged,
        false => Tail::Torn,
    };
    FrameScan { payloads, end, tail }
}

/// The payload of the frame that begins here.
fn first(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (length, rest) = rest.split_first_chunk()?;
    let (crc, rest) = rest.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    let payload = rest.get(..length as usize)?;
    (checksum(length, payload) == u32::from_le_bytes(*crc)).then_some(payload)
}

fn checksum(length: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_frame_is_ignored_wherever_it_was_torn() {
        let mut bytes = frame(b"one");
        let whole = bytes.len();
        bytes.extend(frame(b"{\"two\":2}"));
        for cut in whole + 1..bytes.len() {
            let scan = scan(&bytes[..cut]);
            assert_eq!(
                (scan.payloads, scan.end, scan.tail),
                (vec![&b"one"[..]], whole, Tail::Torn)
            );
        }
        let all = scan(&bytes);
        assert_eq!((all.payloads.len(), all.end, all.tail), (2, bytes.len(), Tail::Clean));
        assert_eq!(scan(b"").tail, Tail::Clean);
    }

    #[test]
    fn a_frame_that_ends_in_zeros_is_torn() {
        let good = frame(b"{}");
        for from in 0..good.len() {
            let mut bytes = good.clone();
            bytes[from..].fill(0);
            assert_eq!(scan(&bytes).tail, Tail::Torn, "zeros from {from}");
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let mut good = frame(b"first");
        good.extend(frame(b"second"));
        let first = frame(b"first").len();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let scan = scan(&bytes);
            let expected = if bit / 8 < first { Tail::Damaged } else { Tail::Torn };
            assert_eq!(scan.tail, expected, "bit {bit}");
            assert!(scan.payloads.len() < 2);
        }
    }
}
