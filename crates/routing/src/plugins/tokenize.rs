//! `tokenize`: the prompt's token ids, identical to those that the engine computes.
//!
//! The index names blocks by tokens, so a token that differs from the engine's hides everything
//! cached after it. The model's own chat template and tokenizer are therefore required. Where
//! tokenization is stopped, no token is written: part of them would predict part of the prompt.

use std::sync::Arc;

use crate::models::{Models, TokenizeError, Untokenized};
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::request::Prompt;
use crate::slot::{Tokens, Writes};
use crate::stage::{Prepare, Preparing, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "tokenize",
    summary: "Renders the prompt with the model's chat template and tokenizes it as the engine does. \
              A prompt of token ids is used unchanged.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "tokenize",
    make: Make::Prepare(make),
};

struct TokenizePrompt {
    tokens: Writes<Tokens>,
    models: Arc<Models>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    Ok(Box::new(TokenizePrompt { tokens: assembly.writes(), models: assembly.models() }))
}

impl Prepare for TokenizePrompt {
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = preparing.request();
        if preparing.untokenized().is_some() {
            return Ok(());
        }
        if request.has_unknown_reading() {
            preparing.leave_untokenized(&self.tokens, Untokenized::UnknownReading);
            return Ok(());
        }
        let Tokens(tokens) = preparing.write(&self.tokens);
        if let Prompt::Tokens(ids) = &request.prompt {
            tokens.extend_from_slice(ids);
            if let Some(truncation) = request.truncation(request.reading.engine.unwrap_or_default())
            {
                truncation.apply(tokens, 0, 0);
            }
            return Ok(());
        }
        let base = &request.model.base;
        let Some(model) = self.models.find(base) else {
            let reason = format!(
                "model `{base}` is not listed under `models`, so its prompts cannot be tokenized; list it with its \
                 tokenizer, or route it to a profile with `text_blocks`"
            );
            return Err(Rejection::refused(404, reason));
        };
        let Some(tokenizer) = model.tokenizer() else { return Err(no_tokenizer(base)) };
        // A prompt that cannot be read here may still be one that the engine accepts.
        let reason = match tokenizer.tokenize(request, tokens) {
            Ok(()) => return Ok(()),
            Err(TokenizeError::NoTokenizer) => return Err(no_tokenizer(base)),
            Err(TokenizeError::Stopped(reason)) => reason,
            Err(TokenizeError::NoTemplate) => Untokenized::NoTemplate,
            Err(TokenizeError::NotRendered(_)) => Untokenized::TemplateFailed,
            Err(TokenizeError::NotTokenized(_)) => Untokenized::TokenizerFailed,
            Err(TokenizeError::UnknownReading) => Untokenized::UnknownReading,
        };
        preparing.leave_untokenized(&self.tokens, reason);
        Ok(())
    }
}

fn no_tokenizer(base: &Name) -> Rejection {
    let reason = format!(
        "model `{base}` has no tokenizer; configure one, or route it to a profile with `text_blocks`"
    );
    Rejection::refused(500, reason)
}
