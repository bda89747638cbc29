//! How a served engine is set up.

use super::faults::Faults;
use super::text::TextError;
use crate::engine::{EngineSettings, TokenReports};
use crate::profile::EngineProfile;
use crate::vllm_hash::{DEFAULT_SEED, VllmAlgorithm};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// One engine behind a port.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How fast it is.
    pub profile: EngineProfile,
    /// How it is run. Every token is reported, whatever it says of that.
    pub settings: EngineSettings,
    /// Virtual seconds per real second.
    pub speed: f64,
    /// The model's name.
    pub model: String,
    /// Names of LoRA adapters, served beside the model.
    pub adapters: Vec<String>,
    /// The model's tokenizer directory; without one, bytes are tokens.
    pub tokenizer: Option<PathBuf>,
    /// How blocks are named.
    pub hash_algorithm: VllmAlgorithm,
    /// What the names start from: vLLM's `PYTHONHASHSEED`.
    pub hash_seed: String,
    /// Tokens of an answer that nothing cuts short.
    pub answer_tokens: usize,
    /// The topic of its events; the convention is `kv@<address>@<model>`, which is what none means.
    pub topic: Option<String>,
    /// What it does wrong from the start.
    pub faults: Faults,
}

impl EngineOptions {
    /// A healthy engine in real time, as a profile describes it.
    #[must_use]
    pub fn new(profile: EngineProfile) -> Self {
        Self {
            model: profile.name().to_owned(),
            profile,
            settings: EngineSettings { tokens: TokenReports::Each, ..EngineSettings::default() },
            speed: 1.0,
            adapters: Vec::new(),
            tokenizer: None,
            hash_algorithm: VllmAlgorithm::Sha256,
            hash_seed: DEFAULT_SEED.to_owned(),
            answer_tokens: 128,
            topic: None,
            faults: Faults::default(),
        }
    }
}

/// Where an engine listens; port 0 is any free one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The OpenAI interface.
    pub http: SocketAddr,
    /// Cache events (ZeroMQ PUB).
    pub events: SocketAddr,
    /// Replay of cache events (ZeroMQ ROUTER).
    pub replay: SocketAddr,
}

/// An engine that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum EngineServeError {
    /// An address cannot be had.
    #[error(
        "cannot listen at {address} for {what}: {cause}; choose another port, or 0 for any free one"
    )]
    Bind {
        /// What was to be served there.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why not.
        cause: io::Error,
    },
    /// The tokenizer directory is not usable.
    #[error(transparent)]
    Text(#[from] TextError),
}
