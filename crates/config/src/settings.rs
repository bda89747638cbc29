//! The settings of a gateway, validated from `wornpath.yaml` or the command line.

use crate::batch_rules::BatchRules;
use crate::continuation::ContinuationSettings;
use crate::exchange::ExchangeSettings;
use crate::pod::PodConfig;
use crate::secret::KeyDigest;
use crate::tenant::TenantSettings;
use crate::tls::{ClientTls, ListenerTls};
use http::{HeaderMap, Uri};
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::HashKey;
use wornpath_events::FeedRules;
use wornpath_execution::{BreakerRules, BudgetRules, EgressPolicy, Timeouts};
use wornpath_routing::queue::Priority;
use wornpath_routing::{Name, Tokenize};

/// All settings of a gateway.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the client API.
    pub client: SocketAddr,
    /// Address of the admin plane, if enabled.
    pub admin: Option<SocketAddr>,
    /// The endpoint picker, if enabled.
    pub epp: Option<EppSettings>,
    /// Digest of the admin token; optional on a loopback address.
    pub admin_token: Option<KeyDigest>,
    /// TLS settings of the listeners.
    pub tls: Listeners,
    /// Addresses that pods may have, and TLS to pods.
    pub egress_policy: Arc<EgressPolicy>,
    /// The pods at start.
    pub pods: Vec<PodConfig>,
    /// Models with a tokenizer, a block size or aliases.
    pub models: Vec<ModelSettings>,
    /// The profiles; the first one is for requests that match no route.
    pub profiles: Vec<NamedProfile>,
    /// The profile for models without a tokenizer, in place of the first, which is the default one
    /// and needs tokens.
    pub by_text: Option<NamedProfile>,
    /// The routes; the first match applies.
    pub routes: Vec<RouteSettings>,
    /// The profile that decides beside the first, if one does.
    pub shadow: Option<ShadowSettings>,
    /// The tenants; without any, every caller is accepted.
    pub tenants: Vec<TenantSettings>,
    /// Whether tenants share cached prompts.
    pub sharing: CacheSharing,
    /// What isolated tenants may send beyond what is known to be safe.
    pub isolation: IsolationRules,
    /// The secret that all routers of a cell share.
    pub key: HashKey,
    /// Staleness rules of cache events.
    pub event_rules: FeedRules,
    /// The checkpoint of the cache index, if enabled.
    pub checkpoint: Option<CheckpointSettings>,
    /// Limits for clients, and capacities.
    pub limits: GatewayLimits,
    /// Timeouts of calls to pods.
    pub timeouts: Timeouts,
    /// First-byte timeout of a generated response that is not streamed: it arrives as a whole.
    pub unstreamed: Duration,
    /// Circuit breaker of each pod.
    pub breaker: BreakerRules,
    /// The retry budget.
    pub retries: BudgetRules,
    /// Going on with broken streams on other pods.
    pub continuation: ContinuationSettings,
    /// What is exchanged with other routers, if anything.
    pub exchange: Option<ExchangeSettings>,
    /// Shutdown, and draining pods.
    pub drain: Drain,
    /// Whether engines are asked for the token counts of every stream.
    pub stream_usage: StreamUsage,
    /// Response headers that name the pod.
    pub reveal: DebugHeaders,
    /// Credentials that pods receive.
    pub upstream_credentials: Credentials,
    /// Decisions per second that are recorded in full.
    pub explained: f64,
    /// How many names get series of their own.
    pub metrics: MetricLimits,
    /// The line about each finished request, if enabled.
    pub access_log: Option<AccessLogSettings>,
    /// How the lines of the log are written.
    pub log_format: LogFormat,
    /// The export of traces and metrics, if enabled.
    pub telemetry: Option<TelemetrySettings>,
    /// Rules of the batch service, if enabled.
    pub batch: Option<BatchRules>,
    /// Worker threads for client connections.
    pub workers: NonZeroUsize,
}

/// How many names get series of their own; the others share the label `other`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetricLimits {
    /// Models.
    pub models: usize,
    /// Tenants.
    pub tenants: usize,
}

impl Default for MetricLimits {
    fn default() -> Self {
        Self { models: 20, tenants: 50 }
    }
}

