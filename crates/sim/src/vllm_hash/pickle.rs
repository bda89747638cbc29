//! The very bytes CPython's `pickle.dumps(value, protocol=5)` writes for a block.
//!
//! Values are framed: a frame is closed before the next object once it holds 64 KiB, and a string
//! that long stands outside of any frame. Every string, byte string and non-empty tuple is followed
//! by MEMOIZE; integers and the empty tuple are not.
use super::ExtraKey;

const FRAME_TARGET: usize = 64 * 1024;
const FRAME_HEAD: usize = 9;

const PROTO: u8 = 0x80;
const FRAME: u8 = 0x95;
const MEMOIZE: u8 = 0x94;
const MARK: u8 = b'(';
const TUPLE: u8 = b't';
const EMPTY_TUPLE: u8 = b')';
const TUPLE1: u8 = 0x85;
const TUPLE2: u8 = 0x86;
const TUPLE3: u8 = 0x87;
const NONE: u8 = b'N';
const STOP: u8 = b'.';
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const SHORT_BINBYTES: u8 = b'C';
const BINBYTES: u8 = b'B';
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';

/// Writes `(parent, (tokens…), None | (extra keys…))`.
pub(super) fn block(parent: &[u8], tokens: &[u32], extra: &[ExtraKey<'_>], out: &mut Vec<u8>) {
    let mut pickler = Pickler::start(out);
    pickler.boundary();
    pickler.blob(SHORT_BINBYTES, BINBYTES, parent);
    pickler.tuple(tokens, |pickler, token| pickler.int(i64::from(*token)));
    if extra.is_empty() {
        pickler.boundary();
        pickler.op(&[NONE]);
    } else {
        pickler.keys(extra);
    }
    pickler.op(&[TUPLE3, MEMOIZE]);
    pickler.stop();
}

/// Writes a string.
pub(super) fn text(value: &str, out: &mut Vec<u8>) {
    let mut pickler = Pickler::start(out);
    pickler.boundary();
    pickler.blob(SHORT_BINUNICODE, BINUNICODE, value.as_bytes());
    pickler.stop();
}

struct Pickler<'a> {
    out: &'a mut Vec<u8>,
    /// Where the open frame's head stands.
    frame: Option<usize>,
}

impl<'a> Pickler<'a> {
    fn start(out: &'a mut Vec<u8>) -> Self {
        out.extend([PROTO, 5]);
        Self { out, frame: None }
    }

    fn stop(mut self) {
        self.op(&[STOP]);
        self.close_frame();
    }

    /// Called before every object: the only places where a full frame may end.
    fn boundary(&mut self) {
        if self.frame.is_some_and(|start| self.out.len() - start - FRAME_HEAD >= FRAME_TARGET) {
            self.close_frame();
        }
    }

    fn close_frame(&mut self) {
        if let Some(start) = self.frame.take() {
            let length = (self.out.len() - start - FRAME_HEAD) as u64;
            self.out[start + 1..start + FRAME_HEAD].copy_from_slice(&length.to_le_bytes());
        }
    }

    fn op(&mut self, bytes: &[u8]) {
        if self.frame.is_none() {
            self.frame = Some(self.out.len());
            self.out.extend([FRAME, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        self.out.extend_from_slice(bytes);
    }

    fn int(&mut self, value: i64) {
        let bytes = value.to_le_bytes();
        if let Ok(small) = u8::try_from(value) {
            self.op(&[BININT1, small]);
        } else if u16::try_from(value).is_ok() {
            self.op(&[BININT2, bytes[0], bytes[1]]);
        } else if i32::try_from(value).is_ok() {
            self.op(&[BININT, bytes[0], bytes[1], bytes[2], bytes[3]]);
        } else {
            let length = signed_length(value);
            self.op(&[LONG1, length as u8]);
            self.op(&bytes[..length]);
        }
    }

    fn blob(&mut self, short: u8, long: u8, bytes: &[u8]) {
        let length = bytes.len();
        if let Ok(length) = u8::try_from(length) {
            self.op(&[short, length]);
            self.op(bytes);
        } else {
            let [a, b, c, d, ..] = (length as u64).to_le_bytes();
            if length >= FRAME_TARGET {
                self.close_frame();
                self.out.extend([long, a, b, c, d]);
                self.out.extend_from_slice(bytes);
            } else {
                self.op(&[long, a, b, c, d]);
                self.op(bytes);
            }
        }
        self.op(&[MEMOIZE]);
    }

    fn tuple<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.boundary();
        let close = match items.len() {
            0 => return self.op(&[EMPTY_TUPLE]),
            1 => TUPLE1,
            2 => TUPLE2,
            3 => TUPLE3,
            _ => {
                self.op(&[MARK]);
                TUPLE
            }
        };
        for item in items {
            self.boundary();
            write(self, item);
        }
        self.op(&[close, MEMOIZE]);
    }

    fn keys(&mut self, keys: &[ExtraKey<'_>]) {
        self.tuple(keys, |pickler, key| match *key {
            ExtraKey::Text(value) => {
                pickler.blob(SHORT_BINUNICODE, BINUNICODE, value.as_bytes());
            }
            ExtraKey::Bytes(value) => pickler.blob(SHORT_BINBYTES, BINBYTES, value),
            ExtraKey::Int(value) => pickler.int(value),
            ExtraKey::Tuple(keys) => pickler.keys(keys),
        });
    }
}

/// The fewest bytes of two's complement that hold the value with its sign.
fn signed_length(value: i64) -> usize {
    let significant = if value < 0 { (!value).leading_zeros() } else { value.leading_zeros() };
    (65 - significant as usize).div_ceil(8)
}
