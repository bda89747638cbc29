//! What a gateway is started with: values that `wornpath.yaml` or the command line have been checked into.

use crate::batch_rules::BatchRules;
use crate::tls::ListenerTls;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::HashKey;
use wornpath_events::{FeedRules, ZmqAddress};
use wornpath_execution::{BreakerRules, BudgetRules, EgressPolicy, Timeouts};
use wornpath_routing::queue::Priority;
use wornpath_routing::{Name, PodFacts, Tokenize};

/// Everything that can be set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where clients come.
    pub client: SocketAddr,
    /// Where operators come, if anywhere.
    pub admin: Option<SocketAddr>,
    /// What operators must show, as SHA-256 of the token; nothing on loopback.
    pub admin_token: Option<KeyDigest>,
    /// What the listeners show, and whom they let in.
    pub tls: Listeners,
    /// Where pods may be, and how they are recognised.
    pub reach: Arc<EgressPolicy>,
    /// The pods to begin with.
    pub pods: Vec<PodSettings>,
    /// Models of which more than the name is known.
    pub models: Vec<ModelSettings>,
    /// Profiles by name; the first one is for requests that no route matches.
    pub profiles: Vec<NamedProfile>,
    /// Which requests go by another profile; the first match counts.
    pub routes: Vec<RouteSettings>,
    /// Who may come; everybody if there is none.
    pub tenants: Vec<TenantSettings>,
    /// Whether tenants share cached prompts.
    pub sharing: CacheSharing,
    /// The secret that all routers of a cell share.
    pub key: HashKey,
    /// When what events said is doubted.
    pub event_rules: FeedRules,
    /// Where what is known of pods is kept over a restart, if anywhere.
    pub checkpoint: Option<CheckpointSettings>,
    /// What a client may send.
    pub limits: GatewayLimits,
    /// How long calls to pods may take.
    pub timeouts: Timeouts,
    /// Until the first byte of a generated answer that is not streamed, which comes when all of it is there.
    pub unstreamed: Duration,
    /// When pods are cut off.
    pub breaker: BreakerRules,
    /// How many retries there may be.
    pub retries: BudgetRules,
    /// How it ends.
    pub drain: Drain,
    /// What clients are told about their pod.
    pub reveal: DebugHeaders,
    /// Which credentials pods see.
    pub upstream_credentials: Credentials,
    /// Decisions a second that are taken down in full, for operators.
    pub explained: f64,
    /// Where traces go, if anywhere.
    pub telemetry: Option<TelemetrySettings>,
    /// Whether batches are served, and how.
    pub batch: Option<BatchRules>,
    /// Threads that answer clients.
    pub workers: NonZeroUsize,
}

/// A file that what is known of pods is written to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointSettings {
    /// Which.
    pub file: PathBuf,
    /// How often.
    pub every: Duration,
}

/// A collector of traces.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TelemetrySettings {
    /// Its address, without `/v1/traces`.
    pub otlp: String,
    /// Of the requests whose caller does not say, how many are traced.
    pub share: f64,
    /// What this gateway is called there.
    pub service: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            client: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin: None,
            admin_token: None,
            tls: Listeners::default(),
            reach: Arc::default(),
            pods: Vec::new(),
            models: Vec::new(),
            profiles: Vec::new(),
            routes: Vec::new(),
            tenants: Vec::new(),
            sharing: CacheSharing::Shared,
            key: HashKey::DEFAULT,
            event_rules: FeedRules::default(),
            checkpoint: None,
            limits: GatewayLimits::default(),
            timeouts: Timeouts::default(),
            unstreamed: Duration::from_secs(600),
            breaker: BreakerRules::default(),
            retries: BudgetRules::default(),
            drain: Drain::default(),
            reveal: DebugHeaders::Nothing,
            upstream_credentials: Credentials::None,
            explained: 1.0,
            telemetry: None,
            batch: None,
            workers: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// The certificates of each listener that speaks TLS.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// Where clients come.
    pub client: Option<ListenerTls>,
    /// Where operators come.
    pub admin: Option<ListenerTls>,
    /// Where sidecars post.
    pub events: Option<ListenerTls>,
}

/// One engine process, or one rank of it.
#[derive(Clone, PartialEq, Debug)]
pub struct PodSettings {
    /// Its address.
    pub url: String,
    /// Who it is. Without models, it is asked for them.
    pub facts: PodFacts,
    /// Where its cache events come from.
    pub events: Option<EventSource>,
    /// The sources in `event_sources` among them, by name.
    pub event_sources: Vec<String>,
    /// Where its own metrics are, if not at `/metrics` of its address.
    pub metrics: Option<String>,
    /// Where engines of a pair meet.
    pub bootstrap_port: u16,
    /// A file with the key that the pod wants to see, if it wants any.
    pub key_file: Option<PathBuf>,
}

impl PodSettings {
    /// A pod of which only the address is known.
    #[must_use]
    pub fn at(url: &str) -> Self {
        let url = url.trim_end_matches('/');
        let name = url.split("://").last().unwrap_or(url);
        let facts =
            PodFacts { models: Vec::new(), endpoint: url.into(), ..PodFacts::serving(name, "") };
        Self {
            url: url.to_owned(),
            facts,
            events: None,
            event_sources: Vec::new(),
            metrics: None,
            bootstrap_port: 8998,
            key_file: None,
        }
    }
}

/// How a pod's cache events arrive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventSource {
    /// The engine publishes them.
    ZeroMq(ZmqAddress),
    /// The engine publishes them, and says where when it is asked.
    Asked,
    /// Somebody pushes them, or a broker brings them.
    Elsewhere,
}

