//! From a JSON body to what routing needs of it.
//!
//! What is not JSON is refused here, so that no engine and no splice ever sees it. What is JSON but makes
//! no sense is the engine's to refuse, in its own words: it is routed as well as it can be.

use crate::dialect::{Api, chat};
use crate::proxy::error_response::ErrorResponse;
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
use wornpath_config::BodyLength;
use wornpath_execution::StepCall;
use wornpath_routing::Request;

/// What was read.
#[derive(Debug, Default)]
pub struct ParsedBody {
    /// What the client calls the model.
    pub model: String,
    /// What routing needs of it.
    pub request: Request,
    /// Whether fields can be set in the body.
    pub is_object: bool,
}

/// The form that a body of another interface is said to be: audio to be written down comes in one.
pub(crate) fn form(api: Api, call: &StepCall) -> Option<Multipart> {
    let kind = call.headers.get(CONTENT_TYPE).filter(|_| !api.dialect().is_known())?;
    Multipart::of(kind.to_str().ok()?)
}

static PARSE: TaskName = TaskName::new("parse a request");

/// Short bodies are read at once; long ones apart, so that they keep nobody waiting.
pub(crate) async fn read_body(
    worker: &Arc<Worker>,
    api: Api,
    call: &StepCall,
    length: BodyLength,
) -> Result<ParsedBody, ErrorResponse> {
    if call.body.is_empty() && call.method != Method::POST {
        return Ok(ParsedBody::default());
    }
    let form = form(api, call);
    let read = move |body: &Bytes| match form {
        Some(form) => Ok(read_form(form, body)),
        None => read(api, body),
    };
    if !length.is_long {
        let _running = running(&PARSE);
        return read(&call.body);
    }
    let body = call.body.clone();
    Box::pin(worker.run_apart(&PARSE, length, move || read(&body))).await?
}

/// Reads a form. Not ours to judge; but if it names a model, it goes where that is.
pub(crate) fn read_form(form: Multipart, body: &[u8]) -> ParsedBody {
    ParsedBody { model: form.field(body, "model").unwrap_or_default(), ..ParsedBody::default() }
}

/// Reads a body of that interface.
pub fn read(api: Api, body: &Bytes) -> Result<ParsedBody, ErrorResponse> {
    let dialect = api.dialect();
    if !dialect.is_known() {
        // Not ours to judge; but if it names a model, it goes where that is.
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
    let output = ["max_completion_tokens", "max_tokens", "max_output_tokens"]
        .into_iter()
        .find_map(|field| fields.get(field).and_then(Value::as_u64))
        .map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    let salt = fields.get("cache_salt").and_then(Value::as_str).map(str::to_owned);
    let is_several = fields.get("prompt").is_some_and(is_several);
    let prompt = match messages {
        Some(messages) => chat::prompt(messages, &mut fields),
        None => dialect.prompt(&mut fields),
    };
    let output_tokens = output;
    let is_converted = dialect.is_converted();
    let request = Request {
        prompt,
        is_several,
        is_converted,
        output_tokens,
        salt,
        fields,
        ..Request::default()
    };
    Ok(ParsedBody { model, request, is_object: true })
}

/// Refuses a body into which no salt can be put although an engine may find fields in it: engines take what is not quite
/// JSON too, in other encodings and at any depth. Without a type it is JSON for them.
pub(crate) fn saltable(call: &StepCall) -> Result<(), ErrorResponse> {
    let kind = call.headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase());
    let is_json = kind.is_none_or(|kind| memchr::memmem::find(&kind, b"json").is_some());
    if call.body.is_empty() || !(is_json || call.body.trim_ascii_start().starts_with(b"{")) {
        return Ok(());
    }
    serde_json::from_slice::<Value>(&call.body).map(|_| ()).map_err(|error| {
        let cure = "tenants are isolated, so only JSON as in RFC 8259 is accepted";
        ErrorResponse::bad(format!("the body is not JSON: {error}; {cure}"))
    })
}

fn parse(api: Api, body: &[u8]) -> Result<Map<String, Value>, ErrorResponse> {
    let tree = if api.dialect().renders_numbers() {
        tree(body)
    } else {
        // No number of it is rendered, and there may be a hundred thousand of them: token ids.
        serde_json::from_slice(body).or_else(|_| tree(body))
    };
    match tree {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(ErrorResponse::bad("the body is JSON, but not an object".to_owned())),
        Err(error) => Err(ErrorResponse::bad(format!("the body is not JSON: {error}"))),
    }
}

/// A tree of JSON in which every number is one that templates show as engines do, however long it is.
pub fn tree(json: &[u8]) -> serde_json::Result<Value> {
    match std::str::from_utf8(json) {
        Ok(text) => serde_json::from_str(&exact_numbers(text, Grammar::Json)),
        // Says where it is no text.
        Err(_) => serde_json::from_slice(json),
    }
}

/// Whether a completion's `prompt` is a list of prompts, and not one of tokens.
fn is_several(prompt: &Value) -> bool {
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
    fn each_interface_has_its_prompt() {
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
        for (given, is_several) in [
            (json!("a"), false),
            (json!([1, 2]), false),
            (json!(["a"]), false),
            (json!([[1], [2]]), true),
            (json!(["a", "b"]), true),
        ] {
            let body = json!({"prompt": given}).to_string();
            let read = read(Api::at("/v1/completions"), &body.into()).unwrap();
            assert_eq!(read.request.is_several, is_several, "{given}");
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
    fn what_engines_may_read_as_json_and_nobody_can_salt_is_refused() {
        let call = |kind: Option<&'static str>, body: &str| {
            let mut headers = hyper::HeaderMap::new();
            if let Some(kind) = kind {
                headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
            }
            let path = hyper::http::uri::PathAndQuery::from_static("/pooling");
            let body = Bytes::from(body.to_owned());
            saltable(&StepCall { method: hyper::Method::POST, path, headers, body })
        };
        let nan = r#"{"cache_salt": "theirs", "x": NaN}"#;
        let deep = format!(
            "{{\"cache_salt\": \"theirs\", \"x\": {}{}}}",
            "[".repeat(200),
            "]".repeat(200)
        );
        for kind in [None, Some("application/json"), Some("Application/x+JSON"), Some("text/plain")]
        {
            assert!(call(kind, nan).is_err() && call(kind, &deep).is_err(), "{kind:?}");
        }
        assert!(call(Some("application/json"), "\u{feff}{}").is_err());
        assert!(call(Some("multipart/form-data; boundary=x"), "--x").is_ok());
        assert!(call(Some("application/json"), "[{}]").is_ok() && call(None, "").is_ok());
    }

    #[test]
    fn what_is_no_json_object_is_refused_at_any_depth() {
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
