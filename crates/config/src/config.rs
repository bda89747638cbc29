//! The whole file: reads its sections, checks them against each other, and reports every problem.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wornpath_execution::EgressPolicy;
use wornpath_routing::Role;
use wornpath_yaml::{
    Node, Parameter, Problem, ProblemKind, Problems, Takes, Yaml, parse, unknown_keys,
};

use crate::builtin::text_profile;
use crate::deprecated::{DEPRECATED, DeprecatedUse, uses};
use crate::diagnostics::Diagnostics;
use crate::differences::{Difference, ValueChange, differences};
use crate::effective::{EffectiveValue, effective};
use crate::env::{Environment, RelativePaths};
use crate::pod::PodConfig;
use crate::secret::{ExposedSecret, SecretFile};
use crate::section::Section;
use crate::sections::discovery::DiscoveryConfig;
use crate::sections::kubernetes::{KubernetesConfig, KubernetesPod, KubernetesPodRefused};
use crate::sections::listen::{Listen, ListenerGuard};
use crate::sections::models::{ModelConfig, TokenizerChoice};
use crate::sections::pods::PodScope;
use crate::sections::routes::RouteScope;
use crate::sections::sources::EventSourceConfig;
use crate::sections::{
    access_log, batch, checkpoint, continuation, discovery, exchange, limits, listen, metrics,
    models, pods, profiles, routes, shadow, sources, telemetry, tenants, tls,
};
use crate::settings::{CacheSharing, Credentials, DebugHeaders, LogFormat, Settings, StreamUsage};
use crate::settings::{ModelSettings, TokenizerSource};
use crate::tls::ListenerTls;
use crate::tokenizers::{TokenizerConfigError, Tokenizers};
use crate::watch::FileState;

/// A valid configuration: only [`Config::check`] creates one.
#[derive(Clone, Debug)]
pub struct Config {
    /// The settings without pods and models; the tokenizers of models are loaded later.
    pub(crate) settings: Settings,
    listen: Listen,
    pub(crate) models: Vec<ModelConfig>,
    pub(crate) pods: Vec<PodConfig>,
    discovery: Vec<DiscoveryConfig>,
    sources: Vec<EventSourceConfig>,
    isolates: bool,
    /// Files with certificates and keys.
    certificates: Vec<PathBuf>,
    /// Files with secrets.
    secrets: Vec<SecretFile>,
    /// Keys in it that are going to be removed.
    deprecated: Vec<DeprecatedUse>,
    /// State of its files when they were read.
    file_state: FileState,
    /// Every key, for operators.
    effective: Arc<[EffectiveValue]>,
}

/// All problems of a configuration and of the files that it names.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigRefused {
    files: Vec<Problems>,
}

/// Keys at the top level, in the order of the reference page.
const KEYS: [&str; 31] = [
    "listen",
    "models",
    "pods",
    "pod_addresses",
    "pod_tls",
    "discovery",
    "event_sources",
    "checkpoint",
    "tenants",
    "isolation",
    "routes",
    "profiles",
    "shadow",
    "limits",
    "timeouts",
    "retries",
    "breaker",
    "continuation",
    "exchange",
    "drain",
    "stream_usage",
    "reveal",
    "credentials",
    "explained",
    "metrics",
    "access_log",
    "log_format",
    "telemetry",
    "workers",
    "batch",
    "stale_after",
];