/// A model of which more than the name is known.
#[derive(Clone)]
pub struct ModelSettings {
    /// What pods call it.
    pub name: String,
    /// Tokens in a block of the index.
    pub block_size: BlockSize,
    /// Its tokenizer.
    pub tokenizer: Option<Arc<dyn Tokenize>>,
    /// What clients may call it besides.
    pub aliases: Vec<String>,
}

impl fmt::Debug for ModelSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokenizer = if self.tokenizer.is_some() { "with" } else { "without" };
        write!(f, "{} ({tokenizer} tokenizer, blocks of {})", self.name, self.block_size.tokens())
    }
}

/// Tokens in a block of a model in the index, and who says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockSize {
    /// The configuration does.
    Configured(NonZeroUsize),
    /// Its engines do: the greatest size that divides the sizes of all of them.
    Reported(NonZeroUsize),
    /// Engines were asked, and none reports a size.
    Assumed(NonZeroUsize),
    /// No engine was asked yet.
    Unasked(NonZeroUsize),
}

impl BlockSize {
    /// The number.
    #[must_use]
    pub const fn tokens(self) -> NonZeroUsize {
        match self {
            Self::Configured(tokens)
            | Self::Reported(tokens)
            | Self::Assumed(tokens)
            | Self::Unasked(tokens) => tokens,
        }
    }

    /// Who says so, as a word in JSON.
    #[must_use]
    pub const fn source(self) -> &'static str {
        match self {
            Self::Configured(_) => "configured",
            Self::Reported(_) => "reported",
            Self::Assumed(_) | Self::Unasked(_) => "assumed",
        }
    }
}

/// What vLLM has unless it is told otherwise, until an engine is asked.
impl Default for BlockSize {
    fn default() -> Self {
        Self::Unasked(const { NonZeroUsize::new(16).expect("16 is not zero") })
    }
}

/// What is configured, if anything is.
impl From<Option<NonZeroUsize>> for BlockSize {
    fn from(configured: Option<NonZeroUsize>) -> Self {
        configured.map_or_else(Self::default, Self::Configured)
    }
}

/// A profile and its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedProfile {
    /// What routes and people call it.
    pub name: String,
    /// Where it came from, for problems.
    pub file: String,
    /// Its YAML.
    pub text: String,
}

/// Which requests go by which profile. What is none matches everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RouteSettings {
    /// The path, or its beginning if it ends with `*`.
    pub path: Option<String>,
    /// The base model.
    pub model: Option<Name>,
    /// Whose request it is.
    pub tenant: Option<Name>,
    /// The profile's name.
    pub profile: String,
}

/// SHA-256 of a key: what is compared, so that no key lies in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyDigest(pub [u8; 32]);

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest(..)")
    }
}

/// Somebody who may come.
#[derive(Clone, PartialEq, Debug)]
pub struct TenantSettings {
    /// What people call it.
    pub name: Name,
    /// Its key.
    pub key: KeyDigest,
    /// How urgent its requests are.
    pub priority: Priority,
    /// Its share of the work while requests wait.
    pub weight: u32,
    /// How many of its requests may be under way or wait at a time.
    pub quota: Option<u32>,
}

/// Whether tenants share cached prompts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheSharing {
    /// All use each other's.
    #[default]
    Shared,
    /// Each has its own salt, in the engines as in the index.
    Isolated,
}

/// What a client may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayLimits {
    /// Bytes in a body.
    pub body_bytes: usize,
    /// Header lines.
    pub headers: usize,
    /// Bytes in a head.
    pub head_bytes: usize,
    /// Connections at once.
    pub connections: usize,
    /// For the head of a request, the time between two requests included.
    pub head_time: Duration,
    /// For the body of a request.
    pub body_time: Duration,
    /// Bodies from this size on are tokenized apart, so that they keep nobody waiting.
    pub inline_bytes: usize,
    /// Bytes of the bodies of all requests that wait for a pod.
    pub waiting_bytes: usize,
    /// Pods that there is room for at the start, at least.
    pub pods: usize,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            body_bytes: 16 << 20,
            headers: 100,
            head_bytes: 64 << 10,
            connections: 16_384,
            head_time: Duration::from_secs(60),
            body_time: Duration::from_secs(60),
            inline_bytes: 64 << 10,
            waiting_bytes: 256 << 20,
            pods: 256,
        }
    }
}

/// How long a body is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyLength {
    /// Bytes of the body.
    pub bytes: usize,
    /// Whether what takes long with it is done apart.
    pub is_long: bool,
}

impl GatewayLimits {
    /// The length of a body, and whether it is too long for the thread that answers.
    #[must_use]
    pub const fn length(&self, bytes: usize) -> BodyLength {
        BodyLength { bytes, is_long: bytes >= self.inline_bytes }
    }
}

/// How a gateway ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain {
    /// It says that it is not ready, and still takes connections, so that balancers notice.
    pub lame_duck: Duration,
    /// What is under way may take so long to finish.
    pub grace: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { lame_duck: Duration::from_secs(1), grace: Duration::from_secs(30) }
    }
}

/// What clients are told about their pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DebugHeaders {
    /// Nothing.
    #[default]
    Nothing,
    /// Its name and why it was chosen.
    Pod,
}

/// Which of a client's credentials pods see that have no key of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Credentials {
    /// None.
    #[default]
    None,
    /// The client's own.
    Forwarded,
}

/// The profile name under which batch requests are counted; no configured profile may have it.
pub const OFFLINE: &str = "offline";
