//! What the registry does with what engines say: facts of pods, tokenizers of models, events.
//!
//! A pod is exact if the tokenizer of its model is known and its engine's cache events are followed.
//! Neither has to be configured. A pod starts approximate, and becomes exact once both are there: a
//! tokenizer that takes minutes to download delays no request.
//!
//! The configuration has priority: a model with a tokenizer there is not sought, and an event source
//! there is followed even if the engine names another.

use crate::fleet::block_size::{self, model_of};
use crate::fleet::engine_facts::EngineFacts;
use crate::fleet::registry::{PodRegistry, lock, served_model};
use crate::fleet::snapshot::PodEntry;
use crate::routes::RouteTable;
use serde_json::Value;
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use wornpath_config::{
    BlockSize, EventSource, ModelSettings, PodConfig, Settings, TokenizerSource,
};
use wornpath_execution::Endpoint;
use wornpath_routing::{EventTrust, Name, PodFacts, Tokenize};

impl PodEntry {
    /// Whether cache events of the pod are followed.
    #[must_use]
    pub const fn has_events(&self) -> bool {
        self.source.is_some()
    }

    /// The source of events to follow: the configured one, else the one that the engine names.
    pub(crate) fn wanted_source(&self) -> Option<EventSource> {
        let configured = self.config.event_source().cloned();
        configured.or_else(|| {
            let rank = self.config.facts.rank;
            self.config.asks_for_events.then(|| self.engine.event_source(rank)).flatten()
        })
    }
}

impl PodRegistry {
    /// Records what the engine at `url` has said of itself.
    pub(crate) fn record_facts(&self, url: &str, engine: EngineFacts) {
        let _changing = lock(&self.changing);
        let engine = Arc::new(engine);
        let mut entries = self.snapshot().entries().to_vec();
        for entry in entries.iter_mut().filter(|entry| entry.config.url() == url) {
            entry.engine = Arc::clone(&engine);
            let facts = facts_with(&entry.config, &entry.endpoint, &entry.cards, &engine);
            if facts != *entry.pod.facts() {
                entry.pod = entry.pod.with_facts(facts);
            }
            self.follow_events(entry);
        }
        self.publish(entries);
    }

    /// Sets the tokenizer that was found for a model, at the place `source`, unless the
    /// configuration has one by now.
    pub(crate) fn set_tokenizer(&self, name: &Name, tokenizer: Arc<dyn Tokenize>, source: &str) {
        let _changing = lock(&self.changing);
        let mut settings = Settings::clone(&self.settings());
        let at = settings.models.iter().position(|model| *name == *model.name.as_str());
        let at = at.unwrap_or_else(|| {
            settings.models.push(unlisted(name));
            settings.models.len() - 1
        });
        let model = &mut settings.models[at];
        if model.tokenizer_source == TokenizerSource::Configured {
            return;
        }
        model.tokenizer = Some(tokenizer);
        model.tokenizer_source = TokenizerSource::Found(source.into());
        let mut entries = self.snapshot().entries().to_vec();
        block_size::set_reported(&mut settings, &entries);
        for entry in &entries {
            block_size::assume_default(&mut settings, entry);
        }
        let routing = match RouteTable::check(&settings) {
            Ok(routing) => Arc::new(routing),
            Err(error) => {
                tracing::error!(model = %name, %error, "tokenizer that was found is refused");
                return;
            }
        };
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = routing;
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        for entry in &mut entries {
            self.bind_model(entry);
            self.follow_events(entry);
        }
        self.publish(entries);
        tracing::info!(model = %name, source, "tokenizer found");
    }

    /// Follows the events of a pod whose model has a tokenizer, if their source is known. So far its
    /// cache was approximated.
    pub(crate) fn follow_events(&self, entry: &mut PodEntry) {
        if entry.has_events() {
            return;
        }
        let settings = self.settings();
        let is_tokenized = model_of(entry, &settings).is_some_and(|it| it.tokenizer.is_some());
        let served = served_model(&entry.config, &entry.pod.facts().models, &settings);
        let (Some(source), Some(served), true) = (entry.wanted_source(), served, is_tokenized)
        else {
            self.approximate(entry);
            return;
        };
        // Its engine may list any number of adapters.
        let facts = entry.pod.facts().clone();
        let name: Arc<str> = facts.name.as_str().into();
        let id = match self.events().add(&name, served) {
            Ok(id) => id,
            Err(error) => {
                tracing::warn!(pod = %facts.name, %error, "cache events not followed");
                return;
            }
        };
        let former = entry.pod.id();
        entry.event_task = self.subscribe(&name, &source, &entry.endpoint, facts.rank);
        entry.source = Some(source);
        entry.pod = entry.pod.anew(id, facts);
        entry.pod.state().set_trust(EventTrust::Unsure);
        let is_recalled = self.events().is_unconfirmed(&name);
        entry.pod.state().set_freshness(if is_recalled { 0.0 } else { 1.0 });
        self.history.0.remove(former);
        self.index().remove_pod(former);
    }

