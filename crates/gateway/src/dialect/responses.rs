//! OpenAI's `/v1/responses`.
//!
//! The engine converts the input items to a chat; they are converted exactly as vLLM does
//! ([`response_items`]), to predict the prompt in its cache. A request with an item of an unknown
//! type has no predicted prompt.

use super::{Dialect, response_items, response_tools};
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use wornpath_routing::{Prompt, PromptApi, PromptReading};

/// OpenAI's responses API.
pub(super) struct Responses;

impl Dialect for Responses {
    fn name(&self) -> &'static str {
        "responses"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/v1/responses"]
    }

    fn generates(&self) -> bool {
        true
    }

    fn renders_numbers(&self) -> bool {
        true
    }

    fn prompt(&self, fields: &mut Map<String, Value>, reading: &mut PromptReading) -> Prompt {
        reading.api = PromptApi::Responses;
        let mut messages = Vec::new();
        match fields.remove("instructions") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(content @ Value::String(_)) => {
                messages.push(json!({"role": "system", "content": content}));
            }
            Some(_) => reading.is_unknown = true,
        }
        match fields.remove("input") {
            Some(Value::Array(items)) => {
                reading.is_plain = messages.is_empty() && items.iter().all(is_plain);
                reading.continues = response_items::is_to_be_continued(items.last());
                match response_items::messages(&items, &mut messages) {
                    Some(()) => {}
                    None => reading.is_unknown = true,
                }
            }
            Some(text @ Value::String(_)) => {
                reading.is_plain = messages.is_empty();
                messages.push(json!({"role": "user", "content": text}));
            }
            _ => reading.is_unknown = true,
        }
        // What it refers to is kept by the engine.
        let refers = ["previous_response_id", "conversation", "prompt", "previous_input_messages"];
        let is_set = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null());
        reading.is_unknown |= refers.iter().any(is_set);
        let tools = match fields.remove("tools") {
            Some(Value::Array(tools)) if !tools.is_empty() => {
                reading.is_plain = false;
                let tools = response_tools::chat_tools(&tools);
                reading.is_unknown |= tools.is_none();
                tools
            }
            _ => None,
        };
        let kwargs = match fields.remove("chat_template_kwargs") {
            Some(Value::Object(kwargs)) => Some(kwargs),
            _ => None,
        };
        Prompt::Chat { messages: messages.into(), tools, kwargs }
    }

    fn end_words(&self) -> &'static [&'static [u8]] {
        &[b"response.completed", b"response.failed", b"response.incomplete"]
    }

    fn may_split_events(&self) -> bool {
        true
    }

    fn numbers_events(&self) -> bool {
        true
    }

    /// The first events of the stream repeat fields of the client's body; only the last has counts.
    fn counts_only_at_the_end(&self) -> bool {
        true
    }

    /// The API's own error event, with the `error` object besides: the official clients raise an
    /// exception on that object.
    fn error_event(&self, kind: &str, message: &str, number: u64) -> Value {
        let mut body = self.error_body(kind, StatusCode::BAD_GATEWAY, message);
        body["type"] = json!("error");
        body["code"] = json!(kind);
        body["message"] = json!(message);
        body["param"] = json!(null);
        body["sequence_number"] = json!(number);
        body
    }
}

/// Whether an item is a message of a role and a text, which every engine reads alike.
fn is_plain(item: &Value) -> bool {
    let Value::Object(fields) = item else { return false };
    let is_text = |name: &str| fields.get(name).is_some_and(Value::is_string);
    fields.len() == 2 && is_text("role") && is_text("content")
}
