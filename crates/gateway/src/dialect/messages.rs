//! Anthropic's `/v1/messages`.
//!
//! The engine converts the conversation to a chat and caches the prompt rendered from it. To
//! predict that prompt, this file converts the conversation exactly as vLLM does. An engine that
//! converts it differently gets fewer cache hits, never a wrong answer.

use super::{Dialect, chat};
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use wornpath_routing::{Prompt, PromptApi, PromptReading};

/// Anthropic's messages API.
pub(super) struct Messages;

impl Dialect for Messages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/v1/messages"]
    }

    fn generates(&self) -> bool {
        true
    }

    fn renders_numbers(&self) -> bool {
        true
    }

    fn prompt(&self, fields: &mut Map<String, Value>, reading: &mut PromptReading) -> Prompt {
        reading.api = PromptApi::Messages;
        let system = fields.remove("system").filter(|system| !system.is_null());
        let messages = match fields.remove("messages") {
            Some(Value::Array(messages)) => messages,
            _ => Vec::new(),
        };
        let tools = fields.get("tools").and_then(Value::as_array);
        let has_tools = tools.is_some_and(|tools| !tools.is_empty());
        let is_text = system.as_ref().is_none_or(|system| {
            system.as_str().is_some_and(|text| !text.trim().is_empty() && !is_billing(text))
        });
        reading.is_plain = is_text && !has_tools && messages.iter().all(is_plain);
        reading.is_unknown = messages.iter().any(is_unknown);
        if let Some(Value::Array(tools)) = fields.get_mut("tools") {
            convert_tools(tools);
        }
        chat::prompt(convert(system.as_ref(), messages).into(), fields)
    }

    fn end_words(&self) -> &'static [&'static [u8]] {
        &[b"message_stop", b"[DONE]"]
    }

    fn may_split_events(&self) -> bool {
        true
    }

    fn error_body(&self, kind: &str, _status: StatusCode, message: &str) -> Value {
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }
}

/// The start of a system text block by Claude Code that differs in each request; vLLM drops it.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

fn is_billing(text: &str) -> bool {
    text.starts_with(BILLING_HEADER)
}

/// Whether a message is a text of the user or the assistant, which every engine reads alike.
fn is_plain(message: &Value) -> bool {
    message["content"].is_string() && message["role"] != "system"
}

/// Whether a message adds or removes tools, or the assistant's has a result that Python prints.
fn is_unknown(message: &Value) -> bool {
    let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
    blocks.iter().any(|block| match block["type"].as_str() {
        Some("tool_addition" | "tool_removal") => true,
        Some("tool_result") => message["role"] == "assistant" && block["content"].is_array(),
        _ => false,
    })
}

/// Converts Anthropic's `system` and `messages` to the messages of a chat. System messages stay
/// where they are: the template decides whether they are merged.
fn convert(system: Option<&Value>, messages: Vec<Value>) -> Vec<Value> {
    let mut chat = Vec::with_capacity(messages.len() + 1);
    let system = match system {
        // A text passes as it is.
        Some(Value::String(text)) => text.clone(),
        Some(blocks) => system_text(blocks),
        None => String::new(),
    };
    if !system.is_empty() {
        chat.push(json!({"role": "system", "content": system}));
    }
    for message in messages {
        if message["role"] == "system" {
            let text = system_text(&message["content"]);
            if !text.is_empty() {
                chat.push(json!({"role": "system", "content": text}));
            }
            continue;
        }
        match message.get("content").and_then(Value::as_array) {
            Some(blocks) => convert_blocks(&message["role"], blocks, &mut chat),
            None => {
                let known = |name: &&str| Some(((*name).to_owned(), message.get(*name)?.clone()));
                let kept: Map<_, _> = ["role", "content"].iter().filter_map(known).collect();
                chat.push(kept.into());
            }
        }
    }
    chat
}

fn system_text(content: &Value) -> String {
    if let Value::String(text) = content {
        return if is_billing(text) { String::new() } else { text.clone() };
    }
    let blocks = content.as_array().map_or(&[][..], Vec::as_slice);
    let texts = blocks.iter().filter(|block| block["type"] == "text");
    texts.filter_map(|block| block["text"].as_str()).filter(|text| !is_billing(text)).collect()
}

