//! Fleet snapshots: the pods as routing decisions see them, and for each pod what only the gateway
//! needs.
//!
//! A snapshot is immutable: adding or removing a pod, or discovering its models, publishes a new
//! one, and requests in flight keep the one they started with.

use crate::fleet::engine_facts::EngineFacts;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tokio::task::AbortHandle;
use wornpath_blocks::EngineRules;
use wornpath_config::{EngineKind, EventSource, PodConfig};
use wornpath_execution::{Endpoint, Target};
use wornpath_index::PodId;
use wornpath_routing::{Fleet, FleetPod, Health, ModelChoice, Name};

/// A pod of the fleet.
#[derive(Clone, Debug)]
pub struct PodEntry {
    /// Its description, from the configuration, discovery or an operator.
    pub config: PodConfig,
    /// Its facts and state, as routing decisions see them.
    pub pod: FleetPod,
    /// Its address, connections and circuit breaker, shared by the ranks of one engine.
    pub endpoint: Arc<Endpoint>,
    /// Its models, as reported by `/v1/models`; empty before the first answer.
    pub cards: Arc<[Value]>,
    /// Tokens per block of its cache, as last reported by the engine.
    pub block_size: Option<NonZeroUsize>,
    /// What its engine has said of itself.
    pub engine: Arc<EngineFacts>,
    /// The source of the cache events that are followed; none if its cache is approximated.
    pub source: Option<EventSource>,
    /// The task that subscribes to its cache events, if the pod has an event source of its own.
    pub(crate) event_task: Option<AbortHandle>,
    /// Whether its models were queried at least once, with or without success.
    pub(crate) was_queried: Arc<AtomicBool>,
    /// Whether no configuration lists it any more, and it serves until those that do answer.
    pub is_leaving: bool,
}

impl PodEntry {
    /// Whether its engine is known to stream the ids of tokens to requests that ask, as vLLM does.
    fn gives_token_ids(&self) -> bool {
        self.config.engine == EngineKind::Vllm
            || self.cards.iter().any(|card| card["owned_by"] == "vllm")
    }

    /// How its engine reads prompts: by what it says of itself, or else by the configuration.
    fn rules(&self) -> EngineRules {
        let says = |name: &str| {
            let software = self.engine.software.as_deref().unwrap_or_default();
            let is_owner = |card: &Value| {
                card["owned_by"].as_str().is_some_and(|owner| owner.eq_ignore_ascii_case(name))
            };
            let start = software.get(..name.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(name))
                || self.cards.iter().any(is_owner)
        };
        match self.config.engine == EngineKind::Sglang && !says("vllm") || says("sglang") {
            true => EngineRules::Sglang,
            false => EngineRules::Vllm,
        }
    }
}

/// The longest context of the pods that serve a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ContextLimit {
    pub(crate) tokens: usize,
    /// Whether `context_tokens` of every pod is configured. Otherwise engines report some of them
    /// (`max_model_len`).
    pub(crate) is_configured: bool,
}

impl ContextLimit {
    /// The limit of a pod for the base model of this card.
    fn of(entry: &PodEntry, card: Option<&Value>) -> Option<Self> {
        if let Some(tokens) = entry.pod.facts().context_tokens {
            return Some(Self { tokens: tokens as usize, is_configured: true });
        }
        let tokens = usize::try_from(card?["max_model_len"].as_u64()?).ok()?;
        (tokens > 0).then_some(Self { tokens, is_configured: false })
    }

    fn or_longer(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.max(other.tokens),
            is_configured: self.is_configured && other.is_configured,
        }
    }
}

