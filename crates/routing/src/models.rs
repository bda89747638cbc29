//! The served models, as preparation needs them: tokenizer, block size, roots of hash chains.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use serde_json::Value;
use wornpath_blocks::{BlockHash, BlockHasher, HashKey, Scope};

use crate::name::Name;
use crate::request::{ModelChoice, Prompt, Request};

/// Turns a request's prompt into the token ids that the engine will compute.
pub trait Tokenize: Send + Sync {
    /// Appends the ids to `tokens`.
    ///
    /// # Errors
    /// If the prompt cannot be rendered or tokenized; the text is shown to the client.
    fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError>;
}

/// A prompt cannot be tokenized.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenizeError {
    /// The prompt is text, and the model has no tokenizer.
    #[error("no tokenizer is configured; configure one, or use token ids")]
    NoTokenizer,
    /// The prompt is a chat, and the model has no template.
    #[error("the model has no chat template; configure one, or use a text prompt")]
    NoTemplate,
    /// The template failed.
    #[error("the chat template failed: {0}")]
    NotRendered(String),
    /// The tokenizer failed.
    #[error("tokenization failed: {0}")]
    NotTokenized(String),
    /// A field of the request has an effect on the prompt that is not known.
    #[error("how the engine reads the prompt is not known")]
    UnknownReading,
    /// Tokenization was stopped; the request is routed without tokens.
    #[error("tokenization stopped: {}", .0.word())]
    Stopped(Untokenized),
}

/// Why a request is routed without the tokens of its prompt. Nothing is predicted for it, and its
/// length is estimated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Untokenized {
    /// The prompt has more tokens than its limit.
    TooLong,
    /// A part of the prompt that must be tokenized in one go is too long.
    NoSplitPoint,
    /// It was not tokenized in time.
    Timeout,
    /// Too many prompts wait for tokenization.
    QueueFull,
    /// It is a chat, and the model has no chat template here.
    NoTemplate,
    /// The model's chat template fails on the conversation or refuses it.
    TemplateFailed,
    /// The tokenizer fails on the text.
    TokenizerFailed,
    /// A field has an effect on the prompt, or on the use of the cache, that is not known.
    UnknownReading,
}

impl Untokenized {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::TooLong,
        Self::NoSplitPoint,
        Self::Timeout,
        Self::QueueFull,
        Self::NoTemplate,
        Self::TemplateFailed,
        Self::TokenizerFailed,
        Self::UnknownReading,
    ];

    /// Its name in metrics and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::NoSplitPoint => "no_split_point",
            Self::Timeout => "timeout",
            Self::QueueFull => "queue_full",
            Self::NoTemplate => "no_template",
            Self::TemplateFailed => "template_failed",
            Self::TokenizerFailed => "tokenizer_failed",
            Self::UnknownReading => "unknown_reading",
        }
    }
}

/// One base model.
#[derive(Clone)]
pub struct RoutedModel {
    name: Name,
    hasher: BlockHasher,
    root: BlockHash,
    tokenizer: Option<Arc<dyn Tokenize>>,
}

impl RoutedModel {
    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// The hasher of its blocks.
    #[must_use]
    pub const fn hasher(&self) -> &BlockHasher {
        &self.hasher
    }

    /// Its tokenizer, if it has one.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&dyn Tokenize> {
        self.tokenizer.as_deref()
    }
}

impl fmt::Debug for RoutedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({}, blocks of {})", self.name, self.hasher.block_size())
    }
}

/// All base models of a cell, and the cell's hash key.
#[derive(Clone, Debug, Default)]
pub struct Models {
    key: HashKey,
    models: Vec<RoutedModel>,
}

impl Models {
    /// No models yet.
    #[must_use]
    pub const fn new(key: HashKey) -> Self {
        Self { key, models: Vec::new() }
    }

    /// Adds a model whose engines cut prompts into blocks of `block_size` tokens.
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        block_size: NonZeroUsize,
        tokenizer: Option<Arc<dyn Tokenize>>,
    ) -> Self {
        let hasher = BlockHasher::new(&self.key, block_size);
        let root = self.key.root(&Scope::model(name));
        self.models.push(RoutedModel { name: name.into(), hasher, root, tokenizer });
        self
    }

    /// The model of that name.
    #[must_use]
    pub fn find(&self, name: &Name) -> Option<&RoutedModel> {
        self.models.iter().find(|model| model.name == *name)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[RoutedModel] {
        &self.models
    }

    /// The cell's key.
    #[must_use]
    pub const fn key(&self) -> &HashKey {
        &self.key
    }

    /// The root of a request's hash chain. Precomputed without adapter and salt; with them it costs
    /// about a microsecond.
    #[must_use]
    pub fn root(&self, choice: &ModelChoice, salt: Option<&str>) -> BlockHash {
        if choice.lora.is_none()
            && salt.is_none()
            && let Some(model) = self.find(&choice.base)
        {
            return model.root;
        }
        let lora = choice.lora.as_ref().map(Name::as_str);
        self.key.root(&Scope { model: choice.base.as_str(), lora, salt })
    }
}

/// Tokenizes without a model: every byte of the text is a token, and a chat is lines after
/// `<|role|>`. Simulated engines without a tokenizer use it too.
#[derive(Clone, Copy, Debug)]
pub struct ByteTokenizer;

impl Tokenize for ByteTokenizer {
    fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let mut push = |text: &str| tokens.extend(text.bytes().map(u32::from));
        match &request.prompt {
            Prompt::Tokens(ids) => tokens.extend_from_slice(ids),
            Prompt::Text(text) => push(text),
            Prompt::Chat { messages, .. } => {
                for message in messages.iter() {
                    push(&format!("<|{}|>\n", message["role"].as_str().unwrap_or_default()));
                    match &message["content"] {
                        Value::Array(parts) => {
                            parts
                                .iter()
                                .filter_map(|part| part["text"].as_str())
                                .for_each(&mut push);
                        }
                        content => push(content.as_str().unwrap_or_default()),
                    }
                    push("\n");
                }
                push("<|assistant|>\n");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_precomputed_root_is_the_computed_one_and_an_adapter_has_its_own() {
        let models = Models::new(HashKey::DEFAULT).with("m", NonZeroUsize::MIN, None);
        let plain = ModelChoice { base: "m".into(), lora: None };
        assert_eq!(models.root(&plain, None), HashKey::DEFAULT.root(&Scope::model("m")));
        let adapted = ModelChoice { base: "m".into(), lora: Some("l".into()) };
        assert_ne!(models.root(&adapted, None), models.root(&plain, None));
        assert_ne!(models.root(&plain, Some("s")), models.root(&plain, None));
    }

    #[test]
    fn a_chat_is_lines_after_roles_whatever_form_its_content_has() {
        let text = |content: Value| {
            let messages = vec![json!({"role": "user", "content": content})];
            let prompt = Prompt::Chat { messages: messages.into(), tools: None, kwargs: None };
            let mut tokens = Vec::new();
            ByteTokenizer.tokenize(&Request { prompt, ..Request::default() }, &mut tokens).unwrap();
            tokens.into_iter().map(|byte| char::from(byte as u8)).collect::<String>()
        };
        let rendered = "<|user|>\nhi there\n<|assistant|>\n";
        assert_eq!(text(json!("hi there")), rendered);
        assert_eq!(text(json!([{"type": "text", "text": "hi "}, {"text": "there"}])), rendered);
        assert_eq!(text(Value::Null), "<|user|>\n\n<|assistant|>\n");
    }
}
