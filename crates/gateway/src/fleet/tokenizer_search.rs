//! The search for the tokenizers of models that engines serve and no configuration names.
//!
//! One search for each model. What is on this machine is looked at first, and a pod that is coming
//! up waits a moment for it, so that its first request is already exact. What must be downloaded
//! delays nothing: requests are routed by text until then. A search that fails is repeated at
//! growing intervals as long as a pod serves the model, and its failure is logged once.
//!
//! Only models that pods serve are sought, never one that a client names.

use crate::fleet::engine_facts::ModelOrigin;
use crate::fleet::registry::PodRegistry;
use crate::fleet::tokenizer_finder::{FindTokenizer, FoundTokenizer, NotFound};
use crate::watchdog::heartbeat::named;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use wornpath_config::TokenizerSource;
use wornpath_routing::Name;

/// Time that a pod which is coming up waits for a tokenizer on this machine.
pub(crate) const LOCAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit on models of one engine whose tokenizers are sought: it may list any number.
const MAX_MODELS: usize = 8;
const FIRST_RETRY: Duration = Duration::from_secs(30);
const LAST_RETRY: Duration = Duration::from_secs(900);

impl PodRegistry {
    /// Seeks the tokenizers of models from now on. The first call counts.
    pub fn find_tokenizers_by(&self, finder: Arc<dyn FindTokenizer>) {
        self.searches.enable(finder);
    }

    /// Seeks the tokenizers of the models of the engine at `url`, and waits a moment for those on
    /// this machine.
    pub(crate) async fn seek_tokenizers(self: &Arc<Self>, url: &str) {
        let Some(finder) = self.searches.finder() else { return };
        if !self.routes().wants_tokens() {
            return;
        }
        let snapshot = self.snapshot();
        let Some(entry) = snapshot.entries().iter().find(|entry| entry.config.url() == url) else {
            return;
        };
        let mut local = Vec::new();
        let models = entry.pod.facts().models.iter().take(MAX_MODELS);
        for model in models.filter(|model| self.is_sought(model)) {
            if !self.searches.begin(model, &entry.engine.model) {
                continue;
            }
            let (looked, looked_here) = oneshot::channel();
            let search = TokenizerSearch {
                registry: Arc::clone(self),
                finder: Arc::clone(finder),
                model: model.clone(),
                origin: entry.engine.model.clone(),
            };
            self.background().spawn(named("tokenizer search", search.run(looked)));
            local.push(looked_here);
        }
        let all = async {
            for looked in local {
                let _ = looked.await;
            }
        };
        let _ = tokio::time::timeout(LOCAL_TIMEOUT, all).await;
    }

    fn is_sought(&self, model: &Name) -> bool {
        let settings = self.settings();
        let listed = settings.models.iter().find(|listed| *model == *listed.name.as_str());
        listed.is_none_or(|listed| listed.tokenizer_source == TokenizerSource::Sought)
    }
}

struct TokenizerSearch {
    registry: Arc<PodRegistry>,
    finder: Arc<dyn FindTokenizer>,
    model: Name,
    origin: ModelOrigin,
}

impl TokenizerSearch {
    /// Runs until the tokenizer is found or no pod serves the model; `looked` is dropped once this
    /// machine was searched.
    async fn run(self, looked: oneshot::Sender<()>) {
        let mut looked = Some(looked);
        let mut retry = FIRST_RETRY;
        while self.is_wanted() {
            let result = self.once(&mut looked).await;
            looked = None;
            match result {
                Ok(FoundTokenizer { tokenizer, source }) => {
                    self.registry.set_tokenizer(&self.model, tokenizer, &source);
                    break;
                }
                Err(NotFound::Final(problem)) => {
                    self.note(&problem);
                    return self.registry.searches.give_up(&self.model);
                }
                Err(NotFound::Now(problem)) => self.note(&problem),
            }
            tokio::time::sleep(retry).await;
            retry = (2 * retry).min(LAST_RETRY);
        }
        self.registry.searches.end(&self.model);
    }

    async fn once(
        &self,
        looked: &mut Option<oneshot::Sender<()>>,
    ) -> Result<FoundTokenizer, NotFound> {
        let finder = Arc::clone(&self.finder);
        let origin = self.origin.clone();
        // Reading and preparing a vocabulary takes seconds.
        let local = tokio::task::spawn_blocking(move || finder.local(&origin)).await;
        let local = local.unwrap_or_else(|error| Err(NotFound::Final(error.to_string())))?;
        if let Some(found) = local {
            return Ok(found);
        }
        *looked = None;
        self.finder.remote(&self.origin).await
    }

    /// Whether a pod serves the model, and the configuration names no tokenizer by now.
    fn is_wanted(&self) -> bool {
        let snapshot = self.registry.snapshot();
        let is_served = |model: &Name| {
            snapshot.entries().iter().any(|entry| entry.pod.facts().models.contains(model))
        };
        self.registry.is_sought(&self.model) && is_served(&self.model)
    }

    fn note(&self, problem: &str) {
        if self.registry.searches.record(&self.model, problem) {
            let model = &self.model;
            let effect = match self.registry.settings().by_text {
                Some(_) => "prompts are compared by their text and predictions are approximate",
                None => "profiles that tokenize refuse its prompts",
            };
            tracing::warn!(%model, reason = problem, "tokenizer not found: {effect}; give --tokenizer FOLDER \
                --model {model}, or `tokenizer` of the model");
        }
    }
}
