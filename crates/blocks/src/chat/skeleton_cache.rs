//! Skeletons: the rendered text around the contents of a conversation, cached by its roles.
//!
//! Where a template treats all contents alike ([`TemplateAnalysis`]), its output depends on the
//! contents only in that it contains them. So a conversation is rendered once with placeholders,
//! and the next one with the same roles in the same order is assembled without running the
//! template. The first conversation of a kind is only recorded, because many kinds never come
//! again.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use minijinja::syntax::SyntaxConfig;
use serde_json::{Map, Value, json};

use super::messages::is_changing;
use super::template_analysis::{MAX_CONTENTS, TemplateAnalysis, next_placeholder};
use super::{Conversation, PromptEnding};
use crate::engine_rules::EngineRules;

/// A message that has a role and a text, and nothing else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChatTurn<'a> {
    /// `role` of the message.
    pub role: Cow<'a, str>,
    /// `content` of the message.
    pub content: Cow<'a, str>,
}

/// Slots of the cache; a new skeleton replaces the one in its slot.
const SLOTS: usize = 1024;

/// The skeletons of one template.
pub(super) struct SkeletonCache {
    source: String,
    analysis: TemplateAnalysis,
    hashing: RandomState,
    slots: Box<[SkeletonSlot]>,
}

#[derive(Default)]
struct SkeletonSlot {
    /// The hash of the last key that missed.
    missed: AtomicU64,
    skeleton: ArcSwapOption<Skeleton>,
}

struct Skeleton {
    key: Vec<u8>,
    /// Pairs of a text and the index of the content behind it.
    parts: Vec<(String, usize)>,
    end: String,
}

/// A conversation whose skeleton may be cached.
pub(super) struct SkeletonQuery<'a> {
    cache: &'a SkeletonCache,
    contents: Vec<&'a str>,
    /// All that the text depends on besides the contents: a letter per message, then the rest.
    key: Vec<u8>,
    hash: u64,
}

impl SkeletonCache {
    /// `None` for a template that may depend on contents.
    pub(super) fn of(source: &str, syntax: SyntaxConfig) -> Option<Self> {
        let slots = std::iter::repeat_with(SkeletonSlot::default).take(SLOTS).collect();
        Some(Self {
            source: source.to_owned(),
            analysis: TemplateAnalysis::of(source, syntax)?,
            hashing: RandomState::new(),
            slots,
        })
    }

    /// A query for a conversation, if it is simple enough: texts of well-known roles, and only
    /// boolean `kwargs` besides those that the template does not name.
    pub(super) fn query<'a>(
        &'a self,
        conversation: &Conversation<'a>,
    ) -> Option<SkeletonQuery<'a>> {
        let Conversation { messages, tools: None, ending, kwargs, engine, .. } = *conversation
        else {
            return None;
        };
        let ends_with_answer =
            messages.last().is_some_and(|message| message["role"] == "assistant");
        if engine == EngineRules::Sglang && ends_with_answer {
            return None;
        }
        self.query_turns(messages.iter().map(simple), ending, kwargs)
    }

    /// The same for pairs of role and content; `None` if one is missing.
    pub(super) fn query_turns<'a>(
        &'a self,
        turns: impl ExactSizeIterator<Item = Option<(&'a str, &'a str)>>,
        ending: PromptEnding,
        kwargs: Option<&Map<String, Value>>,
    ) -> Option<SkeletonQuery<'a>> {
        if turns.len() > MAX_CONTENTS {
            return None;
        }
        let mut contents = Vec::with_capacity(turns.len());
        let mut key = Vec::with_capacity(turns.len() + 1);
        for turn in turns {
            let (role, content) = turn?;
            if is_changing(content) || !self.analysis.allow(content) {
                return None;
            }
            key.push(match role {
                "system" => b's',
                "user" => b'u',
                "assistant" => b'a',
                "tool" => b't',
                _ => return None,
            });
            contents.push(content);
        }
        key.push(match ending {
            PromptEnding::GenerationPrompt => b'>',
            PromptEnding::LastMessage => b'.',
            PromptEnding::InsideLastMessage => return None,
        });
        let kwargs = kwargs.into_iter().flatten();
        for (switch, value) in kwargs.filter(|(name, _)| self.source.contains(name.as_str())) {
            key.extend_from_slice(&switch.len().to_le_bytes());
            key.extend_from_slice(switch.as_bytes());
            key.push(u8::from(value.as_bool()?));
        }
        let hash = self.hashing.hash_one(&key);
        Some(SkeletonQuery { cache: self, contents, key, hash })
    }
}

/// A message's role and content, if it has nothing else.
fn simple(message: &Value) -> Option<(&str, &str)> {
    let fields = message.as_object().filter(|fields| fields.len() == 2)?;
    Some((fields.get("role")?.as_str()?, fields.get("content")?.as_str()?))
}

