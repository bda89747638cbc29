//! The models that are served, as preparation needs them: tokenizer, block size, roots of chains.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use wornpath_blocks::{BlockHash, BlockHasher, HashKey, Scope};

use crate::name::Name;
use crate::request::{ModelChoice, Request};

/// Turns a request's prompt into the token ids that the engine will compute.
pub trait Tokenize: Send + Sync {
    /// Appends the ids to `tokens`, or says why there are none.
    ///
    /// # Errors
    /// If the prompt cannot be rendered or tokenized; the text is shown to the client.
    fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError>;
}

/// Why a prompt has no tokens.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenizeError {
    /// Only text would need one.
    #[error("it has no tokenizer; give it one, or send token ids")]
    NoTokenizer,
    /// A conversation cannot be rendered.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template refuses the conversation.
    #[error("the conversation cannot be rendered: {0}")]
    NotRendered(String),
    /// The tokenizer refuses the text.
    #[error("the text cannot be tokenized: {0}")]
    NotTokenized(String),
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

    /// Hashes its blocks.
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

/// All base models of a cell, under its key.
#[derive(Clone, Debug, Default)]
pub struct Models {
    key: HashKey,
    models: Vec<RoutedModel>,
}

impl Models {
    /// None yet.
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

    /// Where the chains of a request start. Without adapter and salt it is known already; with them it
    /// costs about a microsecond.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remembered_root_is_the_computed_one_and_an_adapter_has_its_own() {
        let models = Models::new(HashKey::DEFAULT).with("m", NonZeroUsize::MIN, None);
        let plain = ModelChoice { base: "m".into(), lora: None };
        assert_eq!(models.root(&plain, None), HashKey::DEFAULT.root(&Scope::model("m")));
        let adapted = ModelChoice { base: "m".into(), lora: Some("l".into()) };
        assert_ne!(models.root(&adapted, None), models.root(&plain, None));
        assert_ne!(models.root(&plain, Some("s")), models.root(&plain, None));
    }
}
