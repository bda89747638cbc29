//! The configuration of a served engine.

use super::faults::Faults;
use super::text::TextError;
use crate::engine::{EngineSettings, TokenReports};
use crate::profile::EngineProfile;
use crate::vllm_hash::{DEFAULT_SEED, VllmAlgorithm};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// One engine behind a port.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The profile: speed and capacity.
    pub profile: EngineProfile,
    /// Block size, capacity and admission. `tokens` is ignored: every token is reported.
    pub settings: EngineSettings,
    /// Virtual seconds per real second.
    pub speed: f64,
    /// The model's name.
    pub model: String,
    /// Names of LoRA adapters, served beside the model.
    pub adapters: Vec<String>,
    /// The model's tokenizer directory; without one, bytes are tokens.
    pub tokenizer: Option<PathBuf>,
    /// The folder or the repository of the model, as its card names it; the model's name if `None`.
    pub root: Option<String>,
    /// The hash function of its blocks: vLLM's `--prefix-caching-hash-algo`.
    pub hash_algorithm: VllmAlgorithm,
    /// The seed of the hash function: vLLM's `PYTHONHASHSEED`.
    pub hash_seed: String,
    /// Output tokens of a request that sets no limit.
    pub answer_tokens: usize,
    /// The topic of its events; `kv@<address>@<model>` if `None`.
    pub topic: Option<String>,
    /// The faults in force from the start.
    pub faults: Faults,
}

impl EngineOptions {
    /// A healthy engine in real time, with the capacity of its profile.
    #[must_use]
    pub fn new(profile: EngineProfile) -> Self {
        Self {
            model: profile.name().to_owned(),
            profile,
            settings: EngineSettings { tokens: TokenReports::Each, ..EngineSettings::default() },
            speed: 1.0,
            adapters: Vec::new(),
            tokenizer: None,
            root: None,
            hash_algorithm: VllmAlgorithm::Sha256,
            hash_seed: DEFAULT_SEED.to_owned(),
            answer_tokens: 128,
            topic: None,
            faults: Faults::default(),
        }
    }
}

/// The addresses that an engine listens at; port 0 is any free one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// Inference requests and metrics (HTTP).
    pub http: SocketAddr,
    /// Cache events (ZeroMQ PUB).
    pub events: SocketAddr,
    /// Replay of cache events (ZeroMQ ROUTER).
    pub replay: SocketAddr,
}

/// What a port of simulated engines is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EnginePort {
    /// Inference requests and metrics.
    Http,
    /// Cache events.
    Events,
    /// Replay of cache events.
    Replay,
    /// Faults, crashes and restarts of all engines of the process.
    Control,
}

impl fmt::Display for EnginePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "HTTP",
            Self::Events => "cache events",
            Self::Replay => "replay of cache events",
            Self::Control => "control",
        })
    }
}

/// Why an engine cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum EngineServeError {
    /// An address cannot be bound.
    #[error("cannot listen at {address} for {port}: {cause}")]
    Bind {
        /// The purpose of the port.
        port: EnginePort,
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The tokenizer directory cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
}
