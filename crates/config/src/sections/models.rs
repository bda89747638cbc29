//! `models`: tokenizers, block sizes and aliases.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Takes};

use crate::diagnostics::{Diagnostics, Label};
use crate::section::{Section, maps};

/// A base model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelConfig {
    /// Its name, as engines list it.
    pub name: String,
    /// The tokenizer of its prompts.
    pub tokenizer: TokenizerChoice,
    /// Tokens in a block; `None` to use what the engines report.
    pub block_size: Option<NonZeroUsize>,
    /// Other names that clients may use.
    pub aliases: Vec<String>,
    /// How long a request waits while no pod that serves it is up.
    pub wait_for_pod: Duration,
}

/// How a model's prompts are tokenized.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenizerChoice {
    /// One that is found by what the model's engines say of it.
    Found,
    /// No tokenizer: profiles that need tokens cannot route it.
    None,
    /// One token per byte, as in simulated engines.
    Bytes,
    /// The `tokenizer.json` in this folder.
    Folder(PathBuf),
}

impl TokenizerChoice {
    /// Whether the configuration names a tokenizer.
    #[must_use]
    pub const fn is_given(&self) -> bool {
        matches!(self, Self::Bytes | Self::Folder(_))
    }
}

#[rustfmt::skip]
pub(crate) const MODEL: &[Parameter] = &[
    Parameter::required("name", Takes::Text, "Its name, as the engines report it."),
    Parameter::optional("tokenizer", Takes::Text, "Folder of its `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`; `bytes` for simulated engines; or `none`: its prompts are compared by their text. By default it is found by what the engines say of the model: in their folder, in the Hugging Face cache, at the hub."),
    Parameter::optional("block_size", Takes::Whole(1, 1 << 16), "Tokens in a block of the index. By default the greatest common divisor of the sizes that its engines report at `/metrics`, or 16 if none reports one. An engine that reports another size causes a warning."),
    Parameter::with_default("aliases", Takes::Texts, "[]", "Other names that clients may use; engines receive the model's own name."),
    Parameter::with_default("wait_for_pod", Takes::Time, "0s", "How long a request waits while no pod that serves the model is up, as after a scale-in to zero; `wornpath_model_waiting_requests` counts it meanwhile, and the router is ready without pods. With 0 it is refused at once."),
];

pub(crate) fn models(root: &Node, diagnostics: &mut Diagnostics) -> Vec<ModelConfig> {
    let mut models: Vec<ModelConfig> = Vec::new();
    let mut names = Vec::new();
    for entry in maps(root, "models", &mut diagnostics.problems) {
        let section = Section::read(entry, MODEL, &[], &mut diagnostics.problems);
        let name: String = section.or("name", String::new());
        diagnostics.check_unique(&mut names, "model", &name, section.at("name"));
        let cure = "give the model name that the engines report";
        diagnostics.check_section_name(&section, "models", cure);
        for (alias, span) in section.texts("aliases") {
            let cure = "give a name that clients use, or remove it";
            let label = Label { owner: "models", key: "aliases" };
            diagnostics.check_name(label, &alias, span, cure);
            diagnostics.check_unique(&mut names, "model", &alias, span);
        }
        models.push(ModelConfig {
            tokenizer: tokenizer(&section, diagnostics),
            block_size: section.maybe::<usize>("block_size").and_then(NonZeroUsize::new),
            aliases: section.maybe("aliases").unwrap_or_default(),
            wait_for_pod: section.or("wait_for_pod", Duration::ZERO),
            name,
        });
    }
    models
}

fn tokenizer(section: &Section<'_>, diagnostics: &mut Diagnostics) -> TokenizerChoice {
    let Some(text) = section.maybe::<String>("tokenizer") else { return TokenizerChoice::Found };
    match text.as_str() {
        "bytes" => return TokenizerChoice::Bytes,
        "none" => return TokenizerChoice::None,
        _ => {}
    }
    let folder = PathBuf::from(&text);
    if !diagnostics.environment.has_tokenizer(&folder) {
        let message = format!("`tokenizer` is `{text}`, which contains no `tokenizer.json`");
        diagnostics.problems.push(
            Problem::new(ProblemKind::NotFound, section.at("tokenizer"), message).cure(
                "give the folder of the model's `tokenizer.json`; relative paths start at this file's folder",
            ),
        );
    }
    TokenizerChoice::Folder(folder)
}
