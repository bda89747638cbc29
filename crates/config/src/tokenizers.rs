//! Loads tokenizers from files and caches them, because loading one takes seconds and a reload of
//! the configuration rarely changes any.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{fs, io};

use wornpath_blocks::Tokenizer;
use wornpath_blocks::chat::{ChatTemplate, TokenizerConfig};
use wornpath_routing::{ByteTokenizer, TextTokenizer, Tokenize};

use crate::env::RelativePaths;
use crate::sections::models::TokenizerChoice;

/// A cache of loaded tokenizers.
pub struct Tokenizers {
    paths: RelativePaths,
    loaded: Vec<LoadedTokenizer>,
}

struct LoadedTokenizer {
    folder: PathBuf,
    /// When its file was written.
    modified: Option<SystemTime>,
    tokenizer: Arc<dyn Tokenize>,
}

/// A tokenizer that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerConfigError {
    /// The file cannot be read.
    #[error("tokenizer {path}: {error}; give the folder of the model's `tokenizer.json`")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
    /// The file is not a valid tokenizer.
    #[error("tokenizer {path}: {error}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        error: String,
    },
}

impl Tokenizers {
    /// Loads nothing yet; relative folders start at the folder of the configuration at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { paths: RelativePaths::new(path), loaded: Vec::new() }
    }

    /// The tokenizer of a model; loads it if it is new or its file has changed.
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
            TokenizerChoice::Folder(folder) => self.paths.path(folder),
        };
        let modified =
            fs::metadata(folder.join("tokenizer.json")).and_then(|file| file.modified()).ok();
        let is_current =
            |loaded: &&LoadedTokenizer| loaded.folder == folder && loaded.modified == modified;
        if let Some(loaded) = self.loaded.iter().find(is_current) {
            return Ok(Some(Arc::clone(&loaded.tokenizer)));
        }
        let tokenizer: Arc<dyn Tokenize> = Arc::new(load(&folder)?);
        self.loaded.retain(|loaded| loaded.folder != folder);
        let loaded = LoadedTokenizer { folder, modified, tokenizer: Arc::clone(&tokenizer) };
        self.loaded.push(loaded);
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
    // A model without a chat template serves no chat, but its completions can be routed.
    Ok(TextTokenizer::new(tokenizer, ChatTemplate::from_config(&config).ok()))
}
