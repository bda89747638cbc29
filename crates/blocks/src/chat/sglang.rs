//! Messages as SGLang passes them to the template.
//!
//! It differs from vLLM in what a prompt shows: text parts are joined by spaces, plain text stays
//! plain also for templates that iterate over parts, other fields of messages and of calls are
//! kept, and a conversation that ends with the assistant is continued or becomes the user's.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::messages::PART_MARK;
use super::{ContentForm, PromptEnding, tools};
use crate::engine_rules::EngineRules;

/// The messages for the template.
pub(super) struct Prepared<'a> {
    pub(super) messages: Vec<Cow<'a, Value>>,
    /// The text of the last message, which the answer continues. It is tokenized on its own.
    pub(super) continued: Option<String>,
    /// Whether a part is not text.
    pub(super) has_media: bool,
}

/// The parts that are texts. SGLang accepts others, and drops them where content is one text.
const TEXT_PARTS: [&str; 2] = ["text", "input_text"];
/// The fields of a message that are kept, in their order.
const FIELDS: [&str; 9] = [
    "role",
    "content",
    "tool_call_id",
    "name",
    "phase",
    "reasoning_content",
    "tool_calls",
    "tools",
    "prefix",
];

/// The messages for the template; none if SGLang refuses them.
pub(super) fn prepare(
    messages: &[Value],
    form: ContentForm,
    ending: PromptEnding,
) -> Option<Prepared<'_>> {
    let mut has_media = false;
    let one = |message| {
        if is_plain(message) {
            return Some(Cow::Borrowed(message));
        }
        prepare_one(message, form, &mut has_media).map(Cow::Owned)
    };
    let mut messages = messages.iter().map(one).collect::<Option<Vec<_>>>()?;
    let last = messages.last().filter(|message| message["role"] == "assistant");
    let mut continued = None;
    if let Some(text) = last.and_then(|message| message["content"].as_str()).map(str::to_owned) {
        messages.pop();
        match ending {
            PromptEnding::InsideLastMessage => continued = Some(text),
            _ => messages.push(Cow::Owned(json!({"role": "user", "content": text}))),
        }
    }
    Some(Prepared { messages, continued, has_media })
}

/// Whether [`prepare_one`] would change nothing.
fn is_plain(message: &Value) -> bool {
    let Value::Object(fields) = message else { return false };
    fields.len() == 2
        && fields.get("content").is_some_and(Value::is_string)
        && fields.get("role").and_then(Value::as_str).is_some_and(is_lower)
}

fn is_lower(role: &str) -> bool {
    role.bytes().all(|byte| byte.is_ascii_lowercase())
}

fn prepare_one(message: &Value, form: ContentForm, has_media: &mut bool) -> Option<Value> {
    let fields = message.as_object()?;
    let role = fields.get("role")?.as_str()?.to_lowercase();
    let mut prepared = Map::new();
    let mut parts = None;
    for name in FIELDS {
        let value = match (name, fields.get(name)) {
            ("role", _) => Value::String(role.clone()),
            ("content", None | Some(Value::Null)) => json!(""),
            ("content", Some(Value::Array(given))) => {
                let content = prepare_parts(given, &role, form, has_media)?;
                if form == ContentForm::Parts {
                    parts = Some(content);
                    continue;
                }
                content
            }
            ("content", Some(content)) => content.clone(),
            (_, None | Some(Value::Null)) => continue,
            // The user's messages have no other fields.
            _ if role == "user" => continue,
            ("tool_calls", Some(Value::Array(calls))) => {
                let is_parsed = role == "assistant";
                let calls = calls.iter().map(|call| prepare_call(call, is_parsed));
                calls.collect::<Option<Vec<_>>>()?.into()
            }
            ("tools", Some(Value::Array(all))) => tools::prepare(all, EngineRules::Sglang).into(),
            (_, Some(value)) => value.clone(),
        };
        prepared.insert(name.to_owned(), value);
    }
    if let Some(parts) = parts {
        prepared.insert("content".to_owned(), parts);
    }
    Some(Value::Object(prepared))
}

fn prepare_parts(
    parts: &[Value],
    role: &str,
    form: ContentForm,
    has_media: &mut bool,
) -> Option<Value> {
    let mut texts = Vec::new();
    let mut kept = Vec::new();
    let mut are_texts = true;
    for part in parts {
        let kind = part.get("type")?.as_str()?;
        if TEXT_PARTS.contains(&kind) {
            let text = part.get("text")?.as_str()?;
            texts.push(text);
            kept.push(json!({"type": "text", "text": text}));
        } else if kind == "tool_reference" {
            are_texts = false;
            kept.push(json!({"type": kind, "name": part.get("name")?}));
        } else if kind != "thinking" && kind != "reasoning" {
            if !*has_media && form == ContentForm::Parts {
                kept.push(json!({"type": "text", "text": PART_MARK}));
            }
            are_texts = false;
            *has_media = true;
        }
    }
    let is_joined = form == ContentForm::Text || role == "tool" && are_texts;
    Some(if is_joined { texts.join(" ").into() } else { kept.into() })
}

/// A call with all fields of SGLang's form; none if its arguments are refused.
fn prepare_call(call: &Value, is_parsed: bool) -> Option<Value> {
    let function = call.get("function")?;
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) if is_parsed => {
            // Its parser reads long integers as floats.
            serde_json::from_str(text).ok().filter(Value::is_object)?
        }
        arguments => arguments.cloned().unwrap_or(Value::Null),
    };
    Some(json!({
        "id": call.get("id"),
        "index": call.get("index"),
        "type": call.get("type").unwrap_or(&json!("function")),
        "function": {"name": function.get("name"), "arguments": arguments},
    }))
}