/// All pods at one moment.
#[derive(Debug, Default)]
pub struct FleetSnapshot {
    fleet: Fleet,
    entries: Vec<PodEntry>,
    /// Models, adapters and aliases by the names that clients use.
    names: HashMap<String, ModelChoice>,
    /// Names that only the configuration defines.
    aliases: BTreeMap<String, Name>,
    /// The model of a request without one.
    default: Option<ModelChoice>,
    /// By base model; none if the context length of one of its pods is not known.
    context_limits: HashMap<Name, Option<ContextLimit>>,
    /// By base model: how its engines read prompts; none if they do so differently.
    engine_rules: HashMap<Name, Option<EngineRules>>,
    /// The `was_queried` flags that were unset when this snapshot was made.
    unqueried: Vec<Arc<AtomicBool>>,
    /// Whether all of them are set.
    all_queried: AtomicBool,
    gives_token_ids: bool,
}

impl FleetSnapshot {
    pub(crate) fn new(entries: Vec<PodEntry>, aliases: &[(String, Name)]) -> Self {
        let fleet = Fleet::new(entries.iter().map(|entry| entry.pod.clone()).collect());
        let mut names = HashMap::new();
        let mut default = None;
        let mut context_limits = HashMap::<Name, Option<ContextLimit>>::new();
        let mut engine_rules = HashMap::<Name, Option<EngineRules>>::new();
        for entry in &entries {
            let rules = Some(entry.rules());
            let facts = entry.pod.facts();
            let cards: HashMap<_, _> =
                entry.cards.iter().map(|card| (card["id"].as_str(), card)).collect();
            for base in &facts.models {
                let card = cards.get(&Some(base.as_str())).copied();
                let all = engine_rules.entry(base.clone()).or_insert(rules);
                *all = all.filter(|all| Some(*all) == rules);
                let limit = ContextLimit::of(entry, card);
                let longest = context_limits.entry(base.clone()).or_insert(limit);
                *longest = longest.zip(limit).map(|(one, other)| one.or_longer(other));
                let choice = ModelChoice { base: base.clone(), lora: None };
                default.get_or_insert_with(|| choice.clone());
                names.insert(base.as_str().to_owned(), choice);
            }
            let Some(base) = facts.models.first() else { continue };
            for lora in &facts.loras {
                let choice = ModelChoice { base: base.clone(), lora: Some(lora.clone()) };
                names.entry(lora.as_str().to_owned()).or_insert(choice);
            }
        }
        let is_new = |(alias, _): &&(String, Name)| !names.contains_key(alias);
        let aliases: BTreeMap<_, _> = aliases.iter().filter(is_new).cloned().collect();
        for (alias, model) in &aliases {
            let choice = ModelChoice { base: model.clone(), lora: None };
            names.insert(alias.clone(), choice);
        }
        let is_unqueried = |entry: &&PodEntry| !entry.was_queried.load(Relaxed);
        let unqueried = entries.iter().filter(is_unqueried);
        let unqueried = unqueried.map(|entry| Arc::clone(&entry.was_queried)).collect::<Vec<_>>();
        let all_queried = AtomicBool::new(unqueried.is_empty());
        let gives_token_ids = !entries.is_empty() && entries.iter().all(PodEntry::gives_token_ids);
        Self {
            fleet,
            entries,
            names,
            aliases,
            default,
            context_limits,
            engine_rules,
            unqueried,
            all_queried,
            gives_token_ids,
        }
    }

    /// Whether every pod is known to stream token ids to requests that ask.
    pub(crate) const fn gives_token_ids(&self) -> bool {
        self.gives_token_ids
    }

    /// How the engines of a model read prompts; none if they do so differently.
    #[must_use]
    pub fn engine_rules(&self, base: &Name) -> Option<EngineRules> {
        self.engine_rules.get(base).copied().unwrap_or(Some(EngineRules::default()))
    }

    /// The pods as routing decisions see them.
    #[must_use]
    pub const fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The entries of all pods, in the order of [`Self::fleet`].
    #[must_use]
    pub fn entries(&self) -> &[PodEntry] {
        &self.entries
    }

