//! Which requests a continuation keeps right, by the fields of their bodies.
//!
//! A field that is in no table here may mean anything, so a request that sets one is not continued.

use super::event::StreamForm;
use super::reason::NotContinued;
use super::token_ids;
use crate::dialect::Api;
use serde_json::{Map, Value};
use wornpath_routing::Prompt;

/// Fields that another engine reads alike, or that [`super::request`] changes.
const KEPT: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "add_special_tokens",
    "user",
    "metadata",
    "service_tier",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "cache_salt",
    "priority",
    "session_id",
    "parallel_tool_calls",
];

/// Fields of messages, and what they are called in a chat.
const OF_MESSAGES: &[(&str, &str)] = &[
    ("model", "model"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("stop_sequences", "stop"),
    ("cache_salt", "cache_salt"),
    ("priority", "priority"),
    ("session_id", "session_id"),
    ("chat_template_kwargs", "chat_template_kwargs"),
];

/// Fields of responses, and what they are called in a chat.
const OF_RESPONSES: &[(&str, &str)] = &[
    ("model", "model"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("repetition_penalty", "repetition_penalty"),
    ("logit_bias", "logit_bias"),
    ("stop", "stop"),
    ("include_stop_str_in_output", "include_stop_str_in_output"),
    ("ignore_eos", "ignore_eos"),
    ("user", "user"),
    ("cache_salt", "cache_salt"),
    ("priority", "priority"),
    ("session_id", "session_id"),
    ("chat_template_kwargs", "chat_template_kwargs"),
];

/// Fields of those APIs that say nothing to an engine, or that [`super::as_chat`] writes.
const NOT_RENAMED: &[&str] = &[
    "stream",
    "max_tokens",
    "max_output_tokens",
    "metadata",
    "service_tier",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
];

/// Fields that must have a value that changes nothing.
const NEUTRAL: &[(&str, Neutral, NotContinued)] = &[
    ("n", Neutral::One, NotContinued::Choices),
    ("best_of", Neutral::One, NotContinued::Choices),
    ("use_beam_search", Neutral::Unset, NotContinued::Choices),
    ("seed", Neutral::Unset, NotContinued::Seed),
    ("echo", Neutral::Unset, NotContinued::Field),
    ("suffix", Neutral::Unset, NotContinued::Field),
    ("logprobs", Neutral::Unset, NotContinued::Logprobs),
    ("top_logprobs", Neutral::Zero, NotContinued::Logprobs),
    ("prompt_logprobs", Neutral::Unset, NotContinued::Logprobs),
    ("frequency_penalty", Neutral::Zero, NotContinued::Penalties),
    ("presence_penalty", Neutral::Zero, NotContinued::Penalties),
    ("response_format", Neutral::Text, NotContinued::Grammar),
    ("tool_choice", Neutral::NoTool, NotContinued::Tools),
    ("functions", Neutral::Unset, NotContinued::Tools),
    ("function_call", Neutral::NoTool, NotContinued::Tools),
    ("continue_final_message", Neutral::Unset, NotContinued::Prefilled),
    ("add_generation_prompt", Neutral::True, NotContinued::Prefilled),
    (token_ids::FIELD, Neutral::Unset, NotContinued::Field),
    ("thinking", Neutral::Unset, NotContinued::Reasoning),
    ("output_config", Neutral::Unset, NotContinued::Grammar),
    ("text", Neutral::TextFormat, NotContinued::Grammar),
    ("truncation", Neutral::Disabled, NotContinued::Field),
    ("include", Neutral::Empty, NotContinued::Field),
    ("background", Neutral::Unset, NotContinued::Field),
    ("previous_response_id", Neutral::Unset, NotContinued::Prompt),
    ("previous_input_messages", Neutral::Unset, NotContinued::Prompt),
    ("conversation", Neutral::Unset, NotContinued::Prompt),
    ("mcp_servers", Neutral::Empty, NotContinued::Tools),
];

/// A value that changes nothing.
#[derive(Clone, Copy)]
enum Neutral {
    /// None at all, or `false`.
    Unset,
    Zero,
    One,
    True,
    /// `{"type": "text"}`
    Text,
    /// No tool can be called, as there are none.
    NoTool,
    /// `{"format": {"type": "text"}}`
    TextFormat,
    /// `"disabled"`
    Disabled,
    /// An empty list.
    Empty,
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        let is_empty = matches!(value, Value::Null | Value::Bool(false));
        match self {
            Self::Unset => is_empty,
            Self::Zero => is_empty || value.as_f64() == Some(0.0),
            Self::One => is_empty || value.as_u64() == Some(1),
            Self::True => value.is_null() || value == true,
            Self::Text => value.is_null() || value["type"] == "text",
            Self::NoTool => {
                let choice = value.get("type").unwrap_or(value);
                choice.is_null() || choice == "none" || choice == "auto"
            }
            Self::TextFormat => {
                let is_text = |(name, it): (&String, &Value)| {
                    it.is_null() || name == "format" && it["type"] == "text"
                };
                value.as_object().is_some_and(|fields| fields.iter().all(is_text))
            }
            Self::Disabled => value.is_null() || value == "disabled",
            Self::Empty => value.as_array().is_none_or(Vec::is_empty),
        }
    }
}

/// The form of the streams of an API, if they can be continued.
pub(super) fn form(api: Api) -> Result<StreamForm, NotContinued> {
    match api.name() {
        "chat" => Ok(StreamForm::Chat),
        "completions" => Ok(StreamForm::Completion),
        "messages" => Ok(StreamForm::Messages),
        "responses" => Ok(StreamForm::Responses),
        _ => Err(NotContinued::Api),
    }
}

/// Whether another engine reads a field alike.
pub(super) fn is_kept(name: &str) -> bool {
    KEPT.contains(&name)
}

/// The fields of a form that the chat which continues it has too, under these names.
pub(super) const fn renamed(form: StreamForm) -> &'static [(&'static str, &'static str)] {
    match form {
        StreamForm::Messages => OF_MESSAGES,
        StreamForm::Responses => OF_RESPONSES,
        StreamForm::Chat | StreamForm::Completion => &[],
    }
}

