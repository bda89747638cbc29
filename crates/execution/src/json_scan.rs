//! Scans the bytes of JSON without building a tree.
//!
//! A tree has lost positions, spacing and repeated names, and a body must reach the engine as the
//! client wrote it. So the scanner jumps over the bytes themselves. Editing a body and checking it
//! for isolated tenants use this one scanner, so that both see the same members.
//!
//! Limit: it trusts that the bytes are JSON, which the caller has checked. Of other bytes it may
//! find anything, but it ends, and never reads beyond them.

use memchr::memchr2;
use std::borrow::Cow;
use std::ops::Range;

/// Bytes that are not a JSON object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("body is not a JSON object (at byte {at}); fields can only be set in an object")]
pub struct NotAnObject {
    /// The offset of the first byte that does not fit.
    pub at: usize,
}

/// The name of a member, as it is written.
#[derive(Clone, Copy, Debug)]
pub struct MemberName<'a> {
    /// The offset of its opening quote.
    pub at: usize,
    /// Quotes and escapes included.
    written: &'a [u8],
}

impl<'a> MemberName<'a> {
    /// Whether it is `field`, however it is escaped.
    #[must_use]
    pub fn is(&self, field: &str) -> bool {
        if self.written.contains(&b'\\') {
            return self.decoded().is_ok_and(|name| name == field);
        }
        self.written.len() == field.len() + 2 && &self.written[1..=field.len()] == field.as_bytes()
    }

    /// The name without quotes and escapes.
    ///
    /// # Errors
    /// If it is not text.
    pub fn decoded(&self) -> Result<Cow<'a, str>, NotAnObject> {
        let wrong = NotAnObject { at: self.at };
        if self.written.contains(&b'\\') {
            return serde_json::from_slice(self.written).map(Cow::Owned).map_err(|_| wrong);
        }
        let name = std::str::from_utf8(&self.written[1..self.written.len() - 1]);
        name.map(Cow::Borrowed).map_err(|_| wrong)
    }
}

/// A position in the bytes of JSON.
#[derive(Clone, Copy, Debug)]
pub struct JsonScan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> JsonScan<'a> {
    /// At the start of `within`; nothing beyond its end is read.
    ///
    /// # Panics
    /// If `within` ends beyond the bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8], within: Range<usize>) -> Self {
        Self { bytes: &bytes[..within.end], at: within.start }
    }

    /// Visits every member of the object here, repeated names included; `visit` moves past the
    /// value. Returns the offset of the closing brace, and stays behind it.
    ///
    /// # Errors
    /// If the bytes are not an object, or `visit` fails.
    pub fn object(
        &mut self,
        mut visit: impl FnMut(&mut Self, MemberName<'a>) -> Result<(), NotAnObject>,
    ) -> Result<usize, NotAnObject> {
        self.blanks();
        self.expect(b'{')?;
        loop {
            self.blanks();
            match self.peek()? {
                b'}' => {
                    self.at += 1;
                    return Ok(self.at - 1);
                }
                b',' => self.at += 1,
                _ => {
                    let at = self.at;
                    self.string()?;
                    let written = &self.bytes[at..self.at];
                    self.blanks();
                    self.expect(b':')?;
                    self.blanks();
                    visit(self, MemberName { at, written })?;
                }
            }
        }
    }

    /// Visits every item of the array here; `visit` moves past the item.
    ///
    /// # Errors
    /// If the bytes are not an array, or `visit` fails.
    pub fn array(
        &mut self,
        mut visit: impl FnMut(&mut Self) -> Result<(), NotAnObject>,
    ) -> Result<(), NotAnObject> {
        self.expect(b'[')?;
        loop {
            self.blanks();
            match self.peek()? {
                b']' => {
                    self.at += 1;
                    return Ok(());
                }
                b',' => self.at += 1,
                _ => visit(self)?,
            }
        }
    }

    /// Moves past the value here and returns its position.
    ///
    /// # Errors
    /// If there is none.
    pub fn skip(&mut self) -> Result<Range<usize>, NotAnObject> {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1).ok_or_else(|| self.wrong())?;
                    self.at += 1;
                }
                _ if depth > 0 => self.at += 1,
                _ => {
                    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                    let rest = &self.bytes[self.at..];
                    let length = rest.iter().take_while(|byte| plain(byte)).count();
                    if length == 0 {
                        return Err(self.wrong());
                    }
                    self.at += length;
                }
            }
            if depth == 0 {
                return Ok(start..self.at);
            }
        }
    }

    /// Moves past blanks and returns the byte there.
    ///
    /// # Errors
    /// If the bytes end.
    pub fn next_byte(&mut self) -> Result<u8, NotAnObject> {
        self.blanks();
        self.peek()
    }

    /// The error of the current position.
    #[must_use]
    pub const fn wrong(&self) -> NotAnObject {
        NotAnObject { at: self.at }
    }

    fn string(&mut self) -> Result<(), NotAnObject> {
        self.expect(b'"')?;
        loop {
            let rest = self.bytes.get(self.at..).ok_or_else(|| self.wrong())?;
            let at = memchr2(b'"', b'\\', rest).ok_or_else(|| self.wrong())?;
            self.at += at + 1;
            if rest[at] == b'"' {
                return Ok(());
            }
            // The escaped byte.
            self.at += 1;
        }
    }

    fn blanks(&mut self) {
        while self.bytes.get(self.at).is_some_and(|byte| b" \t\r\n".contains(byte)) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), NotAnObject> {
        if self.peek()? != byte {
            return Err(self.wrong());
        }
        self.at += 1;
        Ok(())
    }

    fn peek(&self) -> Result<u8, NotAnObject> {
        self.bytes.get(self.at).copied().ok_or_else(|| self.wrong())
    }
}
