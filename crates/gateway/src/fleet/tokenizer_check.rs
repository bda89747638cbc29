//! Whether the router tokenizes as an engine does, by asking the engine to tokenize too.
//!
//! Tokens that differ make every prediction wrong, and nothing fails: a tokenizer of another
//! revision, another chat template (`--chat-template`), a system prompt that the engine adds. So
//! each engine tokenizes a text and a chat (`/tokenize` of vLLM and SGLang; SGLang only texts)
//! once it is up and its model has a tokenizer, and the first token that differs is named.
//!
//! Limit: a template may depend on the date. At midnight the comparison may be wrong for a moment;
//! it is repeated while tokens differ.

use crate::observe::timestamp::Timestamp;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use wornpath_routing::{Prompt, Request, Tokenize};

/// Numbers, contractions, white space, several scripts, code, and an emoji of several code points.
const TEXT: &str = "Hello, world! It's 12345.678 o'clock; we've   three spaces,\n\n\ttabs and naïve \
    café, 日本語, Привет, שלום, 👩‍👩‍👧. def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}\n";

/// What is tokenized by both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbePrompt {
    /// A text, as a completion has it.
    Text,
    /// A chat with a system prompt and an earlier turn.
    Chat,
}

/// How the tokens of a probe differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenMismatch {
    /// The probe.
    pub probe: ProbePrompt,
    /// The position of the first token that differs.
    pub at: usize,
    /// The router's token there; none after its last.
    pub ours: Option<u32>,
    /// The engine's token there; none after its last.
    pub engine: Option<u32>,
}

impl ProbePrompt {
    /// All of them. A text comes first: where it differs, the template is not at fault.
    pub const ALL: [Self; 2] = [Self::Text, Self::Chat];

    fn messages() -> Vec<Value> {
        vec![
            json!({"role": "system", "content": "You are a guide."}),
            json!({"role": "user", "content": "Which way?"}),
            json!({"role": "assistant", "content": "The worn path."}),
            json!({"role": "user", "content": TEXT}),
        ]
    }

    fn prompt(self) -> Prompt {
        match self {
            Self::Text => Prompt::Text(TEXT.into()),
            Self::Chat => {
                Prompt::Chat { messages: Self::messages().into(), tools: None, kwargs: None }
            }
        }
    }

    /// The body of `/tokenize`.
    #[must_use]
    pub fn body(self, model: &str) -> Value {
        match self {
            Self::Text => json!({"model": model, "prompt": TEXT}),
            Self::Chat => json!({"model": model, "messages": Self::messages()}),
        }
    }

    /// Compares the router's tokens with the engine's answer; nothing if it has none, or if the
    /// router predicts nothing for such prompts. `now` is for templates that print the date.
    #[must_use]
    pub fn compare(
        self,
        tokenizer: &dyn Tokenize,
        answer: &Value,
        now: Timestamp,
    ) -> Option<TokenMismatch> {
        let engine: Vec<u32> = serde_json::from_value(answer["tokens"].clone()).ok()?;
        let mut ours = Vec::new();
        let request = Request { prompt: self.prompt(), wall: now.0 / 1000, ..Request::default() };
        tokenizer.tokenize(&request, &mut ours).ok()?;
        if ours == engine {
            return None;
        }
        let equal = ours.iter().zip(&engine).take_while(|(one, other)| one == other).count();
        let ours = ours.get(equal).copied();
        let engine = engine.get(equal).copied();
        Some(TokenMismatch { probe: self, at: equal, ours, engine })
    }
}

/// What differs, and the cure.
impl fmt::Display for TokenMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { probe, at, ours, engine } = self;
        let token = |token: &Option<u32>| token.map_or("the end".to_owned(), |id| id.to_string());
        let ours = token(ours);
        let engine = token(engine);
        match probe {
            ProbePrompt::Text => write!(
                f,
                "the engine tokenizes text otherwise: at token {at} of a probe it has {engine}, and the router {ours}; \
                 give the tokenizer of the engine's model and revision with --tokenizer"
            ),
            ProbePrompt::Chat => write!(
                f,
                "the engine renders chats by another template: at token {at} of a probe it has {engine}, and the router \
                 {ours}; put the engine's template into the tokenizer's folder as chat_template.jinja"
            ),
        }
    }
}

