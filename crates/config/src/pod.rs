//! One pod, from the configuration to a decision: what a pod is called, what it serves and how it
//! is reached.

use std::num::NonZeroU16;
use std::path::PathBuf;

use wornpath_events::ZmqAddress;
use wornpath_routing::PodFacts;

use crate::secret::KeyDigest;

/// The port where SGLang and Mooncake meet by default.
const DEFAULT_BOOTSTRAP_PORT: u16 = 8998;

/// An engine as the configuration, discovery or an operator describes it, and after
/// [`Self::per_rank`] one rank of it. Decisions read its [`PodFacts`]; the rest says how to reach
/// it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodConfig {
    /// Its identity and properties. The endpoint is its base URL, `http://host:port`, without a
    /// trailing slash. Without models, the engine is queried for them.
    pub facts: PodFacts,
    /// Data-parallel ranks behind the address.
    pub ranks: u32,
    /// The sources of its cache events; empty to approximate its cache content.
    pub events: Vec<EventSource>,
    /// Whether the engine is asked where it publishes its cache events, if `events` is empty.
    pub asks_for_events: bool,
    /// The digest of its sidecar's token, if it has a token of its own.
    pub event_token: Option<KeyDigest>,
    /// The engine software.
    pub engine: EngineKind,
    /// The URL of its metrics; by default `/metrics` at its address.
    pub metrics: Option<String>,
    /// The bootstrap port for KV transfer.
    pub bootstrap_port: u16,
    /// A file with its API key.
    pub key_file: Option<PathBuf>,
}

/// A source of a pod's cache events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventSource {
    /// The engine publishes them at this address.
    Zmq(ZmqAddress),
    /// The engine publishes them, and reports the address at `/kv_event_sources`.
    ReportedByEngine,
    /// An entry of `event_sources`, by name.
    Source(String),
}

/// One rank without name, address or models.
impl Default for PodConfig {
    fn default() -> Self {
        Self {
            facts: PodFacts { models: Vec::new(), ..PodFacts::serving("", "") },
            ranks: 1,
            events: Vec::new(),
            asks_for_events: false,
            event_token: None,
            engine: EngineKind::default(),
            metrics: None,
            bootstrap_port: DEFAULT_BOOTSTRAP_PORT,
            key_file: None,
        }
    }
}

impl PodConfig {
    /// A pod with an address, named by host and port, and defaults.
    #[must_use]
    pub fn new(url: &str) -> Self {
        let url = url.trim_end_matches('/');
        let name = url.split("://").last().unwrap_or(url);
        Self::default().at(name, url)
    }

    /// Its base URL.
    #[must_use]
    pub fn url(&self) -> &str {
        self.facts.endpoint.as_str()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.facts.name.as_str()
    }

    /// The pods behind the address: itself, or one per rank.
    #[must_use]
    pub fn per_rank(&self) -> Vec<Self> {
        if self.ranks == 1 {
            return vec![self.clone()];
        }
        (0..self.ranks).map(|rank| self.rank(rank)).collect()
    }

    fn rank(&self, rank: u32) -> Self {
        let mut pod = Self { ranks: 1, ..self.clone() };
        pod.facts.rank = Some(rank);
        pod.facts.name = format!("{}/{rank}", self.name()).into();
        let offset = u16::try_from(rank).unwrap_or(0);
        for source in &mut pod.events {
            // The check of the configuration ensured that the last rank has a valid port.
            if let EventSource::Zmq(address) = source
                && let Ok(of_rank) = address.of_rank(offset)
            {
                *address = of_rank;
            }
        }
        pod
    }

    /// The source that the router subscribes to itself if it can: the engine at a known address,
    /// then the engine at the address that it reports, then a sidecar or a broker.
    #[must_use]
    pub fn event_source(&self) -> Option<&EventSource> {
        let find = |is_wanted: fn(&EventSource) -> bool| {
            self.events.iter().find(|source| is_wanted(source))
        };
        find(|source| matches!(source, EventSource::Zmq(_)))
            .or_else(|| find(|source| matches!(source, EventSource::ReportedByEngine)))
            .or(self.events.first())
    }

    /// Whether a running pod of this description serves `other` as well: they differ at most in
    /// what only checks read.
    #[must_use]
    pub fn is_same_pod(&self, other: &Self) -> bool {
        let Self { event_token, engine, .. } = other.clone();
        Self { event_token, engine, ..self.clone() } == *other
    }

    /// This pod with a name and an address; `{host}` in its event addresses becomes the pod's host.
    #[must_use]
    pub fn at(mut self, name: &str, url: &str) -> Self {
        let authority = authority(url).unwrap_or_default();
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => host,
            _ => authority,
        };
        for events in &mut self.events {
            if let EventSource::Zmq(address) = events {
                address.publisher = address.publisher.replace("{host}", host);
                address.replay =
                    address.replay.as_ref().map(|replay| replay.replace("{host}", host));
            }
        }
        self.facts.name = name.into();
        self.facts.endpoint = url.into();
        self
    }
}

/// Engine software.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    TrtLlm,
    /// Modular MAX.
    Max,
    /// Any OpenAI-compatible server.
    #[default]
    OpenAi,
}

impl EngineKind {
    pub(crate) const WORDS: &[&'static str] = &["vllm", "sglang", "trtllm", "max", "openai"];

    /// Its name in a configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    /// Whether it separates blocks by `cache_salt` and reports the salt in its events; only vLLM
    /// does both.
    #[must_use]
    pub const fn knows_salt(self) -> bool {
        matches!(self, Self::Vllm)
    }

    pub(crate) fn of_word(word: &str) -> Self {
        match word {
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            "trtllm" => Self::TrtLlm,
            "max" => Self::Max,
            _ => Self::OpenAi,
        }
    }
}

/// Host and port of an `http` or `https` address.
///
/// # Errors
/// The rule that it breaks: a user or a password, a query, no host, an invalid port.
pub fn authority(url: &str) -> Result<&str, &'static str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let rest = rest.ok_or("it does not start with `http://` or `https://`")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if path.contains(['?', '#']) {
        return Err("it must not have a query");
    }
    if authority.contains('@') {
        return Err("it must not contain a user or a password");
    }
    let uri: http::Uri = url.parse().map_err(|_| "it is not a valid URL")?;
    if uri.host().is_none_or(str::is_empty) {
        return Err("it has no host");
    }
    if authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.ends_with(']') && port.parse::<NonZeroU16>().is_err())
    {
        return Err("its port is not between 1 and 65535");
    }
    Ok(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_placeholder_in_event_addresses_becomes_the_pods_host() {
        let template = PodConfig {
            events: vec![EventSource::Zmq("zmq://{host}:5557?replay=5600".parse().unwrap())],
            ..PodConfig::default()
        };
        let pod = template.at("a", "http://[::1]:8000");
        let expected = "zmq://[::1]:5557?replay=[::1]:5600".parse().unwrap();
        assert_eq!(pod.events, [EventSource::Zmq(expected)]);
    }

    #[test]
    fn an_address_is_http_with_a_host_and_without_a_password() {
        assert_eq!(authority("http://10.0.0.5:8000/v1"), Ok("10.0.0.5:8000"));
        assert_eq!(authority("http://[::1]:8000"), Ok("[::1]:8000"));
        assert_eq!(authority("http://[::1]"), Ok("[::1]"));
        for wrong in [
            "ftp://a",
            "a:1",
            "http://",
            "http://u:p@a",
            "http://a?x=1",
            "http://a:99999",
            "http://a:0",
            "http://a b",
        ] {
            assert!(authority(wrong).is_err(), "{wrong}");
        }
    }
}
