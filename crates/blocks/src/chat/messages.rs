//! Messages as the engine passes them to the template.
//!
//! The template does not see a request's messages unchanged: vLLM joins text parts (or wraps plain
//! text into a part, for templates that iterate over parts), turns missing content into none,
//! parses the arguments of past tool calls, and Hugging Face copies a message's reasoning to the
//! names that templates read. Each of these changes the prompt, so this module does the same.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::numbers::{Grammar, exact_numbers};

/// Which form of `content` a template expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContentForm {
    /// One string.
    Text,
    /// A list of parts, each `{"type": "text", "text": …}` or a medium.
    Parts,
}

/// Marks the start of the first part that is not text.
///
/// It has private-use characters at both ends: a client's text that contains it can only shorten
/// the known prefix, never make it wrong.
pub(super) const PART_MARK: &str = "\u{f8ff}first part that is no text\u{f8ff}";

const TEXT_PARTS: [&str; 5] = ["text", "input_text", "output_text", "refusal", "thinking"];
/// The fields in which clients send a message's reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// The beginning of a first line that one client changes in every request; vLLM drops the line.
const CHANGING_HEADER: &str = "x-anthropic-billing-header";

/// The messages for the template, with [`PART_MARK`] before the first part that is not text.
/// Messages that need no change, which is most, are not copied.
pub(super) fn prepare(
    messages: &[Value],
    form: ContentForm,
    keeps_developer: bool,
) -> Vec<Cow<'_, Value>> {
    let mut marked = false;
    let mut one = |message| {
        if is_plain(message, form) {
            return Cow::Borrowed(message);
        }
        Cow::Owned(prepare_one(message, form, &mut marked))
    };
    let mut prepared: Vec<_> = messages.iter().map(&mut one).collect();
    if !keeps_developer && prepared.iter().any(|message| message["role"] == "developer") {
        prepared = developer_to_system(prepared);
    }
    prepared
}

/// Whether some part of a message is not text.
pub(super) fn has_media(messages: &[Value]) -> bool {
    let is_medium = |part: &Value| part_text(part).is_none() && !part_is_skipped(part);
    messages.iter().any(|message| match message.get("content") {
        None | Some(Value::Null | Value::String(_)) => false,
        Some(Value::Array(parts)) => parts.iter().any(is_medium),
        Some(part) => is_medium(part),
    })
}

/// Whether [`prepare_one`] would change nothing.
pub(super) fn is_plain(message: &Value, form: ContentForm) -> bool {
    let Value::Object(fields) = message else { return true };
    let Some(Value::String(text)) = fields.get("content") else { return false };
    form == ContentForm::Text
        && !is_changing(text)
        && !fields.contains_key("tool_calls")
        && !REASONING.iter().any(|name| fields.contains_key(*name))
}

/// Whether vLLM drops the first line of a text.
pub(super) fn is_changing(text: &str) -> bool {
    text.starts_with(CHANGING_HEADER)
}

/// The tools for the template: vLLM parses and serializes them, which orders the fields it knows,
/// adds the missing ones and puts the others behind them.
pub(super) fn prepare_tools(tools: &[Value]) -> Vec<Value> {
    let tool = |tool: &Value| {
        let (Value::Object(tool), Some(function)) = (tool, tool["function"].as_object()) else {
            return tool.clone();
        };
        let mut known = Map::new();
        for name in ["name", "description", "parameters"] {
            known.insert(name.to_owned(), function.get(name).cloned().unwrap_or(Value::Null));
        }
        known.extend(function.iter().map(|(name, value)| (name.clone(), value.clone())));
        let mut out = Map::new();
        out.insert(
            "type".to_owned(),
            tool.get("type").cloned().unwrap_or_else(|| json!("function")),
        );
        out.insert("function".to_owned(), Value::Object(known));
        for (name, value) in tool {
            out.entry(name.as_str()).or_insert_with(|| value.clone());
        }
        Value::Object(out)
    };
    tools.iter().map(tool).collect()
}

fn prepare_one(message: &Value, form: ContentForm, marked: &mut bool) -> Value {
    let Value::Object(message) = message else { return message.clone() };
    let mut message = message.clone();
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default().to_owned();
    let content = message.get("content").cloned().unwrap_or(Value::Null);
    message.insert("content".to_owned(), prepare_content(content, &role, form, marked));
    if role == "assistant" {
        prepare_tool_calls(&mut message);
    }
    let reasoning = REASONING
        .iter()
        .find_map(|name| message.get(*name).filter(|value| !value.is_null()).cloned());
    if let Some(reasoning) = reasoning {
        message.entry("thinking").or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".to_owned(), reasoning);
    }
    Value::Object(message)
}