/// The line about each finished request.
#[derive(Clone, PartialEq, Debug)]
pub struct AccessLogSettings {
    /// Where it goes.
    pub to: AccessLogTarget,
    /// How it is written.
    pub format: LogFormat,
    /// Share of the requests that get one.
    pub share: f64,
    /// Whether failed requests are sampled.
    pub failures: LoggedFailures,
}

/// Where the access log goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AccessLogTarget {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file that is appended to.
    File(PathBuf),
}

impl fmt::Display for AccessLogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::Stderr => f.write_str("stderr"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Which failed requests are logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoggedFailures {
    /// All of them.
    All,
    /// The same share as of other requests.
    Sampled,
}

/// How the lines of a log are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object per line.
    Json,
}

impl LogFormat {
    /// The format of this name; any other name is [`LogFormat::Text`].
    #[must_use]
    pub fn named(name: &str) -> Self {
        if name == "json" { Self::Json } else { Self::Text }
    }
}

/// The checkpoint file of the cache index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointSettings {
    /// Its path.
    pub file: PathBuf,
    /// Interval between writes.
    pub every: Duration,
}

/// What is exported to a collector by OTLP.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TelemetrySettings {
    /// Where traces go, unless none are exported.
    pub traces: Option<OtlpTarget>,
    /// Share of requests without a `traceparent` that are traced.
    pub share: f64,
    /// Where metrics go and how often, if they are exported.
    pub metrics: Option<(OtlpTarget, Duration)>,
    /// Attributes of everything that is exported, such as `service.name`.
    pub resource: Vec<(String, String)>,
}

/// A collector of traces or metrics. Its headers are marked as sensitive, so never printed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OtlpTarget {
    /// Where to post to; for gRPC only scheme, host and port of it are used.
    pub url: Uri,
    /// How.
    pub protocol: OtlpProtocol,
    /// Headers of every request, or the metadata of every call.
    pub headers: HeaderMap,
    /// How requests are compressed.
    pub compression: OtlpCompression,
    /// The timeout of an export with all its attempts.
    pub timeout: Duration,
    /// For a collector at `https://`.
    pub tls: Option<ClientTls>,
}

/// The transport of OTLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OtlpProtocol {
    /// Posts of protobuf.
    #[default]
    Http,
    /// Unary calls.
    Grpc,
}

/// The compression of OTLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OtlpCompression {
    /// As it is.
    #[default]
    None,
    /// By gzip.
    Gzip,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            client: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin: None,
            epp: None,
            admin_token: None,
            tls: Listeners::default(),
            egress_policy: Arc::default(),
            pods: Vec::new(),
            models: Vec::new(),
            profiles: Vec::new(),
            by_text: None,
            routes: Vec::new(),
            shadow: None,
            tenants: Vec::new(),
            sharing: CacheSharing::Shared,
            isolation: IsolationRules::default(),
            key: HashKey::DEFAULT,
            event_rules: FeedRules::default(),
            checkpoint: None,
            limits: GatewayLimits::default(),
            timeouts: Timeouts::default(),
            unstreamed: Duration::from_secs(600),
            breaker: BreakerRules::default(),
            retries: BudgetRules::default(),
            continuation: ContinuationSettings::default(),
            exchange: None,
            drain: Drain::default(),
            stream_usage: StreamUsage::Always,
            reveal: DebugHeaders::Nothing,
            upstream_credentials: Credentials::None,
            explained: 1.0,
            metrics: MetricLimits::default(),
            access_log: None,
            log_format: LogFormat::Text,
            telemetry: None,
            batch: None,
            workers: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// The certificates of each listener that speaks TLS.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// The client API.
    pub client: Option<ListenerTls>,
    /// The admin plane.
    pub admin: Option<ListenerTls>,
    /// The listener for pushed events.
    pub events: Option<ListenerTls>,
    /// The endpoint picker.
    pub epp: Option<ListenerTls>,
}

