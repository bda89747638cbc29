//! The response to a line, and the record that is published of it.

use crate::answer_budget::AnswerHold;
use crate::record::{LineRecord, RecordKind, TokenUsage};
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::time::Duration;
use wornpath_execution::field;

/// The bytes of a record around its parts, at most.
const ENVELOPE_BYTES: usize = 64;

/// An HTTP response to a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineReply {
    /// The HTTP status.
    pub status: u16,
    /// The request id of the engine or the gateway.
    pub request_id: Option<String>,
    /// The body, byte for byte.
    pub body: Bytes,
    /// The `Retry-After` header.
    pub retry_after: Option<Duration>,
    /// The memory of the body.
    pub held: AnswerHold,
}

/// Why a line has no response.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplyError {
    /// The pod is unreachable.
    #[error("{0}")]
    Unreachable(String),
    /// The connection was lost, or the response is invalid.
    #[error("{0}")]
    Broken(String),
    /// The response is longer than a response may be, and would be again.
    #[error("{0}")]
    TooLarge(String),
    /// The line is lost in its store, so no request was sent.
    #[error("{0}")]
    Unreadable(String),
}

/// What a response means for its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyMeaning {
    /// The line succeeded.
    Answered,
    /// The request is at fault, so a retry is useless.
    Refused,
    /// The engine is busy, for the time of its `Retry-After` if it sent one.
    Busy(Option<Duration>),
    /// A retry may succeed.
    Failed,
    /// The pod is unreachable.
    Gone,
}

impl ReplyMeaning {
    /// Classifies a response.
    #[must_use]
    pub fn of(reply: &Result<LineReply, ReplyError>) -> Self {
        match reply {
            Err(ReplyError::Unreachable(_)) => Self::Gone,
            Err(ReplyError::Broken(_)) => Self::Failed,
            Err(ReplyError::Unreadable(_) | ReplyError::TooLarge(_)) => Self::Refused,
            Ok(reply) => match reply.status {
                200..300 => Self::Answered,
                429 | 503 => Self::Busy(reply.retry_after),
                408 | 425 | 500.. => Self::Failed,
                _ => Self::Refused,
            },
        }
    }
}

/// The identity of a line in its record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The line of the input.
    pub line: u32,
    /// The `custom_id`, as JSON.
    pub custom_id: Vec<u8>,
    /// The prefix of the record id.
    pub name: String,
}

impl Owner {
    /// The record of the last response.
    #[must_use]
    pub fn record(&self, reply: &Result<LineReply, ReplyError>) -> LineRecord {
        match reply {
            Ok(reply) => self.of_reply(reply),
            Err(ReplyError::Unreadable(why)) => self.error("unreadable", why),
            Err(ReplyError::TooLarge(why)) => self.error("response_too_large", why),
            Err(error) => {
                let message = format!("all attempts failed; last error: {error}");
                self.error("upstream_lost", &message)
            }
        }
    }

    /// The record of the response to an identical line, without its tokens.
    #[must_use]
    pub fn copy(&self, reply: &Result<LineReply, ReplyError>) -> LineRecord {
        LineRecord { usage: TokenUsage::default(), ..self.record(reply) }
    }

    /// The record of a line without a response.
    #[must_use]
    pub fn error(&self, code: &str, message: &str) -> LineRecord {
        let error = json!({"code": code, "message": message}).to_string();
        let null = |bytes: &mut Vec<u8>| bytes.extend_from_slice(b"null");
        let bytes = self.bytes(0, null, error.as_bytes());
        LineRecord { line: self.line, kind: RecordKind::Error, bytes, usage: TokenUsage::default() }
    }

    fn of_reply(&self, reply: &LineReply) -> LineRecord {
        let id = Value::from(reply.request_id.as_deref().unwrap_or_default()).to_string();
        let head = format!("{{\"status_code\":{},\"request_id\":{id},\"body\":", reply.status);
        let append = |bytes: &mut Vec<u8>| {
            bytes.extend_from_slice(head.as_bytes());
            append_body(&reply.body, bytes);
            bytes.push(b'}');
        };
        // One copy of a long body, and no more.
        let bytes = self.bytes(head.len() + reply.body.len(), append, b"null");
        let is_answer = (200..300).contains(&reply.status);
        let kind = if is_answer { RecordKind::Output } else { RecordKind::Error };
        let usage = usage_of(&reply.body);
        LineRecord { line: self.line, kind, bytes, usage }
    }

