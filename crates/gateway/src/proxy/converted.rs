//! Conversations of Anthropic's and OpenAI's newer interface as chats, the way vLLM makes chats of them: what its cache
//! holds is what it made.

use serde_json::{Map, Value, json};

/// What Claude Code begins a system text with, other in each request; vLLM leaves it out.
const CHANGING_HEADER: &str = "x-anthropic-billing-header";

/// Anthropic's `system` and `messages`.
pub(crate) fn of_messages(system: Option<&Value>, messages: Vec<Value>) -> Vec<Value> {
    let is_system = |message: &&Value| message["role"] == "system";
    let within = messages.iter().filter(is_system).map(|message| &message["content"]);
    let system: String = system.into_iter().chain(within).map(system_text).collect();
    let mut chat = Vec::with_capacity(messages.len() + 1);
    if !system.is_empty() {
        chat.push(json!({"role": "system", "content": system}));
    }
    for message in messages {
        if is_system(&&message) {
            continue;
        }
        match message.get("content").and_then(Value::as_array) {
            Some(blocks) => of_blocks(&message["role"], blocks, &mut chat),
            None => chat.push(message),
        }
    }
    chat
}

fn system_text(content: &Value) -> String {
    if let Value::String(text) = content {
        return text.clone();
    }
    let blocks = content.as_array().map_or(&[][..], Vec::as_slice);
    let texts = blocks.iter().filter_map(|block| block["text"].as_str());
    texts.filter(|text| !text.starts_with(CHANGING_HEADER)).collect()
}

/// One message of several blocks. Results of tools become messages of their own, before it.
fn of_blocks(role: &Value, blocks: &[Value], chat: &mut Vec<Value>) {
    let (mut parts, mut calls, mut reasoning) = (Vec::new(), Vec::new(), String::new());
    for block in blocks {
        match block["type"].as_str() {
            Some("text") if block["text"] != "" => {
                parts.push(json!({"type": "text", "text": block["text"]}));
            }
            Some("image") => parts.push(json!({"type": "image_url"})),
            Some("thinking") => reasoning.push_str(block["thinking"].as_str().unwrap_or_default()),
            Some("tool_use") => calls.push(call(&block["id"], &block["name"], &block["input"])),
            Some("tool_result") if role == "user" => of_result(block, chat),
            _ => {}
        }
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), role.clone());
    if !reasoning.is_empty() {
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

fn call(id: &Value, name: &Value, input: &Value) -> Value {
    let arguments = if input.is_null() { "{}".to_owned() } else { input.to_string() };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn of_result(block: &Value, chat: &mut Vec<Value>) {
    let items = block["content"].as_array().map_or(&[][..], Vec::as_slice);
    let is = |item: &Value, kind: &str| item["type"] == kind;
    let text = match &block["content"] {
        Value::String(text) => text.clone(),
        _ => {
            let texts = items.iter().filter(|item| is(item, "text"));
            let texts: Vec<_> = texts.map(|it| it["text"].as_str().unwrap_or_default()).collect();
            texts.join("\n")
        }
    };
    chat.push(json!({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}));
    let images: Vec<_> = items
        .iter()
        .filter(|item| is(item, "image"))
        .map(|_| json!({"type": "image_url"}))
        .collect();
    if !images.is_empty() {
        chat.push(json!({"role": "user", "content": images}));
    }
}

/// The items of a `/v1/responses` request; none if there is one that only engines can read.
pub(crate) fn of_items(items: Vec<Value>) -> Option<Vec<Value>> {
    let message = |item: Value| {
        if item["role"].is_string() {
            return Some(item);
        }
        match item["type"].as_str()? {
            "function_call" => {
                let (name, arguments) = (&item["name"], &item["arguments"]);
                let function = json!({"name": name, "arguments": arguments});
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

/// Anthropic's tools.
pub(crate) fn tools(tools: &mut [Value]) {
    for tool in tools.iter_mut().filter(|tool| tool["name"].is_string()) {
        let (name, description) = (tool["name"].take(), tool["description"].take());
        let function = json!({
            "name": name, "description": description, "parameters": tool["input_schema"].take(),
        });
        *tool = json!({"type": "function", "function": function});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_with_tools_becomes_what_vllm_makes_of_it() {
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
            Value::from(of_messages(Some(&system), messages)),
            json!([
                {"role": "system", "content": "Be brief.Be kind."},
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "reasoning": "look", "content": "I look.", "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{\"at\":\"home\"}"}},
                ]},
                {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
                {"role": "user", "content": "and now?"},
            ])
        );
        let mut own = [json!({"name": "look", "input_schema": {"type": "object"}})];
        tools(&mut own);
        let function =
            json!({"name": "look", "description": null, "parameters": {"type": "object"}});
        assert_eq!(own, [json!({"type": "function", "function": function})]);
    }

    #[test]
    fn items_become_messages_or_nothing_at_all() {
        let items = vec![
            json!({"role": "user", "content": "hi"}),
            json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "c", "output": "x"}),
        ];
        let function = json!({"name": "f", "arguments": "{}"});
        let call = json!({"id": "c", "type": "function", "function": function});
        assert_eq!(
            of_items(items),
            Some(vec![
                json!({"role": "user", "content": "hi"}),
                json!({"role": "assistant", "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": "c", "content": "x"}),
            ])
        );
        assert_eq!(of_items(vec![json!({"type": "item_reference", "id": "1"})]), None);
        assert_eq!(of_items(vec![json!("odd")]), None);
    }
}