/// The endpoint picker: where data planes ask it, and how it answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EppSettings {
    /// Address of the external processing service.
    pub address: SocketAddr,
    /// Address of a listener for health checks alone.
    pub health: Option<SocketAddr>,
    /// How many pods an answer names.
    pub destinations: Destinations,
    /// The priorities of objectives.
    pub objectives: Vec<(String, Priority)>,
    /// Whether answers carry the score of each candidate.
    pub sends_scores: bool,
    /// Whether the head of a response goes back only with the first byte of its body.
    pub holds_head: bool,
    /// Whether the headers of conformance tests are obeyed.
    pub has_test_hooks: bool,
}

impl EppSettings {
    /// The defaults, at this address.
    #[must_use]
    pub const fn at(address: SocketAddr) -> Self {
        Self {
            address,
            health: None,
            destinations: Destinations::List,
            objectives: Vec::new(),
            sends_scores: false,
            holds_head: false,
            has_test_hooks: false,
        }
    }
}

/// How many pods an answer of the endpoint picker names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Destinations {
    /// The chosen one and its fallbacks.
    #[default]
    List,
    /// The chosen one.
    One,
}

/// A model with a tokenizer, a block size or aliases.
#[derive(Clone)]
pub struct ModelSettings {
    /// Its name at the pods.
    pub name: String,
    /// Tokens in a block of the index.
    pub block_size: BlockSize,
    /// Its tokenizer.
    pub tokenizer: Option<Arc<dyn Tokenize>>,
    /// Where the tokenizer is from.
    pub tokenizer_source: TokenizerSource,
    /// Other names that clients may use.
    pub aliases: Vec<String>,
    /// How long a request waits while no pod that serves it is up; zero to refuse it at once.
    pub wait_for_pod: Duration,
}

impl fmt::Debug for ModelSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokenizer = if self.tokenizer.is_some() { "with" } else { "without" };
        write!(f, "{} ({tokenizer} tokenizer, blocks of {})", self.name, self.block_size.tokens())
    }
}

/// Where a model's tokenizer is from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenizerSource {
    /// The configuration names it, or says that there is none.
    Configured,
    /// It is to be found, by what the model's engines say of it.
    Sought,
    /// It was found at this place.
    Found(Arc<str>),
}

/// Tokens in a block of a model in the index, and the origin of the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockSize {
    /// From the configuration.
    Configured(NonZeroUsize),
    /// The greatest common divisor of the engines' block sizes.
    Reported(NonZeroUsize),
    /// The engines report no size.
    Assumed(NonZeroUsize),
    /// No engine has been queried yet.
    Unknown(NonZeroUsize),
}

impl BlockSize {
    /// The number of tokens.
    #[must_use]
    pub const fn tokens(self) -> NonZeroUsize {
        match self {
            Self::Configured(tokens)
            | Self::Reported(tokens)
            | Self::Assumed(tokens)
            | Self::Unknown(tokens) => tokens,
        }
    }

    /// The origin, as in JSON.
    #[must_use]
    pub const fn source(self) -> &'static str {
        match self {
            Self::Configured(_) => "configured",
            Self::Reported(_) => "reported",
            Self::Assumed(_) | Self::Unknown(_) => "assumed",
        }
    }
}

/// vLLM's default, until an engine has been queried.
impl Default for BlockSize {
    fn default() -> Self {
        Self::Unknown(const { NonZeroUsize::new(16).expect("16 is not zero") })
    }
}

/// The configured size, or the default.
impl From<Option<NonZeroUsize>> for BlockSize {
    fn from(configured: Option<NonZeroUsize>) -> Self {
        configured.map_or_else(Self::default, Self::Configured)
    }
}

/// A profile and its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedProfile {
    /// Its name in routes and metrics.
    pub name: String,
    /// Its file, for problems.
    pub file: String,
    /// Its YAML.
    pub text: String,
}

/// A profile that decides beside the first one, without effect.
#[derive(Clone, PartialEq, Debug)]
pub struct ShadowSettings {
    /// The profile.
    pub profile: NamedProfile,
    /// Most requests per second that it decides.
    pub per_second: f64,
}

/// A route: the requests that use a profile. A condition that is `None` matches every request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RouteSettings {
    /// The path, or its prefix if it ends with `*`.
    pub path: Option<String>,
    /// The base model.
    pub model: Option<Name>,
    /// The tenant.
    pub tenant: Option<Name>,
    /// The profile's name.
    pub profile: String,
}