    /// The record, with a response of about so many bytes.
    fn bytes(&self, room: usize, response: impl FnOnce(&mut Vec<u8>), error: &[u8]) -> Vec<u8> {
        let name = format!("{{\"id\":\"batch_req_{}{:08x}\",\"custom_id\":", self.name, self.line);
        let around = name.len() + self.custom_id.len() + error.len() + ENVELOPE_BYTES;
        let mut bytes = Vec::with_capacity(room + around);
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&self.custom_id);
        bytes.extend_from_slice(b",\"response\":");
        response(&mut bytes);
        bytes.extend_from_slice(b",\"error\":");
        bytes.extend_from_slice(error);
        bytes.push(b'}');
        bytes
    }
}

/// Appends the body on one line; a body that is no JSON becomes a JSON string.
fn append_body(body: &[u8], out: &mut Vec<u8>) {
    // The parser skips ignored strings without checking their UTF-8; readers of the results do not.
    let is_text = std::str::from_utf8(body).is_ok();
    if !is_text || serde_json::from_slice::<IgnoredAny>(body).is_err() {
        let text = Value::from(String::from_utf8_lossy(body).as_ref()).to_string();
        out.extend_from_slice(text.as_bytes());
        return;
    }
    // In JSON, line breaks occur only between tokens.
    out.extend(body.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
}

/// The token counts of a response.
fn usage_of(body: &[u8]) -> TokenUsage {
    let Ok(Some(usage)) = field(body, "usage") else { return TokenUsage::default() };
    let usage: Value = serde_json::from_slice(usage).unwrap_or_default();
    let number = |names: [&str; 2]| names.iter().find_map(|name| usage.pointer(name)?.as_u64());
    TokenUsage {
        input: number(["/prompt_tokens", "/input_tokens"]).unwrap_or(0),
        cached: number([
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
        ])
        .unwrap_or(0),
        output: number(["/completion_tokens", "/output_tokens"]).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(status: u16, body: &'static str) -> (RecordKind, Value, TokenUsage) {
        let owner = Owner { line: 3, custom_id: b"\"mine\"".to_vec(), name: "ab".into() };
        let body = Bytes::from_static(body.as_bytes());
        let held = AnswerHold::default();
        let reply =
            Ok(LineReply { status, request_id: Some("r".into()), body, retry_after: None, held });
        let LineRecord { kind, bytes, usage, .. } = owner.record(&reply);
        assert!(!bytes.contains(&b'\n'));
        (kind, serde_json::from_slice(&bytes).unwrap(), usage)
    }

    #[test]
    fn a_response_is_published_byte_for_byte_on_one_line() {
        let body = "{\n \"big\": 12345678901234567890123,\r\n \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 2, \"prompt_tokens_details\": {\"cached_tokens\": 4}}}";
        let (kind, line, usage) = record(200, body);
        assert_eq!(kind, RecordKind::Output);
        assert_eq!(line["id"], "batch_req_ab00000003");
        assert_eq!((&line["custom_id"], &line["error"]), (&json!("mine"), &Value::Null));
        assert_eq!(line["response"]["status_code"], 200);
        assert_eq!(usage, TokenUsage { input: 7, cached: 4, output: 2 });
    }

    #[test]
    fn a_refusal_is_an_error_and_a_body_that_is_no_json_a_string() {
        let (kind, line, _) = record(400, "<html>\nno");
        assert_eq!((kind, &line["response"]["body"]), (RecordKind::Error, &json!("<html>\nno")));
        let owner = Owner { line: 0, custom_id: b"\"x\"".to_vec(), name: String::new() };
        let expired = owner.error("batch_expired", "too late");
        let line: Value = serde_json::from_slice(&expired.bytes).unwrap();
        assert_eq!(
            (&line["response"], &line["error"]["code"]),
            (&Value::Null, &json!("batch_expired"))
        );
    }

    #[test]
    fn a_body_that_is_no_utf_8_becomes_a_valid_string() {
        let mut out = Vec::new();
        append_body(b"{\"text\":\"a\xffb\"}", &mut out);
        let body: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(body, json!("{\"text\":\"a\u{fffd}b\"}"));
    }

    #[test]
    fn statuses_tell_who_is_at_fault() {
        let of = |status| {
            ReplyMeaning::of(&Ok(LineReply {
                status,
                request_id: None,
                body: Bytes::new(),
                retry_after: None,
                held: AnswerHold::default(),
            }))
        };
        assert_eq!(
            [200, 400, 404, 422].map(of),
            [
                ReplyMeaning::Answered,
                ReplyMeaning::Refused,
                ReplyMeaning::Refused,
                ReplyMeaning::Refused
            ]
        );
        assert_eq!(
            [429, 503, 500, 408].map(of),
            [
                ReplyMeaning::Busy(None),
                ReplyMeaning::Busy(None),
                ReplyMeaning::Failed,
                ReplyMeaning::Failed
            ]
        );
    }
}
