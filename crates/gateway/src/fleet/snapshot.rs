//! Who is there: the fleet that decisions see, and for each pod what only the gateway needs.
//!
//! A snapshot is never changed: a pod that comes, goes or learns its models makes a new one, and requests
//! under way keep the one they began with.

use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tokio::task::AbortHandle;
use wornpath_config::PodSettings;
use wornpath_execution::{Endpoint, Target};
use wornpath_index::PodId;
use wornpath_routing::{Fleet, FleetPod, Health, ModelChoice, Name};

/// A pod's place.
#[derive(Clone, Debug)]
pub struct PodEntry {
    /// What configuration or discovery said of it.
    pub settings: PodSettings,
    /// What decisions see of it.
    pub pod: FleetPod,
    /// Its address.
    pub endpoint: Arc<Endpoint>,
    /// What it answered when asked for its models.
    pub cards: Arc<[Value]>,
    /// Tokens in a block of its cache, as it reported last.
    pub block_size: Option<NonZeroUsize>,
    /// What brings its events.
    pub(crate) feeder: Option<AbortHandle>,
    /// Whether it was asked what it serves since it came, with or without an answer.
    pub(crate) is_asked: Arc<AtomicBool>,
}

/// Everybody who is there.
#[derive(Debug, Default)]
pub struct FleetSnapshot {
    fleet: Fleet,
    entries: Vec<PodEntry>,
    names: HashMap<String, ModelChoice>,
    /// Names that only the configuration gives.
    aliases: BTreeMap<String, Name>,
    default: Option<ModelChoice>,
    /// Of those who had not been asked when this snapshot was made, whether they have been.
    newcomers: Vec<Arc<AtomicBool>>,
    /// Whether all of them have been.
    is_acquainted: AtomicBool,
}

impl FleetSnapshot {
    pub(crate) fn new(entries: Vec<PodEntry>, aliases: &[(String, Name)]) -> Self {
        let fleet = Fleet::new(entries.iter().map(|entry| entry.pod.clone()).collect());
        let mut names = HashMap::new();
        let mut default = None;
        for facts in entries.iter().map(|entry| entry.pod.facts()) {
            for base in &facts.models {
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
        let is_newcomer = |entry: &&PodEntry| !entry.is_asked.load(Relaxed);
        let newcomers = entries.iter().filter(is_newcomer);
        let newcomers = newcomers.map(|entry| Arc::clone(&entry.is_asked)).collect::<Vec<_>>();
        let is_acquainted = AtomicBool::new(newcomers.is_empty());
        Self { fleet, entries, names, aliases, default, newcomers, is_acquainted }
    }

    /// The pods as decisions see them.
    #[must_use]
    pub const fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The pods with everything else, in the same order.
    #[must_use]
    pub fn entries(&self) -> &[PodEntry] {
        &self.entries
    }

    /// A pod by what people call it.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&PodEntry> {
        self.entries.iter().find(|entry| *entry.pod.facts().name.as_str() == *name)
    }

    /// A pod's seat, if this incarnation of it is there.
    #[must_use]
    pub fn entry(&self, pod: PodId) -> Option<&PodEntry> {
        self.fleet.find(pod).and_then(|at| self.entries.get(at.position()))
    }

    /// A pod's address.
    #[must_use]
    pub fn endpoint(&self, pod: PodId) -> Option<&Arc<Endpoint>> {
        self.entry(pod).map(|entry| &entry.endpoint)
    }

    pub(crate) fn target(&self, pod: PodId) -> Option<Target> {
        let entry = self.entry(pod)?;
        Some(Target {
            endpoint: Arc::clone(&entry.endpoint),
            rank: entry.pod.facts().rank,
            bootstrap_port: entry.settings.bootstrap_port,
        })
    }

    /// What a client's name for a model means. A name that nobody knows means itself, which no pod
    /// serves; no name means the only model, or the first.
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

    /// Whether a name is that of a model, and nothing that only a client wrote.
    pub(crate) fn knows(&self, name: &Name) -> bool {
        self.names.contains_key(name.as_str())
    }

    /// Whether a model is served by nobody who is up, and may be by somebody who has not been asked yet.
    pub(crate) fn may_yet_serve(&self, name: &str) -> bool {
        if self.is_acquainted.load(Relaxed) {
            return false;
        }
        if self.newcomers.iter().all(|is_asked| is_asked.load(Relaxed)) {
            self.is_acquainted.store(true, Relaxed);
            return false;
        }
        let base = self.model(name).base;
        let serves = |entry: &PodEntry| entry.pod.facts().models.contains(&base);
        let is_up = |entry: &PodEntry| entry.pod.vitals().health() == Health::Up;
        let may = |entry: &PodEntry| entry.pod.facts().models.is_empty() || serves(entry);
        !self.entries.iter().any(|entry| is_up(entry) && serves(entry))
            && self.entries.iter().any(|entry| !entry.is_asked.load(Relaxed) && may(entry))
    }

    /// What engines call a model that the configuration gives this other name.
    pub(crate) fn alias_of(&self, name: &str) -> Option<&Name> {
        self.aliases.get(name)
    }

    /// The models of all pods, each once, and their other names.
    #[must_use]
    pub fn cards(&self) -> Vec<Value> {
        let mut cards: Vec<Value> = Vec::new();
        for card in self.entries.iter().flat_map(|entry| entry.cards.iter()) {
            if !cards.iter().any(|other| other["id"] == card["id"]) {
                cards.push(card.clone());
            }
        }
        for (alias, model) in &self.aliases {
            if let Some(card) = cards.iter().find(|card| card["id"] == *model.as_str()) {
                let mut card = card.clone();
                card["id"] = alias.as_str().into();
                cards.push(card);
            }
        }
        cards
    }
}
