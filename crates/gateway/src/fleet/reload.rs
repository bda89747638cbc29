//! The configuration that runs, and how another one takes its place: checked first, then swapped.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fleet::ownership::{OwnedName, Ownership, PodOwner};
use crate::fleet::registry::{ApplyError, PodRegistry};
use crate::fleet::snapshot::PodEntry;
use crate::observe::metrics::{Metrics, Reload};
use wornpath_config::tls::ListenerTls;
use wornpath_config::{BlockSize, Listeners, Settings};
use wornpath_config::{
    Config, ConfigRefused, FileState, FileWatch, Listen, ListenerGuard, PodConfig, RelativePaths,
    TokenizerConfigError, Tokenizers,
};

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A gateway together with what it was configured by.
pub struct RunningConfig {
    registry: Arc<PodRegistry>,
    metrics: Arc<Metrics>,
    roll: Ownership,
    path: Option<PathBuf>,
    on_top: CommandLineOverrides,
    state: Mutex<ReloadState>,
    /// Counted up with every configuration that takes over and every pod that comes or goes.
    generation: watch::Sender<u64>,
}

/// What the command line says on top of what a file says. A file that is read again must not lose it: least
/// of all the keys that clients must show.
pub type CommandLineOverrides = Box<dyn Fn(Settings) -> Result<Settings, String> + Send + Sync>;

struct ReloadState {
    config: Arc<Config>,
    /// What the process began with.
    started: Arc<Config>,
    tokenizers: Tokenizers,
    /// Configurations that took over.
    reloads: u64,
    /// What was wrong the last time.
    refused: Option<Value>,
}

/// Why a configuration does not take over.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// Everything was said on the command line.
    #[error("no configuration file to reload; start with `wornpath serve -c wornpath.yaml`")]
    NoFile,
    /// It was refused.
    #[error("{0}")]
    Refused(#[from] ConfigRefused),
    /// A tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerConfigError),
    /// It does not go together with the command line.
    #[error("conflicts with the command line: {0}")]
    OnTop(String),
    /// The gateway cannot run by it.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

impl ReloadError {
    /// The problems as data, where there are any.
    #[must_use]
    pub fn problems(&self) -> Option<Value> {
        match self {
            Self::Refused(refused) => Some(refused.to_json()),
            _ => None,
        }
    }
}

/// What took over, and what cannot without a new start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reloaded {
    /// Sections whose change has no effect before the next start.
    pub wants_restart: Vec<&'static str>,
}

impl RunningConfig {
    /// A gateway that was started with `config`, read from `path`.
    #[must_use]
    pub fn new(
        (registry, metrics): (Arc<PodRegistry>, Arc<Metrics>),
        (path, config): (Option<PathBuf>, Config),
        tokenizers: Tokenizers,
        on_top: CommandLineOverrides,
    ) -> Self {
        let roll = Ownership::default();
        roll.relist(config.pods(), config.pods());
        let config = Arc::new(config);
        let started = Arc::clone(&config);
        let state = ReloadState { config, started, tokenizers, reloads: 0, refused: None };
        let generation = watch::Sender::new(0);
        Self { registry, metrics, roll, path, on_top, state: Mutex::new(state), generation }
    }

    /// The gateway.
    #[must_use]
    pub const fn pods(&self) -> &Arc<PodRegistry> {
        &self.registry
    }

    /// What is counted.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Who brought which pod.
    #[must_use]
    pub const fn roll(&self) -> &Ownership {
        &self.roll
    }

