//! The text of an answer in each API's format: whole, or as server-sent events token by token.
//!
//! [`AnswerScript`] holds everything that is written about a request, so that the formats are pure
//! functions of it. OpenAI's chat completions and completions are here, the other APIs in modules
//! of their own. A tool is called when the request leaves no choice: the generated words become its
//! only argument.

mod messages;
mod responses;

use super::call::{CallDelivery, CallKind, CallPhase, EngineCall};
use super::faults::{CachedTokens, Faults};
use serde_json::{Value, json};

/// Everything that is written about a request.
pub(super) struct AnswerScript {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) call: EngineCall,
    /// The text of each token.
    pub(super) pieces: Vec<String>,
    /// The ids of the tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) faults: Faults,
    /// `kv_transfer_params` for the engine that will decode.
    pub(super) transfer: Value,
}

impl AnswerScript {
    /// The whole answer.
    pub(super) fn whole(&self, cached_tokens: usize) -> Value {
        let reason = self.finish_reason();
        let ids = self.ids(self.tokens.get(..self.pieces.len()).unwrap_or_default());
        let (object, choice) = match self.call.kind {
            CallKind::Messages => return self.message(),
            CallKind::Responses => return self.response(cached_tokens),
            CallKind::Chat => {
                let message = self.chat_message();
                let choice = json!({
                    "index": 0, "message": message, "logprobs": null, "finish_reason": reason,
                    "token_ids": ids,
                });
                ("chat.completion", choice)
            }
            CallKind::Completion => {
                let choice = json!({
                    "index": 0, "text": self.text(), "logprobs": null, "finish_reason": reason,
                    "token_ids": ids, "prompt_token_ids": self.ids(&self.call.prompt),
                });
                ("text_completion", choice)
            }
        };
        let mut body = self.envelope(object, &json!([choice]));
        body["usage"] = self.usage(cached_tokens);
        body["kv_transfer_params"] =
            if self.call.phase == CallPhase::Prefill { self.transfer.clone() } else { Value::Null };
        body
    }

    /// The events that carry token `index`.
    pub(super) fn chunk(&self, index: usize, out: &mut Vec<u8>) {
        let reason = (index + 1 == self.pieces.len()).then(|| self.finish_reason());
        match self.call.kind {
            CallKind::Chat => {
                if index == 0 {
                    let beginning = chunk_choice("delta", &self.chat_beginning(), None);
                    let mut chunk = self.envelope("chat.completion.chunk", &json!([beginning]));
                    chunk["prompt_token_ids"] = self.ids(&self.call.prompt);
                    push_event(&chunk, out);
                }
                let mut delta = chunk_choice("delta", &self.chat_delta(index), reason);
                delta["token_ids"] = self.ids(&self.tokens[index..=index]);
                push_event(&self.envelope("chat.completion.chunk", &json!([delta])), out);
            }
            CallKind::Completion => {
                let mut text = chunk_choice("text", &json!(self.pieces[index]), reason);
                text["token_ids"] = self.ids(&self.tokens[index..=index]);
                let prompt = if index == 0 { self.ids(&self.call.prompt) } else { Value::Null };
                text["prompt_token_ids"] = prompt;
                push_event(&self.envelope("text_completion", &json!([text])), out);
            }
            CallKind::Messages => self.message_chunk(index, out),
            CallKind::Responses => self.response_chunk(index, out),
        }
    }

    /// The events after the last token.
    pub(super) fn ending(&self, cached_tokens: usize, out: &mut Vec<u8>) {
        match self.call.kind {
            CallKind::Messages => return self.message_ending(out),
            CallKind::Responses => return self.response_ending(cached_tokens, out),
            CallKind::Chat | CallKind::Completion => {}
        }
        if self.call.delivery == CallDelivery::StreamWithUsage {
            let object = match self.call.kind {
                CallKind::Chat => "chat.completion.chunk",
                _ => "text_completion",
            };
            let mut usage = self.envelope(object, &json!([]));
            usage["usage"] = self.usage(cached_tokens);
            push_event(&usage, out);
        }
        out.extend_from_slice(DONE);
    }

    /// OpenAI's object around `choices`.
    pub(super) fn envelope(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.call.model,
            "choices": choices,
        })
    }

    /// The ids of tokens, for a request that asks for them.
    fn ids(&self, tokens: &[u32]) -> Value {
        if self.call.returns_ids { json!(tokens) } else { Value::Null }
    }

    fn usage(&self, cached_tokens: usize) -> Value {
        let prompt = self.call.prompt.len();
        let completion = self.pieces.len();
        let cached_tokens = self.reported_cached_tokens(cached_tokens);
        json!({
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        })
    }

    /// The number of cached tokens that `usage` reports, which a fault may change.
    fn reported_cached_tokens(&self, cached_tokens: usize) -> usize {
        match self.faults.cached_tokens {
            CachedTokens::True => cached_tokens,
            CachedTokens::Zero => 0,
            CachedTokens::All => self.call.prompt.len(),
        }
    }

    /// The message of a chat, or the tool call in its place.
    fn chat_message(&self) -> Value {
        match &self.call.tool {
            None => json!({"role": "assistant", "content": self.text()}),
            Some(name) => {
                let function = json!({"name": name, "arguments": self.argument().to_string()});
                let call = json!({"id": self.call_id(), "type": "function", "function": function});
                json!({"role": "assistant", "content": null, "tool_calls": [call]})
            }
        }
    }

    /// The delta of a chat's first chunk, before any text.
    fn chat_beginning(&self) -> Value {
        match &self.call.tool {
            None => json!({"role": "assistant", "content": ""}),
            Some(name) => {
                let function = json!({"name": name, "arguments": ""});
                let call = json!({"index": 0, "id": self.call_id(), "type": "function", "function": function});
                json!({"role": "assistant", "content": null, "tool_calls": [call]})
            }
        }
    }

    /// The delta of a chat for token `index`.
    fn chat_delta(&self, index: usize) -> Value {
        match &self.call.tool {
            None => json!({"content": self.pieces[index]}),
            Some(_) => {
                let function = json!({"arguments": self.argument_piece(index)});
                json!({"tool_calls": [{"index": 0, "function": function}]})
            }
        }
    }

    /// OpenAI's `finish_reason`.
    fn finish_reason(&self) -> &'static str {
        if self.call.tool.is_some() { "tool_calls" } else { self.call.reason.name() }
    }

    fn text(&self) -> String {
        self.pieces.concat()
    }

    /// The argument of the tool call.
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

/// The last event of OpenAI's streams.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";

/// The choice of a chunk.
fn chunk_choice(field: &str, value: &Value, reason: Option<&str>) -> Value {
    json!({"index": 0, field: value, "logprobs": null, "finish_reason": reason})
}

/// Appends a server-sent event.
pub(super) fn push_event(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(value.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// Appends a server-sent event with its name, as Anthropic's messages and OpenAI's responses have
/// it.
pub(super) fn push_named_event(value: &Value, out: &mut Vec<u8>) {
    let name = value["type"].as_str().unwrap_or_default();
    out.extend_from_slice(format!("event: {name}\ndata: {value}\n\n").as_bytes());
}
