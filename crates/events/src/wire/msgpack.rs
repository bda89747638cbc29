//! A msgpack reader for cache events.
//!
//! A tree of values would have one for every token id. This only moves a cursor, with fewer
//! instructions than the one of `rmp`, and its errors name the field:
//! integers go into the caller's buffers, strings and byte strings are borrowed. Nothing recurses:
//! skipping a nested value counts the items that are left instead of descending, so hostile nesting
//! costs no stack. A length of more items than bytes remain is refused before memory is reserved,
//! since every item takes at least one byte.

use super::error::DecodeError;

/// A cursor over one payload. `field` in every call names what is being read, for the error.
#[derive(Clone, Copy)]
pub(super) struct MsgpackReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Msgpack's two integer families in one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Int {
    Unsigned(u64),
    Negative(i64),
}

impl<'a> MsgpackReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) const fn position(&self) -> usize {
        self.at
    }

    pub(super) const fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The bytes read since the position `start`.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    /// The next value's first byte, which determines its type.
    pub(super) fn peek(&self, field: &'static str) -> Result<u8, DecodeError> {
        self.bytes.get(self.at).copied().ok_or(DecodeError::Truncated {
            field,
            at: self.at,
            expected: "a value",
        })
    }

    /// Consumes a nil if one is next.
    pub(super) fn nil(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        let is_nil = self.peek(field)? == 0xc0;
        self.at += usize::from(is_nil);
        Ok(is_nil)
    }

    pub(super) fn array(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        let marker = self.peek(field)?;
        let length = match marker {
            0x90..=0x9f => self.short(marker & 0x0f),
            0xdc => self.length(field, 2)?,
            0xdd => self.length(field, 4)?,
            _ => return Err(self.unexpected(field, "an array")),
        };
        self.backed_by_bytes(field, length, 1)
    }

    pub(super) fn map(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        let marker = self.peek(field)?;
        let length = match marker {
            0x80..=0x8f => self.short(marker & 0x0f),
            0xde => self.length(field, 2)?,
            0xdf => self.length(field, 4)?,
            _ => return Err(self.unexpected(field, "a map")),
        };
        self.backed_by_bytes(field, length, 2)
    }

    /// A string as bytes: names are compared with ASCII ones, and text that is kept is validated by
    /// the caller.
    pub(super) fn text(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let marker = self.peek(field)?;
        let length = match marker {
            0xa0..=0xbf => self.short(marker & 0x1f),
            0xd9 => self.length(field, 1)?,
            0xda => self.length(field, 2)?,
            0xdb => self.length(field, 4)?,
            _ => return Err(self.unexpected(field, "a string")),
        };
        self.take(field, length)
    }

    pub(super) fn binary(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let length = match self.peek(field)? {
            0xc4 => self.length(field, 1)?,
            0xc5 => self.length(field, 2)?,
            0xc6 => self.length(field, 4)?,
            _ => return Err(self.unexpected(field, "bytes")),
        };
        self.take(field, length)
    }

    #[inline]
    pub(super) fn int(&mut self, field: &'static str) -> Result<Int, DecodeError> {
        let marker = self.peek(field)?;
        let width = match marker {
            0x00..=0x7f => {
                self.at += 1;
                return Ok(Int::Unsigned(u64::from(marker)));
            }
            0xe0..=0xff => {
                self.at += 1;
                return Ok(Int::Negative(i64::from(marker.cast_signed())));
            }
            0xcc | 0xd0 => 1,
            0xcd | 0xd1 => 2,
            0xce | 0xd2 => 4,
            0xcf | 0xd3 => 8,
            _ => return Err(self.unexpected(field, "an integer")),
        };
        let value = self.big_endian(field, width)?;
        if marker < 0xd0 {
            return Ok(Int::Unsigned(value));
        }
        // The sign bit of a narrow integer moves to the top, then is spread back down.
        let unused = 64 - 8 * width as u32;
        let signed = (value << unused).cast_signed() >> unused;
        Ok(u64::try_from(signed).map_or(Int::Negative(signed), Int::Unsigned))
    }

    /// An integer from 0 to `u32::MAX`.
    #[inline]
    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let at = self.at;
        match self.int(field)? {
            Int::Unsigned(value) => u32::try_from(value).ok(),
            Int::Negative(_) => None,
        }
        .ok_or(DecodeError::Unexpected {
            field,
            at,
            found: "an integer out of range",
            expected: "an integer from 0 to 4294967295",
        })
    }

    /// A floating-point number; engines that round to whole seconds may send an integer.
    pub(super) fn f64(&mut self, field: &'static str) -> Result<f64, DecodeError> {
        match self.peek(field)? {
            0xca => Ok(f64::from(f32::from_bits(self.big_endian(field, 4)? as u32))),
            0xcb => Ok(f64::from_bits(self.big_endian(field, 8)?)),
            0xc0..=0xc9 | 0xd4..=0xdf | 0x80..=0xbf => Err(self.unexpected(field, "a number")),
            _ => Ok(match self.int(field)? {
                Int::Unsigned(value) => value as f64,
                Int::Negative(value) => value as f64,
            }),
        }
    }

    /// Skips one value, however deeply nested.
    pub(super) fn skip(&mut self, field: &'static str) -> Result<(), DecodeError> {
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            match self.peek(field)? {
                0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => self.at += 1,
                0x90..=0x9f | 0xdc | 0xdd => left += self.array(field)?,
                0x80..=0x8f | 0xde | 0xdf => left += 2 * self.map(field)?,
                0xa0..=0xbf | 0xd9..=0xdb => drop(self.text(field)?),
                0xc4..=0xc6 => drop(self.binary(field)?),
                marker @ (0xc7..=0xc9 | 0xd4..=0xd8) => self.skip_extension(field, marker)?,
                0xca => drop(self.big_endian(field, 4)?),
                0xcb => drop(self.big_endian(field, 8)?),
                0xcc..=0xd3 => drop(self.int(field)?),
                0xc1 => return Err(self.unexpected(field, "a value")),
            }
            // Items of outer arrays need bytes too, so nested lengths that exceed the bytes end
            // here.
            if left > self.remaining() {
                return Err(DecodeError::Truncated { field, at: self.at, expected: "more items" });
            }
        }
        Ok(())
    }

    fn skip_extension(&mut self, field: &'static str, marker: u8) -> Result<(), DecodeError> {
        let length = match marker {
            0xc7 => self.length(field, 1)?,
            0xc8 => self.length(field, 2)?,
            0xc9 => self.length(field, 4)?,
            _ => {
                self.at += 1;
                1 << (marker - 0xd4)
            }
        };
        self.take(field, 1)?;
        self.take(field, length).map(drop)
    }

    /// An error for the value that is next.
    pub(super) fn unexpected(&self, field: &'static str, expected: &'static str) -> DecodeError {
        let found = match self.bytes.get(self.at) {
            None => "the end",
            Some(0x00..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff) => "an integer",
            Some(0x80..=0x8f | 0xde | 0xdf) => "a map",
            Some(0x90..=0x9f | 0xdc | 0xdd) => "an array",
            Some(0xa0..=0xbf | 0xd9..=0xdb) => "a string",
            Some(0xc0) => "nil",
            Some(0xc1) => "the reserved byte c1",
            Some(0xc2 | 0xc3) => "a boolean",
            Some(0xc4..=0xc6) => "bytes",
            Some(0xc7..=0xc9 | 0xd4..=0xd8) => "an extension",
            Some(0xca | 0xcb) => "a floating-point number",
        };
        DecodeError::Unexpected { field, at: self.at, found, expected }
    }

    fn short(&mut self, length: u8) -> usize {
        self.at += 1;
        usize::from(length)
    }

    fn length(&mut self, field: &'static str, width: usize) -> Result<usize, DecodeError> {
        let value = self.big_endian(field, width)?;
        Ok(usize::try_from(value).unwrap_or(usize::MAX))
    }

    /// The marker and then `width` bytes of a big-endian number.
    #[inline]
    fn big_endian(&mut self, field: &'static str, width: usize) -> Result<u64, DecodeError> {
        let start = self.at + 1;
        let Some(digits) = self.bytes.get(start..start + width) else {
            return Err(DecodeError::Truncated { field, at: self.at, expected: "a number" });
        };
        self.at = start + width;
        Ok(digits.iter().fold(0, |value, digit| value << 8 | u64::from(*digit)))
    }

    fn take(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..length).ok_or(DecodeError::Truncated {
            field,
            at: self.at,
            expected: "as many bytes as announced",
        })?;
        self.at += length;
        Ok(taken)
    }

    fn backed_by_bytes(
        &self,
        field: &'static str,
        items: usize,
        bytes_per_item: usize,
    ) -> Result<usize, DecodeError> {
        if items > self.remaining() / bytes_per_item {
            let expected = "as many items as announced";
            return Err(DecodeError::Truncated { field, at: self.at, expected });
        }
        Ok(items)
    }
}
