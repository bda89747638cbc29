//! Parses a JSON body into the fields that routing needs.
//!
//! For a known API, a body that is not a JSON object is refused here, so no engine gets it and
//! fields can be inserted into every body. A JSON object that is invalid for the API is routed by
//! the fields that could be read; the engine refuses it with its own error message.

use crate::dialect::{Api, chat};
use crate::proxy::error_response::ErrorResponse;
use crate::proxy::low_priority_pool::{BodyWork, PoolError};
use crate::proxy::multipart::Multipart;
use crate::proxy::worker::Worker;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::running;
use bytes::Bytes;
use hyper::Method;
use hyper::header::CONTENT_TYPE;
use serde_json::{Map, Value};
use std::sync::Arc;
use wornpath_blocks::chat::{Grammar, exact_numbers};
use wornpath_execution::StepCall;
use wornpath_routing::{PromptReading, Rejection, Request};

/// The result of parsing a body.
#[derive(Debug, Default)]
pub struct ParsedBody {
    /// The model that the client names; empty if it names none.
    pub model: String,
    /// The input of routing.
    pub request: Request,
    /// Whether the body is a JSON object, into which fields can be inserted.
    pub is_object: bool,
}

/// A parser for a multipart body at a path that no dialect names, such as audio transcriptions.
pub(crate) fn form(api: Api, call: &StepCall) -> Option<Multipart> {
    let kind = call.headers.get(CONTENT_TYPE).filter(|_| !api.dialect().is_known())?;
    Multipart::of(kind.to_str().ok()?)
}

static PARSE: TaskName = TaskName::new("parse a request");

/// Parses a short body at once, and a long one on the low-priority pool, so that it does not delay
/// the other requests of the worker.
pub(crate) async fn read_body(
    worker: &Arc<Worker>,
    api: Api,
    call: &StepCall,
    work: &BodyWork<'_>,
) -> Result<ParsedBody, ErrorResponse> {
    if call.body.is_empty() && call.method != Method::POST {
        return Ok(ParsedBody::default());
    }
    let form = form(api, call);
    let read = move |body: &Bytes| match form {
        Some(form) => Ok(read_form(form, body)),
        None => read(api, body),
    };
    if !work.length.is_long {
        let _running = running(&PARSE);
        return read(&call.body);
    }
    let body = call.body.clone();
    Box::pin(async {
        let pool = &worker.gateway.pool;
        let most_bytes = worker.gateway.settings().limits.waiting_bytes;
        let turn = pool.turn(work, most_bytes).await?;
        pool.start(turn, &PARSE, work.length.bytes, move || read(&body)).await?
    })
    .await
}

impl From<PoolError> for ErrorResponse {
    fn from(error: PoolError) -> Self {
        Self::from(match error {
            PoolError::Closed => Rejection::shutting_down(),
            PoolError::QueueFull | PoolError::Timeout => Rejection::busy(
                "too many long requests wait to be read: their bodies exceed `limits.waiting`",
            ),
        })
    }
}

/// Parses a form, of which only the model matters. It is not validated: that is up to the engine.
pub(crate) fn read_form(form: Multipart, body: &[u8]) -> ParsedBody {
    ParsedBody { model: form.field(body, "model").unwrap_or_default(), ..ParsedBody::default() }
}

/// Parses a body of that API.
pub fn read(api: Api, body: &Bytes) -> Result<ParsedBody, ErrorResponse> {
    let dialect = api.dialect();
    if !dialect.is_known() {
        // Not validated here, but a model that it names selects the pods.
        let fields = parse(api, body).unwrap_or_default();
        let is_object = !fields.is_empty();
        let model = text(&fields, "model");
        return Ok(ParsedBody {
            model,
            request: Request { fields, ..Request::default() },
            is_object,
        });
    }
    let (messages, mut fields) = match dialect.take_messages(body) {
        Some((messages, fields)) => (Some(messages), fields),
        None => (None, parse(api, body)?),
    };
    if let Some(model) = fields.get("model").filter(|model| !model.is_string() && !model.is_null())
    {
        return Err(ErrorResponse::bad(format!("`model` is {model}; it must be a string")));
    }
    let model = text(&fields, "model");
    let output_tokens = ["max_completion_tokens", "max_tokens", "max_output_tokens"]
        .into_iter()
        .find_map(|field| fields.get(field).and_then(Value::as_u64))
        .map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    let salt = fields.get("cache_salt").and_then(Value::as_str).map(str::to_owned);
    let is_list = fields.get("prompt").is_some_and(is_prompt_list);
    let mut reading = PromptReading::default();
    let prompt = match messages {
        Some(messages) => chat::prompt(messages, &mut fields),
        None => dialect.prompt(&mut fields, &mut reading),
    };
    let request = Request {
        prompt,
        reading,
        has_prompt_list: is_list,
        output_tokens,
        salt,
        fields,
        ..Request::default()
    };
    Ok(ParsedBody { model, request, is_object: true })
}