/// Whether tenants share cached prompts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheSharing {
    /// All tenants share them.
    #[default]
    Shared,
    /// Each tenant has its own salt, in the engines and in the index.
    Isolated,
}

/// What isolated tenants may send beyond what is known to be safe. The author of the configuration
/// vouches that engines keep nothing across tenants by it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IsolationRules {
    /// Body fields: `name`, or `vllm_xargs.name` for one inside `vllm_xargs`.
    pub allow_fields: Vec<String>,
    /// Paths that are forwarded although engines are not known to keep tenants apart there.
    pub allow_paths: Vec<String>,
}

/// Limits for clients, and capacities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayLimits {
    /// Maximum bytes of a request body.
    pub body_bytes: usize,
    /// Maximum total bytes of request bodies in memory, as configured.
    pub bodies_bytes: usize,
    /// Maximum number of headers.
    pub headers: usize,
    /// Maximum bytes of the request line and headers.
    pub head_bytes: usize,
    /// Maximum open connections.
    pub connections: usize,
    /// Timeout for request headers, including idle time between two requests.
    pub head_time: Duration,
    /// Timeout for a request body.
    pub body_time: Duration,
    /// How long a request body may be slower than the minimum rate.
    pub body_grace: Duration,
    /// Bodies of at least this size are tokenized on another thread.
    pub inline_bytes: usize,
    /// Timeout for tokenizing such a body, including its wait for a thread.
    pub tokenize_time: Duration,
    /// Prompts of more tokens are not tokenized, where the context length of the model is unknown.
    pub prompt_tokens: usize,
    /// Maximum total body bytes of queued requests.
    pub waiting_bytes: usize,
    /// Minimum capacity for pods.
    pub pods: usize,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            body_bytes: 16 << 20,
            bodies_bytes: 512 << 20,
            headers: 100,
            head_bytes: 64 << 10,
            connections: 16_384,
            head_time: Duration::from_secs(60),
            body_time: Duration::from_secs(60),
            body_grace: Duration::from_secs(20),
            inline_bytes: 64 << 10,
            tokenize_time: Duration::from_secs(5),
            prompt_tokens: 1 << 20,
            waiting_bytes: 256 << 20,
            pods: 256,
        }
    }
}

/// The length of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyLength {
    /// Bytes of the body.
    pub bytes: usize,
    /// Whether it is tokenized on another thread.
    pub is_long: bool,
}

impl GatewayLimits {
    /// Maximum total bytes of request bodies in memory. One client gets half of it, which is never
    /// less than the largest body.
    #[must_use]
    pub const fn body_budget(&self) -> usize {
        let least = self.body_bytes.saturating_mul(2);
        if self.bodies_bytes > least { self.bodies_bytes } else { least }
    }

    /// The length of a body of `bytes`, and whether it is too long for a worker thread.
    #[must_use]
    pub const fn length(&self, bytes: usize) -> BodyLength {
        BodyLength { bytes, is_long: bytes >= self.inline_bytes }
    }
}

/// The phases of a shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain {
    /// The gateway reports not ready but still accepts connections, so that load balancers notice.
    pub lame_duck: Duration,
    /// Time for in-flight requests to finish.
    pub grace: Duration,
    /// How long a pod may drain before its streams are moved; none if they stay.
    pub move_after: Option<Duration>,
}

impl Default for Drain {
    fn default() -> Self {
        let grace = Duration::from_secs(30);
        Self { lame_duck: Duration::from_secs(1), grace, move_after: None }
    }
}

/// Which engines are asked for the token counts of chat and completion streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StreamUsage {
    /// All; clients that did not ask do not get the counts.
    #[default]
    Always,
    /// Those of the clients that ask.
    Client,
}

/// Response headers that name the pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DebugHeaders {
    /// Nothing.
    #[default]
    Nothing,
    /// The pod's name and the reason for the choice.
    Pod,
}

/// The client's credentials that pods without a key of their own receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Credentials {
    /// None.
    #[default]
    None,
    /// The client's `authorization` header.
    Forwarded,
}

/// The profile name under which batch requests are counted; no configured profile may have it.
pub const OFFLINE: &str = "offline";
