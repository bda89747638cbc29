//! The whole file: its sections put together, and everything that is wrong with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wornpath_execution::EgressPolicy;
use wornpath_routing::document::{Node, Yaml, parse, unknown_keys};
use wornpath_routing::{Parameter, Problem, ProblemKind, Problems, Role, Takes};

use crate::diagnostics::Diagnostics;
use crate::env::{Environment, RelativePaths};
use crate::section::Section;
use crate::sections::discovery::DiscoveryConfig;
use crate::sections::listen::{Listen, ListenerGuard};
use crate::sections::models::ModelConfig;
use crate::sections::pods::{PodConfig, PodScope};
use crate::sections::sources::EventSourceConfig;
use crate::sections::{
    batch, checkpoint, discovery, limits, listen, models, pods, profiles, routes, sources,
    telemetry, tenants, tls,
};
use crate::settings::{CacheSharing, Credentials, DebugHeaders, Settings};
use crate::tls::ListenerTls;
use crate::watch::FileState;

/// A configuration that was checked: only [`Config::check`] makes one.
#[derive(Clone, Debug)]
pub struct Config {
    /// Everything but pods, and tokenizers that must be loaded first.
    pub(crate) settings: Settings,
    listen: Listen,
    pub(crate) models: Vec<ModelConfig>,
    pub(crate) pods: Vec<PodConfig>,
    finders: Vec<DiscoveryConfig>,
    sources: Vec<EventSourceConfig>,
    isolates: bool,
    /// Certificates and keys that it names.
    certificates: Vec<PathBuf>,
    /// How its files looked when they were read.
    look: FileState,
}

/// Everything that is wrong with a configuration and the files it names.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigRefused {
    files: Vec<Problems>,
}

/// What stands at the top, in the order of the reference page.
const KEYS: [&str; 24] = [
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
    "limits",
    "timeouts",
    "retries",
    "breaker",
    "drain",
    "reveal",
    "credentials",
    "explained",
    "telemetry",
    "workers",
    "batch",
    "stale_after",
];

#[rustfmt::skip]
pub(crate) const TOP: &[Parameter] = &[
    Parameter::with_default("reveal", Takes::OneOf(&["nothing", "pod"]), "nothing", "`pod`: responses carry `x-wornpath-pod` and the reason for the choice."),
    Parameter::with_default("credentials", Takes::OneOf(&["none", "forwarded"]), "none", "`forwarded`: pods receive the client's `authorization` header, unless they have a `key_file`."),
    Parameter::with_default("stale_after", Takes::Time, "30s", "Time without cache events after which the index entries of a pod count less; after twice that time they count for nothing."),
    Parameter::with_default("explained", Takes::Number(0.0, 1000.0), "1", "Decisions per second that are recorded in full, with every candidate and score, for `/decisions` of the admin API; 0 disables recording."),
    Parameter::optional("workers", Takes::Whole(1, 1024), "Worker threads for client connections; by default one per core."),
];

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// Everything that is wrong with it and the files it names.
    pub fn read(path: &Path) -> Result<Self, ConfigRefused> {
        let file = path.display().to_string();
        let before = FileState::at(&[path.to_owned()]);
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let beside = RelativePaths::new(path);
                let mut config = Self::check(&file, &text, &beside)?;
                let others: Vec<_> = config.files().iter().map(|file| beside.path(file)).collect();
                config.look = before.and(FileState::at(&others));
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

    /// Checks a text. `file` is what problems call it.
    ///
    /// # Errors
    /// Everything that is wrong with it and the files it names.
    pub fn check(file: &str, text: &str, outside: &dyn Environment) -> Result<Self, ConfigRefused> {
        let mut notes = Diagnostics::new(outside);
        let config = match parse(text) {
            Ok(root) => Some(whole(&root, &mut notes)),
            Err(problem) => {
                notes.problems.push(problem);
                None
            }
        };
        refuse(notes, "configuration", file, text)?;
        Ok(config.expect("a text that cannot be parsed is a problem, and was refused above"))
    }

    /// What stands behind a gateway without a file: nothing is listed, and everything has its default.
    #[must_use]
    pub fn bare() -> Self {
        Self {
            settings: Settings::default(),
            listen: Listen::default(),
            models: Vec::new(),
            pods: Vec::new(),
            finders: Vec::new(),
            sources: Vec::new(),
            isolates: false,
            certificates: Vec::new(),
            look: FileState::default(),
        }
    }

    /// Checks a file of discovered pods against this configuration.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn check_pods(&self, file: &str, text: &str) -> Result<Vec<PodConfig>, ConfigRefused> {
        let beside = RelativePaths::new(Path::new(file));
        let mut notes = Diagnostics::new(&beside);
        let pods = match parse(text) {
            Ok(root) => {
                if let Yaml::Map(entries) = &root.value {
                    unknown_keys(entries, &["pods"], "a file of pods", &mut notes.problems);
                }
                pods::pods(&root, self.scope(), &mut notes)
            }
            Err(problem) => {
                notes.problems.push(problem);
                Vec::new()
            }
        };
        refuse(notes, "file of pods", file, text)?;
        Ok(pods)
    }

    /// The settings without pods and without models, whose tokenizers are not loaded yet.
    #[must_use]
    pub const fn base_settings(&self) -> &Settings {
        &self.settings
    }

    /// The state of the configuration's files when they were read.
    #[must_use]
    pub const fn file_state(&self) -> &FileState {
        &self.look
    }

    /// Where it listens.
    #[must_use]
    pub const fn listen(&self) -> &Listen {
        &self.listen
    }

    /// The pods it lists.
    #[must_use]
    pub fn pods(&self) -> &[PodConfig] {
        &self.pods
    }

    /// How other pods are found.
    #[must_use]
    pub fn finders(&self) -> &[DiscoveryConfig] {
        &self.finders
    }

    /// Where events come from besides the engines themselves.
    #[must_use]
    pub fn sources(&self) -> &[EventSourceConfig] {
        &self.sources
    }

    /// Files that it was made from besides its own, for whoever watches them.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let profiles = self.settings.profiles.iter().map(|profile| &profile.file);
        profiles
            .filter(|file| {
                !file.starts_with(profiles::SHIPPED_FILE) && !file.starts_with("profile ")
            })
            .map(PathBuf::from)
            .chain(self.certificates.iter().cloned())
            .collect()
    }

    fn scope(&self) -> PodScope<'_> {
        let isolation = self.isolates.then_some(FIRST);
        let (models, sources, reach) = (&self.models, &self.sources, &self.settings.reach);
        PodScope { models, sources, isolation, reach }
    }
}

