//! Whether an answer says that its engine could not load the KV cache that another pod had computed for it.
//!
//! vLLM finishes such a request with an error inside the engine, and the client is told no more than that. Before the first
//! token there is hardly another reason for these words, if there was something to load: what else may fail so, a grammar that
//! cannot be compiled, has failed in the prefill step already. As answered by vLLM 0.32 whose prefill engine was killed:
//!
//! | interface | whole | as a stream, with status 200 |
//! |---|---|---|
//! | completions | 500 `{"error": {"message": "Internal server error", …}}` | an event with the same, `[DONE]` |
//! | chat | the same | an empty delta with the role, and then as above |
//! | Anthropic's messages | the same | `message_start`, and an error event about the event above |
//! | responses | the same | `response.created`, `response.in_progress`, and the connection is closed |
//!
//! Up to 0.28 the streams of completions and chats lack the event of the error: they end without a token.

use crate::failure::CallError;
use crate::response::EngineResponse;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde_json::Value;

/// So much of an answer is looked at. What is longer has more to say than that it failed.
const MOST_BYTES: usize = 64 << 10;

/// What vLLM says of a request that failed inside the engine.
const FAILED: &str = "Internal server error";

/// How it repeats that where it converts one interface to another, in the middle of its own error.
const FAILED_AND_CONVERTED: &str = "{'error': {'message': 'In...";

/// What a stream's beginning says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StreamHead {
    /// Nothing yet.
    Nothing,
    /// Nothing yet, but that the engine is at it: no more than vLLM says before it loads.
    InProgress,
    /// Something that goes to the client.
    Said,
    /// That the request failed, or is over without a token.
    Failed,
}

/// The answer, if it does not say that the KV cache could not be loaded. Of a stream, its first token is waited for.
///
/// # Errors
/// [`CallError::KvLoad`] if it does, and whatever else happens until that is known.
pub(crate) async fn loaded(mut answer: EngineResponse) -> Result<EngineResponse, CallError> {
    let status = answer.head.status;
    let is_failed = if status == StatusCode::INTERNAL_SERVER_ERROR {
        is_failure(&answer.look_ahead(MOST_BYTES, |_| false).await?)
    } else if status.is_success() && is_stream(&answer) {
        let mut beginning = StreamHead::Nothing;
        let looked = answer
            .look_ahead(MOST_BYTES, |seen| {
                beginning = begins(seen);
                matches!(beginning, StreamHead::Said | StreamHead::Failed)
            })
            .await;
        match looked {
            Err(CallError::Broken(_)) if beginning == StreamHead::InProgress => true,
            looked => looked.map(|_| beginning == StreamHead::Failed)?,
        }
    } else {
        false
    };
    if is_failed { Err(CallError::KvLoad) } else { Ok(answer) }
}

fn is_stream(answer: &EngineResponse) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = answer.head.headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    kind.get(..EVENTS.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS))
}

/// Whether a body, or an event's data, is vLLM's error for a request that failed inside the engine.
fn is_failure(json: &[u8]) -> bool {
    serde_json::from_slice(json).is_ok_and(|value: Value| has_failed(&value))
}

fn has_failed(value: &Value) -> bool {
    let message = value["error"]["message"].as_str().unwrap_or_default();
    message == FAILED || message.contains(FAILED_AND_CONVERTED)
}

/// What the events say that have come as a whole.
fn begins(stream: &[u8]) -> StreamHead {
    let text = String::from_utf8_lossy(stream).replace("\r\n", "\n");
    let mut beginning = StreamHead::Nothing;
    let Some((whole, _rest)) = text.rsplit_once("\n\n") else { return beginning };
    for line in whole.lines() {
        let Some(data) = line.strip_prefix("data:") else { continue };
        match says(data.trim()) {
            StreamHead::Nothing => {}
            StreamHead::InProgress => beginning = StreamHead::InProgress,
            end => return end,
        }
    }
    beginning
}

fn says(data: &str) -> StreamHead {
    if data == "[DONE]" {
        return StreamHead::Failed;
    }
    let Ok(event) = serde_json::from_str::<Value>(data) else { return StreamHead::Said };
    if has_failed(&event) {
        return StreamHead::Failed;
    }
    match (event["type"].as_str(), event["choices"].as_array()) {
        (Some("response.created" | "response.in_progress"), _) => StreamHead::InProgress,
        (Some("message_start" | "ping"), _) => StreamHead::Nothing,
        (_, Some(choices)) if choices.iter().all(is_empty) => StreamHead::Nothing,
        _ => StreamHead::Said,
    }
}

/// Whether a choice of a chunk has neither a token nor an end.
fn is_empty(choice: &Value) -> bool {
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    let delta = choice["delta"].as_object();
    let mut fields = delta.into_iter().flatten().filter(|(name, _)| *name != "role");
    is_nothing(&choice["finish_reason"])
        && is_nothing(&choice["text"])
        && fields.all(|(_, value)| is_nothing(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_begins_with_its_first_token_wherever_it_is_cut() {
        let role = r#"{"choices":[{"delta":{"role":"assistant","content":"","tool_calls":[]},"finish_reason":null}]}"#;
        let nothing = [role, r#"{"choices":[],"usage":{}}"#, r#"{"type":"ping"}"#];
        let said = [
            r#"{"choices":[{"text":"a","finish_reason":null}]}"#,
            r#"{"choices":[{"text":"","finish_reason":"stop"}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"a"},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}]}"#,
            r#"{"type":"response.output_item.added"}"#,
            r#"{"error":{"message":"EngineCore encountered an issue."}}"#,
            "what is this",
        ];
        let failed = [
            "[DONE]",
            r#"{"error":{"message":"Internal server error","type":"server_error"}}"#,
            r#"{"type":"error","error":{"message":"input_value={'error': {'message': 'In...am': None"}}"#,
        ];
        for line in ["\n", "\r\n"] {
            let before: String =
                nothing.iter().map(|data| format!("data: {data}{line}{line}")).collect();
            assert_eq!(begins(before.as_bytes()), StreamHead::Nothing);
            for (all, expected) in
                [(&said[..], StreamHead::Said), (&failed[..], StreamHead::Failed)]
            {
                for data in all {
                    let stream = format!("{before}event: e{line}data:{data}{line}{line}");
                    let known = (0..=stream.len())
                        .map(|cut| begins(&stream.as_bytes()[..cut]))
                        .find(|beginning| *beginning != StreamHead::Nothing);
                    assert_eq!(known, Some(expected), "{stream}");
                }
            }
        }
    }

    #[test]
    fn only_a_whole_error_in_vllms_words_is_a_failed_load() {
        assert!(is_failure(br#"{"error":{"message":"Internal server error","code":500}}"#));
        for other in [
            &b""[..],
            b"Internal Server Error",
            b"[]",
            br#"{"error":"Internal server error"}"#,
            br#"{"error":{"message":"Internal server error: out of memory"}}"#,
            br#"{"error":{"message":"Internal server error"}"#,
        ] {
            assert!(!is_failure(other), "{}", String::from_utf8_lossy(other));
        }
    }
}
