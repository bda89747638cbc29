//! Streaming parser for `multipart/form-data`.
//!
//! An uploaded file may be larger than memory, so the parser takes the body chunk by chunk and
//! emits the content as it arrives; it buffers at most the headers of a part or a possible
//! boundary. It ignores all headers of a part but `content-disposition`.
//!
//! The field that the router reads must be the one that the engine reads. So what parsers read
//! differently is refused: a second `content-disposition`, a parameter that is there twice, and a
//! name in pieces or with a charset. `multer` was rejected for that: it takes `name` from inside a
//! quoted file name, has no `filename*`, and buffers headers and whatever has arrived without a
//! limit.

use memchr::memmem;
use percent_encoding::percent_decode_str;

/// The most bytes of a part's headers.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// The chunk size when a form in memory is searched for a field: a file in it is not copied whole.
const FIELD_CHUNK_BYTES: usize = 64 << 10;
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// What the parser emits, in the order of the body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MultipartEvent {
    /// A part begins.
    Part {
        /// The name of the form field.
        name: String,
        /// The file name, if the part is a file.
        filename: Option<String>,
    },
    /// The next bytes of the part's content.
    Data(Vec<u8>),
    /// The part is complete.
    PartEnd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MultipartState {
    /// Before the first boundary.
    Preamble,
    /// Right after a boundary.
    AfterBoundary,
    /// In the blanks that may follow a boundary (RFC 2046).
    Padding,
    Head,
    Content,
    End,
}

/// The parser of one form.
#[derive(Debug)]
pub struct Multipart {
    delimiter: Vec<u8>,
    pending: Vec<u8>,
    state: MultipartState,
}

impl Multipart {
    /// A parser for a `content-type`; none if it is not a form or has no boundary.
    pub fn of(content_type: &str) -> Option<Self> {
        let (kind, rest) = content_type.split_once(';')?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = parameter(rest, "boundary").ok()?.filter(|it| !it.is_empty())?;
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // The line break makes the first boundary look like the others.
        Some(Self { delimiter, pending: b"\r\n".to_vec(), state: MultipartState::Preamble })
    }

    /// Whether the closing boundary has been parsed.
    pub fn is_over(&self) -> bool {
        self.state == MultipartState::End
    }

    /// Parses the next bytes and appends the events in them.
    ///
    /// # Errors
    /// If the form is malformed; the error says how.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<MultipartEvent>,
    ) -> Result<(), &'static str> {
        self.pending.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(used) = self.step(at, events)? {
            at += used;
        }
        self.pending.drain(..at);
        Ok(())
    }

    /// The value of a field in a complete form; none if the field is missing or a file, or if the
    /// form is malformed before it.
    pub fn field(mut self, body: &[u8], field: &str) -> Option<String> {
        let mut found = None::<Vec<u8>>;
        let mut events = Vec::new();
        for chunk in body.chunks(FIELD_CHUNK_BYTES) {
            self.feed(chunk, &mut events).ok()?;
            for event in events.drain(..) {
                match (event, &mut found) {
                    (MultipartEvent::Part { name, filename: None }, _) if name == field => {
                        found = Some(Vec::new());
                    }
                    (MultipartEvent::Data(data), Some(content)) => content.extend(data),
                    (MultipartEvent::PartEnd, Some(_)) => return String::from_utf8(found?).ok(),
                    _ => {}
                }
            }
        }
        None
    }

    /// Parses one element at `at` and returns its length; none if more bytes are needed.
    fn step(
        &mut self,
        at: usize,
        events: &mut Vec<MultipartEvent>,
    ) -> Result<Option<usize>, &'static str> {
        let rest = &self.pending[at..];
        match self.state {
            MultipartState::End => Ok((!rest.is_empty()).then_some(rest.len())),
            MultipartState::AfterBoundary => match rest.get(..2) {
                None => Ok(None),
                Some(b"--") => {
                    self.state = MultipartState::End;
                    Ok(Some(2))
                }
                Some(_) => {
                    self.state = MultipartState::Padding;
                    Ok(Some(0))
                }
            },
            MultipartState::Padding => match rest {
                [b' ' | b'\t', ..] => Ok(Some(1)),
                [b'\r', b'\n', ..] => {
                    self.state = MultipartState::Head;
                    Ok(Some(2))
                }
                [] | [b'\r'] => Ok(None),
                _ => Err("unexpected bytes after a boundary"),
            },
            MultipartState::Head => {
                let found = memmem::find(rest, END_OF_HEAD);
                // The result must not depend on chunk sizes: wait while the end may still be in
                // time.
                if found.unwrap_or((rest.len() + 1).saturating_sub(END_OF_HEAD.len()))
                    > MAX_HEAD_BYTES
                {
                    return Err("the headers of a part are too long");
                }
                let Some(length) = found else { return Ok(None) };
                events.push(part(&rest[..length])?);
                self.state = MultipartState::Content;
                Ok(Some(length + END_OF_HEAD.len()))
            }
            MultipartState::Preamble | MultipartState::Content => {
                let found = memmem::find(rest, &self.delimiter);
                // The last bytes may be the beginning of a boundary: keep them for the next chunk.
                let length =
                    found.unwrap_or_else(|| rest.len().saturating_sub(self.delimiter.len()));
                if self.state == MultipartState::Content {
                    if length > 0 {
                        events.push(MultipartEvent::Data(rest[..length].to_vec()));
                    }
                    if found.is_some() {
                        events.push(MultipartEvent::PartEnd);
                    }
                }
                if found.is_some() {
                    self.state = MultipartState::AfterBoundary;
                    return Ok(Some(length + self.delimiter.len()));
                }
                Ok((length > 0).then_some(length))
            }
        }
    }
}