#[rustfmt::skip]
pub(crate) const TOP: &[Parameter] = &[
    Parameter::with_default("stream_usage", Takes::OneOf(&["always", "client"]), "always", "`always`: the router asks engines for the token counts of all chat and completion streams (`stream_options.include_usage`), and removes the event with the counts for clients that did not ask. `client`: only clients ask; for other streams the router counts tokens itself, and checks no prediction."),
    Parameter::with_default("reveal", Takes::OneOf(&["nothing", "pod"]), "nothing", "`pod`: responses carry `x-wornpath-pod` and the reason for the choice."),
    Parameter::with_default("credentials", Takes::OneOf(&["none", "forwarded"]), "none", "`forwarded`: pods receive the client's `authorization` header, unless they have a `key_file`."),
    Parameter::with_default("stale_after", Takes::Time, "30s", "Time without cache events after which the index entries of a pod count less; after twice that time they count for nothing."),
    Parameter::with_default("explained", Takes::Number(0.0, 1000.0), "1", "Decisions per second that are recorded in full, with every candidate and score, for `/decisions` of the admin plane; 0 disables recording."),
    Parameter::with_default("log_format", Takes::OneOf(access_log::FORMATS), "text", "Format of the log on standard error. `json`: an object per line, with `time`, `level`, `message` and the fields of the line. Lines about a configuration that is refused at start are text, unless `--log-format json` is given."),
    Parameter::optional("workers", Takes::Whole(1, 1024), "Worker threads for client connections; by default one per core."),
];

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// All problems of the file and of the files that it names.
    pub fn read(path: &Path) -> Result<Self, ConfigRefused> {
        let file = path.display().to_string();
        let before = FileState::at(&[path.to_owned()]);
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let paths = RelativePaths::new(path);
                let mut config = Self::check(&file, &text, &paths)?;
                let others: Vec<_> = config.files().iter().map(|file| paths.path(file)).collect();
                config.file_state = before.and(FileState::at(&others));
                for secret in &mut config.secrets {
                    secret.path = paths.path(&secret.path);
                }
                Ok(config)
            }
            Err(error) => {
                let problem = Problem::new(
                    ProblemKind::NotFound,
                    FIRST,
                    format!("cannot read the file: {error}"),
                );
                let problem = problem.cure("give the path of a configuration file");
                Err(ConfigRefused {
                    files: vec![Problems::new("configuration", &file, "", vec![problem])],
                })
            }
        }
    }

    /// Checks the text of a configuration. `file` is its name in problems.
    ///
    /// # Errors
    /// All problems of the file and of the files that it names.
    pub fn check(
        file: &str,
        text: &str,
        environment: &dyn Environment,
    ) -> Result<Self, ConfigRefused> {
        let mut diagnostics = Diagnostics::new(environment);
        let config = match parse(text) {
            Ok(root) => {
                let mut config = sections(&root, &mut diagnostics);
                config.effective = effective(Some(&root), environment, TOP).into();
                config.deprecated = uses(&root, DEPRECATED);
                Some(config)
            }
            Err(problem) => {
                diagnostics.problems.push(problem);
                None
            }
        };
        refuse(diagnostics, "configuration", file, text)?;
        Ok(config.expect("a text that cannot be parsed is a problem, and was refused above"))
    }

    /// The configuration of a gateway without a file: no pods, and every default.
    #[must_use]
    pub fn bare() -> Self {
        Self {
            settings: Settings::default(),
            listen: Listen::default(),
            models: Vec::new(),
            pods: Vec::new(),
            discovery: Vec::new(),
            sources: Vec::new(),
            isolates: false,
            certificates: Vec::new(),
            secrets: Vec::new(),
            deprecated: Vec::new(),
            file_state: FileState::default(),
            effective: effective(None, &RelativePaths::new(Path::new("")), TOP).into(),
        }
    }

    /// Checks a file of discovered pods against this configuration.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn check_pods(&self, file: &str, text: &str) -> Result<Vec<PodConfig>, ConfigRefused> {
        let paths = RelativePaths::new(Path::new(file));
        let mut diagnostics = Diagnostics::new(&paths);
        let pods = match parse(text) {
            Ok(root) => {
                if let Yaml::Map(entries) = &root.value {
                    unknown_keys(entries, &["pods"], "a file of pods", &mut diagnostics.problems);
                }
                pods::pods(&root, self.scope(), &mut diagnostics)
            }
            Err(problem) => {
                diagnostics.problems.push(problem);
                Vec::new()
            }
        };
        refuse(diagnostics, "file of pods", file, text)?;
        Ok(pods)
    }

    /// The pods behind a pod of a Kubernetes cluster: one for each of the `ports` of its pool, or one
    /// at the port of its annotation or of the configuration.
    ///
    /// # Errors
    /// What is wrong with its annotations.
    pub fn kubernetes_pods(
        &self,
        source: &KubernetesConfig,
        found: KubernetesPod<'_>,
        ports: &[u16],
        environment: &dyn Environment,
    ) -> Result<Vec<PodConfig>, KubernetesPodRefused> {
        source.describe(self.scope(), found, ports, environment)
    }

    /// The settings without pods and models. [`Config::settings`] adds both.
    #[must_use]
    pub const fn base_settings(&self) -> &Settings {
        &self.settings
    }

    /// The state of the configuration's files when they were read.
    #[must_use]
    pub const fn file_state(&self) -> &FileState {
        &self.file_state
    }

    /// Every key with its value and where that comes from, without the options of the command line.
    #[must_use]
    pub fn effective(&self) -> &[EffectiveValue] {
        &self.effective
    }

    /// What a newer configuration changes: keys, and the content of files that both name.
    #[must_use]
    pub fn differences(&self, newer: &Self) -> Vec<Difference> {
        let mut found = differences(&self.effective, &newer.effective);
        // The first file is the configuration itself.
        let state = |config: &Self, file: &PathBuf| {
            let place = config.files().iter().position(|known| known == file)?;
            config.file_state.of(place + 1)
        };
        let is_changed = |file: &PathBuf| match (state(self, file), state(newer, file)) {
            (Some(before), Some(after)) => before != after,
            _ => false,
        };
        for file in newer.files().iter().filter(|file| is_changed(file)) {
            let key = file.display().to_string();
            found.push(Difference { key, change: ValueChange::Content });
        }
        found
    }

    /// The listeners.
    #[must_use]
    pub const fn listen(&self) -> &Listen {
        &self.listen
    }

    /// The pods that the file lists.
    #[must_use]
    pub fn pods(&self) -> &[PodConfig] {
        &self.pods
    }

    /// The discovery sources, which add pods at run time.
    #[must_use]
    pub fn discovery(&self) -> &[DiscoveryConfig] {
        &self.discovery
    }

    /// The event sources other than the engines themselves.
    #[must_use]
    pub fn sources(&self) -> &[EventSourceConfig] {
        &self.sources
    }

    /// The files with secrets that other users of this machine can read, each once.
    #[must_use]
    pub fn exposed_secrets(&self) -> Vec<ExposedSecret> {
        let mut exposed: Vec<ExposedSecret> = Vec::new();
        for found in self.secrets.iter().filter_map(SecretFile::exposed) {
            if exposed.iter().all(|known| known.file.path != found.file.path) {
                exposed.push(found);
            }
        }
        exposed
    }

    /// The keys in it that are going to be removed.
    #[must_use]
    pub fn deprecated(&self) -> &[DeprecatedUse] {
        &self.deprecated
    }

    /// The files that the configuration names, which a watcher must watch as well.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let profiles = self.settings.profiles.iter().map(|profile| &profile.file);
        profiles
            .filter(|file| {
                !file.starts_with(profiles::BUILTIN_FILE_PREFIX) && !file.starts_with("profile ")
            })
            .map(PathBuf::from)
            .chain(self.certificates.iter().cloned())
            .collect()
    }

    fn scope(&self) -> PodScope<'_> {
        let isolation = self.isolates.then_some(FIRST);
        PodScope {
            models: &self.models,
            sources: &self.sources,
            isolation,
            egress: &self.settings.egress_policy,
        }
    }
}

