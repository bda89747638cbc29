//! The same answer in other words: Anthropic's messages, and calls of tools.
//!
//! A tool is called when the request leaves no choice: the answer's words become its only argument.

use super::call::{CallKind, Reason};
use super::response::AnswerScript;
use serde_json::{Map, Value, json};

/// The tool that must be called, if one must: `required`, `any`, or one by name.
pub(super) fn tool(kind: CallKind, body: &Map<String, Value>) -> Option<String> {
    let choice = body.get("tool_choice")?;
    let named = match kind {
        CallKind::Messages => &choice["name"],
        _ => &choice["function"]["name"],
    };
    if let Some(name) = named.as_str() {
        return Some(name.to_owned());
    }
    let must = choice == "required" || choice["type"] == "any";
    let first = body.get("tools")?.get(0)?;
    let name = if kind == CallKind::Messages { &first["name"] } else { &first["function"]["name"] };
    name.as_str().filter(|_| must).map(str::to_owned)
}

/// The conversation of a request that is not a chat in OpenAI's words.
pub(super) fn as_chat(kind: CallKind, body: &Map<String, Value>) -> Map<String, Value> {
    let mut chat = body.clone();
    let (system, rest) = match kind {
        CallKind::Responses => ("instructions", "input"),
        _ => ("system", "messages"),
    };
    let mut messages = Vec::new();
    if let Some(content) = chat.remove(system).filter(|content| !content.is_null()) {
        messages.push(json!({"role": "system", "content": content}));
    }
    match chat.remove(rest) {
        Some(Value::Array(all)) => messages.extend(all),
        Some(text) => messages.push(json!({"role": "user", "content": text})),
        None => {}
    }
    chat.remove("tools");
    chat.insert("messages".to_owned(), messages.into());
    chat
}

impl AnswerScript {
    /// The message of a chat, or the tool that it calls.
    pub(super) fn chat_message(&self) -> Value {
        match &self.call.tool {
            None => json!({"role": "assistant", "content": self.text()}),
            Some(name) => {
                let function = json!({"name": name, "arguments": self.argument().to_string()});
                let call = json!({"id": self.call_id(), "type": "function", "function": function});
                json!({"role": "assistant", "content": null, "tool_calls": [call]})
            }
        }
    }

    /// What a chunk of a chat adds.
    pub(super) fn chat_delta(&self, index: usize) -> Value {
        match &self.call.tool {
            None => json!({"content": self.pieces[index]}),
            Some(_) => {
                let function = json!({"arguments": self.argument_piece(index)});
                json!({"tool_calls": [{"index": 0, "function": function}]})
            }
        }
    }

    /// What the first chunk of a chat says before any word.
    pub(super) fn chat_beginning(&self) -> Value {
        match &self.call.tool {
            None => json!({"role": "assistant", "content": ""}),
            Some(name) => {
                let function = json!({"name": name, "arguments": ""});
                let call = json!({"index": 0, "id": self.call_id(), "type": "function", "function": function});
                json!({"role": "assistant", "content": null, "tool_calls": [call]})
            }
        }
    }

    /// Why it ends, in OpenAI's words.
    pub(super) fn finish(&self) -> &'static str {
        if self.call.tool.is_some() { "tool_calls" } else { self.call.reason.name() }
    }

    /// A whole answer in Anthropic's words.
    pub(super) fn message(&self) -> Value {
        let content = match &self.call.tool {
            None => json!({"type": "text", "text": self.text()}),
            Some(name) => {
                json!({"type": "tool_use", "id": self.call_id(), "name": name, "input": self.argument()})
            }
        };
        let mut message = self.empty_message();
        message["content"] = json!([content]);
        message["stop_reason"] = json!(self.stop_reason());
        message["usage"]["output_tokens"] = json!(self.pieces.len());
        message
    }

    /// The events that carry token `index` in Anthropic's words.
    pub(super) fn message_chunk(&self, index: usize, out: &mut Vec<u8>) {
        if index == 0 {
            let block = match &self.call.tool {
                None => json!({"type": "text", "text": ""}),
                Some(name) => {
                    json!({"type": "tool_use", "id": self.call_id(), "name": name, "input": {}})
                }
            };
            self.message_beginning(out);
            named(&json!({"type": "content_block_start", "index": 0, "content_block": block}), out);
        }
        let delta = match &self.call.tool {
            None => json!({"type": "text_delta", "text": self.pieces[index]}),
            Some(_) => {
                json!({"type": "input_json_delta", "partial_json": self.argument_piece(index)})
            }
        };
        named(&json!({"type": "content_block_delta", "index": 0, "delta": delta}), out);
    }

    /// The event before all others in Anthropic's words.
    pub(super) fn message_beginning(&self, out: &mut Vec<u8>) {
        named(&json!({"type": "message_start", "message": self.empty_message()}), out);
    }

    /// The events after the last token in Anthropic's words.
    pub(super) fn message_ending(&self, out: &mut Vec<u8>) {
        named(&json!({"type": "content_block_stop", "index": 0}), out);
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": null});
        let usage = json!({"output_tokens": self.pieces.len()});
        named(&json!({"type": "message_delta", "delta": delta, "usage": usage}), out);
        named(&json!({"type": "message_stop"}), out);
    }

    fn empty_message(&self) -> Value {
        json!({
            "id": format!("msg_{}", self.id), "type": "message", "role": "assistant",
            "model": self.call.model, "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": self.call.prompt.len(), "output_tokens": 0},
        })
    }

    const fn stop_reason(&self) -> &'static str {
        match (&self.call.tool, self.call.reason) {
            (Some(_), _) => "tool_use",
            (None, Reason::Stop) => "end_turn",
            (None, Reason::Length) => "max_tokens",
        }
    }

    pub(super) fn text(&self) -> String {
        self.pieces.concat()
    }

    fn argument(&self) -> Value {
        json!({"words": self.text()})
    }

    /// One token's share of the argument's JSON; words need no escapes.
    fn argument_piece(&self, index: usize) -> String {
        let begins = if index == 0 { "{\"words\":\"" } else { "" };
        let ends = if index + 1 == self.pieces.len() { "\"}" } else { "" };
        format!("{begins}{}{ends}", self.pieces[index])
    }

    fn call_id(&self) -> String {
        format!("call_{}", self.id)
    }
}

/// An event with its name, as Anthropic's streams and those of OpenAI's responses have them.
pub(super) fn named(value: &Value, out: &mut Vec<u8>) {
    let name = value["type"].as_str().unwrap_or_default();
    out.extend_from_slice(format!("event: {name}\ndata: {value}\n\n").as_bytes());
}
