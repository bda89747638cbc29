//! What planning needs of a request: its chain of block hashes, and its prompt and output lengths.
//!
//! With the model's tokenizer they are exact. Without one, four bytes of the rendered prompt count
//! as a token: equal prefixes still have equal chains, which is all that ordering needs.

use serde_json::Value;
use std::num::NonZeroUsize;
use std::sync::Arc;
use wornpath_blocks::{BlockHash, BlockHasher, HashKey, Scope, TextHasher};
use wornpath_routing::{Prompt, Request, Tokenize};

/// The bytes that count as a token without a tokenizer.
pub const BYTES_PER_TOKEN: NonZeroUsize = NonZeroUsize::new(4).expect("four is not zero");

/// The lengths of a request in tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lengths {
    /// Prompt tokens.
    pub prompt: usize,
    /// The limit of output tokens, if the request has one.
    pub output: Option<usize>,
}

/// Hashes the prompts of requests.
#[derive(Clone)]
pub struct PromptHasher {
    key: HashKey,
    tokenizer: Option<Arc<dyn Tokenize>>,
    hasher: BlockHasher,
    texts: TextHasher,
    /// Whether a prompt that the tokenizer refuses is hashed by its text.
    takes_all: bool,
}

impl std::fmt::Debug for PromptHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.is_exact() { "tokens" } else { "bytes" };
        write!(f, "PromptHasher(by {how}, blocks of {})", self.hasher.block_size())
    }
}

impl PromptHasher {
    /// A hasher with blocks of so many tokens, under the cell's key.
    #[must_use]
    pub fn new(
        key: &HashKey,
        block_size: NonZeroUsize,
        tokenizer: Option<Arc<dyn Tokenize>>,
    ) -> Self {
        Self {
            key: key.clone(),
            tokenizer,
            hasher: BlockHasher::new(key, block_size),
            texts: TextHasher::new(key, block_size.saturating_mul(BYTES_PER_TOKEN)),
            takes_all: false,
        }
    }

    /// Refuses no prompt: one that the tokenizer refuses is hashed by its text. For inputs that
    /// were accepted before, perhaps with another tokenizer.
    #[must_use]
    pub fn taking_all(self) -> Self {
        Self { takes_all: true, ..self }
    }

    /// Whether it has the model's tokenizer.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> NonZeroUsize {
        self.hasher.block_size()
    }

    /// Writes the chain of a body whose prompt is `text`. Returns its lengths.
    ///
    /// # Errors
    /// If the prompt is empty or cannot be tokenized.
    pub fn hash_prompt(
        &self,
        body: &Value,
        text: &str,
        chain: &mut Vec<BlockHash>,
    ) -> Result<Lengths, String> {
        chain.clear();
        let root = self.key.root(&Scope {
            model: body["model"].as_str().unwrap_or_default(),
            lora: None,
            salt: body["cache_salt"].as_str(),
        });
        let mut tokens = Vec::new();
        let tokenizer = self.tokenizer.as_ref();
        let tokenized = tokenizer.map(|it| it.tokenize(&request(body, text), &mut tokens));
        let prompt = match tokenized {
            Some(Ok(())) => {
                self.hasher.hash_tokens(&tokens, root, chain);
                tokens.len()
            }
            Some(Err(error)) if !self.takes_all => return Err(error.to_string()),
            Some(Err(_)) | None => {
                self.texts.hash_text(text.as_bytes(), root, chain);
                text.len().div_ceil(BYTES_PER_TOKEN.get())
            }
        };
        if prompt == 0 && !self.takes_all {
            return Err("the prompt is empty; it must have at least one token".to_owned());
        }
        let output = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
        let output = output.iter().find_map(|field| body[*field].as_u64());
        Ok(Lengths { prompt: prompt.max(1), output: output.map(|tokens| tokens as usize) })
    }
}

fn request(body: &Value, text: &str) -> Request {
    let prompt = match body["messages"].as_array() {
        Some(messages) => Prompt::Chat {
            messages: messages.clone().into(),
            tools: body["tools"].as_array().cloned(),
            kwargs: body["chat_template_kwargs"].as_object().cloned(),
        },
        None => Prompt::Text(text.to_owned()),
    };
    Request { prompt, ..Request::default() }
}

/// The prompt as text, close enough to the engine's rendering for the order of requests.
///
/// # Errors
/// If the body has no prompt.
pub fn rendered(body: &Value) -> Result<String, String> {
    let mut text = match &body["tools"] {
        Value::Null => String::new(),
        tools => format!("{tools}\n"),
    };
    for field in ["system", "instructions", "prompt", "messages", "input"] {
        match &body[field] {
            Value::String(prompt) => text.push_str(prompt),
            Value::Array(parts) => parts.iter().for_each(|part| render_part(part, &mut text)),
            _ => {}
        }
    }
    match body["prompt"].is_null() && body["messages"].is_null() && body["input"].is_null() {
        true => Err("none of `messages`, `prompt`, `input` and `hash_ids`".to_owned()),
        false => Ok(text),
    }
}

fn render_part(part: &Value, text: &mut String) {
    if let Some(role) = part["role"].as_str() {
        text.push_str(role);
        text.push('\n');
    }
    match (part, &part["content"]) {
        (Value::String(own), _) | (_, Value::String(own)) => text.push_str(own),
        (_, Value::Array(parts)) => parts.iter().for_each(|part| render_part(part, text)),
        _ => match part["text"].as_str() {
            Some(own) => text.push_str(own),
            None => text.push_str(&part.to_string()),
        },
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use wornpath_routing::TokenizeError;

    struct StrictTokenizer;

    impl Tokenize for StrictTokenizer {
        fn tokenize(&self, _: &Request, _: &mut Vec<u32>) -> Result<(), TokenizeError> {
            Err(TokenizeError::NoTemplate)
        }
    }

    #[test]
    fn a_prompt_that_the_tokenizer_refuses_is_hashed_by_its_text() {
        let size = NonZeroUsize::new(2).unwrap();
        let strict = PromptHasher::new(&HashKey::DEFAULT, size, Some(Arc::new(StrictTokenizer)));
        let by_text = PromptHasher::new(&HashKey::DEFAULT, size, None);
        let body = json!({"prompt": "twelve bytes"});
        let hashed = |hasher: &PromptHasher| {
            let mut chain = Vec::new();
            let lengths = hasher.hash_prompt(&body, "twelve bytes", &mut chain)?;
            Ok::<_, String>((lengths, chain))
        };
        assert!(hashed(&strict).is_err());
        assert_eq!(hashed(&strict.taking_all()), hashed(&by_text));
    }
}