    /// The configured file, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The configuration that runs.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.state().config)
    }

    /// Tells when another configuration takes over, or a pod comes or goes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// The configured file, and what was wrong with it the last time it was read.
    #[must_use]
    pub fn status(&self) -> Value {
        let state = self.state();
        json!({"file": self.path, "reloads": state.reloads, "refused": state.refused})
    }

    /// Reads the file again. A bad one changes nothing.
    ///
    /// # Errors
    /// Why it does not take over.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let reloaded = self.try_reload();
        let mut state = self.state();
        match &reloaded {
            Ok(reloaded) => {
                self.metrics.reloaded(Reload::Applied);
                state.refused = None;
                tracing::info!(wants_restart = ?reloaded.wants_restart, "configuration reloaded");
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
        let mut state = self.state();
        let settings = config.settings(&mut state.tokenizers)?;
        let mut settings = (self.on_top)(settings).map_err(ReloadError::OnTop)?;
        let is_cut_anew = is_cut_anew(&self.registry.settings(), &settings);
        keep_hashes(&self.registry.settings(), &mut settings);
        keep_doors(&self.registry.settings().tls, &mut settings.tls);
        keep_closed(&self.registry.settings(), &mut settings);
        // A pod that somebody else brought and that is listed now would be there twice. Who was put in the place of a
        // listed one stays there while its entry is as it was.
        let (listed, before) = (config.pods(), Arc::clone(&state.config));
        let is_news = |entry: &&PodConfig| !before.pods().contains(entry);
        let news: Vec<_> = listed.iter().filter(is_news).cloned().collect();
        let is_adopted = |pod: &PodConfig| news.iter().any(|known| is_same(known, pod));
        let adopted: Vec<_> = self.roll.unlisted().into_iter().filter(is_adopted).collect();
        let adopted: Vec<_> = adopted.iter().flat_map(PodConfig::settings).collect();
        self.registry.adopt(settings, &adopted)?;
        self.roll.relist(listed, &news);
        let mut wants_restart = wants_restart(&state.started, &config);
        if is_cut_anew {
            wants_restart.push("models[].block_size");
        }
        state.config = Arc::new(config);
        state.reloads += 1;
        self.tell_changed();
        Ok(Reloaded { wants_restart })
    }

    /// Takes in a pod that the configuration does not list. If it is among the former, it goes on as it was: drained if
    /// it was drained.
    ///
    /// # Errors
    /// If another has its name or address, or the index has no room.
    pub fn bring(
        &self,
        bringer: PodOwner,
        pod: &PodConfig,
        former: &[PodEntry],
    ) -> Result<(), AddPodError> {
        let known = self.roll.get(&pod.name);
        self.roll.bring(bringer, pod.clone())?;
        if let Some((_, known)) = known {
            self.take_out(&known);
        }
        let ranks = pod.settings();
        for (at, rank) in ranks.iter().enumerate() {
            if let Err(error) = self.registry.add_pod_after(rank.clone(), former) {
                // Only what came with it goes again: whoever has its name may have been there before.
                for added in &ranks[..at] {
                    self.registry.remove_pod(added.facts.name.as_str());
                }
                self.roll.release(bringer, &pod.name);
                return Err(AddPodError::Refused(error.to_string()));
            }
        }
        self.tell_changed();
        Ok(())
    }

    /// Lets a pod go that `bringer` brought. Whether there was one.
    pub fn release(&self, bringer: PodOwner, name: &str) -> bool {
        let released = self.roll.release(bringer, name);
        if let Some(pod) = &released {
            self.take_out(pod);
            self.tell_changed();
        }
        released.is_some()
    }

    /// Tells whoever follows that a pod came or went.
    pub fn tell_changed(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Strikes those who have the pod's name or address off the roll, if they are not there any more.
    pub fn forget(&self, pod: &PodConfig) {
        let snapshot = self.registry.snapshot();
        let is_there = |known: &PodConfig| {
            known.settings().iter().any(|rank| snapshot.named(rank.facts.name.as_str()).is_some())
        };
        for known in self.roll.all() {
            if (known.name == pod.name || known.url == pod.url) && !is_there(&known) {
                self.roll.strike(&known.name);
            }
        }
    }

    fn take_out(&self, pod: &PodConfig) {
        for settings in pod.settings() {
            self.registry.remove_pod(settings.facts.name.as_str());
        }
    }

    /// Reads the configuration again on SIGHUP and when its files change, for as long as it is polled.
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
            let asked = tokio::select! {
                () = hangups.next() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let now = FileState::at(&self.files(&path));
            if watch.look(now.clone()) || asked {
                let running = Arc::clone(&self);
                // Loading a tokenizer takes a while. What went wrong was told by `reload`.
                let reloaded = tokio::task::spawn_blocking(move || running.reload()).await;
                let took_over = matches!(reloaded, Ok(Ok(_)));
                watch = FileWatch::new(if took_over {
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

/// Why a pod cannot come.
#[derive(Debug, thiserror::Error)]
pub enum AddPodError {
    /// Another has its name or address.
    #[error(transparent)]
    Taken(#[from] OwnedName),
    /// The gateway cannot take it.
    #[error("{0}")]
    Refused(String),
}

/// What pods hold was hashed with the key and the block sizes of the start: with others nothing would be found.
fn keep_hashes(now: &Settings, new: &mut Settings) {
    (new.sharing, new.key) = (now.sharing, now.key.clone());
    for model in &mut new.models {
        let known = now.models.iter().find(|known| known.name == model.name);
        let Some(known) = known.map(|known| known.block_size) else { continue };
        if model.block_size != BlockSize::Configured(known.tokens()) {
            model.block_size = known;
        }
    }
}

/// Whether blocks of a model would be of another size if the process started with `new`, as far as that is known.
fn is_cut_anew(now: &Settings, new: &Settings) -> bool {
    now.models.iter().any(|now| {
        let new = new.models.iter().find(|new| new.name == now.name);
        match new.map(|new| new.block_size) {
            Some(BlockSize::Configured(tokens)) => tokens != now.block_size.tokens(),
            Some(_) => matches!(now.block_size, BlockSize::Configured(_)),
            None => false,
        }
    })
}

/// Who may come through a listener was settled when it was opened, also by whether callers show certificates. Those
/// of a new configuration count, but whether there are any, and of both sides, stays as it was.
fn keep_doors(now: &Listeners, new: &mut Listeners) {
    let doors = [
        (&now.client, &mut new.client),
        (&now.admin, &mut new.admin),
        (&now.events, &mut new.events),
    ];
    for (now, new) in doors {
        if is_mutual(now) != is_mutual(new) {
            new.clone_from(now);
        }
    }
}

/// Without tenants everybody may come. A file that has none any more may be half written: only a start opens the door.
fn keep_closed(now: &Settings, new: &mut Settings) {
    if new.tenants.is_empty() && !now.tenants.is_empty() {
        new.tenants.clone_from(&now.tenants);
    }
}

/// Whether callers show certificates too; nothing where nobody shows any.
fn is_mutual(tls: &Option<ListenerTls>) -> Option<bool> {
    tls.as_ref().map(ListenerTls::is_mutual)
}

/// Whether two pods cannot both be there.
fn is_same(one: &PodConfig, other: &PodConfig) -> bool {
    one.name == other.name || one.url == other.url
}

/// Sections that are not as they were when the process started, and only then are heeded.
fn wants_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let mut sections = Vec::new();
    let guarded = |guarded: &Option<ListenerGuard>| {
        guarded
            .as_ref()
            .map(|ListenerGuard { address, token, tls }| (*address, *token, is_mutual(tls)))
    };
    let doors = |listen: &Listen| {
        let client = (listen.client, is_mutual(&listen.client_tls));
        (client, guarded(&listen.admin), guarded(&listen.events))
    };
    if doors(old.listen()) != doors(new.listen()) {
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
    let (sharing, key) = (new.base_settings().sharing, &new.base_settings().key);
    if (old.base_settings().sharing, &old.base_settings().key) != (sharing, key) {
        sections.push("isolation");
    }
    sections
}

/// SIGHUP, where there is one.
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
