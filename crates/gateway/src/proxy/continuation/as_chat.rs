//! The chat by which another engine goes on with an answer of another API.
//!
//! Engines turn Anthropic's messages and OpenAI's responses into chats, and have no field by which
//! such a request would go on with an answer that has begun (a message at the end of the messages is
//! a whole turn for them). A chat has. So the next engine gets the chat that the first one has made
//! of the request; only of texts, which need no parser.

use super::continued_body::{ContinuedBody, Lacks};
use super::event::StreamForm;
use super::reason::NotContinued;
use super::rules;
use super::sent::{Progress, Resent, SentText};
use super::stop_strings::StopStrings;
use crate::dialect::Api;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use wornpath_execution::field;
use wornpath_routing::{Prompt, PromptReading};

/// Where engines answer chats.
pub(super) const CHATS: &str = "/v1/chat/completions";

/// The field that limits the tokens of an answer.
const fn limit_of(form: StreamForm) -> &'static str {
    match form {
        StreamForm::Responses => "max_output_tokens",
        _ => "max_tokens",
    }
}

/// The body that continues what was sent of a stream of named events.
///
/// # Errors
/// Why that cannot be written.
pub(super) fn continued(body: &Bytes, sent: &SentText) -> Result<ContinuedBody, NotContinued> {
    if sent.progress() == Progress::Unnamed {
        let resent = Resent { text: Vec::new(), tokens: 0, overlap: String::new(), ids: None };
        let body = body.clone();
        let lacks = Lacks::Text;
        return Ok(ContinuedBody { body, resent, lacks, has_all_tokens: false, path: None });
    }
    let form = sent.form();
    let fields: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| NotContinued::Field)?;
    let stops = StopStrings::of(&fields);
    let is_finished = matches!(sent.progress(), Progress::Finished { .. });
    if is_finished && !stops.all.is_empty() {
        // Whether one of them has ended the text was to be said by an event that was lost.
        return Err(NotContinued::Field);
    }
    let limit = match fields.get(limit_of(form)) {
        None | Some(Value::Null) => None,
        Some(limit) => Some(limit.as_u64().ok_or(NotContinued::Field)?),
    };
    let resent = sent.resent(&stops)?;
    let has = if is_finished { sent.tokens() } else { resent.tokens };
    let has_all_tokens = limit.is_some_and(|limit| limit <= has);
    let lacks = match (is_finished, has_all_tokens) {
        (true, _) => Lacks::Counts,
        (false, true) => Lacks::End,
        (false, false) => Lacks::Text,
    };
    let left = match lacks {
        Lacks::Text => limit.map(|limit| limit - resent.tokens),
        Lacks::End | Lacks::Counts => Some(1),
    };
    let mut chat = vec![
        ("messages", messages(form, &fields, &resent.text)?),
        ("stream", "true".to_owned()),
        ("stream_options", r#"{"include_usage":true}"#.to_owned()),
    ];
    if let Some(left) = left {
        chat.push(("max_tokens", left.to_string()));
    }
    if !resent.text.is_empty() {
        chat.push(("continue_final_message", "true".to_owned()));
        chat.push(("add_generation_prompt", "false".to_owned()));
    }
    if form == StreamForm::Responses {
        // vLLM adds them to the prompts of responses, and not to those of chats.
        chat.push(("add_special_tokens", "true".to_owned()));
    }
    for (name, renamed) in rules::renamed(form) {
        if let Some(value) = field(body, name).map_err(|_| NotContinued::Field)? {
            let value = std::str::from_utf8(value).map_err(|_| NotContinued::Field)?;
            chat.push((*renamed, value.to_owned()));
        }
    }
    let members: Vec<_> = chat.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    let body = format!("{{{}}}", members.join(",")).into();
    Ok(ContinuedBody { body, resent, lacks, has_all_tokens, path: Some(CHATS) })
}