/// The position of a problem that concerns a file as a whole.
const FIRST: wornpath_yaml::Span = wornpath_yaml::Span { line: 1, column: 1, length: 1 };

/// Whether `text` is a configuration rather than a profile, judged by its top-level keys.
#[must_use]
pub fn is_configuration(text: &str) -> bool {
    const CONFIGURATION_KEYS: [&str; 5] = ["pods", "listen", "discovery", "routes", "profiles"];
    match parse(text) {
        Ok(root) => CONFIGURATION_KEYS.iter().any(|key| root.get(key).is_some()),
        // It cannot be parsed: look for the keys at the start of a line.
        Err(_) => text.lines().any(|line| {
            CONFIGURATION_KEYS
                .iter()
                .any(|key| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')))
        }),
    }
}

/// Reads every section, in the order in which later ones refer to earlier ones.
fn sections(root: &Node, diagnostics: &mut Diagnostics) -> Config {
    match &root.value {
        Yaml::Map(entries) => {
            unknown_keys(entries, &KEYS, "a configuration", &mut diagnostics.problems);
        }
        _ => {
            let message = format!("a configuration is a map of sections, not {}", root.kind());
            let problem = Problem::new(ProblemKind::Syntax, root.span, message);
            diagnostics
                .problems
                .push(problem.cure("start with `pods:` and list at least one engine"));
        }
    }
    let mut settings = Settings::default();
    let listen = listen::listen(root, diagnostics);
    settings.client = listen.client;
    settings.tls.client = listen.client_tls.clone();
    if let Some(ListenerGuard { address, token, tls }) = listen.admin.clone() {
        settings.admin = Some(address);
        settings.admin_token = token;
        settings.tls.admin = tls;
    }
    settings.epp.clone_from(&listen.epp);
    settings.tls.epp = listen.epp_tls.clone().map(ListenerTls::with_http2);
    let events = listen.events.as_ref().and_then(|events| events.tls.clone());
    settings.tls.events =
        if cfg!(feature = "grpc") { events.map(ListenerTls::with_http2) } else { events };
    settings.egress_policy = Arc::new(EgressPolicy {
        allowed: pods::allowed(root, diagnostics),
        tls: tls::pods(root, diagnostics),
    });
    let models = models::models(root, diagnostics);
    let sources = sources::sources(root, &listen, diagnostics);
    settings.checkpoint = checkpoint::checkpoint(root, diagnostics);
    settings.tenants = tenants::tenants(root, diagnostics);
    let isolation = tenants::isolation(root, diagnostics);
    if let Some(isolation) = &isolation {
        settings.sharing = CacheSharing::Isolated;
        settings.isolation.clone_from(&isolation.rules);
        settings
            .key
            .clone_from(isolation.key.as_ref().unwrap_or(&wornpath_blocks::HashKey::DEFAULT));
    }
    let scope = PodScope {
        models: &models,
        sources: &sources,
        isolation: isolation.as_ref().map(|isolation| isolation.span),
        egress: &settings.egress_policy,
    };
    let pods = pods::pods(root, scope, diagnostics);
    let discovery = discovery::discovery(root, scope, diagnostics);
    check_has_pods(root, &pods, &discovery, &listen, diagnostics);
    let roles = known_roles(&pods, &discovery, &listen);
    settings.profiles = profiles::profiles(root, roles.clone(), diagnostics);
    let scope = RouteScope { models: &models, tenants: &settings.tenants };
    settings.routes = routes::routes(root, scope, &mut settings.profiles, diagnostics);
    routes::default_first(&settings.routes, &mut settings.profiles);
    settings.by_text = settings.routes.is_empty().then(text_profile);
    routes::check_roles(root, roles, &settings, diagnostics);
    settings.shadow = shadow::shadow(root, &settings.profiles, diagnostics);
    routes::check_events(root, &pods, &settings, diagnostics);
    limits::bounds(root, &mut settings, diagnostics);
    settings.continuation = continuation::continuation(root, diagnostics);
    settings.exchange = exchange::exchange(root, &listen, diagnostics);
    settings.metrics = metrics::metrics(root, diagnostics);
    settings.access_log = access_log::access_log(root, diagnostics);
    settings.telemetry = telemetry::telemetry(root, diagnostics);
    settings.batch = batch::batch(root, diagnostics);
    top_level(root, &mut settings, diagnostics);
    Config {
        settings,
        listen,
        models,
        pods,
        discovery,
        sources,
        isolates: isolation.is_some(),
        certificates: std::mem::take(&mut diagnostics.files),
        secrets: std::mem::take(&mut diagnostics.secrets),
        deprecated: Vec::new(),
        file_state: FileState::default(),
        effective: Arc::default(),
    }
}

/// The keys that are no sections.
fn top_level(root: &Node, settings: &mut Settings, diagnostics: &mut Diagnostics) {
    let Yaml::Map(entries) = &root.value else { return };
    let others: Vec<_> =
        KEYS.into_iter().filter(|key| TOP.iter().all(|own| own.name != *key)).collect();
    let own: Vec<_> = entries
        .iter()
        .filter(|(key, _)| TOP.iter().any(|own| key.text() == Some(own.name)))
        .cloned()
        .collect();
    let entry =
        wornpath_yaml::SettingEntry { name: "the configuration", span: root.span, settings: &own };
    let section = Section::read(entry, TOP, &others, &mut diagnostics.problems);
    if section.or("stream_usage", "always") == "client" {
        settings.stream_usage = StreamUsage::Client;
    }
    if section.or("reveal", "nothing") == "pod" {
        settings.reveal = DebugHeaders::Pod;
    }
    if section.or("credentials", "none") == "forwarded" {
        settings.upstream_credentials = Credentials::Forwarded;
    }
    diagnostics.check_nonzero(&section, "stale_after");
    settings.event_rules.stale_after = section.or("stale_after", settings.event_rules.stale_after);
    settings.explained = section.or("explained", 1.0);
    settings.log_format = LogFormat::named(section.or("log_format", "text"));
    if let Some(workers) = section.maybe::<usize>("workers").and_then(std::num::NonZeroUsize::new) {
        settings.workers = workers;
    }
}

/// Reports a configuration without pods, unless pods can be added later.
fn check_has_pods(
    root: &Node,
    pods: &[PodConfig],
    discovery: &[DiscoveryConfig],
    listen: &Listen,
    diagnostics: &mut Diagnostics,
) {
    let can_add_pods = !discovery.is_empty() || listen.admin.is_some();
    if pods.is_empty() && !can_add_pods && diagnostics.problems.is_empty() {
        let problem = Problem::new(
            ProblemKind::MissingDependency,
            root.span,
            "no pods are listed, and neither `discovery` nor `listen.admin` can add any",
        );
        diagnostics.problems.push(problem.cure(
            "list at least one: `pods: [{url: \"http://127.0.0.1:8000\"}]`, or add `discovery`",
        ));
    }
}

/// The roles of all pods, if no pods can be added later.
fn known_roles(
    pods: &[PodConfig],
    discovery: &[DiscoveryConfig],
    listen: &Listen,
) -> Option<Vec<Role>> {
    let is_fixed = discovery.is_empty() && listen.admin.is_none() && !pods.is_empty();
    is_fixed.then(|| pods.iter().flat_map(|pod| pod.facts.roles.iter().cloned()).collect())
}

fn refuse(
    diagnostics: Diagnostics,
    subject: &'static str,
    file: &str,
    text: &str,
) -> Result<(), ConfigRefused> {
    let shown = diagnostics.shown(text);
    let Diagnostics { problems, other_files: mut files, .. } = diagnostics;
    if !problems.is_empty() {
        files.insert(0, Problems::new(subject, file, &shown, problems));
    }
    if files.is_empty() { Ok(()) } else { Err(ConfigRefused { files }) }
}

impl ConfigRefused {
    /// The problems of each file.
    #[must_use]
    pub fn files(&self) -> &[Problems] {
        &self.files
    }

    /// The problems of all files as one JSON list.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let all = self.files.iter().filter_map(|file| match file.to_json() {
            serde_json::Value::Array(problems) => Some(problems),
            _ => None,
        });
        all.flatten().collect()
    }
}

/// Formats problems as a compiler does: position, source line, cure.
impl fmt::Display for ConfigRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.iter().try_for_each(|problems| problems.fmt(f))
    }
}

impl fmt::Debug for ConfigRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigRefused {}

impl Config {
    /// The settings, with the tokenizers of all models loaded.
    ///
    /// # Errors
    /// If a tokenizer cannot be loaded.
    pub fn settings(&self, tokenizers: &mut Tokenizers) -> Result<Settings, TokenizerConfigError> {
        let mut settings = self.settings.clone();
        for model in &self.models {
            settings.models.push(ModelSettings {
                name: model.name.clone(),
                block_size: model.block_size.into(),
                tokenizer: tokenizers.get(&model.tokenizer)?,
                tokenizer_source: match model.tokenizer {
                    TokenizerChoice::Found => TokenizerSource::Sought,
                    _ => TokenizerSource::Configured,
                },
                aliases: model.aliases.clone(),
                wait_for_pod: model.wait_for_pod,
            });
        }
        settings.pods = self.pods.iter().flat_map(PodConfig::per_rank).collect();
        Ok(settings)
    }
}
