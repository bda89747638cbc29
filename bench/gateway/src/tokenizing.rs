//! The cost of rendering and tokenizing alone.

use anyhow::Context;
use std::fs;
use std::path::Path;

use serde_json::json;
use wornpath_blocks::chat::{ChatTemplate, Conversation, TokenizerConfig};
use wornpath_blocks::{SpecialTokens, Tokenizer};

use crate::clock::thread_cpu;
use crate::prompts::Prompts;
use crate::stats::median;

/// Number of texts whose median cost is taken.
const TEXTS: u64 = 501;

/// A model's tokenizer and chat template.
pub(crate) struct Model {
    pub(crate) tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Model {
    /// Loads a model's tokenizer and chat template.
    pub(crate) fn load(folder: &Path) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let [file, config] = ["tokenizer.json", "tokenizer_config.json"];
        let tokenizer = Tokenizer::from_json(file, &read(file)?)?;
        let config = TokenizerConfig::from_json(config, &read(config)?)?;
        Ok(Self { tokenizer, template: ChatTemplate::from_config(&config)? })
    }

    /// The cost of the new half of a prompt, as a message of its own.
    pub(crate) fn cost_of_new(&self, prompts: &Prompts) -> anyhow::Result<NewText> {
        let mut ids = Vec::new();
        let mut rendering = Vec::new();
        let mut tokenizing = Vec::new();
        for number in 0..TEXTS {
            ids.clear();
            let messages = [json!({"role": "user", "content": prompts.new_text(number)})];
            let started = thread_cpu();
            let rendered = self.template.render(&Conversation::new(&messages))?;
            let between = thread_cpu();
            self.tokenizer.encode(&rendered.text, SpecialTokens::InText, &mut ids)?;
            rendering.push((between - started) as f64 / 1e3);
            tokenizing.push((thread_cpu() - between) as f64 / 1e3);
        }
        Ok(NewText { rendering: median(&rendering), tokenizing: median(&tokenizing) })
    }
}

/// The cost of turning a message into tokens, in microseconds of CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewText {
    pub(crate) rendering: f64,
    pub(crate) tokenizing: f64,
}