impl SkeletonQuery<'_> {
    /// Appends the text of the conversation, if its skeleton is cached.
    pub(super) fn fill_in(&self, text: &mut String) -> bool {
        let skeleton = self.slot().skeleton.load();
        let skeleton = skeleton.as_ref().filter(|skeleton| skeleton.key == self.key);
        skeleton.is_some_and(|skeleton| {
            self.fill(skeleton, text);
            true
        })
    }

    /// Caches the skeleton of a conversation that was rendered to `text`, if its key missed before.
    /// `render` renders other messages with the same template.
    pub(super) fn learn(
        self,
        text: &str,
        render: impl FnOnce(&[Cow<'_, Value>]) -> Option<String>,
    ) {
        let slot = self.slot();
        if slot.missed.swap(self.hash, Relaxed) != self.hash {
            return;
        }
        let message = |(number, &letter): (usize, &u8)| {
            let role = match letter {
                b's' => "system",
                b'u' => "user",
                b'a' => "assistant",
                _ => "tool",
            };
            let content = self.cache.analysis.placeholder(number);
            Cow::Owned(json!({"role": role, "content": content}))
        };
        let letters = &self.key[..self.contents.len()];
        let messages: Vec<_> = letters.iter().enumerate().map(message).collect();
        let Some(rendered) = render(&messages) else { return };
        let mut parts = Vec::new();
        let mut rest = rendered.as_str();
        while let Some(placeholder) = next_placeholder(rest) {
            if placeholder.number >= self.contents.len() {
                return;
            }
            parts.push((placeholder.before.to_owned(), placeholder.number));
            rest = placeholder.after;
        }
        let skeleton = Skeleton { key: self.key.clone(), parts, end: rest.to_owned() };
        // A template whose own text contains a placeholder would render a different text.
        let mut filled = String::new();
        self.fill(&skeleton, &mut filled);
        if filled == text {
            slot.skeleton.store(Some(Arc::new(skeleton)));
        }
    }

    fn slot(&self) -> &SkeletonSlot {
        &self.cache.slots[self.hash as usize % SLOTS]
    }

    fn fill(&self, skeleton: &Skeleton, text: &mut String) {
        let length =
            |(before, number): &(String, usize)| before.len() + self.contents[*number].len();
        let length: usize = skeleton.parts.iter().map(length).sum();
        text.reserve(length + skeleton.end.len());
        for (before, number) in &skeleton.parts {
            text.push_str(before);
            text.push_str(self.contents[*number]);
        }
        text.push_str(&skeleton.end);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ChatTemplate, TokenizerConfig};
    use super::*;

    fn qwen3() -> ChatTemplate {
        let bytes = include_bytes!("../../tests/models/qwen3/tokenizer_config.json");
        ChatTemplate::from_config(&TokenizerConfig::from_json("c", bytes).unwrap()).unwrap()
    }

    fn known(template: &ChatTemplate, conversation: &Conversation<'_>) -> Option<String> {
        let mut text = String::new();
        let is_known = template.skeletons.as_ref().unwrap().query(conversation)?.fill_in(&mut text);
        is_known.then_some(text)
    }

    #[test]
    fn a_skeleton_is_cached_after_the_second_conversation_and_serves_other_contents() {
        let template = qwen3();
        let of = |a: &str, b: &str| {
            [json!({"role": "system", "content": a}), json!({"content": b, "role": "user"})]
        };
        for (a, b) in [("first", "one"), ("second", "another")] {
            let messages = of(a, b);
            let conversation = Conversation::new(&messages);
            assert_eq!(known(&template, &conversation), None);
            template.render(&conversation).unwrap();
        }
        let messages = of("third", "<b> \u{f8ff}\u{f0001}");
        let conversation = Conversation::new(&messages);
        let expected = "<|im_start|>system\nthird<|im_end|>\n\
                        <|im_start|>user\n<b> \u{f8ff}\u{f0001}<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(known(&template, &conversation).as_deref(), Some(expected));
        assert_eq!(template.render(&conversation).unwrap().text, expected);
        let other = Conversation { ending: PromptEnding::LastMessage, ..conversation };
        assert_eq!(known(&template, &other), None);
    }

    #[test]
    fn only_simple_conversations_have_a_skeleton() {
        let template = qwen3();
        let skeletons = template.skeletons.as_ref().unwrap();
        let key = |message: Value, kwargs: &Value, ending| {
            let messages = [message];
            let kwargs = kwargs.as_object();
            let conversation = Conversation { kwargs, ending, ..Conversation::new(&messages) };
            skeletons.query(&conversation).map(|query| query.key)
        };
        let usual = || json!({"role": "user", "content": "a"});
        let none = Value::Null;
        let whole = PromptEnding::GenerationPrompt;
        let plain = key(usual(), &none, whole).unwrap();
        for message in [
            json!({"role": "user", "content": "a", "name": "b"}),
            json!({"role": "developer", "content": "a"}),
            json!({"role": "user", "content": null}),
            json!({"role": "user", "content": [{"type": "text", "text": "a"}]}),
            json!({"role": "user", "tool_calls": "a"}),
            json!({"role": "user", "content": "<tool_response>"}),
            json!({"role": "system", "content": "x-anthropic-billing-header: 1\na"}),
            json!("a"),
        ] {
            assert_eq!(key(message.clone(), &none, whole), None, "{message}");
        }
        assert_eq!(key(usual(), &none, PromptEnding::InsideLastMessage), None);
        assert_eq!(key(usual(), &json!({"enable_thinking": "text"}), whole), None);
        assert_eq!(
            key(usual(), &json!({"a name of no variable": "a"}), whole),
            Some(plain.clone())
        );
        let mut keys = vec![plain];
        for switches in [
            json!({"enable_thinking": true}),
            json!({"enable_thinking": false}),
            json!({"enable_thinking": true, "content": true}),
            json!({"content": true}),
        ] {
            keys.push(key(usual(), &switches, whole).unwrap());
        }
        keys.push(key(usual(), &none, PromptEnding::LastMessage).unwrap());
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }
}
