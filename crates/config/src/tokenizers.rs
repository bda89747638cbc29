//! Tokenizers from files: which files of a model are read, and a cache, because loading one takes
//! seconds and a reload of the configuration rarely changes any.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

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
    /// When its files were written.
    modified: [Option<SystemTime>; TOKENIZER_FILES.len()],
    tokenizer: Arc<dyn Tokenize>,
}

/// The files of a model by which its prompts are tokenized.
#[derive(Clone, Debug, Default)]
pub struct TokenizerFiles {
    /// What errors call the place that they are from: a folder or a repository.
    pub place: String,
    /// The content of each of [`TOKENIZER_FILES`]; only the first must be present.
    pub content: [Option<Vec<u8>>; TOKENIZER_FILES.len()],
}

/// The vocabulary; the special tokens, and templates of older models; the chat template, which
/// replaces theirs.
pub const TOKENIZER_FILES: [&str; 3] =
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// Limit on each file. The largest vocabularies have some 40 MB.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

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
            TokenizerChoice::Found | TokenizerChoice::None => return Ok(None),
            TokenizerChoice::Bytes => return Ok(Some(Arc::new(ByteTokenizer))),
            TokenizerChoice::Folder(folder) => self.paths.path(folder),
        };
        let written = |file: &str| fs::metadata(folder.join(file)).and_then(|file| file.modified());
        let modified = TOKENIZER_FILES.map(|file| written(file).ok());
        let is_current =
            |loaded: &&LoadedTokenizer| loaded.folder == folder && loaded.modified == modified;
        if let Some(loaded) = self.loaded.iter().find(is_current) {
            return Ok(Some(Arc::clone(&loaded.tokenizer)));
        }
        let files = TokenizerFiles::read(&folder)?;
        let tokenizer: Arc<dyn Tokenize> = Arc::new(files.load()?);
        self.loaded.retain(|loaded| loaded.folder != folder);
        let loaded = LoadedTokenizer { folder, modified, tokenizer: Arc::clone(&tokenizer) };
        self.loaded.push(loaded);
        Ok(Some(tokenizer))
    }
}

impl TokenizerFiles {
    /// Reads the files in a folder.
    ///
    /// # Errors
    /// If there is no `tokenizer.json`, or a file cannot be read or is too large.
    pub fn read(folder: &Path) -> Result<Self, TokenizerConfigError> {
        let mut files = Self { place: folder.display().to_string(), ..Self::default() };
        for (file, content) in TOKENIZER_FILES.into_iter().zip(&mut files.content) {
            let path = folder.join(file);
            *content = match read_file(&path) {
                Ok(read) => Some(read),
                Err(error) if file != TOKENIZER_FILES[0] && error.kind() == ErrorKind::NotFound => {
                    None
                }
                Err(error) => return Err(TokenizerConfigError::Unreadable { path, error }),
            };
        }
        Ok(files)
    }

    /// The tokenizer. A model without a chat template serves no chat, but its completions can be
    /// routed.
    ///
    /// # Errors
    /// If a file is invalid.
    pub fn load(&self) -> Result<TextTokenizer, TokenizerConfigError> {
        let name = |file: &str| format!("{}/{file}", self.place);
        let unusable = |file: &str, error: &dyn std::fmt::Display| TokenizerConfigError::Unusable {
            path: name(file).into(),
            error: error.to_string(),
        };
        let [tokenizer, config, template] = &self.content;
        let vocabulary = tokenizer.as_deref().unwrap_or_default();
        let tokenizer = Tokenizer::from_json(&name(TOKENIZER_FILES[0]), vocabulary)
            .map_err(|error| unusable(TOKENIZER_FILES[0], &error))?;
        let config = match config {
            None => TokenizerConfig::empty(),
            Some(config) => TokenizerConfig::from_json(&name(TOKENIZER_FILES[1]), config)
                .map_err(|error| unusable(TOKENIZER_FILES[1], &error))?,
        };
        let template = match template {
            None => ChatTemplate::from_config(&config),
            Some(source) => {
                let source = String::from_utf8_lossy(source);
                ChatTemplate::from_jinja(&name(TOKENIZER_FILES[2]), &source, &config)
            }
        };
        Ok(TextTokenizer::new(tokenizer, template.ok()))
    }
}

/// Reads a regular file of bounded size.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let about = fs::metadata(path)?;
    if !about.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if about.len() > MAX_TOKENIZER_BYTES {
        let message = format!("{} bytes; the limit is {MAX_TOKENIZER_BYTES}", about.len());
        return Err(io::Error::other(message));
    }
    fs::read(path)
}
