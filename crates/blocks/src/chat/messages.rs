//! Messages as vLLM passes them to the template.
//!
//! The template does not see a request's messages unchanged: vLLM joins text parts (or wraps plain
//! text into a part, for templates that iterate over parts), turns missing content into none,
//! parses the arguments of past tool calls, and drops every field that it does not know. Each of
//! these changes the prompt, so this module does the same; [`super::sglang`] does what SGLang does.

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

/// The order of the fields of a call's function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CallOrder {
    /// That of the engine's own form, which it reads a client's messages into.
    #[default]
    Engine,
    /// As they are written: an API of the engine that converts other items to messages.
    Written,
}

/// Marks the start of the first part that is not text.
///
/// It has private-use characters at both ends: a client's text that contains it can only shorten
/// the known prefix, never make it wrong.
pub(super) const PART_MARK: &str = "\u{f8ff}first part that is no text\u{f8ff}";

const TEXT_PARTS: [&str; 5] = ["text", "input_text", "output_text", "refusal", "thinking"];
/// The names of a message's reasoning, the preferred one first.
const REASONING: [&str; 2] = ["reasoning", "reasoning_content"];
/// The beginning of a first line that one client changes in every request; vLLM drops the line.
const CHANGING_HEADER: &str = "x-anthropic-billing-header";

/// The messages for the template, with [`PART_MARK`] before the first part that is not text.
/// Messages that need no change, which is most, are not copied.
pub(super) fn prepare(
    messages: &[Value],
    form: ContentForm,
    keeps_developer: bool,
    order: CallOrder,
) -> Vec<Cow<'_, Value>> {
    let mut marked = false;
    let mut one = |message| {
        if is_plain(message, form) {
            return Cow::Borrowed(message);
        }
        Cow::Owned(prepare_one(message, form, order, &mut marked))
    };
    let mut prepared: Vec<_> = messages.iter().map(&mut one).collect();
    if !keeps_developer && prepared.iter().any(|message| message["role"] == "developer") {
        prepared = developer_to_system(prepared);
    }
    prepared
}

/// Whether some part of a message is not text.
pub(super) fn has_media(messages: &[Value]) -> bool {
    let is_medium = |part: &Value| {
        part_text(part).is_none() && !part_is_skipped(part) && tool_reference(part).is_none()
    };
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
        && fields.len() == 2
        && !is_changing(text)
        && fields.get("role").is_some_and(|role| role.is_string() && role != "developer")
}

/// Whether vLLM drops the first line of a text.
pub(super) fn is_changing(text: &str) -> bool {
    text.starts_with(CHANGING_HEADER)
}

fn prepare_one(message: &Value, form: ContentForm, order: CallOrder, marked: &mut bool) -> Value {
    let Value::Object(fields) = message else { return message.clone() };
    let role = fields.get("role").and_then(Value::as_str).unwrap_or_default();
    let mut prepared = Map::new();
    prepared.insert("role".to_owned(), fields.get("role").cloned().unwrap_or(Value::Null));
    let content = fields.get("content").cloned().unwrap_or(Value::Null);
    prepared.insert("content".to_owned(), prepare_content(content, role, form, marked));
    match role {
        "assistant" => {
            insert_tool_calls(fields, order, &mut prepared);
            insert_reasoning(fields, &mut prepared);
        }
        "tool" => {
            if let Some(id) = fields.get("tool_call_id") {
                prepared.insert("tool_call_id".to_owned(), id.clone());
            }
        }
        _ => {}
    }
    for name in ["name", "task"] {
        if let Some(text @ Value::String(_)) = fields.get(name) {
            prepared.insert(name.to_owned(), text.clone());
        }
    }
    if role == "developer" {
        let tools = fields.get("tools").cloned().unwrap_or(Value::Null);
        prepared.insert("tools".to_owned(), tools);
    }
    Value::Object(prepared)
}

fn insert_reasoning(fields: &Map<String, Value>, prepared: &mut Map<String, Value>) {
    let found = REASONING.iter().find_map(|name| fields.get(*name).filter(|it| !it.is_null()));
    let Some(reasoning) = found else { return };
    for name in REASONING {
        prepared.insert(name.to_owned(), reasoning.clone());
    }
}

fn prepare_content(content: Value, role: &str, form: ContentForm, marked: &mut bool) -> Value {
    let parts = match content {
        Value::Null => Vec::new(),
        Value::Array(parts) => parts,
        text => vec![text],
    };
    let mut out = Vec::new();
    let mut media = false;
    let mut has_reference = false;
    for part in parts {
        if let Some(name) = tool_reference(&part) {
            has_reference = true;
            out.push(match form {
                ContentForm::Text => name.clone(),
                ContentForm::Parts => json!({"type": "tool_reference", "name": name}),
            });
            continue;
        }
        match part_text(&part) {
            Some(text) => {
                let text = if role == "system" { without_header(text) } else { Some(text) };
                // Of texts that are joined, vLLM drops the empty ones.
                let text = text.filter(|text| form == ContentForm::Parts || !text.is_empty());
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
    if form == ContentForm::Text || (role == "tool" && !media && !has_reference) {
        let texts: Vec<_> = out.iter().filter_map(Value::as_str).collect();
        return Value::String(texts.join("\n"));
    }
    let wrap = |part| {
        if let Value::String(text) = part { json!({"type": "text", "text": text}) } else { part }
    };
    out.into_iter().map(wrap).collect()
}

/// The name in a part that refers to a tool.
fn tool_reference(part: &Value) -> Option<&Value> {
    if part.get("type").is_some_and(|kind| kind == "tool_reference") {
        part.get("name")
    } else {
        None
    }
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

/// The calls of an assistant's message with their arguments parsed: OpenAI's API sends JSON text,
/// templates expect an object. An empty list is dropped.
fn insert_tool_calls(
    fields: &Map<String, Value>,
    order: CallOrder,
    prepared: &mut Map<String, Value>,
) {
    let Some(Value::Array(calls)) = fields.get("tool_calls") else { return };
    if calls.is_empty() {
        return;
    }
    let call = |call: &Value| {
        let Value::Object(call) = call else { return call.clone() };
        let mut call = ordered(call, &["id", "function", "type"]);
        if let Some(Value::Object(function)) = call.get("function") {
            let mut function = match order {
                CallOrder::Engine => ordered(function, &["arguments", "name"]),
                CallOrder::Written => function.clone(),
            };
            let arguments = match function.get("arguments") {
                Some(Value::Object(object)) => Value::Object(object.clone()),
                Some(Value::String(text)) => parsed_arguments(text).unwrap_or_default(),
                _ => Value::Null,
            };
            let arguments = if arguments.is_object() { arguments } else { json!({}) };
            function.insert("arguments".to_owned(), arguments);
            call.insert("function".to_owned(), Value::Object(function));
        }
        Value::Object(call)
    };
    prepared.insert("tool_calls".to_owned(), calls.iter().map(call).collect());
}

/// These fields first, then the others as they were.
fn ordered(fields: &Map<String, Value>, first: &[&str]) -> Map<String, Value> {
    let known = first.iter().filter_map(|name| fields.get_key_value(*name));
    let others = fields.iter().filter(|(name, _)| !first.contains(&name.as_str()));
    known.chain(others).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The JSON in the text of a call's arguments.
pub(super) fn parsed_arguments(text: &str) -> Option<Value> {
    serde_json::from_str(&exact_numbers(text, Grammar::Python)).ok()
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
        if let Value::Object(fields) = message.to_mut() {
            fields.insert("role".to_owned(), json!("system"));
            fields.shift_remove("tools");
        }
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
