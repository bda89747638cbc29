//! Conversations of a shape that was rendered before: the text around their contents is known.
//!
//! Where a template treats all contents alike ([`TemplateAnalysis`]), what it makes of a conversation depends on the contents only in that they
//! stand in it. So a conversation is rendered with stand-ins once, and the next one with the same roles in the same order is put
//! together without asking the template. The first time that one is seen it is only noted, as many never come again.
use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use minijinja::syntax::SyntaxConfig;
use serde_json::{Map, Value, json};

use super::messages::is_changing;
use super::template_analysis::{MOST_CONTENTS, TemplateAnalysis, next_stand_in};
use super::{Conversation, PromptEnding};

/// A message that has a role and a text, and nothing else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChatTurn<'a> {
    /// Who speaks.
    pub role: Cow<'a, str>,
    /// What is said.
    pub content: Cow<'a, str>,
}

/// How many shapes are kept; a newer one takes the place of an older.
const SHAPES: usize = 1024;

/// The shapes that one template was asked for.
pub(super) struct SkeletonCache {
    terms: TemplateAnalysis,
    hashing: RandomState,
    places: Box<[SkeletonSpan]>,
}

#[derive(Default)]
struct SkeletonSpan {
    /// The hash of the last name that was asked for in vain.
    missed: AtomicU64,
    shape: ArcSwapOption<Skeleton>,
}

struct Skeleton {
    name: Vec<u8>,
    /// A text, and the number of the content behind it.
    parts: Vec<(String, usize)>,
    end: String,
}

/// A conversation that may have a known shape.
pub(super) struct SkeletonQuery<'a> {
    shapes: &'a SkeletonCache,
    contents: Vec<&'a str>,
    /// All that the text depends on besides the contents: a letter for each message, and then the rest.
    name: Vec<u8>,
    hash: u64,
}

impl SkeletonCache {
    /// None for a template that may look into contents.
    pub(super) fn of(source: &str, syntax: SyntaxConfig) -> Option<Self> {
        let places = std::iter::repeat_with(SkeletonSpan::default).take(SHAPES).collect();
        Some(Self {
            terms: TemplateAnalysis::of(source, syntax)?,
            hashing: RandomState::new(),
            places,
        })
    }

    /// The conversation, if it is simple enough: texts of well-known roles, and no more than switches beside them.
    pub(super) fn asked<'a>(
        &'a self,
        conversation: &Conversation<'a>,
    ) -> Option<SkeletonQuery<'a>> {
        let Conversation { messages, tools: None, ending, kwargs, .. } = *conversation else {
            return None;
        };
        self.of_turns(messages.iter().map(simple), ending, kwargs)
    }

    /// The same for a conversation of roles and contents, of which none is missing.
    pub(super) fn of_turns<'a>(
        &'a self,
        turns: impl ExactSizeIterator<Item = Option<(&'a str, &'a str)>>,
        ending: PromptEnding,
        kwargs: Option<&Map<String, Value>>,
    ) -> Option<SkeletonQuery<'a>> {
        if turns.len() > MOST_CONTENTS {
            return None;
        }
        let mut contents = Vec::with_capacity(turns.len());
        let mut name = Vec::with_capacity(turns.len() + 1);
        for turn in turns {
            let (role, content) = turn?;
            if is_changing(content) || !self.terms.allow(content) {
                return None;
            }
            name.push(match role {
                "system" => b's',
                "user" => b'u',
                "assistant" => b'a',
                "tool" => b't',
                _ => return None,
            });
            contents.push(content);
        }
        name.push(match ending {
            PromptEnding::GenerationPrompt => b'>',
            PromptEnding::LastMessage => b'.',
            PromptEnding::InsideLastMessage => return None,
        });
        for (switch, value) in kwargs.into_iter().flatten() {
            name.extend_from_slice(&switch.len().to_le_bytes());
            name.extend_from_slice(switch.as_bytes());
            name.push(u8::from(value.as_bool()?));
        }
        let hash = self.hashing.hash_one(&name);
        Some(SkeletonQuery { shapes: self, contents, name, hash })
    }
}