fn parse(api: Api, body: &[u8]) -> Result<Map<String, Value>, ErrorResponse> {
    let tree = if api.dialect().renders_numbers() {
        parse_exact(body)
    } else {
        // Templates render none of its numbers, and token ids may be a hundred thousand of them.
        serde_json::from_slice(body).or_else(|_| parse_exact(body))
    };
    match tree {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(ErrorResponse::bad("the body is JSON, but not an object".to_owned())),
        Err(error) => Err(ErrorResponse::bad(format!("the body is not JSON: {error}"))),
    }
}

/// Parses JSON so that templates render every number as engines do, however many digits it has.
pub fn parse_exact(json: &[u8]) -> serde_json::Result<Value> {
    match std::str::from_utf8(json) {
        Ok(text) => serde_json::from_str(&exact_numbers(text, Grammar::Json)),
        // For its error message, which says where the text is not UTF-8.
        Err(_) => serde_json::from_slice(json),
    }
}

/// Whether the `prompt` of a completion is a list of prompts, rather than a list of token ids.
fn is_prompt_list(prompt: &Value) -> bool {
    let items = prompt.as_array().map_or(&[][..], Vec::as_slice);
    items.len() > 1 && items.iter().any(|item| !item.is_number())
}

fn text(fields: &Map<String, Value>, name: &str) -> String {
    fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use wornpath_routing::Prompt;

    #[test]
    fn the_prompt_is_found_in_each_api() {
        let prompt = |api, body: Value| read(api, &body.to_string().into()).unwrap().request.prompt;
        assert_eq!(
            prompt(Api::at("/v1/completions"), json!({"prompt": "a"})),
            Prompt::Text("a".into())
        );
        assert_eq!(
            prompt(Api::at("/v1/completions"), json!({"prompt": ["a", "b"]})),
            Prompt::Text("a".into())
        );
        assert_eq!(
            prompt(Api::at("/v1/completions"), json!({"prompt": [[1, 2]]})),
            Prompt::Tokens(vec![1, 2])
        );
        for (given, is_list) in [
            (json!("a"), false),
            (json!([1, 2]), false),
            (json!(["a"]), false),
            (json!([[1], [2]]), true),
            (json!(["a", "b"]), true),
        ] {
            let body = json!({"prompt": given}).to_string();
            let read = read(Api::at("/v1/completions"), &body.into()).unwrap();
            assert_eq!(read.request.has_prompt_list, is_list, "{given}");
        }
        let Prompt::Chat { messages, .. } =
            prompt(Api::at("/v1/messages"), json!({"system": "s", "messages": [{"role": "user"}]}))
        else {
            panic!("not a chat")
        };
        assert_eq!(
            messages[..],
            [json!({"role": "system", "content": "s"}), json!({"role": "user"})]
        );
        let Prompt::Chat { messages, .. } = prompt(Api::at("/v1/responses"), json!({"input": "i"}))
        else {
            panic!("not a chat")
        };
        assert_eq!(messages[..], [json!({"role": "user", "content": "i"})]);
        assert_eq!(prompt(Api::at("/v1/embeddings"), json!({"input": "i"})), Prompt::default());
    }

    #[test]
    fn a_body_that_is_not_a_json_object_is_refused_at_any_depth() {
        let deep = "[".repeat(100_000);
        for body in ["", "{", "[]", "3", "{\"a\":1}x", deep.as_str(), "{\"model\":3}", "\u{0}"] {
            assert!(
                read(Api::CHAT, &Bytes::from(body.to_owned())).is_err(),
                "{}",
                &body[..body.len().min(20)]
            );
        }
        assert!(read(Api::OTHER, &Bytes::from_static(b"not JSON")).is_ok());
    }
}
