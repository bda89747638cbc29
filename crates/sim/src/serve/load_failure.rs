//! The answer to a request whose KV blocks could not be loaded from the prefill engine, as vLLM
//! 0.32 gives it: an internal error that each API reports in its own way.

use super::answer::{AnswerScript, DONE, push_event, push_named_event};
use super::call::{CallDelivery, CallKind};
use super::response::{SimBody, json_response};
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

const MESSAGE: &str = "Internal server error";
const TYPE: &str = "InternalServerError";

/// vLLM's error where it converts the error event of a chat to Anthropic's events.
const NOT_CONVERTED: &str = "2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required \
    [type=missing, input_value={'error': {'message': 'In...am': None, 'code': 500}}, input_type=dict]";

/// The answer, whole or as a stream.
pub(super) fn answer(script: &AnswerScript) -> Response<SimBody> {
    if script.call.delivery == CallDelivery::Whole {
        let mut response = json_response(&error(script.call.kind));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return response;
    }
    let mut out = Vec::new();
    match script.call.kind {
        CallKind::Completion => push_failure(&mut out),
        CallKind::Chat => {
            let delta = json!({"role": "assistant", "content": ""});
            let choice =
                json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": null});
            push_event(&script.envelope("chat.completion.chunk", &json!([choice])), &mut out);
            push_failure(&mut out);
        }
        CallKind::Messages => {
            script.message_beginning(&mut out);
            let error = json!({"type": "internal_error", "message": NOT_CONVERTED});
            push_named_event(&json!({"type": "error", "error": error}), &mut out);
        }
        CallKind::Responses => script.response_beginning(&mut out),
    }
    let bytes = Some(Bytes::from(out));
    let mut response = Response::new(match script.call.kind {
        // This API has no event for the error; vLLM closes the connection instead.
        CallKind::Responses => SimBody::Truncated { bytes, flushed: false },
        _ => SimBody::Whole(bytes),
    });
    let events = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, events);
    response
}

fn push_failure(out: &mut Vec<u8>) {
    push_event(&error(CallKind::Completion), out);
    out.extend_from_slice(DONE);
}

fn error(kind: CallKind) -> Value {
    match kind {
        CallKind::Messages => json!({"type": "error", "error": {"type": TYPE, "message": MESSAGE}}),
        _ => {
            json!({"error": {"message": MESSAGE, "type": TYPE, "param": null, "code": 500}})
        }
    }
}
