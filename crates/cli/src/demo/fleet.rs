//! The demo's simulated engines, and the gateway settings for them.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use wornpath_config::builtin_profile;
use wornpath_config::{
    BatchRules, BatchStoreSettings, BlockSize, DebugHeaders, Drain, EventSource, ModelSettings,
    NamedProfile, PodConfig, Settings, TokenizerSource,
};
use wornpath_events::ZmqAddress;
use wornpath_routing::{ByteTokenizer, Role};
use wornpath_sim::serve::{Addresses, EngineOptions, ServedEngine};
use wornpath_sim::{EngineProfile, EngineSettings};

use super::client::reset_cache;
use super::temp_folder::TempFolder;

/// Profile of the simulated engines.
pub(super) const ENGINE: &str = "32b-h100x2";
/// Factor by which they run faster than a real engine of this profile.
pub(super) const SPEED: f64 = 8.0;
/// Smaller than a whole cache: running requests use part of one, and eviction becomes visible.
pub(super) const KV_TOKENS: usize = 120_000;

/// Decisions a second that are explained.
const EXPLAINED_PER_SECOND: f64 = 5.0;

const FREE_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Engines that serve until they are dropped.
pub(super) struct DemoFleet {
    pub(super) engines: Vec<ServedEngine>,
    pub(super) profile: EngineProfile,
    /// Holds the gateway's batches.
    pub(super) folder: TempFolder,
}

impl DemoFleet {
    /// Starts engines on free ports.
    pub(super) async fn start(count: usize) -> anyhow::Result<Self> {
        let profile = EngineProfile::built_in(ENGINE)?;
        let mut options = EngineOptions::new(profile.clone());
        options.settings = EngineSettings { kv_tokens: Some(KV_TOKENS), ..options.settings };
        options.speed = SPEED;
        let mut engines = Vec::new();
        for _ in 0..count {
            let addresses = Addresses { http: FREE_PORT, events: FREE_PORT, replay: FREE_PORT };
            engines.push(ServedEngine::start(options.clone(), addresses).await?);
        }
        Ok(Self { engines, profile, folder: TempFolder::new()? })
    }

    /// Resets all caches.
    pub(super) async fn reset_caches(&self) -> anyhow::Result<()> {
        for engine in &self.engines {
            reset_cache(engine.addresses().http, ENGINE).await?;
        }
        Ok(())
    }

    /// The engine behind the pod of this name.
    pub(super) fn engine(&self, pod: &str) -> Option<&ServedEngine> {
        let at = (0..self.engines.len()).find(|number| name(*number) == pod)?;
        self.engines.get(at)
    }

    /// Settings of a gateway in front of the engines that routes by a built-in profile.
    pub(super) fn settings(&self, policy: &str) -> anyhow::Result<Settings> {
        let model = ModelSettings {
            tokenizer_source: TokenizerSource::Configured,
            name: ENGINE.to_owned(),
            block_size: BlockSize::Configured(EngineSettings::default().block_size),
            tokenizer: Some(Arc::new(ByteTokenizer)),
            aliases: Vec::new(),
            wait_for_pod: std::time::Duration::ZERO,
        };
        let pods = self.engines.iter().enumerate();
        Ok(Settings {
            client: FREE_PORT,
            admin: Some(FREE_PORT),
            pods: pods.map(|(number, engine)| pod(number, engine.addresses())).collect(),
            models: vec![model],
            profiles: vec![profile(policy)?],
            reveal: DebugHeaders::Pod,
            explained: EXPLAINED_PER_SECOND,
            batch: Some(BatchRules::kept(BatchStoreSettings::Folder(
                self.folder.path().join("batches"),
            ))),
            drain: Drain {
                lame_duck: Duration::ZERO,
                grace: Duration::from_secs(2),
                ..Drain::default()
            },
            workers: NonZeroUsize::MIN,
            ..Settings::default()
        })
    }
}

fn name(number: usize) -> String {
    format!("pod-{number}")
}

/// Every pod serves whole requests; in plans of two steps, the first pod prefills for the others.
fn pod(number: usize, addresses: Addresses) -> PodConfig {
    let mut pod = PodConfig::new(&format!("http://{}", addresses.http));
    pod.facts.name = name(number).as_str().into();
    let second = if number == 0 { Role::PREFILL } else { Role::DECODE };
    pod.facts.roles = vec![Role::named(Role::SERVE), Role::named(second)];
    pod.facts.models = vec![ENGINE.into()];
    pod.facts.engine = Some(ENGINE.into());
    pod.facts.kv_tokens = Some(KV_TOKENS as u64);
    pod.events = vec![EventSource::Zmq(ZmqAddress {
        publisher: addresses.events.to_string(),
        replay: Some(addresses.replay.to_string()),
        topic: String::new(),
    })];
    pod
}

fn profile(policy: &str) -> anyhow::Result<NamedProfile> {
    let text =
        builtin_profile(policy).with_context(|| format!("unknown built-in profile `{policy}`"))?;
    let file = format!("built-in profile `{policy}`");
    Ok(NamedProfile { name: policy.to_owned(), file, text: text.to_owned() })
}
