//! Scans JSON, and builds values only on request.
//!
//! Strings are skipped from quote to quote, which is many times faster than parsing them. Invalid
//! JSON ends the scan, and so does nesting deeper than any real prompt's.

use std::ops::Range;

use memchr::{memchr, memchr2};
use serde_json::{Map, Value};

const DEEPEST: usize = 32;

/// A place in a text.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'a> {
    text: &'a str,
    at: usize,
}

/// What comes next in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token<'a> {
    /// A list or an object begins.
    Open,
    /// It ends.
    Close,
    /// A string.
    Text(WrittenSpan<'a>),
    /// A number, or a word.
    Scalar(&'a [u8]),
}

/// A string as it is written between its quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WrittenSpan<'a> {
    pub(crate) text: &'a str,
    /// Whether there is any backslash; the scan for the end finds out.
    pub(crate) has_escapes: bool,
}

impl<'a> Walk<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    const fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// The next token; commas and colons are passed over. For a text that was checked.
    pub(crate) fn token(&mut self) -> Option<Token<'a>> {
        while matches!(self.bytes().get(self.at)?, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':') {
            self.at += 1;
        }
        Some(match self.bytes()[self.at] {
            b'[' | b'{' => {
                self.at += 1;
                Token::Open
            }
            b']' | b'}' => {
                self.at += 1;
                Token::Close
            }
            b'"' => Token::Text(self.string()?),
            _ => Token::Scalar(self.scalar()?),
        })
    }

    /// Where in an object the list of that name stands, if it is the first thing of that name and
    /// nothing up to its end is wrong. What comes after it is not looked at.
    pub(super) fn list_of(&mut self, name: &str) -> Option<Range<usize>> {
        self.expect(b'{')?;
        loop {
            let is_wanted = self.name()?.text == name;
            if self.next()? == b'[' && is_wanted {
                let start = self.at;
                self.value(1)?;
                return Some(start..self.at);
            }
            if is_wanted {
                return None;
            }
            self.value(1)?;
            self.expect(b',')?;
        }
    }

    /// Walks from behind one of an object's values to the object's end, if nothing there has that
    /// name, however it is spelled: of several, a parser takes the last.
    pub(super) fn ends_without(&mut self, name: &str) -> Option<()> {
        while self.next()? == b',' {
            self.at += 1;
            if self.name()?.is_spelling_of(name) {
                return None;
            }
            self.value(1)?;
        }
        self.expect(b'}')
    }

    /// The next value. For a text that was checked.
    pub(super) fn tree(&mut self) -> Option<Value> {
        Some(match self.next()? {
            b'"' => Value::String(self.string()?.text()),
            b'[' => {
                let mut list = Vec::new();
                while self.has_member(b']')? {
                    list.push(self.tree()?);
                }
                Value::Array(list)
            }
            b'{' => {
                let mut fields = Map::new();
                while self.has_member(b'}')? {
                    let name = self.string()?.text();
                    self.expect(b':')?;
                    fields.insert(name, self.tree()?);
                }
                Value::Object(fields)
            }
            _ => serde_json::from_slice(self.scalar()?).ok()?,
        })
    }

    /// Steps to the next member of a list or an object, from its beginning or from behind the
    /// member before, or out of it. For a text that was checked.
    pub(crate) fn has_member(&mut self, close: u8) -> Option<bool> {
        let is_over = self.next()? == close;
        self.at += 1;
        // An empty one is over behind its first byte.
        if !is_over && self.next()? == close {
            self.at += 1;
            return Some(false);
        }
        Some(!is_over)
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        match self.next()? {
            b'"' => self.string().filter(WrittenSpan::is_text).map(|_| ()),
            open @ (b'[' | b'{') if depth < DEEPEST => self.members(open, depth),
            b'[' | b'{' => None,
            _ => {
                let scalar = self.scalar()?;
                let is_word = matches!(scalar, b"true" | b"false" | b"null");
                (is_word || is_held(scalar)).then_some(())
            }
        }
    }

    fn members(&mut self, open: u8, depth: usize) -> Option<()> {
        let close = if open == b'[' { b']' } else { b'}' };
        self.at += 1;
        if self.next()? == close {
            self.at += 1;
            return Some(());
        }
        loop {
            if open == b'{' {
                self.name()?;
            }
            self.value(depth + 1)?;
            match self.next()? {
                b',' => self.at += 1,
                byte if byte == close => {
                    self.at += 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    /// A name and the colon after it.
    fn name(&mut self) -> Option<WrittenSpan<'a>> {
        if self.next()? != b'"' {
            return None;
        }
        let name = self.string().filter(WrittenSpan::is_text)?;
        self.expect(b':')?;
        Some(name)
    }

    pub(crate) fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then(|| self.at += 1)
    }

    /// The next byte that is no blank.
    pub(crate) fn next(&mut self) -> Option<u8> {
        while matches!(self.bytes().get(self.at)?, b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        Some(self.bytes()[self.at])
    }

    /// What stands between two quotes.
    pub(crate) fn string(&mut self) -> Option<WrittenSpan<'a>> {
        let start = self.at + 1;
        let mut at = start;
        let mut has_escapes = false;
        loop {
            at += memchr2(b'"', b'\\', self.bytes().get(at..)?)?;
            if self.bytes()[at] == b'"' {
                self.at = at + 1;
                return Some(WrittenSpan { text: self.text.get(start..at)?, has_escapes });
            }
            has_escapes = true;
            at += 2;
        }
    }

    /// What stands until something that a number or a word cannot have.
    fn scalar(&mut self) -> Option<&'a [u8]> {
        let rest = &self.bytes()[self.at..];
        let is_part =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let length = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        self.at += length;
        (length > 0).then_some(&rest[..length])
    }
}

