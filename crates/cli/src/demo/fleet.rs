//! The demo's engines, and the settings of a gateway in front of them.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use wornpath_config::shipped;
use wornpath_config::{
    BatchRules, BatchStoreSettings, BlockSize, DebugHeaders, Drain, EventSource, ModelSettings,
    NamedProfile, PodSettings, Settings,
};
use wornpath_events::ZmqAddress;
use wornpath_routing::{ByteTokenizer, Role};
use wornpath_sim::serve::{Addresses, EngineOptions, ServedEngine};
use wornpath_sim::{EngineProfile, EngineSettings};

use super::client::forget;
use super::folder::Folder;

/// What the engines are taken for.
pub(super) const ENGINE: &str = "32b-h100x2";
/// They run so many times faster than such an engine would.
pub(super) const SPEED: f64 = 8.0;
/// Less than a free engine has: the rest is taken by requests that run, and it shows eviction.
pub(super) const KV_TOKENS: usize = 120_000;

/// Decisions a second that can be looked at afterwards.
const EXPLAINED: f64 = 5.0;

const ANYWHERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Engines that serve until they are dropped.
pub(super) struct DemoFleet {
    pub(super) engines: Vec<ServedEngine>,
    pub(super) profile: EngineProfile,
    /// Where the gateway keeps batches.
    pub(super) folder: Folder,
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
            let addresses = Addresses { http: ANYWHERE, events: ANYWHERE, replay: ANYWHERE };
            engines.push(ServedEngine::start(options.clone(), addresses).await?);
        }
        Ok(Self { engines, profile, folder: Folder::new()? })
    }

    /// Empties all caches.
    pub(super) async fn forget(&self) -> anyhow::Result<()> {
        for engine in &self.engines {
            forget(engine.addresses().http, ENGINE).await?;
        }
        Ok(())
    }

    /// The engine that the gateway calls `pod`.
    pub(super) fn named(&self, pod: &str) -> Option<&ServedEngine> {
        let at = (0..self.engines.len()).find(|number| name(*number) == pod)?;
        self.engines.get(at)
    }

    /// A gateway in front of them that goes by this shipped profile.
    pub(super) fn settings(&self, policy: &str) -> anyhow::Result<Settings> {
        let model = ModelSettings {
            name: ENGINE.to_owned(),
            block_size: BlockSize::Configured(EngineSettings::default().block_size),
            tokenizer: Some(Arc::new(ByteTokenizer)),
            aliases: Vec::new(),
        };
        let pods = self.engines.iter().enumerate();
        Ok(Settings {
            client: ANYWHERE,
            admin: Some(ANYWHERE),
            pods: pods.map(|(number, engine)| pod(number, engine.addresses())).collect(),
            models: vec![model],
            profiles: vec![profile(policy)?],
            reveal: DebugHeaders::Pod,
            explained: EXPLAINED,
            batch: Some(BatchRules::kept(BatchStoreSettings::Folder(
                self.folder.path().join("batches"),
            ))),
            drain: Drain { lame_duck: Duration::ZERO, grace: Duration::from_secs(2) },
            workers: NonZeroUsize::MIN,
            ..Settings::default()
        })
    }
}

fn name(number: usize) -> String {
    format!("pod-{number}")
}

/// Every pod answers whole requests; for plans of two steps, the first one computes prompts for the others.
fn pod(number: usize, addresses: Addresses) -> PodSettings {
    let mut pod = PodSettings::at(&format!("http://{}", addresses.http));
    pod.facts.name = name(number).as_str().into();
    let second = if number == 0 { Role::PREFILL } else { Role::DECODE };
    pod.facts.roles = vec![Role::named(Role::SERVE), Role::named(second)];
    pod.facts.models = vec![ENGINE.into()];
    pod.facts.engine = Some(ENGINE.into());
    pod.facts.kv_tokens = Some(KV_TOKENS as u64);
    pod.events = Some(EventSource::ZeroMq(ZmqAddress {
        publisher: addresses.events.to_string(),
        replay: Some(addresses.replay.to_string()),
        topic: String::new(),
    }));
    pod
}

fn profile(policy: &str) -> anyhow::Result<NamedProfile> {
    let text = shipped(policy).with_context(|| format!("no profile `{policy}` is shipped"))?;
    let file = format!("shipped profile `{policy}`");
    Ok(NamedProfile { name: policy.to_owned(), file, text: text.to_owned() })
}