    /// A pod by name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&PodEntry> {
        self.entries.iter().find(|entry| *entry.pod.facts().name.as_str() == *name)
    }

    /// The entry of a pod; none if this incarnation of it was removed.
    #[must_use]
    pub fn entry(&self, pod: PodId) -> Option<&PodEntry> {
        self.fleet.find(pod).and_then(|at| self.entries.get(at.position()))
    }

    /// The endpoint of a pod; none if this incarnation of it was removed.
    #[must_use]
    pub fn endpoint(&self, pod: PodId) -> Option<&Arc<Endpoint>> {
        self.entry(pod).map(|entry| &entry.endpoint)
    }

    pub(crate) fn target(&self, pod: PodId) -> Option<Target> {
        let entry = self.entry(pod)?;
        Some(Target {
            endpoint: Arc::clone(&entry.endpoint),
            rank: entry.pod.facts().rank,
            bootstrap_port: entry.config.bootstrap_port,
        })
    }

    /// Resolves the model name of a request. An unknown name stands for itself, which no pod
    /// serves; an empty one means the first model.
    #[must_use]
    pub fn model(&self, name: &str) -> ModelChoice {
        if let Some(choice) = self.names.get(name) {
            return choice.clone();
        }
        match &self.default {
            Some(default) if name.is_empty() => default.clone(),
            _ => ModelChoice { base: name.into(), lora: None },
        }
    }

    /// The names that clients can use, if one of them is needed and `name` is none: it is missing
    /// and there are several models, or no pod can serve it.
    pub(crate) fn available_instead(&self, name: &str) -> Option<Vec<&str>> {
        let is_needed = if name.is_empty() {
            self.context_limits.len() > 1
        } else {
            let has_reported = |entry: &PodEntry| !entry.pod.facts().models.is_empty();
            let is_known = self.names.contains_key(name) || self.names.is_empty();
            !is_known && self.entries.iter().all(has_reported)
        };
        is_needed.then(|| {
            let mut names: Vec<&str> = self.names.keys().map(String::as_str).collect();
            names.sort_unstable();
            names
        })
    }

    /// Whether a name is known: only such a name may appear in metrics and logs.
    pub(crate) fn knows(&self, name: &Name) -> bool {
        self.names.contains_key(name.as_str())
    }

    /// Whether no pod that is up serves a model, but one whose models were not queried yet may
    /// serve it.
    pub(crate) fn may_yet_serve(&self, name: &str) -> bool {
        if self.all_queried.load(Relaxed) {
            return false;
        }
        if self.unqueried.iter().all(|was_queried| was_queried.load(Relaxed)) {
            self.all_queried.store(true, Relaxed);
            return false;
        }
        let base = self.model(name).base;
        let serves = |entry: &PodEntry| entry.pod.facts().models.contains(&base);
        let is_up = |entry: &PodEntry| entry.pod.state().health() == Health::Up;
        let may = |entry: &PodEntry| entry.pod.facts().models.is_empty() || serves(entry);
        !self.entries.iter().any(|entry| is_up(entry) && serves(entry))
            && self.entries.iter().any(|entry| !entry.was_queried.load(Relaxed) && may(entry))
    }

    /// The longest context of the pods that serve a base model, if it is known of all of them.
    pub(crate) fn context_limit(&self, base: &Name) -> Option<ContextLimit> {
        *self.context_limits.get(base)?
    }

    /// The name that engines know an aliased model by.
    pub(crate) fn alias_of(&self, name: &str) -> Option<&Name> {
        self.aliases.get(name)
    }

    /// The model cards of all pods, each model once, and cards for the aliases.
    #[must_use]
    pub fn cards(&self) -> Vec<Value> {
        let all = self.entries.iter().flat_map(|entry| entry.cards.iter());
        let mut known: HashMap<Option<&str>, usize> = HashMap::new();
        let mut cards: Vec<Value> = Vec::new();
        for card in all {
            known.entry(card["id"].as_str()).or_insert_with(|| {
                cards.push(card.clone());
                cards.len() - 1
            });
        }
        for (alias, model) in &self.aliases {
            if let Some(at) = known.get(&Some(model.as_str())) {
                let mut card = cards[*at].clone();
                card["id"] = alias.as_str().into();
                cards.push(card);
            }
        }
        cards
    }
}
