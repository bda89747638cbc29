//! The answer to a request whose prompt could not be loaded from the engine that computed it, as vLLM 0.32 gives it: an error
//! inside the engine, of which each interface makes something else.

use super::call::{CallDelivery, CallKind};
use super::dialect::named;
use super::http;
use super::response::{AnswerScript, SimBody, event};
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

const MESSAGE: &str = "Internal server error";
const TYPE: &str = "InternalServerError";

/// What becomes of the event with the error where chunks of a chat are converted to Anthropic's events.
const NOT_CONVERTED: &str = "2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required \
    [type=missing, input_value={'error': {'message': 'In...am': None, 'code': 500}}, input_type=dict]";

/// The answer, whole or as a stream.
pub(super) fn answer(story: &AnswerScript) -> Response<SimBody> {
    if story.call.delivery == CallDelivery::Whole {
        let mut response = http::whole(&error(story.call.kind));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return response;
    }
    let mut out = Vec::new();
    match story.call.kind {
        CallKind::Completion => failed(&mut out),
        CallKind::Chat => {
            let delta = json!({"role": "assistant", "content": ""});
            let choice =
                json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": null});
            event(&story.frame("chat.completion.chunk", &json!([choice])), &mut out);
            failed(&mut out);
        }
        CallKind::Messages => {
            story.message_beginning(&mut out);
            let error = json!({"type": "internal_error", "message": NOT_CONVERTED});
            named(&json!({"type": "error", "error": error}), &mut out);
        }
        CallKind::Responses => story.response_beginning(&mut out),
    }
    let bytes = Some(Bytes::from(out));
    let mut response = Response::new(match story.call.kind {
        // There is no event for the error, and the connection is closed instead.
        CallKind::Responses => SimBody::Begun { bytes, flushed: false },
        _ => SimBody::Whole(bytes),
    });
    let events = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, events);
    response
}

fn failed(out: &mut Vec<u8>) {
    event(&error(CallKind::Completion), out);
    out.extend_from_slice(b"data: [DONE]\n\n");
}

fn error(kind: CallKind) -> Value {
    match kind {
        CallKind::Messages => json!({"type": "error", "error": {"type": TYPE, "message": MESSAGE}}),
        _ => {
            json!({"error": {"message": MESSAGE, "type": TYPE, "param": null, "code": 500}})
        }
    }
}
