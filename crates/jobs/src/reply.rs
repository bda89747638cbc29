//! What engines say to a request, and what is published of it.

use crate::record::{LineRecord, RecordKind, TokenUsage};
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::time::Duration;
use wornpath_execution::field;

/// An answer with a status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineReply {
    /// HTTP's.
    pub status: u16,
    /// What the engine or the gateway calls the request.
    pub request_id: Option<String>,
    /// As it came.
    pub body: Bytes,
    /// When to come again.
    pub retry_after: Option<Duration>,
}

/// No answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplyError {
    /// The pod is not there.
    #[error("{0}")]
    Unreachable(String),
    /// It was there, and then not.
    #[error("{0}")]
    Broken(String),
    /// Nobody was asked: its line is gone from where it was kept, and will not be there again.
    #[error("{0}")]
    Unreadable(String),
}

/// What an answer means for its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyMeaning {
    /// It is answered.
    Answered,
    /// It will never be: the request itself is at fault.
    Refused,
    /// The engine has too much to do.
    Busy(Option<Duration>),
    /// Something went wrong that may go right next time.
    Failed,
    /// The pod is not there.
    Gone,
}

impl ReplyMeaning {
    /// What came back, understood.
    #[must_use]
    pub fn of(came: &Result<LineReply, ReplyError>) -> Self {
        match came {
            Err(ReplyError::Unreachable(_)) => Self::Gone,
            Err(ReplyError::Broken(_)) => Self::Failed,
            Err(ReplyError::Unreadable(_)) => Self::Refused,
            Ok(reply) => match reply.status {
                200..300 => Self::Answered,
                429 | 503 => Self::Busy(reply.retry_after),
                408 | 425 | 500.. => Self::Failed,
                _ => Self::Refused,
            },
        }
    }
}

/// Whose request it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Which line.
    pub line: u32,
    /// What its owner calls it, as JSON.
    pub custom_id: Vec<u8>,
    /// Begins the record's own name.
    pub name: String,
}

impl Owner {
    /// The record of what came back last.
    #[must_use]
    pub fn record(&self, came: &Result<LineReply, ReplyError>) -> LineRecord {
        match came {
            Ok(reply) => self.of_reply(reply),
            Err(ReplyError::Unreadable(why)) => self.error("unreadable", why),
            Err(trouble) => {
                let message = format!("it was tried as often as it may be; at last: {trouble}");
                self.error("upstream_lost", &message)
            }
        }
    }

    /// The record of what came for another line that is equal to this one.
    #[must_use]
    pub fn copy(&self, came: &Result<LineReply, ReplyError>) -> LineRecord {
        LineRecord { usage: TokenUsage::default(), ..self.record(came) }
    }

    /// A line that ended without an answer.
    #[must_use]
    pub fn error(&self, code: &str, message: &str) -> LineRecord {
        let error = json!({"code": code, "message": message}).to_string();
        let bytes = self.bytes(b"null", error.as_bytes());
        LineRecord { line: self.line, kind: RecordKind::Error, bytes, usage: TokenUsage::default() }
    }

    fn of_reply(&self, reply: &LineReply) -> LineRecord {
        let id = Value::from(reply.request_id.as_deref().unwrap_or_default()).to_string();
        let mut response =
            format!("{{\"status_code\":{},\"request_id\":{id},\"body\":", reply.status)
                .into_bytes();
        append_body(&reply.body, &mut response);
        response.push(b'}');
        let is_answer = (200..300).contains(&reply.status);
        let kind = if is_answer { RecordKind::Output } else { RecordKind::Error };
        let usage = usage_of(&reply.body);
        LineRecord { line: self.line, kind, bytes: self.bytes(&response, b"null"), usage }
    }

    fn bytes(&self, response: &[u8], error: &[u8]) -> Vec<u8> {
        let name = format!("{{\"id\":\"batch_req_{}{:08x}\",\"custom_id\":", self.name, self.line);
        let parts: [&[u8]; 7] = [
            name.as_bytes(),
            &self.custom_id,
            b",\"response\":",
            response,
            b",\"error\":",
            error,
            b"}",
        ];
        parts.concat()
    }
}

/// The body as it came, on one line; what is no JSON becomes a string.
fn append_body(body: &[u8], out: &mut Vec<u8>) {
    // What is not looked at may be no UTF-8 in the eyes of the parser, but not of those who read the results.
    let is_text = std::str::from_utf8(body).is_ok();
    if !is_text || serde_json::from_slice::<IgnoredAny>(body).is_err() {
        let text = Value::from(String::from_utf8_lossy(body).as_ref()).to_string();
        out.extend_from_slice(text.as_bytes());
        return;
    }
    // In JSON, line breaks stand only between values.
    out.extend(body.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
}

/// What an answer says of its tokens.
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
        let came = Ok(LineReply { status, request_id: Some("r".into()), body, retry_after: None });
        let LineRecord { kind, bytes, usage, .. } = owner.record(&came);
        assert!(!bytes.contains(&b'\n'));
        (kind, serde_json::from_slice(&bytes).unwrap(), usage)
    }

    #[test]
    fn an_answer_is_published_as_it_came_on_one_line() {
        let body = "{\n \"big\": 12345678901234567890123,\r\n \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 2, \"prompt_tokens_details\": {\"cached_tokens\": 4}}}";
        let (kind, line, usage) = record(200, body);
        assert_eq!(kind, RecordKind::Output);
        assert_eq!(line["id"], "batch_req_ab00000003");
        assert_eq!((&line["custom_id"], &line["error"]), (&json!("mine"), &Value::Null));
        assert_eq!(line["response"]["status_code"], 200);
        assert_eq!(usage, TokenUsage { input: 7, cached: 4, output: 2 });
    }

    #[test]
    fn a_refusal_is_an_error_and_what_is_no_json_a_string() {
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
    fn an_answer_that_is_no_utf_8_becomes_a_string_that_can_be_read() {
        let mut out = Vec::new();
        append_body(b"{\"text\":\"a\xffb\"}", &mut out);
        let body: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(body, json!("{\"text\":\"a\u{fffd}b\"}"));
    }

    #[test]
    fn statuses_say_who_is_at_fault() {
        let of = |status| {
            ReplyMeaning::of(&Ok(LineReply {
                status,
                request_id: None,
                body: Bytes::new(),
                retry_after: None,
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
