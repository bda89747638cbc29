//! `tokenize`: the prompt's token ids, as the engine will compute them.

use std::sync::Arc;

use crate::models::{Models, TokenizeError};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::request::Prompt;
use crate::slot::Writes;
use crate::stage::{Prepare, Preparing, Rejection};
use crate::values::Tokens;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "tokenize",
    summary: "Renders the prompt with the model's chat template and tokenizes it as the engine does. \
              A prompt of token ids is taken as it is.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "tokenize",
    make: Make::Prepare(make),
};

struct Tokenizing {
    tokens: Writes<Tokens>,
    models: Arc<Models>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    Ok(Box::new(Tokenizing { tokens: assembly.writes(), models: assembly.models() }))
}

impl Prepare for Tokenizing {
    fn prepare(&self, scene: &mut Preparing<'_>) -> Result<(), Rejection> {
        let request = scene.request();
        let Tokens(tokens) = scene.write(&self.tokens);
        if let Prompt::Tokens(ids) = &request.prompt {
            tokens.extend_from_slice(ids);
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
        let Some(tokenizer) = model.tokenizer() else {
            let reason = format!(
                "model `{base}` has no tokenizer; give it one, or route it by `text_blocks`"
            );
            return Err(Rejection::refused(500, reason));
        };
        match tokenizer.tokenize(request, tokens) {
            Err(TokenizeError::NotRendered(_) | TokenizeError::NoTemplate)
                if request.is_converted =>
            {
                // What the engine makes of it may be another chat. Nothing of it is looked for.
                tokens.clear();
                Ok(())
            }
            tokenized => tokenized.map_err(|error| Rejection::refused(400, error.to_string())),
        }
    }
}
