//! Configuration reload: a new configuration is checked as a whole, then swapped in.
//!
//! An invalid one changes nothing. What only a start can change (listeners, hash keys, block sizes,
//! threads) stays as it is and is reported as `wants_restart`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fleet::ownership::{OwnedName, Ownership, PodOwner, is_same};
use crate::fleet::registry::{ApplyError, PodRegistry};
use crate::fleet::snapshot::PodEntry;
use crate::observe::metrics::{Metrics, Reload};
use wornpath_config::tls::ListenerTls;
use wornpath_config::{BlockSize, Listeners, Settings};
use wornpath_config::{
    Config, ConfigRefused, Difference, FileState, FileWatch, Listen, ListenerGuard, PodConfig,
    RelativePaths, TokenizerConfigError, Tokenizers, difference_summary,
};

/// Interval between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// About how many characters the log tells of what a reload changed.
const LOGGED_CHARS: usize = 2000;
/// And how many are remembered, for the chart history.
const REMEMBERED_CHARS: usize = 240;
/// Reloads whose changes are remembered until the chart history has noted them.
const REMEMBERED: usize = 16;

/// The configuration in force, and the pods and metrics that it configures.
pub struct RunningConfig {
    registry: Arc<PodRegistry>,
    metrics: Arc<Metrics>,
    ownership: Ownership,
    path: Option<PathBuf>,
    overrides: CommandLineOverrides,
    state: Mutex<ReloadState>,
    /// Incremented with every applied configuration and every added or removed pod.
    generation: watch::Sender<u64>,
    /// Incremented with every reload, also with one that was refused.
    attempts: watch::Sender<u64>,
}

/// Applies the command line to the settings of a file. A reload must not lose it, least of all the
/// keys that clients must present.
pub type CommandLineOverrides = Box<dyn Fn(Settings) -> Result<Settings, String> + Send + Sync>;

/// What a process starts with: the configuration, and what a reload of it needs.
pub struct StartConfig {
    /// The configuration file, if there is one.
    pub path: Option<PathBuf>,
    /// The configuration read from it.
    pub config: Config,
    /// The tokenizers loaded so far.
    pub tokenizers: Tokenizers,
    /// The command line, which overrides the file.
    pub overrides: CommandLineOverrides,
}

struct ReloadState {
    config: Arc<Config>,
    /// The configuration at start.
    started: Arc<Config>,
    tokenizers: Tokenizers,
    /// Number of applied reloads.
    reloads: u64,
    /// What the last ones changed, each with its number.
    changed: VecDeque<(u64, String)>,
    /// Why the last reload was refused, as JSON; none if it was applied.
    refused: Option<Value>,
}

/// Why a reload was refused.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The process was configured by the command line alone.
    #[error("no configuration file to reload; start with `wornpath serve -c wornpath.yaml`")]
    NoFile,
    /// The configuration is invalid.
    #[error("{0}")]
    Refused(#[from] ConfigRefused),
    /// A tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerConfigError),
    /// The configuration conflicts with the command line.
    #[error("conflicts with the command line: {0}")]
    Overrides(String),
    /// The pods or profiles cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

impl ReloadError {
    /// The problems as JSON, if the configuration is invalid.
    #[must_use]
    pub fn problems(&self) -> Option<Value> {
        match self {
            Self::Refused(refused) => Some(refused.to_json()),
            _ => None,
        }
    }
}

/// The result of an applied reload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reloaded {
    /// Changed sections that take effect only after a restart.
    pub wants_restart: Vec<&'static str>,
    /// What the file changed.
    pub changed: Vec<Difference>,
}

impl RunningConfig {
    /// Takes over pods that were started with `start`.
    #[must_use]
    pub fn new(registry: Arc<PodRegistry>, metrics: Arc<Metrics>, start: StartConfig) -> Self {
        let StartConfig { path, config, tokenizers, overrides } = start;
        let ownership = Ownership::default();
        ownership.set_listed(config.pods(), config.pods());
        let config = Arc::new(config);
        let started = Arc::clone(&config);
        let state = ReloadState {
            config,
            started,
            tokenizers,
            reloads: 0,
            changed: VecDeque::new(),
            refused: None,
        };
        let generation = watch::Sender::new(0);
        let state = Mutex::new(state);
        let attempts = watch::Sender::new(0);
        Self { registry, metrics, ownership, path, overrides, state, generation, attempts }
    }

