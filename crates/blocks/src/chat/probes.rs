//! What vLLM finds out about a template by rendering small conversations with it, to convert
//! Anthropic's messages.

use std::sync::OnceLock;

use minijinja::Value as Jinja;
use serde_json::{Map, json};

use super::{ChatTemplate, Conversation, environment, json};

/// The results, each computed when it is first needed.
#[derive(Default)]
pub(super) struct Probes {
    needs_leading_system: OnceLock<bool>,
    disabled_effort: OnceLock<&'static str>,
}

impl ChatTemplate {
    /// Whether vLLM renders the conversations of its model by the Harmony library, not by the
    /// template: that of gpt-oss.
    #[must_use]
    pub fn is_of_harmony(&self) -> bool {
        ["<|start|>", "<|channel|>", "<|message|>"]
            .iter()
            .all(|tag| self.default.source.contains(tag))
    }

    /// Whether the template takes a system message only at the start of a conversation. Then vLLM
    /// merges all of them there.
    #[must_use]
    pub fn needs_leading_system(&self) -> bool {
        *self.probes.needs_leading_system.get_or_init(|| {
            let variants = [Some(&self.default), self.tool_use.as_ref()];
            variants.into_iter().flatten().any(|variant| {
                // vLLM parses it without the tag that trainers use.
                variant.has_generation_tags || refuses_later_system(&variant.source)
            })
        })
    }

    /// The `reasoning_effort` that stands for no thinking: `none`, or `low` if the template refuses
    /// that or does not tell it from an effort.
    #[must_use]
    pub fn disabled_effort(&self) -> &'static str {
        self.probes.disabled_effort.get_or_init(|| {
            let messages = [json!({"role": "user", "content": "Hi"})];
            let prompt = |effort: &str| {
                let mut kwargs = Map::new();
                kwargs.insert("reasoning_effort".to_owned(), json!(effort));
                kwargs.insert("enable_thinking".to_owned(), json!(effort != "none"));
                let conversation =
                    Conversation { kwargs: Some(&kwargs), ..Conversation::new(&messages) };
                self.render(&conversation).ok().map(|rendered| rendered.text)
            };
            let none = prompt("none");
            let efforts = ["low", "medium", "high", "xhigh", "max"];
            let is_ignored = || efforts.iter().any(|effort| prompt(effort) == none);
            if none.is_none() || is_ignored() { "low" } else { "none" }
        })
    }
}

/// Whether a template fails on a system message after the first message, without the variables and
/// functions that it has in a request.
fn refuses_later_system(source: &str) -> bool {
    let message = |role: &str| json!({"role": role, "content": "t"});
    let messages = ["system", "user", "system", "user"].map(message);
    let messages = json::items_to_template(&messages);
    let context = [("messages", messages), ("add_generation_prompt", Jinja::from(false))];
    let mut environment = environment();
    environment.remove_global("raise_exception");
    let rendered = environment.render_str(source, Jinja::from_pairs(context));
    rendered.is_err()
}

#[cfg(test)]
mod tests {
    use super::super::TokenizerConfig;
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::from_jinja("t", source, &TokenizerConfig::empty()).unwrap()
    }

    #[test]
    fn a_template_that_fails_on_a_later_system_message_needs_it_first() {
        let guarded = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{% endfor %}";
        for (source, expected) in [
            (guarded, true),
            ("{% for m in messages %}{{ m.content }}{% endfor %}", false),
            ("{{ strftime_now('%Y') }}", true),
            ("{% if tools %}{{ raise_exception('no') }}{% endif %}", false),
            ("{% generation %}a{% endgeneration %}", true),
        ] {
            assert_eq!(template(source).needs_leading_system(), expected, "{source}");
        }
    }

    #[test]
    fn a_template_with_channels_is_of_harmony() {
        assert!(template("<|start|>user<|channel|>final<|message|>a<|end|>").is_of_harmony());
        assert!(!template("<|start|>user<|message|>a").is_of_harmony());
    }

    #[test]
    fn no_thinking_is_the_effort_that_the_template_tells_from_others() {
        for (source, expected) in [
            ("{{ enable_thinking }}", "none"),
            ("{{ reasoning_effort }}", "none"),
            ("a", "low"),
            ("{{ 'max' if reasoning_effort in ['none', 'max'] else 'low' }}", "low"),
            ("{% if reasoning_effort == 'none' %}{{ raise_exception('no') }}{% endif %}", "low"),
        ] {
            assert_eq!(template(source).disabled_effort(), expected, "{source}");
        }
    }
}