/// A message's role and content, if it has nothing else.
fn simple(message: &Value) -> Option<(&str, &str)> {
    let fields = message.as_object().filter(|fields| fields.len() == 2)?;
    Some((fields.get("role")?.as_str()?, fields.get("content")?.as_str()?))
}

impl SkeletonQuery<'_> {
    /// Appends its text, if its shape is known.
    pub(super) fn fill_in(&self, text: &mut String) -> bool {
        let shape = self.place().shape.load();
        let shape = shape.as_ref().filter(|shape| shape.name == self.name);
        shape.is_some_and(|shape| {
            self.fill(shape, text);
            true
        })
    }

    /// Takes down the shape of a conversation whose text is known now, if one like it was seen before. `render` knows what
    /// the template makes of other messages.
    pub(super) fn learn(
        self,
        text: &str,
        render: impl FnOnce(&[Cow<'_, Value>]) -> Option<String>,
    ) {
        let place = self.place();
        if place.missed.swap(self.hash, Relaxed) != self.hash {
            return;
        }
        let message = |(number, &letter): (usize, &u8)| {
            let role = match letter {
                b's' => "system",
                b'u' => "user",
                b'a' => "assistant",
                _ => "tool",
            };
            let content = self.shapes.terms.stand_in(number);
            Cow::Owned(json!({"role": role, "content": content}))
        };
        let letters = &self.name[..self.contents.len()];
        let messages: Vec<_> = letters.iter().enumerate().map(message).collect();
        let Some(rendered) = render(&messages) else { return };
        let (mut parts, mut rest) = (Vec::new(), rendered.as_str());
        while let Some((before, number, after)) = next_stand_in(rest) {
            if number >= self.contents.len() {
                return;
            }
            parts.push((before.to_owned(), number));
            rest = after;
        }
        let shape = Skeleton { name: self.name.clone(), parts, end: rest.to_owned() };
        // A template whose own text looks like a stand-in would give another.
        let mut filled = String::new();
        self.fill(&shape, &mut filled);
        if filled == text {
            place.shape.store(Some(Arc::new(shape)));
        }
    }

    fn place(&self) -> &SkeletonSpan {
        &self.shapes.places[self.hash as usize % SHAPES]
    }

    fn fill(&self, shape: &Skeleton, text: &mut String) {
        let length =
            |(before, number): &(String, usize)| before.len() + self.contents[*number].len();
        let length: usize = shape.parts.iter().map(length).sum();
        text.reserve(length + shape.end.len());
        for (before, number) in &shape.parts {
            text.push_str(before);
            text.push_str(self.contents[*number]);
        }
        text.push_str(&shape.end);
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
        let is_known = template.shapes.as_ref().unwrap().asked(conversation)?.fill_in(&mut text);
        is_known.then_some(text)
    }

    #[test]
    fn a_shape_is_known_after_its_second_conversation_and_holds_for_other_contents() {
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
    fn only_simple_conversations_have_a_shape() {
        let template = qwen3();
        let shapes = template.shapes.as_ref().unwrap();
        let asked = |message: Value, kwargs: &Value, ending| {
            let (messages, kwargs) = ([message], kwargs.as_object());
            let conversation = Conversation { kwargs, ending, ..Conversation::new(&messages) };
            shapes.asked(&conversation).map(|asked| asked.name)
        };
        let usual = || json!({"role": "user", "content": "a"});
        let (none, whole) = (Value::Null, PromptEnding::GenerationPrompt);
        let name = asked(usual(), &none, whole).unwrap();
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
            assert_eq!(asked(message.clone(), &none, whole), None, "{message}");
        }
        assert_eq!(asked(usual(), &none, PromptEnding::InsideLastMessage), None);
        assert_eq!(asked(usual(), &json!({"a": "text"}), whole), None);
        let mut names = vec![name];
        for switches in [
            json!({"a": true}),
            json!({"a": false}),
            json!({"a": true, "b": true}),
            json!({"a\u{1}b": true}),
        ] {
            names.push(asked(usual(), &switches, whole).unwrap());
        }
        names.push(asked(usual(), &none, PromptEnding::LastMessage).unwrap());
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
