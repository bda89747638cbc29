//! Detects responses of engines that could not load the KV cache which another pod had computed.
//!
//! vLLM reports such a request as an internal server error, without the cause. Before the first
//! token, and with KV cache to load, hardly anything else has this form: what else fails so, such
//! as a grammar that does not compile, has failed in the prefill step already. Responses of vLLM
//! 0.32 whose prefill engine was killed:
//!
//! | API | whole | as a stream, with status 200 |
//! |---|---|---|
//! | completions | 500 `{"error": {"message": "Internal server error", …}}` | an event with the same, `[DONE]` |
//! | chat | the same | an empty delta with the role, and then as above |
//! | Anthropic messages | the same | `message_start`, and an error event about the event above |
//! | responses | the same | `response.created`, `response.in_progress`, and the connection is closed |
//!
//! Up to 0.28 the streams of completions and chats lack the error event: they end without a token.

use crate::failure::CallError;
use crate::response::EngineResponse;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde_json::Value;

/// The bytes of a response that are inspected. A longer one is no error message.
const MAX_BYTES: usize = 64 << 10;

/// vLLM's message for a request that failed inside the engine.
const FAILED: &str = "Internal server error";

/// The same, quoted in the error of vLLM's conversion from one API to another.
const FAILED_AND_CONVERTED: &str = "{'error': {'message': 'In...";

/// What the first events of a stream tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StreamHead {
    /// Nothing yet.
    Nothing,
    /// No more than the request was accepted, which vLLM sends before it loads.
    InProgress,
    /// A token, or another event for the client.
    Output,
    /// The request failed, or ended without a token.
    Failed,
}

/// Returns the response unless it reports a failed load. Waits for the first token of a stream.
///
/// # Errors
/// [`CallError::KvLoad`] if it does, and any error of the call until that is known.
pub(crate) async fn check_load(mut response: EngineResponse) -> Result<EngineResponse, CallError> {
    let status = response.head.status;
    let is_failed = if status == StatusCode::INTERNAL_SERVER_ERROR {
        is_failure(&response.look_ahead(MAX_BYTES, |_| false).await?)
    } else if status.is_success() && is_stream(&response) {
        let mut head = StreamHead::Nothing;
        let looked = response
            .look_ahead(MAX_BYTES, |seen| {
                head = stream_head(seen);
                matches!(head, StreamHead::Output | StreamHead::Failed)
            })
            .await;
        match looked {
            Err(CallError::Broken(_)) if head == StreamHead::InProgress => true,
            looked => looked.map(|_| head == StreamHead::Failed)?,
        }
    } else {
        false
    };
    if is_failed { Err(CallError::KvLoad) } else { Ok(response) }
}

fn is_stream(response: &EngineResponse) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = response.head.headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    kind.get(..EVENTS.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS))
}

/// Whether a body is vLLM's error for a request that failed inside the engine.
fn is_failure(json: &[u8]) -> bool {
    serde_json::from_slice(json).is_ok_and(|value: Value| has_failed(&value))
}

fn has_failed(value: &Value) -> bool {
    let message = value["error"]["message"].as_str().unwrap_or_default();
    message == FAILED || message.contains(FAILED_AND_CONVERTED)
}

/// What the complete events of a stream tell so far.
fn stream_head(stream: &[u8]) -> StreamHead {
    let text = String::from_utf8_lossy(stream).replace("\r\n", "\n");
    let mut head = StreamHead::Nothing;
    let Some((whole, _rest)) = text.rsplit_once("\n\n") else { return head };
    for line in whole.lines() {
        let Some(data) = line.strip_prefix("data:") else { continue };
        match event_head(data.trim()) {
            StreamHead::Nothing => {}
            StreamHead::InProgress => head = StreamHead::InProgress,
            known => return known,
        }
    }
    head
}

fn event_head(data: &str) -> StreamHead {
    if data == "[DONE]" {
        return StreamHead::Failed;
    }
    let Ok(event) = serde_json::from_str::<Value>(data) else { return StreamHead::Output };
    if has_failed(&event) {
        return StreamHead::Failed;
    }
    match (event["type"].as_str(), event["choices"].as_array()) {
        (Some("response.created" | "response.in_progress"), _) => StreamHead::InProgress,
        (Some("message_start" | "ping"), _) => StreamHead::Nothing,
        (_, Some(choices)) if choices.iter().all(is_empty) => StreamHead::Nothing,
        _ => StreamHead::Output,
    }
}

/// Whether a choice of a chunk has neither a token nor a finish reason.
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
    fn the_first_token_or_error_of_a_stream_is_found_wherever_it_is_cut() {
        let role = r#"{"choices":[{"delta":{"role":"assistant","content":"","tool_calls":[]},"finish_reason":null}]}"#;
        let nothing = [role, r#"{"choices":[],"usage":{}}"#, r#"{"type":"ping"}"#];
        let output = [
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
            assert_eq!(stream_head(before.as_bytes()), StreamHead::Nothing);
            for (all, expected) in
                [(&output[..], StreamHead::Output), (&failed[..], StreamHead::Failed)]
            {
                for data in all {
                    let stream = format!("{before}event: e{line}data:{data}{line}{line}");
                    let known = (0..=stream.len())
                        .map(|cut| stream_head(&stream.as_bytes()[..cut]))
                        .find(|head| *head != StreamHead::Nothing);
                    assert_eq!(known, Some(expected), "{stream}");
                }
            }
        }
    }

    #[test]
    fn only_the_exact_error_of_vllm_is_a_failed_load() {
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
