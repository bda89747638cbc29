//! How an engine reads the prompt of a request, beyond its messages: which fields of the body change
//! it, field by field.
//!
//! Engines disagree. vLLM passes `reasoning_effort` to the template and derives `enable_thinking` from
//! it, SGLang derives `thinking` too; vLLM renders all tools whatever the choice, SGLang those that
//! may be chosen; and each API of an engine has its own fields. `tests/prompts` compares all of this
//! with the engines' own code.
//!
//! What cannot be read here makes no prompt: such a request is routed without a prediction.

use serde_json::Value;
use wornpath_blocks::EngineRules;

use crate::request::{Prompt, PromptApi, Request};

#[cfg(feature = "text")]
mod arguments;

/// Arguments with which an engine reads something else than the messages and tools of the body, or
/// refuses the request.
const UNKNOWN_ARGUMENTS: [&str; 5] =
    ["chat_template", "conversation", "messages", "tokenize", "tools"];

/// How many tokens of a prompt are kept, and on which side they are cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Truncation {
    /// The tokens that are kept.
    tokens: usize,
    /// The side that the client asks for. Without it special tokens around the prompt are kept.
    side: Option<TruncationSide>,
}

/// The side on which tokens are cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TruncationSide {
    /// The start.
    Left,
    /// The end.
    Right,
}

impl Request {
    /// Whether a field or the prompt has an effect that is not known, whatever the engine is.
    #[must_use]
    pub fn has_unknown_reading(&self) -> bool {
        let is_unknown = match self.reading.engine {
            Some(engine) => self.is_unknown_to(engine),
            // Only vLLM truncates.
            None => {
                self.truncation(EngineRules::Vllm).is_some()
                    || self.is_unknown_to(EngineRules::Vllm)
                    || self.is_unknown_to(EngineRules::Sglang)
            }
        };
        self.reading.is_unknown || is_unknown
    }

    fn is_unknown_to(&self, engine: EngineRules) -> bool {
        let is_set = |name: &str| self.fields.get(name).is_some_and(|value| !value.is_null());
        let is_on = |name: &str| self.fields.get(name).is_some_and(|value| *value == true);
        let kwargs = match &self.prompt {
            Prompt::Chat { kwargs, .. } => kwargs.as_ref(),
            _ => None,
        };
        if kwargs.is_some_and(|all| UNKNOWN_ARGUMENTS.iter().any(|name| all.contains_key(*name))) {
            return true;
        }
        match engine {
            // A prompt whose log-probabilities are returned is computed without the cache.
            EngineRules::Vllm => {
                let shows_prompt = match self.reading.api {
                    PromptApi::Chat => match &self.prompt {
                        Prompt::Chat { .. } => is_on("echo"),
                        _ => is_on("echo") && is_set("logprobs"),
                    },
                    _ => false,
                };
                let is_chat = self.reading.api == PromptApi::Chat;
                shows_prompt
                    || ["prompt_embeds", "suffix", "chat_template", "prompt_logprobs"]
                        .iter()
                        .any(|name| is_chat && is_set(name))
                    || is_on("use_beam_search")
                    || self.fields.get("kv_transfer_params").is_some_and(|params| {
                        params.get("prompt_token_ids").is_some_and(|ids| !ids.is_null())
                    })
            }
            // Nothing that SGLang publishes shows the key.
            EngineRules::Sglang => {
                let is_converted = self.reading.api != PromptApi::Chat && !self.reading.is_plain;
                is_converted
                    || ["extra_key", "session_params", "suffix", "input_embeds", "prompt_embeds"]
                        .iter()
                        .any(|name| is_set(name))
            }
        }
    }

    /// How many tokens of the prompt are kept, if the client limits them.
    pub(crate) fn truncation(&self, engine: EngineRules) -> Option<Truncation> {
        if engine != EngineRules::Vllm || self.reading.api != PromptApi::Chat {
            return None;
        }
        // A limit of -1 is the context, beyond which a prompt is not tokenized anyway.
        let tokens = self.fields.get("truncate_prompt_tokens")?.as_u64()?;
        let side = match self.fields.get("truncation_side").and_then(Value::as_str) {
            Some("left") => Some(TruncationSide::Left),
            Some("right") => Some(TruncationSide::Right),
            _ => None,
        };
        Some(Truncation { tokens: usize::try_from(tokens).unwrap_or(usize::MAX), side })
    }
}

impl Truncation {
    /// Cuts tokens off a prompt that has `before` special tokens in front of it and `after` behind.
    /// Engines cut off the start unless they are asked otherwise.
    pub(crate) fn apply(self, tokens: &mut Vec<u32>, before: usize, after: usize) {
        let excess = tokens.len().saturating_sub(self.tokens);
        if excess == 0 {
            return;
        }
        match self.side {
            Some(TruncationSide::Left) => drop(tokens.drain(..excess)),
            Some(TruncationSide::Right) => tokens.truncate(self.tokens),
            None => {
                let end = tokens.len().saturating_sub(after);
                drop(tokens.drain(before.min(end)..(before + excess).min(end)));
            }
        }
    }
}
