//! The request that continues a stream: the client's body with what was sent of the answer.

use super::chat_event::ChatEvent;
use super::continued_body::{ContinuedBody, Lacks};
use super::event::StreamForm;
use super::reason::NotContinued;
use super::rules;
use super::sent::{Progress, SentText};
use super::stop_strings::StopStrings;
use super::{as_chat, token_ids};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use wornpath_execution::{Edit, field, splice};

/// Where engines complete token ids.
const COMPLETIONS: &str = "/v1/completions";

/// Fields that only chats have, or that say nothing to an engine.
const OF_CHATS: &[&str] = &[
    "max_completion_tokens",
    "parallel_tool_calls",
    "add_special_tokens",
    "metadata",
    "service_tier",
    "store",
    "safety_identifier",
    "prompt_cache_key",
];

/// Whether a field of a chat stays in the completion that continues it.
fn of_completions(name: &str) -> bool {
    name == token_ids::FIELD || rules::is_kept(name) && !OF_CHATS.contains(&name)
}

/// The tokens of a completion that sets no limit.
const COMPLETION_TOKENS: u64 = 16;

/// The body that continues what was sent.
///
/// # Errors
/// Why that cannot be written.
pub(super) fn continued(body: &Bytes, sent: &SentText) -> Result<ContinuedBody, NotContinued> {
    if sent.named().is_some() {
        return as_chat::continued(body, sent);
    }
    let fields: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| NotContinued::Field)?;
    let messages = fields.get("messages").and_then(Value::as_array);
    if !messages.is_none_or(|messages| messages.iter().all(has_text_only)) {
        return Err(NotContinued::Media);
    }
    let stops = StopStrings::of(&fields);
    let resent = match sent.resent_ids(&stops) {
        Some(resent) if sent.form() == StreamForm::Completion => resent,
        Some(resent) if ChatEvent::of(sent).is_some() => resent,
        _ => sent.resent(&stops)?,
    };
    let limits = limits(&fields, sent.form())?;
    let has_all = limits.iter().any(|(_, limit)| *limit <= resent.tokens);
    let lacks = match sent.progress() {
        Progress::Finished { .. } => Lacks::Counts,
        _ if has_all => Lacks::End,
        _ => Lacks::Text,
    };
    let mut edits = Vec::new();
    let is_completed_chat = resent.ids.is_some() && sent.form() == StreamForm::Chat;
    if is_completed_chat {
        let others = fields.keys().filter(|name| !of_completions(name));
        edits.extend(others.map(|name| Edit::remove(name)));
    }
    if lacks == Lacks::Text {
        if is_completed_chat {
            // Without a limit a chat has what is left of the context, and a completion has little.
            let limit = limits.iter().map(|(_, limit)| limit - resent.tokens).min();
            edits.push(Edit::set("max_tokens", &json!(limit)));
        } else {
            for (name, limit) in limits {
                edits.push(Edit::set(name, &json!(limit - resent.tokens)));
            }
        }
        if let Some(least) = fields.get("min_tokens").and_then(Value::as_u64) {
            edits.push(Edit::set("min_tokens", &json!(least.saturating_sub(resent.tokens))));
        }
    } else {
        if !is_completed_chat {
            edits.push(Edit::remove("max_completion_tokens"));
        }
        edits.push(Edit::remove("min_tokens"));
        edits.push(Edit::set("max_tokens", &json!(1)));
    }
    if let Some(ids) = &resent.ids {
        edits.push(written_edit("prompt", ids.prompt.clone())?);
    } else if !resent.text.is_empty() {
        match sent.form() {
            StreamForm::Completion => edits.push(in_prompt(body, &resent.text)?),
            _ => edits.extend(in_message(body, &fields, &resent.text)?),
        }
    }
    let body = splice(body, &edits).map_err(|_| NotContinued::Field)?;
    let path = resent.ids.is_some().then_some(COMPLETIONS);
    Ok(ContinuedBody { body, resent, lacks, has_all_tokens: has_all, path })
}

/// Neither a text nor token ids can stand for a part of another type.
fn has_text_only(message: &Value) -> bool {
    let is_text = |part: &Value| part.is_string() || part["type"] == "text";
    match &message["content"] {
        Value::Array(parts) => parts.iter().all(is_text),
        _ => true,
    }
}

/// The limits of generated tokens.
fn limits(
    fields: &Map<String, Value>,
    form: StreamForm,
) -> Result<Vec<(&'static str, u64)>, NotContinued> {
    let mut limits = Vec::new();
    for name in ["max_tokens", "max_completion_tokens"] {
        if let Some(limit) = fields.get(name).filter(|limit| !limit.is_null()) {
            limits.push((name, limit.as_u64().ok_or(NotContinued::Field)?));
        }
    }
    // That of a chat is what is left of the context.
    if limits.is_empty() && form == StreamForm::Completion {
        limits.push(("max_tokens", COMPLETION_TOKENS));
    }
    Ok(limits)
}

