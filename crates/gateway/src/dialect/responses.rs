//! OpenAI's `/v1/responses`.
//!
//! The engine converts the input items to a chat; this file converts them exactly as vLLM does, to
//! predict the prompt in its cache. A request with an item of an unknown type has no predicted
//! prompt.

use super::{Dialect, chat};
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use wornpath_routing::Prompt;

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

    fn prompt(&self, fields: &mut Map<String, Value>) -> Prompt {
        let instructions = fields.remove("instructions").filter(|value| !value.is_null());
        let mut messages: Vec<_> = instructions
            .map(|content| json!({"role": "system", "content": content}))
            .into_iter()
            .collect();
        match fields.remove("input") {
            Some(Value::Array(items)) => match convert(items) {
                Some(converted) => messages.extend(converted),
                // The engine's conversion is unknown, so nothing is looked up.
                None => return Prompt::default(),
            },
            Some(text) => messages.push(json!({"role": "user", "content": text})),
            None => {}
        }
        chat::conversation(messages, fields)
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

/// Converts the input items to messages; none if one has a type whose conversion is unknown.
fn convert(items: Vec<Value>) -> Option<Vec<Value>> {
    let message = |item: Value| {
        if item["role"].is_string() {
            return Some(item);
        }
        match item["type"].as_str()? {
            "function_call" => {
                let function = json!({"name": item["name"], "arguments": item["arguments"]});
                let call = json!({"id": item["call_id"], "type": "function", "function": function});
                Some(json!({"role": "assistant", "tool_calls": [call]}))
            }
            "function_call_output" => Some(json!({
                "role": "tool", "tool_call_id": item["call_id"], "content": item["output"],
            })),
            _ => None,
        }
    };
    items.into_iter().map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_items_become_messages_and_an_unknown_one_voids_all() {
        let items = vec![
            json!({"role": "user", "content": "hi"}),
            json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "c", "output": "x"}),
        ];
        let function = json!({"name": "f", "arguments": "{}"});
        let call = json!({"id": "c", "type": "function", "function": function});
        assert_eq!(
            convert(items),
            Some(vec![
                json!({"role": "user", "content": "hi"}),
                json!({"role": "assistant", "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": "c", "content": "x"}),
            ])
        );
        assert_eq!(convert(vec![json!({"type": "item_reference", "id": "1"})]), None);
        assert_eq!(convert(vec![json!("odd")]), None);
    }
}
