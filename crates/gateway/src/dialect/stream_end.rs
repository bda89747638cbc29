//! The end of a stream: its marker, such as `data: [DONE]`, and the error event of a broken one.
//!
//! An engine's connection may break after the last event, and then the client has lost nothing. So
//! the relay looks for the end marker in the bytes that pass. The bytes are not parsed: the marker
//! counts where a line begins with it, and text in an answer has its line breaks escaped.

use crate::dialect::Api;
use memchr::memmem;
use wornpath_execution::CallError;

/// At least the length of the longest line that ends a stream, with the line break before it:
/// `\nevent: response.incomplete`.
const LONGEST: usize = 28;

/// Whether the end marker of a stream has passed.
#[derive(Debug, Default)]
pub(crate) struct StreamEnd {
    has_come: bool,
    /// The last bytes, which may be the beginning of the end marker: chunks may split it anywhere.
    tail: Vec<u8>,
}

impl StreamEnd {
    /// Whether the end marker has passed.
    pub(crate) const fn has_come(&self) -> bool {
        self.has_come
    }

    /// Looks at the next chunk of a stream whose chunks are whole events, as engines send
    /// completions: one comparison, unless a proxy in between has split the events or uses other
    /// line breaks.
    pub(crate) fn look_at_chunk(&mut self, data: &[u8]) {
        let is_whole = data.ends_with(b"\n\n");
        if is_whole && self.tail.is_empty() {
            self.has_come |= data.ends_with(b"data: [DONE]\n\n");
            return;
        }
        let before = data.len().saturating_sub(2 * LONGEST);
        if before > 0 {
            // The skipped bytes are assumed not to end a line.
            self.tail.clear();
            self.tail.push(b' ');
        }
        self.look_at(Api::CHAT, &data[before..]);
        if is_whole {
            self.tail.clear();
        }
    }

    /// Looks at the next bytes of a stream of that API, which may be split anywhere.
    pub(crate) fn look_at(&mut self, api: Api, data: &[u8]) {
        let words = api.dialect().end_words();
        if self.tail.is_empty() {
            // A stream begins with a new line.
            self.tail.push(b'\n');
        }
        self.tail.extend_from_slice(data);
        self.has_come |= words.iter().any(|word| has_line(&self.tail, word));
        self.tail.drain(..self.tail.len().saturating_sub(LONGEST));
    }
}

/// Whether a line of a stream has that word as its event or at the start of its data. The text of
/// an answer may contain the word too, but its line breaks are escaped.
fn has_line(stream: &[u8], word: &[u8]) -> bool {
    memmem::find_iter(stream, word).any(|at| {
        let before = stream[..at].strip_suffix(b" ").unwrap_or(&stream[..at]);
        let line = before.strip_suffix(b"data:").or_else(|| before.strip_suffix(b"event:"));
        line.is_some_and(|before| matches!(before.last(), Some(b'\n' | b'\r')))
    })
}

const LOST: &str = "upstream_lost";
const NUMBER: &[u8] = b"\"sequence_number\":";

/// The error event, which says why the stream was not continued, if it could have been; `number` is
/// its sequence number, for APIs that number their events.
pub(crate) fn lost_event(api: Api, cause: &CallError, why: Option<&str>, number: u64) -> String {
    let mut message = format!("the pod was lost mid-stream: {cause}");
    if let Some(why) = why {
        message.push_str("; not continued on another pod: ");
        message.push_str(why);
    }
    error_event(api, LOST, &message, number)
}

/// The error event of a stream that the router ends because it shuts down.
pub(crate) fn shutdown_event(api: Api, number: u64) -> String {
    const MESSAGE: &str =
        "the router shut down before the stream was complete; send the request again";
    error_event(api, "shutting_down", MESSAGE, number)
}

fn error_event(api: Api, kind: &str, message: &str, number: u64) -> String {
    let body = api.dialect().error_event(kind, message, number);
    format!("event: error\ndata: {body}\n\n")
}

/// The sequence number of the event that follows these bytes; none if they contain no whole number.
pub(crate) fn next_number(bytes: &[u8]) -> Option<u64> {
    let rest = bytes[memmem::rfind(bytes, NUMBER)? + NUMBER.len()..].trim_ascii_start();
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&rest[..digits]).ok()?.parse::<u64>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(api: Api, stream: &str, size: usize) -> bool {
        let mut end = StreamEnd::default();
        stream.as_bytes().chunks(size).for_each(|chunk| end.look_at(api, chunk));
        end.has_come()
    }

    #[test]
    fn the_end_of_a_completion_is_found_for_any_chunk_size_and_line_break() {
        let ends = |stream: &str, size: usize| {
            let mut end = StreamEnd::default();
            stream.as_bytes().chunks(size).for_each(|chunk| end.look_at_chunk(chunk));
            end.has_come()
        };
        let event = format!("data: {{\"text\":\"{}\"}}", "x".repeat(100));
        for line in ["\n", "\r\n"] {
            let stream = format!("{event}{line}{line}data: [DONE]{line}{line}");
            let text = format!("{event}{line}{line}data: {{\"t\":\"data: [DONE]\"}}{line}{line}");
            for size in 1..=stream.len() {
                assert!(ends(&stream, size), "{line:?} in chunks of {size}");
                assert!(!ends(&text, size), "{line:?} in chunks of {size}");
            }
        }
    }

    #[test]
    fn the_end_of_a_stream_is_found_for_any_chunk_size_but_not_in_the_text_of_an_answer() {
        let complete = [
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
            for (api, stream) in complete {
                assert!(ends(api, stream, size), "{stream} in chunks of {size}");
            }
            for (api, stream) in texts {
                assert!(!ends(api, stream, size), "{stream} in chunks of {size}");
            }
        }
    }

    #[test]
    fn the_next_number_follows_the_last_event_of_a_chunk() {
        let chunk = b"data: {\"sequence_number\":8,\"a\":1}\n\ndata: {\"sequence_number\": 9}\n\n";
        assert_eq!(next_number(chunk), Some(10));
        assert_eq!(next_number(&chunk[..22]), None, "more digits may follow");
        assert_eq!(next_number(b"data: {}\n\n"), None);
    }
}