/// Whether a field of that form keeps its meaning.
fn is_kept_in(form: StreamForm, name: &str) -> bool {
    match form {
        StreamForm::Chat | StreamForm::Completion => is_kept(name),
        _ => NOT_RENAMED.contains(&name) || renamed(form).iter().any(|(known, _)| *known == name),
    }
}

/// Whether a request can be continued, by what routing knows of its body.
///
/// # Errors
/// Why not.
pub(super) fn check(
    form: StreamForm,
    fields: &Map<String, Value>,
    prompt: &Prompt,
) -> Result<(), NotContinued> {
    for (name, value) in fields {
        if is_kept_in(form, name) || value.is_null() {
            continue;
        }
        match NEUTRAL.iter().find(|(field, ..)| field == name) {
            Some((_, neutral, _)) if neutral.is(value) => {}
            Some((.., why)) => return Err(*why),
            None => return Err(other(name)),
        }
    }
    match prompt {
        Prompt::Chat { tools: Some(tools), .. } if !tools.is_empty() => {
            let is_called = fields.get("tool_choice").is_none_or(|choice| choice != "none");
            if is_called || form != StreamForm::Chat { Err(NotContinued::Tools) } else { Ok(()) }
        }
        Prompt::Chat { .. } | Prompt::Text(_) => Ok(()),
        _ => Err(NotContinued::Prompt),
    }
}

/// Why a field that is in no table forbids a continuation.
fn other(name: &str) -> NotContinued {
    let is_grammar = name.starts_with("guided_")
        || ["structured_outputs", "json_schema", "regex", "ebnf", "grammar"].contains(&name);
    let is_reasoning = name.starts_with("reasoning") || name == "include_reasoning";
    match (is_grammar, is_reasoning) {
        (true, _) => NotContinued::Grammar,
        (_, true) => NotContinued::Reasoning,
        _ => NotContinued::Field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn checked(fields: Value) -> Result<(), NotContinued> {
        let Value::Object(fields) = fields else { panic!("no object") };
        check(StreamForm::Chat, &fields, &Prompt::Text("a".to_owned()))
    }

    #[test]
    fn a_value_that_changes_nothing_is_as_none() {
        for fields in [
            json!({}),
            json!({"model": "m", "stream": true, "temperature": 0.7, "stop": ["a"], "seed": null}),
            json!({"n": 1, "best_of": 1, "logprobs": false, "top_logprobs": 0, "echo": false}),
            json!({"frequency_penalty": 0.0, "presence_penalty": 0, "unknown": null}),
            json!({"response_format": {"type": "text"}, "tool_choice": "none"}),
            json!({"add_generation_prompt": true, "continue_final_message": false}),
            json!({"return_token_ids": false}),
        ] {
            assert_eq!(checked(fields.clone()), Ok(()), "{fields}");
        }
    }

    #[test]
    fn what_a_continuation_may_not_keep_right_is_refused_with_its_reason() {
        for (fields, why) in [
            (json!({"n": 2}), NotContinued::Choices),
            (json!({"best_of": 3}), NotContinued::Choices),
            (json!({"seed": 0}), NotContinued::Seed),
            (json!({"logprobs": true}), NotContinued::Logprobs),
            (json!({"logprobs": 0}), NotContinued::Logprobs),
            (json!({"presence_penalty": 0.1}), NotContinued::Penalties),
            (json!({"response_format": {"type": "json_object"}}), NotContinued::Grammar),
            (json!({"guided_regex": "a"}), NotContinued::Grammar),
            (json!({"structured_outputs": {}}), NotContinued::Grammar),
            (json!({"tool_choice": "required"}), NotContinued::Tools),
            (json!({"reasoning_effort": "low"}), NotContinued::Reasoning),
            (json!({"continue_final_message": true}), NotContinued::Prefilled),
            (json!({"echo": true}), NotContinued::Field),
            (json!({"return_token_ids": true}), NotContinued::Field),
            (json!({"a_new_field": 1}), NotContinued::Field),
        ] {
            assert_eq!(checked(fields.clone()), Err(why), "{fields}");
        }
        let none = Map::new();
        let tools = Some(vec![json!({"type": "function"})]);
        let messages = Vec::new().into();
        let chat = Prompt::Chat { messages, tools, kwargs: None };
        assert_eq!(check(StreamForm::Chat, &none, &chat), Err(NotContinued::Tools));
        assert_eq!(
            check(StreamForm::Chat, &none, &Prompt::Tokens(vec![1])),
            Err(NotContinued::Prompt)
        );
    }
}
