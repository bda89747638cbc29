//! `multipart/form-data`, read as it comes: a file of any size goes through without being held.

/// The most bytes of a part's head.
const MOST_HEAD: usize = 8 << 10;
/// How much of a form is looked at at once for a field: a file in it need not be held twice.
const FIELD_PIECE: usize = 64 << 10;
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// What is found, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MultipartEvent {
    /// A part begins.
    Part {
        /// The field.
        name: String,
        /// What the client calls the file, if it is one.
        filename: Option<String>,
    },
    /// Some of its content.
    Data(Vec<u8>),
    /// It has ended.
    PartEnd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MultipartState {
    /// Before the first boundary.
    Preamble,
    /// Right behind a boundary.
    Behind,
    Head,
    Content,
    End,
}

/// Reads parts.
#[derive(Debug)]
pub struct Multipart {
    delimiter: Vec<u8>,
    pending: Vec<u8>,
    state: MultipartState,
}

impl Multipart {
    /// For a `content-type`; none if it is another kind or has no boundary.
    pub fn of(content_type: &str) -> Option<Self> {
        let (kind, rest) = content_type.split_once(';')?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = parameter(rest, "boundary").filter(|boundary| !boundary.is_empty())?;
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // So that the first boundary looks like the others.
        Some(Self { delimiter, pending: b"\r\n".to_vec(), state: MultipartState::Preamble })
    }

    /// Whether the last part has ended.
    pub fn is_over(&self) -> bool {
        self.state == MultipartState::End
    }

    /// The next bytes, and what is found in them.
    ///
    /// # Errors
    /// What is wrong with them.
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

