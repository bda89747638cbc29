//! The engine's own tokenization behind [`Tokenize`]: chat template and tokenizer of a model.

use wornpath_blocks::chat::{ChatTemplate, Conversation, Extent};
use wornpath_blocks::{Framing, Tokenizer};

use crate::models::Tokenize;
use crate::request::{Prompt, Request};

/// A model's tokenizer and, if it has one, its chat template.
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl TextTokenizer {
    /// From what the model's files hold.
    #[must_use]
    pub const fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        Self { tokenizer, template }
    }
}

impl Tokenize for TextTokenizer {
    fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), String> {
        let encoded = match &request.prompt {
            Prompt::Tokens(ids) => {
                tokens.extend_from_slice(ids);
                return Ok(());
            }
            Prompt::Text(text) => self.tokenizer.encode(text, Framing::Prompt, tokens),
            Prompt::Chat { messages, tools, kwargs } => {
                let template = self.template.as_ref().ok_or("the model has no chat template")?;
                let conversation = Conversation {
                    tools: tools.as_deref(),
                    kwargs: kwargs.as_ref(),
                    ..Conversation::new(messages)
                };
                let rendered = template.render(&conversation).map_err(|error| error.to_string())?;
                match rendered.extent {
                    Extent::Whole => self.tokenizer.encode(&rendered.text, Framing::Bare, tokens),
                    Extent::BeforePart => {
                        self.tokenizer.encode_beginning(&rendered.text, Framing::Bare, tokens)
                    }
                }
            }
        };
        encoded.map_err(|error| error.to_string())
    }
}
