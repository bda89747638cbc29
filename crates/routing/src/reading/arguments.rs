//! What a chat template gets of the fields of a body: its arguments, and the tools.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use wornpath_blocks::EngineRules;

use crate::request::{Prompt, PromptApi, Request};

/// Arguments of `apply_chat_template` of Hugging Face, which no template sees.
const NOT_FOR_TEMPLATES: [&str; 11] = [
    "add_generation_prompt",
    "continue_final_message",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenizer_kwargs",
    "truncation",
    "tokenize",
    "conversation",
];
impl Request {
    /// The template's arguments. `disabled_effort` is the effort that stands for no thinking.
    pub(crate) fn template_arguments(
        &self,
        engine: EngineRules,
        disabled_effort: impl FnOnce() -> &'static str,
    ) -> Cow<'_, Map<String, Value>> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        const EFFORT: &str = "reasoning_effort";
        let given = match &self.prompt {
            // SGLang reads no arguments from Anthropic's messages.
            Prompt::Chat { kwargs: Some(kwargs), .. }
                if engine == EngineRules::Vllm || self.reading.api != PromptApi::Messages =>
            {
                kwargs
            }
            _ => &*NONE,
        };
        let effort = match self.disables_thinking(engine) {
            true => Some(Effort::Asked(Cow::Owned(json!(disabled_effort())))),
            false => self.effort(engine),
        };
        let documents = match (engine, self.reading.api) {
            (EngineRules::Vllm, PromptApi::Chat) => self.fields.get("documents"),
            _ => None,
        };
        let is_dropped = |name: &str, value: &Value| {
            let is_unset = match engine {
                EngineRules::Vllm => value.is_null() || value == "auto",
                EngineRules::Sglang => value.is_null() && name == EFFORT,
            };
            is_unset || NOT_FOR_TEMPLATES.contains(&name)
        };
        let has_extra = effort.is_some() || documents.is_some_and(|documents| !documents.is_null());
        if !has_extra && !given.iter().any(|(name, value)| is_dropped(name, value)) {
            return Cow::Borrowed(given);
        }
        let mut arguments: Map<_, _> = given
            .iter()
            .filter(|(name, value)| !is_dropped(name, value))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if let Some(documents) = documents.filter(|documents| !documents.is_null()) {
            arguments.insert("documents".to_owned(), documents.clone());
        }
        if let Some(effort) = effort {
            let thinks = match effort {
                Effort::Asked(effort) => {
                    let thinks = *effort != "none";
                    if engine == EngineRules::Vllm || !arguments.contains_key(EFFORT) {
                        arguments.insert(EFFORT.to_owned(), effort.into_owned());
                    }
                    thinks
                }
                Effort::On => true,
            };
            let switches: &[&str] = match (engine, self.reading.api) {
                (EngineRules::Vllm, _) => &["enable_thinking"],
                (EngineRules::Sglang, PromptApi::Messages) => &[],
                (EngineRules::Sglang, _) => &["thinking", "enable_thinking"],
            };
            for &name in switches {
                if !given.contains_key(name) {
                    arguments.insert(name.to_owned(), json!(thinks));
                }
            }
        }
        Cow::Owned(arguments)
    }

    /// How much the model is to think, as far as the API says.
    fn effort(&self, engine: EngineRules) -> Option<Effort<'_>> {
        let of = |field: &str, name: &str| self.fields.get(field)?.get(name);
        let plain = self.fields.get("reasoning_effort");
        let found = match (engine, self.reading.api) {
            (EngineRules::Vllm, PromptApi::Chat) => plain,
            (_, PromptApi::Responses) => of("reasoning", "effort"),
            (_, PromptApi::Messages) => of("output_config", "effort"),
            (EngineRules::Sglang, PromptApi::Chat) => {
                let object = of("reasoning", "effort").filter(|effort| !effort.is_null());
                let object = object.or_else(|| of("reasoning", "reasoning_effort"));
                object.filter(|effort| !effort.is_null()).or(plain)
            }
        };
        if let Some(effort) = found.filter(|effort| !effort.is_null()) {
            return Some(Effort::Asked(Cow::Borrowed(effort)));
        }
        let is_on = |name: &str| of("reasoning", name).is_some_and(|value| *value == true);
        let is_sglang_chat = engine == EngineRules::Sglang && self.reading.api == PromptApi::Chat;
        (is_sglang_chat && (is_on("enabled") || is_on("enable"))).then_some(Effort::On)
    }

    /// Whether the client asks for no thinking in the way of Anthropic's API.
    fn disables_thinking(&self, engine: EngineRules) -> bool {
        engine == EngineRules::Vllm
            && self.reading.api == PromptApi::Messages
            && self.fields.get("thinking").is_some_and(|thinking| thinking["type"] == "disabled")
    }

    /// The tools that the template gets.
    pub(crate) fn tools_of<'a>(
        &self,
        tools: Option<&'a [Value]>,
        engine: EngineRules,
    ) -> Option<Cow<'a, [Value]>> {
        let tools = tools?;
        if engine == EngineRules::Vllm {
            return Some(Cow::Borrowed(tools));
        }
        match self.fields.get("tool_choice") {
            _ if tools.is_empty() => None,
            Some(Value::String(choice)) if choice == "none" => None,
            Some(choice @ Value::Object(_)) => {
                let is_chosen =
                    |tool: &&Value| tool["function"]["name"] == choice["function"]["name"];
                let chosen: Vec<_> = tools.iter().filter(is_chosen).cloned().collect();
                (!chosen.is_empty()).then_some(Cow::Owned(chosen))
            }
            _ => Some(Cow::Borrowed(tools)),
        }
    }
}

/// How much a model is to think.
enum Effort<'a> {
    /// As the client says.
    Asked(Cow<'a, Value>),
    /// As much as the model does by itself.
    On,
}
