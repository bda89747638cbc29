//! Whether a stream has said that it is over, for when it breaks: what comes after its last word is nobody's loss.

use crate::dialect::Api;
use memchr::memmem;

/// As many bytes as may be the beginning of a line that ends a stream: a line break, `event: response.incomplete`.
const LONGEST: usize = 28;

/// What is known of a stream's end so far.
#[derive(Debug, Default)]
pub(crate) struct StreamEnd {
    has_come: bool,
    /// What may be the beginning of the last word: it may be cut anywhere.
    tail: Vec<u8>,
}

impl StreamEnd {
    /// Whether it has come.
    pub(crate) const fn has_come(&self) -> bool {
        self.has_come
    }

    /// Looks at the next bytes of a stream whose chunks are events, as engines send completions: one look at its end,
    /// unless somebody in between has cut it or breaks lines otherwise.
    pub(crate) fn look_at_chunk(&mut self, data: &[u8]) {
        let is_whole = data.ends_with(b"\n\n");
        if is_whole && self.tail.is_empty() {
            self.has_come |= data.ends_with(b"data: [DONE]\n\n");
            return;
        }
        let before = data.len().saturating_sub(2 * LONGEST);
        if before > 0 {
            // What is passed over did not end a line, as far as is known.
            self.tail.clear();
            self.tail.push(b' ');
        }
        self.look_at(Api::CHAT, &data[before..]);
        if is_whole {
            self.tail.clear();
        }
    }

    /// Looks at the next bytes of a stream of that interface, which may be cut anywhere.
    pub(crate) fn look_at(&mut self, api: Api, data: &[u8]) {
        let words = api.dialect().end_words();
        if self.tail.is_empty() {
            // A stream begins as a line does.
            self.tail.push(b'\n');
        }
        self.tail.extend_from_slice(data);
        self.has_come |= words.iter().any(|word| is_said(&self.tail, word));
        self.tail.drain(..self.tail.len().saturating_sub(LONGEST));
    }
}

/// Whether a line of a stream begins with that word as its event or its data. An answer's text may have it too, but its
/// line breaks are escaped.
fn is_said(stream: &[u8], word: &[u8]) -> bool {
    memmem::find_iter(stream, word).any(|at| {
        let before = stream[..at].strip_suffix(b" ").unwrap_or(&stream[..at]);
        let line = before.strip_suffix(b"data:").or_else(|| before.strip_suffix(b"event:"));
        line.is_some_and(|before| matches!(before.last(), Some(b'\n' | b'\r')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes(api: Api, stream: &str, size: usize) -> bool {
        let mut ending = StreamEnd::default();
        stream.as_bytes().chunks(size).for_each(|piece| ending.look_at(api, piece));
        ending.has_come()
    }

    #[test]
    fn a_completion_ends_with_its_last_word_however_it_is_cut_and_its_lines_are_broken() {
        let comes = |stream: &str, size: usize| {
            let mut ending = StreamEnd::default();
            stream.as_bytes().chunks(size).for_each(|piece| ending.look_at_chunk(piece));
            ending.has_come()
        };
        let event = format!("data: {{\"text\":\"{}\"}}", "x".repeat(100));
        for line in ["\n", "\r\n"] {
            let stream = format!("{event}{line}{line}data: [DONE]{line}{line}");
            let text = format!("{event}{line}{line}data: {{\"t\":\"data: [DONE]\"}}{line}{line}");
            for size in 1..=stream.len() {
                assert!(comes(&stream, size), "{line:?} in pieces of {size}");
                assert!(!comes(&text, size), "{line:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_stream_ends_with_its_last_word_wherever_that_is_cut_and_not_with_a_text_that_has_it() {
        let ends = [
            (Api::CHAT, "data: {}\n\ndata: [DONE]\n\n"),
            (Api::at("/v1/completions"), "data:{}\r\n\r\ndata:[DONE]\r\n\r\n"),
            (Api::CHAT, "data: [DONE]\n\n"),
            (
                Api::at("/v1/messages"),
                "data: {}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            ),
            (Api::at("/v1/responses"), "data: {}\n\nevent: response.incomplete\ndata: {}\n\n"),
        ];
        let texts = [
            (Api::CHAT, r#"data: {"text":"say [DONE]\ndata: [DONE]"}"#),
            (Api::at("/v1/messages"), r#"data: {"text":"event: message_stop"}"#),
            (Api::at("/v1/responses"), r#"data: {"delta":"\nevent: response.completed\n"}"#),
            (Api::at("/v1/responses"), "data: {}\n\nevent: response.created\ndata: {}\n\n"),
        ];
        for size in 1..60 {
            for (api, stream) in ends {
                assert!(comes(api, stream, size), "{stream} in pieces of {size}");
            }
            for (api, stream) in texts {
                assert!(!comes(api, stream, size), "{stream} in pieces of {size}");
            }
        }
    }
}
