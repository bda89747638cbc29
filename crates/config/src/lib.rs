//! `wornpath.yaml`: read, checked as a whole, and turned into the [`Settings`] of a gateway.
//!
//! Every section is a table of parameters declared as data, so that one mechanism checks them,
//! fills in defaults and writes the reference page. Reading does not stop at the first problem:
//! each problem is recorded with its position and its cure, and only a file without any becomes a
//! [`Config`]. A configuration holds no secrets: keys and tokens are digests, and the secret of
//! isolation is in a file of its own.
//!
//! Layers, lowest first: [`Settings`] (what a gateway runs with), diagnostics and `section` (how a
//! section is read), `sections` (one file each), [`Config`] (the whole file), and the conversion of
//! a [`Config`] to [`Settings`].
#![forbid(unsafe_code)]

mod batch_rules;
mod builtin;
mod config;
mod continuation;
mod deprecated;
mod diagnostics;
mod differences;
mod effective;
mod engine_priority;
mod env;
mod exchange;
mod pod;
mod reference;
mod secret;
mod section;
mod sections;
mod settings;
mod tenant;
pub mod tls;
mod tokenizers;
mod watch;

pub use batch_rules::{BatchQuota, BatchRules, BatchStoreSettings, DatabaseSettings};
pub use builtin::{BUILTIN_PROFILES, DEFAULT_PROFILE, TEXT_PROFILE, builtin_profile, text_profile};
pub use config::{Config, ConfigRefused, is_configuration};
pub use continuation::{ContinuationMode, ContinuationSettings};
pub use deprecated::DeprecatedUse;
pub use differences::{Difference, ValueChange, summary as difference_summary};
pub use effective::{EffectiveValue, ValueSource};
pub use engine_priority::{PriorityRange, PriorityRangeError};
pub use env::{Environment, RelativePaths};
pub use exchange::{ExchangeKey, ExchangeSettings, ExchangeTls, PeerAddress, PeerAddressError};
pub use pod::{EngineKind, EventSource, PodConfig, authority};
pub use reference::reference;
pub use secret::{DigestError, ExposedSecret, KeyDigest, KeyError, SecretFile, authorization};
pub use sections::discovery::DiscoveryConfig;
pub use sections::kubernetes::{
    ANNOTATION_PREFIX, DRAIN_ANNOTATION, KubernetesConfig, KubernetesPod, KubernetesPodRefused,
    KubernetesPods,
};
pub use sections::listen::{Listen, ListenerGuard};
pub use sections::models::{ModelConfig, TokenizerChoice};
pub use sections::routes::needs_tokens;
pub use sections::sources::{EventSourceConfig, Semantics, SourceKind};
pub use settings::{
    AccessLogSettings, AccessLogTarget, BlockSize, BodyLength, CacheSharing, CheckpointSettings,
    Credentials, DebugHeaders, Destinations, Drain, EppSettings, GatewayLimits, IsolationRules,
    Listeners, LogFormat, LoggedFailures, MetricLimits, ModelSettings, NamedProfile, OFFLINE,
    OtlpCompression, OtlpProtocol, OtlpTarget, RouteSettings, Settings, ShadowSettings,
    StreamUsage, TelemetrySettings, TokenizerSource,
};
pub use tenant::{ExpiringKey, TenantSettings};
pub use tokenizers::{
    MAX_TOKENIZER_BYTES, TOKENIZER_FILES, TokenizerConfigError, TokenizerFiles, Tokenizers,
};
pub use watch::{FileState, FileWatch};