/// Converts a message of content blocks. Tool results become separate messages before it.
fn convert_blocks(role: &Value, blocks: &[Value], chat: &mut Vec<Value>) {
    let mut parts = Vec::new();
    let mut calls = Vec::new();
    let mut reasoning = String::new();
    let mut has_thought = false;
    for block in blocks {
        match block["type"].as_str() {
            Some("text") if block["text"] != "" && !block["text"].is_null() => {
                parts.push(json!({"type": "text", "text": block["text"]}));
            }
            Some("image") => parts.push(json!({"type": "image_url"})),
            Some("thinking") => {
                has_thought = true;
                reasoning.push_str(block["thinking"].as_str().unwrap_or_default());
            }
            Some("tool_use") => {
                calls.push(tool_call(&block["id"], &block["name"], &block["input"]));
            }
            Some("tool_result") if role == "user" => convert_tool_result(block, chat),
            Some("tool_result") => parts.push(json!({
                "type": "text",
                "text": format!("Tool result: {}", block["content"].as_str().unwrap_or_default()),
            })),
            _ => {}
        }
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), role.clone());
    if has_thought {
        message.insert("reasoning".to_owned(), reasoning.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    let content = match &mut parts[..] {
        [] if role == "user" => return,
        [] => Value::Null,
        [only] if only["type"] == "text" => only["text"].take(),
        _ => parts.into(),
    };
    message.insert("content".to_owned(), content);
    chat.push(message.into());
}

fn tool_call(id: &Value, name: &Value, input: &Value) -> Value {
    let arguments = if input.is_object() { input.clone() } else { json!({}) };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn convert_tool_result(block: &Value, chat: &mut Vec<Value>) {
    let items = block["content"].as_array().map_or(&[][..], Vec::as_slice);
    let of_kind = |kind: &'static str| items.iter().filter(move |item| item["type"] == kind);
    let text = match &block["content"] {
        Value::String(text) => text.clone(),
        _ => {
            let texts = of_kind("text").map(|item| item["text"].as_str().unwrap_or_default());
            texts.collect::<Vec<_>>().join("\n")
        }
    };
    let id = &block["tool_use_id"];
    chat.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
    let images: Vec<_> = of_kind("image").map(|_| json!({"type": "image_url"})).collect();
    if !images.is_empty() {
        chat.push(json!({"role": "user", "content": images}));
    }
    let name = |item: &Value| {
        let names = [&item["tool_name"], &item["name"]];
        let name = names.into_iter().find(|name| name.is_string())?;
        Some(json!({"type": "tool_reference", "name": name}))
    };
    let references: Vec<_> = of_kind("tool_reference").filter_map(name).collect();
    if !references.is_empty() {
        chat.push(json!({"role": "tool", "tool_call_id": id, "content": references}));
    }
}

/// Converts Anthropic's tools to OpenAI's, in place.
fn convert_tools(tools: &mut [Value]) {
    for tool in tools.iter_mut().filter(|tool| tool["name"].is_string()) {
        let name = tool["name"].take();
        let description = tool["description"].take();
        let mut parameters = tool["input_schema"].take();
        if let Value::Object(schema) = &mut parameters {
            schema.entry("type").or_insert_with(|| json!("object"));
        }
        let mut function =
            json!({"name": name, "description": description, "parameters": parameters});
        for field in ["strict", "defer_loading"] {
            function[field] = tool[field].take();
        }
        *tool = json!({"type": "function", "function": function});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_with_tools_is_converted_as_vllm_converts_it() {
        let system = json!([
            {"type": "text", "text": "x-anthropic-billing-header: 1"},
            {"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."},
        ]);
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "look", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "home"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            ]},
            {"role": "user", "content": "and now?"},
        ]);
        let Value::Array(messages) = messages else { unreachable!() };
        assert_eq!(
            Value::from(convert(Some(&system), messages)),
            json!([
                {"role": "system", "content": "Be brief.Be kind."},
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "reasoning": "look", "content": "I look.", "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "look", "arguments": {"at": "home"}}},
                ]},
                {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
                {"role": "user", "content": "and now?"},
            ])
        );
        let mut tools = [json!({"name": "look", "input_schema": {"type": "object"}})];
        convert_tools(&mut tools);
        let function = json!({
            "name": "look", "description": null, "parameters": {"type": "object"}, "strict": null,
            "defer_loading": null,
        });
        assert_eq!(tools, [json!({"type": "function", "function": function})]);
    }
}