    /// The registry of pods.
    #[must_use]
    pub const fn pods(&self) -> &Arc<PodRegistry> {
        &self.registry
    }

    /// The metrics of the gateway.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The owners of all pods.
    #[must_use]
    pub const fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// The configuration file, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.state().config)
    }

    /// Notifies of every applied configuration and every added or removed pod.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Notifies of every reload, also of one that was refused.
    #[must_use]
    pub fn reload_attempts(&self) -> watch::Receiver<u64> {
        self.attempts.subscribe()
    }

    /// The file, the number of reloads and the last refusal, as JSON.
    #[must_use]
    pub fn status(&self) -> Value {
        let state = self.state();
        json!({"file": self.path, "reloads": state.reloads, "refused": state.refused})
    }

    /// What the reload of this number changed, in short, if it is one of the last.
    #[must_use]
    pub fn changed_by(&self, reload: u64) -> Option<String> {
        let state = self.state();
        state.changed.iter().find(|(number, _)| *number == reload).map(|(_, text)| text.clone())
    }

    /// Reads the file again and applies it. An invalid one changes nothing.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let reloaded = self.try_reload();
        self.attempts.send_modify(|attempts| *attempts += 1);
        let mut state = self.state();
        match &reloaded {
            Ok(reloaded) => {
                self.metrics.reloaded(Reload::Applied);
                state.refused = None;
                let changed = difference_summary(&reloaded.changed, LOGGED_CHARS);
                let wants_restart = &reloaded.wants_restart;
                tracing::info!(changed, ?wants_restart, "configuration reloaded");
            }
            Err(error) => {
                self.metrics.reloaded(Reload::Refused);
                state.refused = Some(error.problems().unwrap_or_else(|| json!(error.to_string())));
                tracing::error!("configuration refused; keeping the current one:\n{error}");
            }
        }
        reloaded
    }

    fn try_reload(&self) -> Result<Reloaded, ReloadError> {
        let path = self.path.as_ref().ok_or(ReloadError::NoFile)?;
        let config = Config::read(path)?;
        for used in config.deprecated() {
            tracing::warn!("configuration: {used}");
        }
        let mut state = self.state();
        let settings = config.settings(&mut state.tokenizers)?;
        let mut settings = (self.overrides)(settings).map_err(ReloadError::Overrides)?;
        let changes_block_size = changes_block_size(&self.registry.settings(), &settings);
        keep_hashes(&self.registry.settings(), &mut settings);
        keep_tls_modes(&self.registry.settings().tls, &mut settings.tls);
        keep_tenants(&self.registry.settings(), &mut settings);
        // A pod of another owner that is listed now must not exist twice. A pod that replaced a
        // listed one stays while that entry is unchanged.
        let listed = config.pods();
        let before = Arc::clone(&state.config);
        let is_changed = |entry: &&PodConfig| !before.pods().contains(entry);
        let changed: Vec<_> = listed.iter().filter(is_changed).cloned().collect();
        let is_adopted = |pod: &PodConfig| changed.iter().any(|entry| is_same(entry, pod));
        let adopted: Vec<_> = self.ownership.unlisted().into_iter().filter(is_adopted).collect();
        let adopted: Vec<_> = adopted.iter().flat_map(PodConfig::per_rank).collect();
        let metric_limits = settings.metrics;
        self.registry.apply_adopting(settings, &adopted)?;
        self.metrics.set_limits(metric_limits);
        self.ownership.set_listed(listed, &changed);
        let mut wants_restart = wants_restart(&state.started, &config);
        if changes_block_size {
            wants_restart.push("models[].block_size");
        }
        let changed = state.config.differences(&config);
        state.config = Arc::new(config);
        state.reloads += 1;
        let number = state.reloads;
        state.changed.push_back((number, difference_summary(&changed, REMEMBERED_CHARS)));
        if state.changed.len() > REMEMBERED {
            state.changed.pop_front();
        }
        self.notify_changed();
        Ok(Reloaded { wants_restart, changed })
    }

    /// Adds a pod that the configuration does not list, or replaces the one that `owner` added
    /// under its name. A pod whose engine is among the `former` entries keeps their state, such as
    /// being drained.
    ///
    /// # Errors
    /// If its name or address is in use, or the registry refuses it.
    pub fn add_pod(
        &self,
        owner: PodOwner,
        pod: &PodConfig,
        former: &[PodEntry],
    ) -> Result<(), AddPodError> {
        let known = self.ownership.get(pod.name());
        self.ownership.add(owner, pod.clone())?;
        if let Some(known) = known {
            self.remove_ranks(&known.config);
        }
        let ranks = pod.per_rank();
        for (at, rank) in ranks.iter().enumerate() {
            if let Err(error) = self.registry.add_pod_after(rank.clone(), former) {
                // Removes only the ranks added here: another pod may already have the name of this
                // rank.
                for added in &ranks[..at] {
                    self.registry.remove_pod(added.facts.name.as_str());
                }
                self.ownership.release(owner, pod.name());
                return Err(AddPodError::Refused(error.to_string()));
            }
        }
        self.notify_changed();
        Ok(())
    }

    /// Removes a pod if `owner` added it. Returns whether it did.
    pub fn release(&self, owner: PodOwner, name: &str) -> bool {
        let released = self.ownership.release(owner, name);
        if let Some(pod) = &released {
            self.remove_ranks(pod);
            self.notify_changed();
        }
        released.is_some()
    }

    /// Notifies the receivers of [`Self::changes`] that a pod was added or removed.
    pub fn notify_changed(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Gives up the ownership of removed pods that have the name or address of `pod`.
    pub fn forget(&self, pod: &PodConfig) {
        let snapshot = self.registry.snapshot();
        let is_present = |known: &PodConfig| {
            known.per_rank().iter().any(|rank| snapshot.named(rank.facts.name.as_str()).is_some())
        };
        for known in self.ownership.all() {
            if is_same(&known, pod) && !is_present(&known) {
                self.ownership.remove(known.name());
            }
        }
    }

    fn remove_ranks(&self, pod: &PodConfig) {
        for rank in pod.per_rank() {
            self.registry.remove_pod(rank.facts.name.as_str());
        }
    }

    /// Reloads on SIGHUP and when the configuration's files change; never returns.
    pub async fn follow(self: Arc<Self>) {
        let mut hangups = HangupSignals::new();
        let Some(path) = self.path.clone() else {
            loop {
                hangups.next().await;
                tracing::warn!("SIGHUP ignored: {}", ReloadError::NoFile);
            }
        };
        let mut watch = FileWatch::new(self.config().file_state().clone());
        loop {
            let is_hangup = tokio::select! {
                () = hangups.next() => true,
                () = tokio::time::sleep(CHECK_INTERVAL) => false,
            };
            let now = FileState::at(&self.files(&path));
            if watch.look(now.clone()) || is_hangup {
                let running = Arc::clone(&self);
                // Loading a tokenizer blocks. `reload` logs the errors.
                let reloaded = tokio::task::spawn_blocking(move || running.reload()).await;
                let is_applied = matches!(reloaded, Ok(Ok(_)));
                watch = FileWatch::new(if is_applied {
                    self.config().file_state().clone()
                } else {
                    now
                });
            }
        }
    }

    fn files(&self, path: &Path) -> Vec<PathBuf> {
        let beside = RelativePaths::new(path);
        let named = self.config().files();
        std::iter::once(path.to_owned()).chain(named.iter().map(|file| beside.path(file))).collect()
    }

    fn state(&self) -> MutexGuard<'_, ReloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a pod cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum AddPodError {
    /// Its name or address is in use.
    #[error(transparent)]
    Conflict(#[from] OwnedName),
    /// The registry refuses it.
    #[error("{0}")]
    Refused(String),
}

/// Keeps the key and the block sizes that the index was built with: with others, lookups would find
/// nothing.
fn keep_hashes(now: &Settings, new: &mut Settings) {
    new.sharing = now.sharing;
    new.key = now.key.clone();
    for model in &mut new.models {
        let known = now.models.iter().find(|known| known.name == model.name);
        let Some(known) = known.map(|known| known.block_size) else { continue };
        if model.block_size != BlockSize::Configured(known.tokens()) {
            model.block_size = known;
        }
    }
}

/// Whether a restart with `new` would change the block size of a model, as far as that is known.
fn changes_block_size(now: &Settings, new: &Settings) -> bool {
    now.models.iter().any(|now| {
        let new = new.models.iter().find(|new| new.name == now.name);
        match new.map(|new| new.block_size) {
            Some(BlockSize::Configured(tokens)) => tokens != now.block_size.tokens(),
            Some(_) => matches!(now.block_size, BlockSize::Configured(_)),
            None => false,
        }
    })
}

/// A listener keeps its TLS mode (none, server certificate, mutual) until a restart. Certificates
/// are replaced.
fn keep_tls_modes(now: &Listeners, new: &mut Listeners) {
    let listeners = [
        (&now.client, &mut new.client),
        (&now.admin, &mut new.admin),
        (&now.events, &mut new.events),
    ];
    for (now, new) in listeners {
        if is_mutual(now) != is_mutual(new) {
            new.clone_from(now);
        }
    }
}

/// Without tenants every client is admitted. A file that lost its tenants may be half written, so
/// only a restart opens the gateway.
fn keep_tenants(now: &Settings, new: &mut Settings) {
    if new.tenants.is_empty() && !now.tenants.is_empty() {
        new.tenants.clone_from(&now.tenants);
    }
}

/// Whether clients must present certificates; none without TLS.
fn is_mutual(tls: &Option<ListenerTls>) -> Option<bool> {
    tls.as_ref().map(ListenerTls::is_mutual)
}

/// The sections that differ from those at start and are read only then.
fn wants_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let mut sections = Vec::new();
    let guarded = |guarded: &Option<ListenerGuard>| {
        guarded
            .as_ref()
            .map(|ListenerGuard { address, token, tls }| (*address, *token, is_mutual(tls)))
    };
    let listeners = |listen: &Listen| {
        let client = (listen.client, is_mutual(&listen.client_tls));
        (client, guarded(&listen.admin), guarded(&listen.events))
    };
    if listeners(old.listen()) != listeners(new.listen()) {
        sections.push("listen");
    }
    if new.base_settings().tenants.is_empty() && !old.base_settings().tenants.is_empty() {
        sections.push("tenants");
    }
    if old.base_settings().workers != new.base_settings().workers {
        sections.push("workers");
    }
    if old.base_settings().telemetry != new.base_settings().telemetry {
        sections.push("telemetry");
    }
    if old.base_settings().access_log != new.base_settings().access_log {
        sections.push("access_log");
    }
    if old.base_settings().log_format != new.base_settings().log_format {
        sections.push("log_format");
    }
    if old.base_settings().checkpoint != new.base_settings().checkpoint {
        sections.push("checkpoint");
    }
    if old.base_settings().batch != new.base_settings().batch {
        sections.push("batch");
    }
    if old.base_settings().limits.pods != new.base_settings().limits.pods {
        sections.push("limits.pods");
    }
    if old.base_settings().retries != new.base_settings().retries {
        sections.push("retries");
    }
    if old.base_settings().breaker != new.base_settings().breaker {
        sections.push("breaker");
    }
    let is_rehashed = old.base_settings().sharing != new.base_settings().sharing
        || old.base_settings().key != new.base_settings().key;
    if is_rehashed {
        sections.push("isolation");
    }
    sections
}

/// SIGHUP, on systems that have it.
struct HangupSignals(#[cfg(unix)] Option<tokio::signal::unix::Signal>);

impl HangupSignals {
    #[cfg(unix)]
    fn new() -> Self {
        Self(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).ok())
    }

    #[cfg(not(unix))]
    fn new() -> Self {
        Self()
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.0
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}
