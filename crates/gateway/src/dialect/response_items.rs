//! The input items of OpenAI's responses as messages of a chat.
//!
//! One answer is several items: its reasoning, its text and each of its calls. vLLM puts them
//! together again: a call joins the assistant's message before it, and so do reasoning and a text if
//! that message has none.

use serde_json::{Map, Value, json};

/// The separator of a namespace and a function in it.
const NAMESPACE: &str = "__";

/// Appends the messages of items; none if one has a type whose conversion is unknown, or that
/// engines refuse.
pub(super) fn messages(items: &[Value], messages: &mut Vec<Value>) -> Option<()> {
    let first = messages.len();
    for item in items {
        let item = item.as_object()?;
        let text = |name: &str| item.get(name).and_then(Value::as_str);
        match text("type") {
            Some("function_call") => {
                let name = match text("namespace") {
                    Some(namespace) => format!("{namespace}{NAMESPACE}{}", text("name")?),
                    None => text("name")?.to_owned(),
                };
                let function = json!({"name": name, "arguments": text("arguments")?});
                let call =
                    json!({"id": text("call_id")?, "function": function, "type": "function"});
                push_call(call, first, messages);
            }
            Some("function_call_output" | "custom_tool_call_output") => messages.push(json!({
                "role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id"),
            })),
            Some("custom_tool_call") => {
                let input = json!({"input": text("input").unwrap_or_default()});
                let function = json!({"name": text("name")?, "arguments": input});
                let call =
                    json!({"id": text("call_id")?, "function": function, "type": "function"});
                push_call(call, first, messages);
            }
            Some("reasoning") => {
                join("reasoning", reasoning(item)?.into(), first, messages);
            }
            None | Some("message") if text("role") == Some("assistant") => {
                match answer(item.get("content")?) {
                    Some(answer) => join("content", answer.into(), first, messages),
                    None => return None,
                }
            }
            None | Some("message") if item.get("role").is_some() => {
                let role = text("role")?;
                messages.push(json!({"role": role, "content": item.get("content")?}));
            }
            _ => return None,
        }
    }
    Some(())
}

/// Whether the answer is to go on with the last item.
pub(super) fn is_to_be_continued(last: Option<&Value>) -> bool {
    let Some(last) = last else { return false };
    let status = last["status"].as_str();
    matches!(last["type"].as_str(), None | Some("message" | "reasoning"))
        && matches!(status, Some("in_progress" | "incomplete"))
}

/// The assistant's message at the end, if there is one.
fn last_answer(first: usize, messages: &mut [Value]) -> Option<&mut Map<String, Value>> {
    let last = messages.get_mut(first..)?.last_mut()?.as_object_mut()?;
    let is_answer = last.get("role").is_some_and(|role| role == "assistant");
    is_answer.then_some(last)
}

fn push_call(call: Value, first: usize, messages: &mut Vec<Value>) {
    let Some(last) = last_answer(first, messages) else {
        return messages.push(json!({"role": "assistant", "tool_calls": [call]}));
    };
    match last.entry("tool_calls").or_insert_with(|| json!([])) {
        Value::Array(calls) => calls.push(call),
        _ => messages.push(json!({"role": "assistant", "tool_calls": [call]})),
    }
}

/// Adds a field to the assistant's message at the end, or a message if there is none without it.
fn join(field: &str, value: Value, first: usize, messages: &mut Vec<Value>) {
    match last_answer(first, messages) {
        Some(last) if last.get(field).is_none_or(Value::is_null) => {
            last.insert(field.to_owned(), value);
        }
        _ => messages.push(json!({"role": "assistant", field: value})),
    }
}

/// The text of a reasoning item: its own, or else that of its summary. Encrypted text is refused.
fn reasoning(item: &Map<String, Value>) -> Option<&str> {
    let is_set = |name: &str| item.get(name).is_some_and(|value| !value.is_null() && value != "");
    if is_set("encrypted_content") {
        return None;
    }
    let first = |name: &str| item.get(name)?.as_array()?.first()?.get("text")?.as_str();
    Some(first("content").or_else(|| first("summary")).unwrap_or_default())
}

/// The text of an answer: of several parts, the first one's.
fn answer(content: &Value) -> Option<&str> {
    match content {
        Value::String(text) => Some(text),
        Value::Array(parts) => parts.first()?.get("text")?.as_str(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(items: &Value) -> Option<Value> {
        let mut found = Vec::new();
        messages(items.as_array().unwrap(), &mut found).map(|()| found.into())
    }

    #[test]
    fn the_items_of_one_answer_become_one_message() {
        let call = |id: &str| {
            let function = json!({"name": "f", "arguments": "{}"});
            json!({"id": id, "type": "function", "function": function})
        };
        let item = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let thought = json!({"type": "reasoning", "content": [{"text": "r"}], "summary": []});
        let said = json!({"role": "assistant", "content": [{"type": "output_text", "text": "s"}]});
        assert_eq!(
            converted(
                &json!([{"role": "user", "content": "hi"}, thought, said, item("a"), item("b"),
                {"type": "function_call_output", "call_id": "a", "output": "x"}])
            ),
            Some(json!([
                {"role": "user", "content": "hi"},
                {"role": "assistant", "reasoning": "r", "content": "s", "tool_calls": [call("a"), call("b")]},
                {"role": "tool", "content": "x", "tool_call_id": "a"},
            ]))
        );
        assert_eq!(
            converted(&json!([said, said])),
            Some(
                json!([{"role": "assistant", "content": "s"}, {"role": "assistant", "content": "s"}])
            )
        );
    }

    #[test]
    fn an_item_whose_conversion_is_unknown_voids_all() {
        for item in [
            json!({"type": "item_reference", "id": "1"}),
            json!("odd"),
            json!({"type": "function_call", "call_id": "c", "name": "f"}),
            json!({"type": "reasoning", "encrypted_content": "x", "summary": []}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}),
        ] {
            assert_eq!(converted(&json!([item])), None, "{item}");
        }
    }

    #[test]
    fn only_an_unfinished_answer_is_to_be_continued() {
        for (item, expected) in [
            (json!({"type": "message", "status": "in_progress"}), true),
            (json!({"status": "incomplete"}), true),
            (json!({"type": "message", "status": "completed"}), false),
            (json!({"type": "function_call", "status": "in_progress"}), false),
            (json!({}), false),
        ] {
            assert_eq!(is_to_be_continued(Some(&item)), expected, "{item}");
        }
        assert!(!is_to_be_continued(None));
    }
}