/// The messages of the chat, with the answer so far as the last one.
fn messages(
    form: StreamForm,
    fields: &Map<String, Value>,
    answer: &[u8],
) -> Result<String, NotContinued> {
    let api = match form {
        StreamForm::Responses => Api::at("/v1/responses"),
        _ => Api::at("/v1/messages"),
    };
    let mut reading = PromptReading::default();
    let mut fields = fields.clone();
    let Prompt::Chat { messages, .. } = api.dialect().prompt(&mut fields, &mut reading) else {
        return Err(NotContinued::Prompt);
    };
    if messages.last().is_none_or(|last| last["role"] == "assistant") {
        return Err(NotContinued::Prefilled);
    }
    let mut all = Vec::with_capacity(messages.len() + 1);
    for message in messages.iter() {
        all.push(of_text(message)?.to_string());
    }
    if !answer.is_empty() {
        let answer = std::str::from_utf8(answer).map_err(|_| NotContinued::Field)?;
        all.push(format!(r#"{{"role":"assistant","content":"{answer}"}}"#));
    }
    Ok(format!("[{}]", all.join(",")))
}

/// A message of a role and texts.
fn of_text(message: &Value) -> Result<Value, NotContinued> {
    let fields = message.as_object().ok_or(NotContinued::Prompt)?;
    for name in fields.keys() {
        match name.as_str() {
            "role" | "content" => {}
            "tool_calls" | "tool_call_id" => return Err(NotContinued::Tools),
            "reasoning" => return Err(NotContinued::Reasoning),
            _ => return Err(NotContinued::Field),
        }
    }
    let content = match &message["content"] {
        text @ Value::String(_) => text.clone(),
        Value::Array(parts) => {
            let text = |part: &Value| match (part["type"].as_str(), &part["text"]) {
                (Some("text" | "input_text" | "output_text"), text @ Value::String(_)) => {
                    Ok(json!({"type": "text", "text": text}))
                }
                _ => Err(NotContinued::Media),
            };
            parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.into()
        }
        _ => return Err(NotContinued::Prompt),
    };
    Ok(json!({"role": message["role"], "content": content}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// What was sent of a message of those texts.
    fn sent(texts: &[&str]) -> SentText {
        let mut sent = SentText::new(StreamForm::Messages);
        let mut events = vec![
            json!({"type": "message_start", "message": {"id": "m"}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ];
        let delta = |text: &&str| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}});
        events.extend(texts.iter().map(delta));
        for event in events {
            let passed = sent.pass(format!("data: {event}\n\n").into(), &mut VecDeque::new());
            assert_eq!(passed.stop, None);
        }
        sent
    }

    fn continued_by(body: &Value, texts: &[&str]) -> Result<Value, NotContinued> {
        let continued = continued(&body.to_string().into(), &sent(texts))?;
        assert_eq!(continued.path, Some(CHATS));
        Ok(serde_json::from_slice(&continued.body).unwrap())
    }

    #[test]
    fn a_message_goes_on_as_a_chat() {
        let body = json!({
            "model": "m", "system": "be brief", "max_tokens": 9, "stop_sequences": ["end"], "top_k": 3,
            "temperature": 0.70, "metadata": {"user_id": "u"}, "stream": true, "cache_salt": "s",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]},
                {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go"},
            ],
        });
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(
            continued_by(&body, &["a", " \"b", "\n"]).unwrap(),
            json!({
                "messages": [
                    {"role": "system", "content": "be brief"},
                    {"role": "user", "content": [text("hi"), text("you")]},
                    {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go"},
                    {"role": "assistant", "content": "a \"b"},
                ],
                "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 7,
                "continue_final_message": true, "add_generation_prompt": false,
                "model": "m", "temperature": 0.7, "top_k": 3, "stop": ["end"], "cache_salt": "s",
            })
        );
        let begun = continued_by(&json!({"messages": [{"role": "user", "content": "a"}]}), &[]);
        assert!(begun.unwrap().get("continue_final_message").is_none(), "nothing was generated");
    }

    #[test]
    fn what_a_chat_would_not_say_alike_is_refused() {
        let of = |message: Value| continued_by(&json!({"messages": [message]}), &["a"]).err();
        let user = |content: Value| json!({"role": "user", "content": content});
        assert_eq!(
            of(user(json!([{"type": "image"}, {"type": "text", "text": "x"}]))),
            Some(NotContinued::Media)
        );
        let result = json!([{"type": "tool_result", "tool_use_id": "t", "content": "x"}]);
        assert_eq!(of(user(result)), Some(NotContinued::Tools));
        let assistant = json!({"role": "assistant", "content": "x"});
        assert_eq!(of(assistant), Some(NotContinued::Prefilled));
    }
}