fn prepare_content(content: Value, role: &str, form: ContentForm, marked: &mut bool) -> Value {
    let parts = match content {
        Value::Null => Vec::new(),
        Value::Array(parts) => parts,
        text => vec![text],
    };
    let mut out = Vec::new();
    let mut media = false;
    for part in parts {
        match part_text(&part) {
            Some(text) => {
                let text = if role == "system" { without_header(text) } else { Some(text) };
                out.extend(text.map(str::to_owned).map(Value::String));
            }
            None if part_is_skipped(&part) => {}
            None => {
                if !*marked && form == ContentForm::Parts {
                    out.push(Value::String(PART_MARK.to_owned()));
                    *marked = true;
                }
                media = true;
                if form == ContentForm::Parts {
                    out.push(part);
                }
            }
        }
    }
    // Where the template takes one string, vLLM puts the media's placeholders before the texts.
    if media && form == ContentForm::Text && !*marked {
        out.insert(0, Value::String(PART_MARK.to_owned()));
        *marked = true;
    }
    if form == ContentForm::Text || (role == "tool" && !media) {
        let texts: Vec<_> = out.iter().filter_map(Value::as_str).collect();
        return Value::String(texts.join("\n"));
    }
    let wrap = |part| {
        if let Value::String(text) = part { json!({"type": "text", "text": text}) } else { part }
    };
    out.into_iter().map(wrap).collect()
}

/// The part's text, if it is a text.
fn part_text(part: &Value) -> Option<&str> {
    if let Value::String(text) = part {
        return Some(text);
    }
    let kind = part.get("type").and_then(Value::as_str);
    match kind {
        Some(kind) if TEXT_PARTS.contains(&kind) => {
            let field = if kind == "refusal" || kind == "thinking" { kind } else { "text" };
            part.get(field)?.as_str()
        }
        None => part.get("text")?.as_str(),
        Some(_) => None,
    }
}

/// A text part without text is skipped.
fn part_is_skipped(part: &Value) -> bool {
    part.get("type").and_then(Value::as_str).is_some_and(|kind| TEXT_PARTS.contains(&kind))
}

fn without_header(text: &str) -> Option<&str> {
    if !is_changing(text) {
        return Some(text);
    }
    text.split_once('\n').map(|(_, rest)| rest).filter(|rest| !rest.is_empty())
}

/// Parses the arguments of tool calls: OpenAI's API sends JSON text, templates expect an object.
fn prepare_tool_calls(message: &mut Map<String, Value>) {
    match message.get_mut("tool_calls") {
        Some(Value::Array(calls)) if !calls.is_empty() => {
            for call in calls {
                let Some(Value::Object(function)) = call.get_mut("function") else { continue };
                let arguments = match function.get("arguments") {
                    Some(Value::Object(object)) => Value::Object(object.clone()),
                    Some(Value::String(text)) => {
                        let text = exact_numbers(text, Grammar::Python);
                        serde_json::from_str(&text).unwrap_or_default()
                    }
                    _ => Value::Null,
                };
                let object = if arguments.is_object() { arguments } else { json!({}) };
                function.insert("arguments".to_owned(), object);
            }
        }
        Some(Value::Array(_) | Value::Null) => {
            message.shift_remove("tool_calls");
        }
        _ => {}
    }
}

/// For a template without the developer role: merges developer and system messages into one system
/// message at the front.
fn developer_to_system(messages: Vec<Cow<'_, Value>>) -> Vec<Cow<'_, Value>> {
    let mut system = Vec::new();
    let mut out = Vec::new();
    let mut in_place = true;
    for (i, mut message) in messages.into_iter().enumerate() {
        if message["role"] != "system" && message["role"] != "developer" {
            out.push(message);
            continue;
        }
        in_place &= i == 0;
        message.to_mut()["role"] = json!("system");
        system.push(message);
    }
    if let ([_], true) = (system.as_slice(), in_place) {
        out.splice(0..0, system);
        return out;
    }
    let texts: Vec<String> = system
        .iter()
        .map(|message| content_text(message))
        .filter(|text| !text.is_empty())
        .collect();
    out.insert(0, Cow::Owned(json!({"role": "system", "content": texts.join("\n\n")})));
    out
}

fn content_text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(part_text).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}