/// The edits by which the answer becomes the last message, which the engine goes on with.
fn in_message(
    body: &[u8],
    fields: &Map<String, Value>,
    text: &[u8],
) -> Result<[Edit; 3], NotContinued> {
    let messages = fields.get("messages").and_then(Value::as_array);
    let messages = messages.ok_or(NotContinued::Prompt)?;
    if messages.last().is_none_or(|last| last["role"] == "assistant") {
        return Err(NotContinued::Prefilled);
    }
    let written = field(body, "messages").ok().flatten().ok_or(NotContinued::Prompt)?;
    let before = written.strip_suffix(b"]").ok_or(NotContinued::Prompt)?;
    let all = [before, br#",{"role":"assistant","content":""#, text, br#""}]"#].concat();
    Ok([
        written_edit("messages", all)?,
        Edit::set("continue_final_message", &json!(true)),
        Edit::set("add_generation_prompt", &json!(false)),
    ])
}

/// The edit by which the prompt ends with the answer.
fn in_prompt(body: &[u8], text: &[u8]) -> Result<Edit, NotContinued> {
    let written = field(body, "prompt").ok().flatten().ok_or(NotContinued::Prompt)?;
    // A list of one prompt is the prompt.
    let inner = written.strip_prefix(b"[").and_then(|inner| inner.strip_suffix(b"]"));
    let written = inner.unwrap_or(written).trim_ascii();
    let before = written.strip_suffix(b"\"").filter(|before| before.starts_with(b"\""));
    let before = before.ok_or(NotContinued::Prompt)?;
    written_edit("prompt", [before, text, b"\""].concat())
}

fn written_edit(field: &str, value: Vec<u8>) -> Result<Edit, NotContinued> {
    let value = String::from_utf8(value).map_err(|_| NotContinued::Field)?;
    Ok(Edit { field: field.to_owned(), value: Some(value) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn sent(form: StreamForm, texts: &[&str]) -> SentText {
        let mut sent = SentText::new(form);
        for text in texts {
            let choice = match form {
                StreamForm::Completion => json!({"text": text}),
                _ => json!({"delta": {"content": text}}),
            };
            let event = format!("data: {}\n\n", json!({"id": "a", "choices": [choice]}));
            assert!(sent.pass(event.into(), &mut VecDeque::new()).stop.is_none());
        }
        sent
    }

    fn continued_by(body: &Value, form: StreamForm, texts: &[&str]) -> Result<Value, NotContinued> {
        let continued = continued(&body.to_string().into(), &sent(form, texts))?;
        Ok(serde_json::from_slice(&continued.body).unwrap())
    }

    #[test]
    fn a_chat_goes_on_with_its_last_message() {
        let user = json!({"role": "user", "content": [{"type": "text", "text": "hi"}]});
        let body = json!({"messages": [user], "max_tokens": 9, "min_tokens": 1, "stream": true});
        let found = continued_by(&body, StreamForm::Chat, &["a", " \"b\n"]).unwrap();
        let message = json!({"role": "assistant", "content": "a \"b"});
        assert_eq!(
            found,
            json!({
                "stream": true, "max_tokens": 8, "min_tokens": 0, "messages": [user, message],
                "continue_final_message": true, "add_generation_prompt": false,
            })
        );
        let body = json!({"messages": [user], "max_completion_tokens": 9});
        assert_eq!(
            continued_by(&body, StreamForm::Chat, &[]).unwrap(),
            json!({"messages": [user], "max_completion_tokens": 9}),
            "nothing was sent"
        );
    }

    #[test]
    fn a_completion_goes_on_with_its_prompt() {
        for prompt in [json!("p\""), json!(["p\""])] {
            let body = json!({"prompt": prompt, "max_tokens": 5});
            let found = continued_by(&body, StreamForm::Completion, &["a", " "]).unwrap();
            assert_eq!(found, json!({"prompt": "p\"a ", "max_tokens": 3}));
        }
        let found = continued_by(&json!({"prompt": "p"}), StreamForm::Completion, &["a"]).unwrap();
        assert_eq!(found, json!({"prompt": "pa", "max_tokens": 15}));
    }

    #[test]
    fn an_answer_that_has_all_its_tokens_lacks_its_end() {
        let body = json!({"prompt": "p", "max_tokens": 2, "min_tokens": 2});
        let sent = sent(StreamForm::Completion, &["a", "b"]);
        let continued = continued(&body.to_string().into(), &sent).unwrap();
        assert_eq!(continued.lacks, Lacks::End);
        let found: Value = serde_json::from_slice(&continued.body).unwrap();
        assert_eq!(found, json!({"prompt": "pab", "max_tokens": 1}));
    }

    #[test]
    fn what_cannot_be_written_says_why() {
        let chat = |messages: Value| {
            continued_by(&json!({"messages": messages}), StreamForm::Chat, &["a"]).err()
        };
        let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
        assert_eq!(chat(image), Some(NotContinued::Media));
        let prefilled =
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        assert_eq!(chat(prefilled), Some(NotContinued::Prefilled));
        assert_eq!(chat(json!("a")), Some(NotContinued::Prompt));
        let body = json!({"prompt": [1, 2]});
        let found = continued_by(&body, StreamForm::Completion, &["a"]).err();
        assert_eq!(found, Some(NotContinued::Prompt));
    }
}
