//! The state that all HTTP requests to one engine share.

use super::call::CallReader;
use super::driver::DriverCommand;
use super::faults::Faults;
use super::options::{Addresses, EngineOptions};
use super::response::Crash;
use super::text::TextModel;
use crate::request::RequestId;
use crate::vllm_hash::{ExtraKey, ExtraKeys, VllmHasher};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};
use wornpath_index::EngineHash;

/// One incarnation of an engine, as its HTTP port needs it.
pub(super) struct EngineSite {
    options: Arc<EngineOptions>,
    text: Arc<TextModel>,
    hasher: VllmHasher,
    /// The model, then its adapters.
    models: Vec<String>,
    commands: mpsc::UnboundedSender<DriverCommand>,
    faults: Arc<Mutex<Faults>>,
    requests: AtomicU64,
    /// Prefill-only requests that were answered.
    prefills: AtomicU64,
    crash: watch::Sender<bool>,
    started: f64,
    addresses: Addresses,
    topic: String,
    engine_id: String,
}

/// The parts of a new site, beside its options.
pub(super) struct SiteState {
    pub(super) text: Arc<TextModel>,
    pub(super) commands: mpsc::UnboundedSender<DriverCommand>,
    pub(super) faults: Arc<Mutex<Faults>>,
    /// Ends the incarnation.
    pub(super) crash: watch::Sender<bool>,
    pub(super) started: f64,
    pub(super) addresses: Addresses,
    pub(super) topic: String,
}

impl EngineSite {
    pub(super) fn new(options: Arc<EngineOptions>, state: SiteState) -> Self {
        let SiteState { text, commands, faults, crash, started, addresses, topic } = state;
        let models = std::iter::once(&options.model).chain(&options.adapters).cloned().collect();
        let engine_id = format!("{:x}-{}", (started * 1e6) as u64, addresses.http.port());
        Self {
            hasher: VllmHasher::new(options.hash_algorithm, &options.hash_seed),
            options,
            text,
            models,
            commands,
            faults,
            requests: AtomicU64::new(1),
            prefills: AtomicU64::new(0),
            crash,
            started,
            addresses,
            topic,
            engine_id,
        }
    }

    pub(super) fn reader(&self) -> CallReader<'_> {
        let answer_tokens = self.options.answer_tokens;
        CallReader { text: &self.text, models: &self.models, answer_tokens }
    }

    pub(super) fn text(&self) -> &TextModel {
        &self.text
    }

    pub(super) fn model(&self) -> &str {
        &self.options.model
    }

    /// The folder or the repository that the model is from.
    pub(super) fn root(&self) -> &str {
        self.options.root.as_deref().unwrap_or(&self.options.model)
    }

    pub(super) fn models(&self) -> &[String] {
        &self.models
    }

    /// The adapter that a request for `model` uses, unless it names the base model.
    pub(super) fn lora<'a>(&self, model: &'a str) -> Option<&'a str> {
        (model != self.options.model).then_some(model)
    }

    pub(super) fn block_size(&self) -> usize {
        self.options.settings.block_size.get()
    }

    pub(super) fn max_tokens(&self) -> usize {
        self.options.settings.kv_tokens.unwrap_or(self.options.profile.kv_tokens())
    }

    pub(super) fn commands(&self) -> &mpsc::UnboundedSender<DriverCommand> {
        &self.commands
    }

    pub(super) fn faults(&self) -> Faults {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn started(&self) -> f64 {
        self.started
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.addresses.http
    }

    /// The addresses of its cache events, in vLLM's format.
    pub(super) fn event_sources(&self) -> Value {
        let Addresses { events, replay, .. } = self.addresses;
        json!({"0": {
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": format!("tcp://{events}"),
            "replay_endpoint": format!("tcp://{replay}"), "topic": self.topic,
        }})
    }

    pub(super) fn engine_id(&self) -> &str {
        &self.engine_id
    }

    pub(super) fn next_request(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Counts a prefill-only request; returns the crash that follows it, if the fault
    /// `crash_after_prefills` is due.
    pub(super) fn count_prefill(&self) -> Option<Crash> {
        let answered = self.prefills.fetch_add(1, Ordering::Relaxed) + 1;
        let is_last = self.faults().crash_after_prefills.is_some_and(|most| answered >= most);
        is_last.then(|| Crash(self.crash.clone()))
    }

    /// The hashes of the full blocks of `tokens`, as vLLM computes them.
    pub(super) fn chain(
        &self,
        tokens: &[u32],
        salt: Option<&str>,
        lora: Option<&str>,
    ) -> Arc<[EngineHash]> {
        let lora =
            lora.map(|name| [ExtraKey::Text("lora"), ExtraKey::Text(name), ExtraKey::Text(name)]);
        let salt = salt.map(|salt| [ExtraKey::Text("cache_salt"), ExtraKey::Text(salt)]);
        let every: Vec<_> = lora.iter().map(|keys| ExtraKey::Tuple(keys)).collect();
        let first: Vec<_> = salt.iter().map(|keys| ExtraKey::Tuple(keys)).collect();
        let extra = ExtraKeys { every_block: &every, first_block: &first };
        let mut hashes = Vec::new();
        self.hasher.hash_tokens(tokens, self.options.settings.block_size, extra, &mut hashes);
        hashes.iter().map(|hash| EngineHash(hash.truncated())).collect()
    }
}