impl WrittenSpan<'_> {
    /// Gives the string's text to `push`, piece by piece, without its escapes. For one that was
    /// checked.
    pub(crate) fn unescaped(self, mut push: impl FnMut(&str)) {
        let mut rest = self.text;
        while self.has_escapes
            && let Some(at) = memchr(b'\\', rest.as_bytes())
        {
            push(&rest[..at]);
            let Some((character, length)) = escaped(&rest.as_bytes()[at..]) else { return };
            push(character.encode_utf8(&mut [0; 4]));
            rest = &rest[at + length..];
        }
        push(rest);
    }

    /// The string's text. For one that was checked.
    pub(crate) fn text(self) -> String {
        let mut text = String::with_capacity(self.text.len());
        self.unescaped(|piece| text.push_str(piece));
        text
    }

    /// Whether it is `text` without its escapes. For one that was checked.
    fn is_spelling_of(self, text: &str) -> bool {
        let mut rest = Some(text);
        self.unescaped(|piece| rest = rest.and_then(|rest| rest.strip_prefix(piece)));
        rest.is_some_and(str::is_empty)
    }

    /// Whether it is as it must be between quotes.
    fn is_text(&self) -> bool {
        // Without a way out, so that it is done many bytes at a time.
        if self.text.bytes().fold(false, |found, byte| found | (byte < 0x20)) {
            return false;
        }
        let mut rest = self.text.as_bytes();
        while self.has_escapes
            && let Some(at) = memchr(b'\\', rest)
        {
            let Some((_, length)) = escaped(&rest[at..]) else { return false };
            rest = &rest[at + length..];
        }
        true
    }
}

/// Whether it is a number that a [`Value`] holds as engines read it: an integer of 64 bits, or a
/// float.
fn is_held(scalar: &[u8]) -> bool {
    let is_float = || scalar.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
    let number = serde_json::from_slice::<serde_json::Number>(scalar);
    number.is_ok_and(|number| !number.is_f64() || is_float())
}

/// The character that an escape at the beginning stands for, and how long that is.
fn escaped(written: &[u8]) -> Option<(char, usize)> {
    let plain = |character| Some((character, 2));
    match written.get(1)? {
        b'"' => plain('"'),
        b'\\' => plain('\\'),
        b'/' => plain('/'),
        b'b' => plain('\u{8}'),
        b'f' => plain('\u{c}'),
        b'n' => plain('\n'),
        b'r' => plain('\r'),
        b't' => plain('\t'),
        b'u' => {
            let first = unit(written)?;
            if let Some(character) = char::from_u32(u32::from(first)) {
                return Some((character, 6));
            }
            let both = [first, unit(&written[6..])?];
            let character = char::decode_utf16(both).next()?.ok()?;
            Some((character, 12))
        }
        _ => None,
    }
}

/// The number of `\u` and four digits at the beginning.
fn unit(written: &[u8]) -> Option<u16> {
    let digits = written.strip_prefix(b"\\u")?.get(..4)?;
    let is_number = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    u16::from_str_radix(digits, 16).ok()
}