    /// What a form that is there as a whole has in a field that is no file; nothing if it is broken before that.
    pub fn field(mut self, body: &[u8], field: &str) -> Option<String> {
        let (mut found, mut events) = (None::<Vec<u8>>, Vec::new());
        for piece in body.chunks(FIELD_PIECE) {
            self.feed(piece, &mut events).ok()?;
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

    /// Takes one thing from `at` on and says how long it was; none if more bytes are needed.
    fn step(
        &mut self,
        at: usize,
        events: &mut Vec<MultipartEvent>,
    ) -> Result<Option<usize>, &'static str> {
        let rest = &self.pending[at..];
        match self.state {
            MultipartState::End => Ok((!rest.is_empty()).then_some(rest.len())),
            MultipartState::Behind => match rest.get(..2) {
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
                // The same wherever the body was cut: as long as its end may still come in time, it is waited for.
                if found.unwrap_or((rest.len() + 1).saturating_sub(END_OF_HEAD.len())) > MOST_HEAD {
                    return Err("the headers of a part are too long");
                }
                let Some(length) = found else { return Ok(None) };
                events.push(part(&rest[..length])?);
                self.state = MultipartState::Content;
                Ok(Some(length + END_OF_HEAD.len()))
            }
            MultipartState::Preamble | MultipartState::Content => {
                let found = find(rest, &self.delimiter);
                // What may be the beginning of a boundary waits for the rest of it.
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
                    self.state = MultipartState::Behind;
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

/// The value of a parameter, with or without quotes.
fn parameter(text: &str, name: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (parameter, more) = rest.split_at(end_of_parameter(rest));
        if let Some((known, value)) = parameter.split_once('=')
            && known.trim().eq_ignore_ascii_case(name)
        {
            return Some(unquoted(value.trim()));
        }
        rest = more.strip_prefix(';')?;
    }
}

/// Where the first semicolon is that stands in no quotes, or the end.
fn end_of_parameter(text: &str) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
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

/// Without its quotes, if it has any. A backslash stands before a quote or another backslash; before anything else it is
/// itself, because some clients send whole paths.
fn unquoted(value: &str) -> String {
    let Some(inside) = value.strip_prefix('"') else { return value.to_owned() };
    let (mut plain, mut rest) = (String::new(), inside.chars().peekable());
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

    fn read(cut: usize) -> Vec<(String, Option<String>, String)> {
        let mut parser = Multipart::of("Multipart/Form-Data; boundary=\"b0\"").unwrap();
        let mut events = Vec::new();
        parser.feed(&BODY.as_bytes()[..cut], &mut events).unwrap();
        parser.feed(&BODY.as_bytes()[cut..], &mut events).unwrap();
        assert!(parser.is_over());
        let mut parts: Vec<(String, Option<String>, String)> = Vec::new();
        for event in events {
            match event {
                MultipartEvent::Part { name, filename } => {
                    parts.push((name, filename, String::new()))
                }
                MultipartEvent::Data(data) => {
                    parts.last_mut().unwrap().2.push_str(std::str::from_utf8(&data).unwrap());
                }
                MultipartEvent::PartEnd => {}
            }
        }
        parts
    }

    #[test]
    fn a_field_is_found_that_is_no_file() {
        let field = |name| {
            Multipart::of("multipart/form-data; boundary=b0").unwrap().field(BODY.as_bytes(), name)
        };
        assert_eq!(field("purpose").as_deref(), Some("batch"));
        assert_eq!(field("file"), None);
        assert_eq!(field("model"), None);
    }

    #[test]
    fn parts_are_the_same_wherever_the_body_is_cut() {
        let whole = vec![
            ("purpose".to_owned(), None, "batch".to_owned()),
            ("file".to_owned(), Some("in.jsonl".to_owned()), "{\"a\":1}\r\n--b\r\n{}\n".to_owned()),
        ];
        for cut in 0..BODY.len() {
            assert_eq!(read(cut), whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_quoted_name_may_have_anything_in_it() {
        let named = |written: &str| {
            let value = format!("form-data; filename={written}; name=\"file\"");
            assert_eq!(parameter(&value, "name").as_deref(), Some("file"), "{written}");
            parameter(&value, "filename").unwrap()
        };
        for (written, name) in [
            (r#""a;b=c.jsonl""#, "a;b=c.jsonl"),
            (r#""; name=other""#, "; name=other"),
            (r#""say \"hi\"; \\""#, r#"say "hi"; \"#),
            (r#""C:\dir\in.jsonl""#, r"C:\dir\in.jsonl"),
            ("\"ü;ö\"", "ü;ö"),
            ("plain.jsonl", "plain.jsonl"),
            ("\"\"", ""),
        ] {
            assert_eq!(named(written), name);
        }
        for unended in ["name=\"a;b", "name=\"a\\", "name=\"", "name=\"a\\\""] {
            assert!(parameter(unended, "name").is_some(), "{unended}");
        }
    }

    #[test]
    fn too_long_a_head_is_refused_however_it_comes() {
        let head = format!("x: {}", "y".repeat(MOST_HEAD - 2));
        let long = format!("--b\r\n{head}\r\n\r\n");
        for pieces in [vec![long.as_str()], long.split_inclusive('\n').collect()] {
            let mut parser = Multipart::of("multipart/form-data; boundary=b").unwrap();
            let mut result = Ok(());
            for piece in pieces {
                result = result.and_then(|()| parser.feed(piece.as_bytes(), &mut Vec::new()));
            }
            assert_eq!(result, Err("the headers of a part are too long"));
        }
    }

    #[test]
    fn what_is_no_form_is_refused() {
        assert!(Multipart::of("application/json").is_none());
        assert!(Multipart::of("multipart/form-data; boundary=").is_none());
        let wrong = |body: &str| {
            let mut parser = Multipart::of("multipart/form-data; boundary=b").unwrap();
            parser.feed(body.as_bytes(), &mut Vec::new())
        };
        assert!(wrong("--bxy").is_err());
        assert!(wrong("--b\r\nx: y\r\n\r\n").is_err());
        assert!(wrong(&format!("--b\r\n{}", "x".repeat(9_000))).is_err());
        assert!(wrong("--b\r\ncontent-disposition: form-data\r\n\r\n").is_err());
    }
}
