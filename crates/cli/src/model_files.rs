//! The tokenizers of models that no configuration names: where their files are on this machine, or
//! where to get them.
//!
//! An engine says how it loaded its model: from a folder, or from a repository of the Hugging Face
//! hub. In this order:
//!
//! 1. an engine whose tokens are bytes needs no files;
//! 2. the folder, if the router sees it too;
//! 3. the repository in the Hugging Face cache of this machine;
//! 4. the hub, unless `HF_HUB_OFFLINE` is set; what is downloaded goes into that cache.
//!
//! Variables are those of `huggingface_hub`. Limit: engines do not give away their vocabulary, so a
//! folder that only the engine sees has no cure but `--tokenizer`.

mod hub;

use hub::{Hub, Repository};
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wornpath_config::{TOKENIZER_FILES, TokenizerFiles};
use wornpath_gateway::fleet::engine_facts::ModelOrigin;
use wornpath_gateway::fleet::tokenizer_finder::{FindTokenizer, Found, FoundTokenizer, NotFound};
use wornpath_routing::ByteTokenizer;

/// Finds the files of models by the variables of the environment.
pub(crate) struct ModelFiles {
    /// The Hugging Face cache; none without a home.
    cache: Option<PathBuf>,
    hub: Hub,
    is_offline: bool,
}

impl ModelFiles {
    pub(crate) fn of_environment() -> Self {
        let path = |name: &str| env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
        let home = path("HF_HOME").or_else(|| {
            let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
            Some(caches?.join("huggingface"))
        });
        let cache = path("HF_HUB_CACHE").or_else(|| Some(home.as_ref()?.join("hub")));
        let token_file = path("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")));
        let is_set = |name: &str| {
            let value = env::var(name).unwrap_or_default().to_lowercase();
            ["1", "true", "yes", "on"].contains(&value.as_str())
        };
        let is_offline = is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE");
        Self { cache, hub: Hub::of_environment(token_file), is_offline }
    }

    /// The folder of a repository in the cache.
    fn cached(&self, repository: &Repository) -> Option<PathBuf> {
        let folder = self.cache.as_ref()?.join(repository.cache_name());
        let reference = folder.join("refs").join(&repository.revision);
        let commit = match std::fs::read_to_string(reference) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => repository.revision.clone(),
        };
        if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return None;
        }
        let snapshot = folder.join("snapshots").join(commit);
        has_vocabulary(&snapshot).then_some(snapshot)
    }

    async fn download(&self, origin: &ModelOrigin) -> Result<FoundTokenizer, NotFound> {
        let repository = Repository::of(origin)?;
        if self.is_offline {
            let cache = self.cache.as_deref().unwrap_or(Path::new("")).display().to_string();
            return Err(NotFound::Final(format!(
                "HF_HUB_OFFLINE is set, and {repository} is not in the cache {cache}"
            )));
        }
        let download = self.hub.download(&repository).await?;
        let cache = self.cache.clone();
        let template = origin.template.clone();
        let loaded = tokio::task::spawn_blocking(move || {
            let source = format!("{}@{} at the hub", repository.name, download.commit);
            if let Some(cache) = cache
                && let Err(error) = download.save(&cache.join(repository.cache_name()), &repository)
            {
                // It is downloaded again at the next start.
                tracing::warn!(cache = %cache.display(), %error, "tokenizer not kept in the Hugging Face cache");
            }
            load(download.files, template.as_deref(), source)
        });
        loaded.await.map_err(|error| NotFound::Final(error.to_string()))?
    }
}

impl FindTokenizer for ModelFiles {
    fn local(&self, model: &ModelOrigin) -> Result<Option<FoundTokenizer>, NotFound> {
        if model.has_byte_tokens {
            let tokenizer = Arc::new(ByteTokenizer);
            return Ok(Some(FoundTokenizer { tokenizer, source: "bytes".to_owned() }));
        }
        let Some(root) = &model.root else {
            return Err(NotFound::Final(
                "its engine does not say where the model is from".to_owned(),
            ));
        };
        let folder = Path::new(root);
        let folder = if folder.is_absolute() {
            if !has_vocabulary(folder) {
                return Err(NotFound::Final(format!(
                    "its engine loaded it from `{root}`, and there is no {} here",
                    TOKENIZER_FILES[0]
                )));
            }
            folder.to_owned()
        } else {
            match self.cached(&Repository::of(model)?) {
                None => return Ok(None),
                Some(folder) => folder,
            }
        };
        let files = TokenizerFiles::read(&folder);
        let files = files.map_err(|error| NotFound::Final(error.to_string()))?;
        load(files, model.template.as_deref(), folder.display().to_string()).map(Some)
    }

    fn remote<'a>(&'a self, model: &'a ModelOrigin) -> Found<'a> {
        Box::pin(self.download(model))
    }
}

fn has_vocabulary(folder: &Path) -> bool {
    folder.join(TOKENIZER_FILES[0]).is_file()
}

/// Loads a tokenizer, with the chat template that the engine uses if it says it.
fn load(
    mut files: TokenizerFiles,
    template: Option<&str>,
    source: String,
) -> Result<FoundTokenizer, NotFound> {
    if let Some(template) = template {
        files.content[2] = Some(template.into());
    }
    let loaded = files.load().map_err(|error| NotFound::Final(error.to_string()))?;
    Ok(FoundTokenizer { tokenizer: Arc::new(loaded), source })
}