    /// Approximates the cache of a pod within the size that its engine has reported.
    fn approximate(&self, entry: &PodEntry) {
        let id = entry.pod.id();
        if let (Some(tokens), None) = (entry.pod.facts().kv_tokens, self.history.0.status(id)) {
            self.history.0.add(id, tokens);
        }
    }

    /// Why the predictions for a pod are approximate, each reason with its cure; nothing if they are
    /// exact.
    #[must_use]
    pub fn why_approximate(&self, entry: &PodEntry) -> Vec<String> {
        let mut reasons = Vec::new();
        let settings = self.settings();
        let facts = entry.pod.facts();
        let Some(name) = facts.models.first() else { return vec!["its models are unknown".into()] };
        let model = model_of(entry, &settings);
        if model.is_none_or(|model| model.tokenizer.is_none()) {
            reasons.push(self.why_no_tokenizer(name, model));
        }
        if let Some(mismatch) = self.token_checks.mismatch(entry.config.url()) {
            reasons.push(mismatch.to_string());
        }
        if !entry.has_events() {
            reasons.push(match entry.config.asks_for_events {
                true if entry.wanted_source().is_none() => entry.engine.why_no_events(facts.rank),
                true => "its cache events are followed once its model has a tokenizer".to_owned(),
                false => {
                    "the configuration says that it has no cache events; set `events`".to_owned()
                }
            });
        }
        reasons
    }

    fn why_no_tokenizer(&self, name: &Name, model: Option<&ModelSettings>) -> String {
        let is_off = model.is_some_and(|it| it.tokenizer_source == TokenizerSource::Configured);
        if is_off {
            return format!("the configuration says that model `{name}` has no tokenizer");
        }
        if !self.routes().wants_tokens() {
            return "no profile in use tokenizes prompts".to_owned();
        }
        let cure = format!("give --tokenizer FOLDER --model {name}, or `tokenizer` of the model");
        match self.searches.problem(name) {
            None => format!("the tokenizer of model `{name}` is being sought; to name it, {cure}"),
            Some(problem) => format!("no tokenizer for model `{name}`: {problem}; {cure}"),
        }
    }
}

/// Keeps the tokenizers that were found under a new configuration, where that names none.
pub(crate) fn carry_over(before: &Settings, settings: &mut Settings) {
    let is_found =
        |model: &&ModelSettings| matches!(model.tokenizer_source, TokenizerSource::Found(_));
    for known in before.models.iter().filter(is_found) {
        let Some(model) = settings.models.iter_mut().find(|model| model.name == known.name) else {
            // Its aliases and the like were those of the former file.
            let model = ModelSettings {
                block_size: known.block_size,
                ..unlisted(&known.name.as_str().into())
            };
            settings.models.push(ModelSettings {
                tokenizer: known.tokenizer.clone(),
                tokenizer_source: known.tokenizer_source.clone(),
                ..model
            });
            continue;
        };
        if model.tokenizer_source == TokenizerSource::Sought {
            model.tokenizer.clone_from(&known.tokenizer);
            model.tokenizer_source.clone_from(&known.tokenizer_source);
        }
    }
}

/// A model that the configuration does not list.
fn unlisted(name: &Name) -> ModelSettings {
    ModelSettings {
        name: name.to_string(),
        block_size: BlockSize::default(),
        tokenizer: None,
        tokenizer_source: TokenizerSource::Sought,
        aliases: Vec::new(),
        wait_for_pod: Duration::ZERO,
    }
}

/// The configured facts of a pod, completed by what its engine reported: the models and the size of
/// its cache if none are configured, and all its LoRA adapters.
pub(crate) fn facts_with(
    pod: &PodConfig,
    endpoint: &Endpoint,
    cards: &[Value],
    engine: &EngineFacts,
) -> PodFacts {
    let address = endpoint.address().filter(|_| endpoint.prefix().is_empty());
    let mut facts = PodFacts { address, ..pod.facts.clone() };
    let name = |card: &Value| card["id"].as_str().map(Name::from);
    let is_base = |card: &&Value| !card["parent"].is_string();
    if facts.models.is_empty() {
        facts.models = cards.iter().filter(is_base).filter_map(name).collect();
    }
    let mut known: HashSet<Name> = facts.loras.iter().cloned().collect();
    let loras = cards.iter().filter(|card| !is_base(card)).filter_map(name);
    facts.loras.extend(loras.filter(|lora| known.insert(lora.clone())));
    facts.kv_tokens = facts.kv_tokens.or(engine.kv_tokens);
    facts
}