/// The results of comparisons, by the URL of the engine.
#[derive(Default)]
pub(crate) struct TokenChecks(Mutex<HashMap<String, TokenCheck>>);

struct TokenCheck {
    tokenizer: Weak<dyn Tokenize>,
    mismatch: Option<TokenMismatch>,
}

impl TokenChecks {
    /// Whether an engine is to be compared: it was not with this tokenizer, or tokens differed.
    pub(crate) fn is_due(&self, url: &str, tokenizer: &Arc<dyn Tokenize>) -> bool {
        self.checks().get(url).is_none_or(|check| {
            check.mismatch.is_some() || !check.tokenizer.ptr_eq(&Arc::downgrade(tokenizer))
        })
    }

    /// Records a comparison. Returns whether its result differs from the last.
    pub(crate) fn record(
        &self,
        url: &str,
        tokenizer: &Arc<dyn Tokenize>,
        mismatch: Option<&TokenMismatch>,
    ) -> bool {
        let check =
            TokenCheck { tokenizer: Arc::downgrade(tokenizer), mismatch: mismatch.cloned() };
        let last = self.checks().insert(url.to_owned(), check);
        last.and_then(|last| last.mismatch).as_ref() != mismatch
    }

    /// Forgets an engine, which may come back as another.
    pub(crate) fn forget(&self, url: &str) {
        self.checks().remove(url);
    }

    /// How the tokens of an engine differ, if they do.
    pub(crate) fn mismatch(&self, url: &str) -> Option<TokenMismatch> {
        self.checks().get(url)?.mismatch.clone()
    }

    fn checks(&self) -> MutexGuard<'_, HashMap<String, TokenCheck>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_routing::{ByteTokenizer, TokenizeError};

    const NOW: Timestamp = Timestamp(1_795_046_400_000);

    fn tokens_of(probe: ProbePrompt) -> Vec<u32> {
        let mut tokens = Vec::new();
        let request = Request { prompt: probe.prompt(), ..Request::default() };
        ByteTokenizer.tokenize(&request, &mut tokens).unwrap();
        tokens
    }

    #[test]
    fn the_first_token_that_differs_is_named_also_where_one_side_ends() {
        for probe in ProbePrompt::ALL {
            let tokens = tokens_of(probe);
            let compare =
                |tokens: &[u32]| probe.compare(&ByteTokenizer, &json!({"tokens": tokens}), NOW);
            assert_eq!(compare(&tokens), None);
            let mut other = tokens.clone();
            other[7] += 1;
            let found = compare(&other).unwrap();
            assert_eq!((found.at, found.ours, found.engine), (7, Some(tokens[7]), Some(other[7])));
            let shorter = compare(&tokens[..5]).unwrap();
            assert_eq!((shorter.at, shorter.engine), (5, None));
            assert!(shorter.to_string().contains("at token 5 of a probe it has the end"));
        }
    }

    #[test]
    fn an_engine_that_cannot_tokenize_differs_in_nothing() {
        for answer in [Value::Null, json!({"error": "x"}), json!({"tokens": ["a"]})] {
            assert_eq!(ProbePrompt::Chat.compare(&ByteTokenizer, &answer, NOW), None, "{answer}");
        }
    }

    /// Its prompts are the day since 1970, as with a template that prints the date.
    struct Dated;

    impl Tokenize for Dated {
        fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
            tokens.push(u32::try_from(request.wall / 86_400).unwrap());
            Ok(())
        }
    }

    #[test]
    fn a_template_that_prints_the_date_prints_that_of_today_on_both_sides() {
        let compare = |day: u32| ProbePrompt::Chat.compare(&Dated, &json!({"tokens": [day]}), NOW);
        assert_eq!(compare(20_776), None);
        assert_eq!(compare(20_775).map(|found| found.ours), Some(Some(20_776)));
    }
}
