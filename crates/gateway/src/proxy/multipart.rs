//! Streaming parser for `multipart/form-data`.
//!
//! An uploaded file may be larger than memory, so the parser takes the body chunk by chunk and
//! emits the content as it arrives; it buffers at most the headers of a part or a possible
//! boundary. It ignores all headers of a part but `content-disposition`.

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
        let boundary = parameter(rest, "boundary").filter(|boundary| !boundary.is_empty())?;
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
                Some(b"\r\n") => {
                    self.state = MultipartState::Head;
                    Ok(Some(2))
                }
                Some(_) => Err("unexpected bytes after a boundary"),
            },
            MultipartState::Head => {
                let found = find(rest, END_OF_HEAD);
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
                let found = find(rest, &self.delimiter);
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
    for line in head.split("\r\n") {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.trim().eq_ignore_ascii_case("content-disposition") {
            let field = parameter(value, "name").ok_or("a part has no name")?;
            return Ok(MultipartEvent::Part {
                name: field,
                filename: parameter(value, "filename"),
            });
        }
    }
    Err("a part has no content-disposition")
}

/// The value of a parameter of a header, without its quotes.
fn parameter(text: &str, name: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (parameter, more) = rest.split_at(end_of_parameter(rest));
        if let Some((known, value)) = parameter.split_once('=')
            && known.trim().eq_ignore_ascii_case(name)
        {
            return Some(unquote(value.trim()));
        }
        rest = more.strip_prefix(';')?;
    }
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

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == wanted[0]) {
        if bytes[from + at..].starts_with(wanted) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
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
            assert_eq!(parameter(&value, "name").as_deref(), Some("file"), "{quoted}");
            parameter(&value, "filename").unwrap()
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
            assert!(parameter(unterminated, "name").is_some(), "{unterminated}");
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