/// Where a problem is shown that concerns a file as a whole.
const FIRST: wornpath_routing::Span = wornpath_routing::Span { line: 1, column: 1, length: 1 };

/// Whether `text` is a configuration rather than a profile: some key at its top says so.
#[must_use]
pub fn is_configuration(text: &str) -> bool {
    const TELLING: [&str; 5] = ["pods", "listen", "discovery", "routes", "profiles"];
    match parse(text) {
        Ok(root) => TELLING.iter().any(|key| root.get(key).is_some()),
        // Broken, but broken in a configuration's words.
        Err(_) => text.lines().any(|line| {
            TELLING
                .iter()
                .any(|key| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')))
        }),
    }
}

fn whole(root: &Node, notes: &mut Diagnostics) -> Config {
    match &root.value {
        Yaml::Map(entries) => unknown_keys(entries, &KEYS, "a configuration", &mut notes.problems),
        _ => {
            let message = format!("a configuration is a map of sections, not {}", root.kind());
            let problem = Problem::new(ProblemKind::Syntax, root.span, message);
            notes.problems.push(problem.cure("start with `pods:` and list at least one engine"));
        }
    }
    let mut settings = Settings::default();
    let listen = listen::listen(root, notes);
    (settings.client, settings.tls.client) = (listen.client, listen.client_tls.clone());
    if let Some(ListenerGuard { address, token, tls }) = listen.admin.clone() {
        (settings.admin, settings.admin_token, settings.tls.admin) = (Some(address), token, tls);
    }
    let events = listen.events.as_ref().and_then(|events| events.tls.clone());
    settings.tls.events =
        if cfg!(feature = "grpc") { events.map(ListenerTls::with_http2) } else { events };
    let reach = EgressPolicy { allowed: pods::allowed(root, notes), tls: tls::pods(root, notes) };
    settings.reach = Arc::new(reach);
    let models = models::models(root, notes);
    let sources = sources::sources(root, &listen, notes);
    settings.checkpoint = checkpoint::checkpoint(root, notes);
    settings.tenants = tenants::tenants(root, notes);
    let isolation = tenants::isolation(root, notes);
    if let Some((_, key)) = &isolation {
        settings.sharing = CacheSharing::Isolated;
        settings.key.clone_from(key.as_ref().unwrap_or(&wornpath_blocks::HashKey::DEFAULT));
    }
    let scope = PodScope {
        models: &models,
        sources: &sources,
        isolation: isolation.as_ref().map(|(span, _)| *span),
        reach: &settings.reach,
    };
    let pods = pods::pods(root, scope, notes);
    let finders = discovery::discovery(root, scope, notes);
    has_pods(root, &pods, &finders, &listen, notes);
    let roles = known_roles(&pods, &finders, &listen);
    settings.profiles = profiles::profiles(root, roles.clone(), notes);
    settings.routes =
        routes::routes(root, (&models, &settings.tenants), &mut settings.profiles, notes);
    routes::default_first(&settings.routes, &mut settings.profiles);
    routes::must_be_played(root, roles, &settings, notes);
    routes::must_be_heard(root, &pods, &settings, notes);
    limits::bounds(root, &mut settings, notes);
    settings.telemetry = telemetry::telemetry(root, notes);
    settings.batch = batch::batch(root, notes);
    top(root, &mut settings, notes);
    Config {
        settings,
        listen,
        models,
        pods,
        finders,
        sources,
        isolates: isolation.is_some(),
        certificates: std::mem::take(&mut notes.files),
        look: FileState::default(),
    }
}

fn top(root: &Node, settings: &mut Settings, notes: &mut Diagnostics) {
    let Yaml::Map(entries) = &root.value else { return };
    let others: Vec<_> =
        KEYS.into_iter().filter(|key| TOP.iter().all(|own| own.name != *key)).collect();
    let own: Vec<_> = entries
        .iter()
        .filter(|(key, _)| TOP.iter().any(|own| key.text() == Some(own.name)))
        .cloned()
        .collect();
    let entry = wornpath_routing::document::SettingEntry {
        name: "the configuration",
        span: root.span,
        settings: &own,
    };
    let section = Section::read(entry, TOP, &others, &mut notes.problems);
    if section.or("reveal", "nothing") == "pod" {
        settings.reveal = DebugHeaders::Pod;
    }
    if section.or("credentials", "none") == "forwarded" {
        settings.upstream_credentials = Credentials::Forwarded;
    }
    notes.must_not_be_zero(&section, "stale_after");
    settings.event_rules.stale_after = section.or("stale_after", settings.event_rules.stale_after);
    settings.explained = section.or("explained", 1.0);
    if let Some(workers) = section.maybe::<usize>("workers").and_then(std::num::NonZeroUsize::new) {
        settings.workers = workers;
    }
}

/// A router without pods is of no use, unless they can come later.
fn has_pods(
    root: &Node,
    pods: &[PodConfig],
    finders: &[DiscoveryConfig],
    listen: &Listen,
    notes: &mut Diagnostics,
) {
    let may_come = !finders.is_empty() || listen.admin.is_some();
    if pods.is_empty() && !may_come && notes.problems.is_empty() {
        let problem = Problem::new(
            ProblemKind::MissingDependency,
            root.span,
            "no pods are listed, and neither `discovery` nor `listen.admin` can add any",
        );
        notes.problems.push(
            problem
                .cure("list at least one: `pods: [{url: \"http://127.0.0.1:8000\"}]`, or add `discovery`"),
        );
    }
}

/// The roles that pods can play, if pods cannot come from elsewhere.
fn known_roles(
    pods: &[PodConfig],
    finders: &[DiscoveryConfig],
    listen: &Listen,
) -> Option<Vec<Role>> {
    let closed = finders.is_empty() && listen.admin.is_none() && !pods.is_empty();
    closed.then(|| pods.iter().flat_map(|pod| pod.roles.iter().cloned()).collect())
}

fn refuse(
    notes: Diagnostics,
    subject: &'static str,
    file: &str,
    text: &str,
) -> Result<(), ConfigRefused> {
    let shown = notes.shown(text);
    let Diagnostics { problems, elsewhere: mut files, .. } = notes;
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

    /// As JSON, for machines: one list over all files.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let all = self.files.iter().filter_map(|file| match file.to_json() {
            serde_json::Value::Array(problems) => Some(problems),
            _ => None,
        });
        all.flatten().collect()
    }
}

/// As a compiler would show them.
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
