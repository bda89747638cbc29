//! Tokenizers from files, loaded once: a configuration that is read again must not cost seconds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{fs, io};

use wornpath_blocks::Tokenizer;
use wornpath_blocks::chat::{ChatTemplate, TokenizerConfig};
use wornpath_routing::{ByteTokenizer, TextTokenizer, Tokenize};

use crate::env::RelativePaths;
use crate::sections::models::TokenizerChoice;

/// Tokenizers that were loaded.
pub struct Tokenizers {
    beside: RelativePaths,
    loaded: Vec<(PathBuf, Option<SystemTime>, Arc<dyn Tokenize>)>,
}

/// A tokenizer that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerConfigError {
    /// The file cannot be read.
    #[error("tokenizer {path}: {error}; give the folder of the model's `tokenizer.json`")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file is no tokenizer.
    #[error("tokenizer {path}: {error}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
}

impl Tokenizers {
    /// None yet; folders are looked for beside the configuration at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { beside: RelativePaths::new(path), loaded: Vec::new() }
    }

    /// The tokenizer of a choice; loaded if it is new or its file has changed.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub fn get(
        &mut self,
        choice: &TokenizerChoice,
    ) -> Result<Option<Arc<dyn Tokenize>>, TokenizerConfigError> {
        let folder = match choice {
            TokenizerChoice::None => return Ok(None),
            TokenizerChoice::Bytes => return Ok(Some(Arc::new(ByteTokenizer))),
            TokenizerChoice::Folder(folder) => self.beside.path(folder),
        };
        let changed =
            fs::metadata(folder.join("tokenizer.json")).and_then(|file| file.modified()).ok();
        let known =
            |(path, at, _): &&(PathBuf, Option<SystemTime>, _)| *path == folder && *at == changed;
        if let Some((_, _, tokenizer)) = self.loaded.iter().find(known) {
            return Ok(Some(Arc::clone(tokenizer)));
        }
        let tokenizer: Arc<dyn Tokenize> = Arc::new(load(&folder)?);
        self.loaded.retain(|(path, ..)| *path != folder);
        self.loaded.push((folder, changed, Arc::clone(&tokenizer)));
        Ok(Some(tokenizer))
    }
}

fn load(folder: &Path) -> Result<TextTokenizer, TokenizerConfigError> {
    let read = |path: &PathBuf| {
        fs::read(path)
            .map_err(|error| TokenizerConfigError::Unreadable { path: path.clone(), error })
    };
    let unusable = |path: &Path, error: &dyn std::fmt::Display| TokenizerConfigError::Unusable {
        path: path.to_owned(),
        error: error.to_string(),
    };
    let path = folder.join("tokenizer.json");
    let tokenizer = Tokenizer::from_json(&path.display().to_string(), &read(&path)?)
        .map_err(|error| unusable(&path, &error))?;
    let path = folder.join("tokenizer_config.json");
    if !path.exists() {
        return Ok(TextTokenizer::new(tokenizer, None));
    }
    let config = TokenizerConfig::from_json(&path.display().to_string(), &read(&path)?)
        .map_err(|error| unusable(&path, &error))?;
    // A model without a template has no chat; its completions can be routed all the same.
    Ok(TextTokenizer::new(tokenizer, ChatTemplate::from_config(&config).ok()))
}