fn part(head: &[u8]) -> Result<MultipartEvent, &'static str> {
    let head = std::str::from_utf8(head).map_err(|_| "the headers of a part are not UTF-8")?;
    let mut disposition = None;
    for line in head.split("\r\n") {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.trim().eq_ignore_ascii_case("content-disposition")
            && disposition.replace(value).is_some()
        {
            return Err("a part has two content-dispositions");
        }
    }
    let disposition = disposition.ok_or("a part has no content-disposition")?;
    let name = parameter(disposition, "name")?.ok_or("a part has no name")?;
    Ok(MultipartEvent::Part { name, filename: filename(disposition)? })
}

/// A parameter of a header.
struct Parameter<'a> {
    name: String,
    value: &'a str,
}

/// The parameters of a header, with names in lower case.
fn parameters(text: &str) -> impl Iterator<Item = Parameter<'_>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (parameter, more) = text.split_at(end_of_parameter(text));
        rest = more.strip_prefix(';');
        Some(parameter)
    })
    .filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        Some(Parameter { name: name.trim().to_ascii_lowercase(), value: value.trim() })
    })
}

/// The value of a parameter, without its quotes. Parsers disagree about one that is there twice, is
/// in pieces (`name*0`) or has a charset (`name*`), so those are errors.
fn parameter(text: &str, name: &str) -> Result<Option<String>, &'static str> {
    let mut found = None;
    for parameter in parameters(text) {
        let Some(rest) = parameter.name.strip_prefix(name) else { continue };
        if rest.starts_with('*') {
            return Err("a parameter of a header is in pieces or has a charset");
        }
        if rest.is_empty() && found.replace(unquote(parameter.value)).is_some() {
            return Err("a header has a parameter twice");
        }
    }
    Ok(found)
}

/// The file name of a part: `filename*`, or else `filename`.
fn filename(text: &str) -> Result<Option<String>, &'static str> {
    let mut plain = None;
    let mut extended = None;
    for parameter in parameters(text) {
        let before = match parameter.name.as_str() {
            "filename" => plain.replace(unquote(parameter.value)),
            "filename*" => extended.replace(extended_value(parameter.value)?),
            name if name.starts_with("filename*") => return Err("a file name is in pieces"),
            _ => None,
        };
        if before.is_some() {
            return Err("a part has two file names");
        }
    }
    Ok(extended.or(plain))
}

/// A value with its charset and language: `UTF-8''na%C3%AFve.txt` (RFC 8187).
fn extended_value(value: &str) -> Result<String, &'static str> {
    let value = unquote(value);
    let mut parts = value.splitn(3, '\'');
    let (Some(charset), Some(_language), Some(text)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err("`filename*` is not like `UTF-8''name`");
    };
    if !charset.eq_ignore_ascii_case("utf-8") {
        return Err("`filename*` is not in UTF-8");
    }
    let decoded = percent_decode_str(text).decode_utf8();
    Ok(decoded.map_err(|_| "`filename*` is not in UTF-8")?.into_owned())
}

/// The position of the first semicolon outside quotes, or the end.
fn end_of_parameter(text: &str) -> usize {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let is_end = |byte: u8| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b';' => return !is_quoted,
            _ => {}
        }
        false
    };
    text.bytes().position(is_end).unwrap_or(text.len())
}

/// The value without its quotes, if it has any. A backslash escapes a quote or another backslash;
/// before any other character it is literal, because some clients send Windows paths.
fn unquote(value: &str) -> String {
    let Some(inside) = value.strip_prefix('"') else { return value.to_owned() };
    let mut plain = String::new();
    let mut rest = inside.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '"' => break,
            '\\' => plain.push(rest.next_if(|after| matches!(after, '"' | '\\')).unwrap_or(next)),
            _ => plain.push(next),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "ignored\r\n--b0\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b0\r\ncontent-type: application/jsonl\r\ncontent-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{\"a\":1}\r\n--b\r\n{}\n\r\n--b0--\r\nmore";

    #[derive(PartialEq, Debug)]
    struct Part {
        name: String,
        filename: Option<String>,
        content: String,
    }

    /// The parts of `BODY`, fed in two chunks.
    fn parse_split(at: usize) -> Vec<Part> {
        let mut parser = Multipart::of("Multipart/Form-Data; boundary=\"b0\"").unwrap();
        let mut events = Vec::new();
        parser.feed(&BODY.as_bytes()[..at], &mut events).unwrap();
        parser.feed(&BODY.as_bytes()[at..], &mut events).unwrap();
        assert!(parser.is_over());
        let mut parts: Vec<Part> = Vec::new();
        for event in events {
            match event {
                MultipartEvent::Part { name, filename } => {
                    parts.push(Part { name, filename, content: String::new() });
                }
                MultipartEvent::Data(data) => {
                    let content = &mut parts.last_mut().unwrap().content;
                    content.push_str(std::str::from_utf8(&data).unwrap());
                }
                MultipartEvent::PartEnd => {}
            }
        }
        parts
    }

    #[test]
    fn a_field_is_found_unless_it_is_a_file() {
        let field = |name| {
            Multipart::of("multipart/form-data; boundary=b0").unwrap().field(BODY.as_bytes(), name)
        };
        assert_eq!(field("purpose").as_deref(), Some("batch"));
        assert_eq!(field("file"), None);
        assert_eq!(field("model"), None);
    }

    #[test]
    fn parts_are_the_same_wherever_the_body_is_split() {
        let purpose =
            Part { name: "purpose".to_owned(), filename: None, content: "batch".to_owned() };
        let file = Part {
            name: "file".to_owned(),
            filename: Some("in.jsonl".to_owned()),
            content: "{\"a\":1}\r\n--b\r\n{}\n".to_owned(),
        };
        let expected = [purpose, file];
        for at in 0..BODY.len() {
            assert_eq!(parse_split(at), expected, "split at {at}");
        }
    }

    #[test]
    fn a_quoted_name_may_contain_any_character() {
        let filename = |quoted: &str| {
            let value = format!("form-data; filename={quoted}; name=\"file\"");
            assert_eq!(parameter(&value, "name").unwrap().as_deref(), Some("file"), "{quoted}");
            super::filename(&value).unwrap().unwrap()
        };
        for (quoted, name) in [
            (r#""a;b=c.jsonl""#, "a;b=c.jsonl"),
            (r#""; name=other""#, "; name=other"),
            (r#""say \"hi\"; \\""#, r#"say "hi"; \"#),
            (r#""C:\dir\in.jsonl""#, r"C:\dir\in.jsonl"),
            ("\"ü;ö\"", "ü;ö"),
            ("plain.jsonl", "plain.jsonl"),
            ("\"\"", ""),
        ] {
            assert_eq!(filename(quoted), name);
        }
        for unterminated in ["name=\"a;b", "name=\"a\\", "name=\"", "name=\"a\\\""] {
            assert!(parameter(unterminated, "name").unwrap().is_some(), "{unterminated}");
        }
    }

    #[test]
    fn a_file_name_with_a_charset_is_decoded_and_makes_the_part_a_file() {
        for (value, name) in [
            ("filename*=UTF-8''na%C3%AFve%20%22x%22.jsonl", "naïve \"x\".jsonl"),
            ("filename*=utf-8'en'a.jsonl; filename=\"b.jsonl\"", "a.jsonl"),
            ("filename=\"b.jsonl\"; FileName*=\"UTF-8''a.jsonl\"", "a.jsonl"),
        ] {
            let head = format!("content-disposition: form-data; name=\"file\"; {value}");
            let filename = Some(name.to_owned());
            assert_eq!(
                part(head.as_bytes()),
                Ok(MultipartEvent::Part { name: "file".to_owned(), filename })
            );
        }
    }

    #[test]
    fn what_an_engine_could_read_differently_is_refused() {
        for disposition in [
            "name=\"a\"; name=\"b\"",
            "name*=UTF-8''a",
            "name*0=\"a\"; name*1=\"b\"",
            "name=\"a\"; filename=\"b\"; filename=\"c\"",
            "name=\"a\"; filename*0=\"b\"",
            "name=\"a\"; filename*=latin-1''b",
            "name=\"a\"; filename*=b",
            "name=\"a\"; filename*=UTF-8''%FF",
            "name=\"a\"\r\ncontent-disposition: form-data; name=\"b\"",
        ] {
            let head = format!("content-disposition: form-data; {disposition}");
            assert!(part(head.as_bytes()).is_err(), "{disposition}");
        }
        assert!(Multipart::of("multipart/form-data; boundary=a; boundary=b").is_none());
        assert!(Multipart::of("multipart/form-data; boundary*=UTF-8''b").is_none());
    }

    #[test]
    fn blanks_may_follow_a_boundary_and_nothing_else() {
        let value = |boundary: &str| {
            let body = format!(
                "--b{boundary}\r\ncontent-disposition: form-data; name=f\r\n\r\nx\r\n--b--"
            );
            for chunk in 1..body.len() {
                let mut parser = Multipart::of("multipart/form-data; boundary=b").unwrap();
                let mut events = Vec::new();
                for chunk in body.as_bytes().chunks(chunk) {
                    parser.feed(chunk, &mut events).ok()?;
                }
                assert!(parser.is_over());
                assert_eq!(events.len(), 3, "{events:?}");
            }
            Multipart::of("multipart/form-data; boundary=b")?.field(body.as_bytes(), "f")
        };
        for padding in ["", " ", "\t", " \t  "] {
            assert_eq!(value(padding).as_deref(), Some("x"), "{padding:?}");
        }
        for other in ["x", " x", "\r", "\n", " --"] {
            assert_eq!(value(other), None, "{other:?}");
        }
    }

    #[test]
    fn too_long_headers_of_a_part_are_refused_for_any_chunking() {
        let head = format!("x: {}", "y".repeat(MAX_HEAD_BYTES - 2));
        let long = format!("--b\r\n{head}\r\n\r\n");
        for chunks in [vec![long.as_str()], long.split_inclusive('\n').collect()] {
            let mut parser = Multipart::of("multipart/form-data; boundary=b").unwrap();
            let mut result = Ok(());
            for chunk in chunks {
                result = result.and_then(|()| parser.feed(chunk.as_bytes(), &mut Vec::new()));
            }
            assert_eq!(result, Err("the headers of a part are too long"));
        }
    }

    #[test]
    fn a_malformed_form_is_refused() {
        assert!(Multipart::of("application/json").is_none());
        assert!(Multipart::of("multipart/form-data; boundary=").is_none());
        let parse = |body: &str| {
            let mut parser = Multipart::of("multipart/form-data; boundary=b").unwrap();
            parser.feed(body.as_bytes(), &mut Vec::new())
        };
        assert!(parse("--bxy").is_err());
        assert!(parse("--b\r\nx: y\r\n\r\n").is_err());
        assert!(parse(&format!("--b\r\n{}", "x".repeat(9_000))).is_err());
        assert!(parse("--b\r\ncontent-disposition: form-data\r\n\r\n").is_err());
    }
}
