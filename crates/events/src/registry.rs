//! The registry of event transports.
//!
//! A new transport is one file that implements [`Transport`](crate::Transport), or
//! [`BrokerTransport`] for a broker, and one line in [`TRANSPORTS`]. Configuration, error messages
//! and `wornpath relay` read that table: which kinds there are, which of them this build has, and
//! how a broker is opened.

#[cfg(any(feature = "redis", feature = "nats", feature = "kafka"))]
use crate::broker;
use crate::consume::{Clock, supervise};
use crate::message::Epoch;
use crate::pods::EventPods;
use crate::relay::{RelayEvent, relay};
use crate::sink::{BrokerStream, BrokerTransport};
use crate::transport::PodName;
use crate::zeromq::ZeroMq;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

/// The client of a broker if this build has its feature.
macro_rules! client {
    ($feature:literal, $transport:ident) => {{
        #[cfg(feature = $feature)]
        {
            Some(BrokerClient::of::<broker::$transport>())
        }
        #[cfg(not(feature = $feature))]
        {
            None
        }
    }};
}

/// All event transports.
#[rustfmt::skip]
pub const TRANSPORTS: &[TransportKind] = &[
    TransportKind { name: "zmq", title: "ZeroMQ", tls_scheme: None, has_login: false, origin: TransportOrigin::Engine, client: None },
    TransportKind { name: "push", title: "push", tls_scheme: None, has_login: false, origin: TransportOrigin::Sidecar, client: None },
    TransportKind { name: "nats", title: "NATS", tls_scheme: Some("tls"), has_login: true, origin: TransportOrigin::Broker, client: client!("nats", Nats) },
    TransportKind { name: "redis", title: "Redis", tls_scheme: Some("rediss"), has_login: true, origin: TransportOrigin::Broker, client: client!("redis", RedisStreams) },
    TransportKind { name: "kafka", title: "Kafka", tls_scheme: Some("kafka+ssl"), has_login: false, origin: TransportOrigin::Broker, client: client!("kafka", Kafka) },
];

/// The names of transports that feed several pods: the values of `kind` in `event_sources`.
pub const SOURCE_KINDS: &[&str] = &{
    let mut names = [""; source_count()];
    let mut next = 0;
    let mut at = 0;
    while at < TRANSPORTS.len() {
        if TRANSPORTS[at].feeds_several_pods() {
            names[next] = TRANSPORTS[at].name;
            next += 1;
        }
        at += 1;
    }
    names
};

const fn source_count() -> usize {
    let mut count = 0;
    let mut at = 0;
    while at < TRANSPORTS.len() {
        if TRANSPORTS[at].feeds_several_pods() {
            count += 1;
        }
        at += 1;
    }
    count
}

/// A kind of event transport.
#[derive(Debug)]
pub struct TransportKind {
    /// Its name in configuration, which is also its URL scheme and, for brokers, its cargo feature.
    pub name: &'static str,
    /// Its name in texts.
    pub title: &'static str,
    /// The URL scheme of a broker that is called over TLS.
    pub tls_scheme: Option<&'static str>,
    /// Whether its client can log in with a password.
    pub has_login: bool,
    /// Where its events come from.
    pub origin: TransportOrigin,
    client: Option<BrokerClient>,
}

/// The name identifies a transport.
impl PartialEq for TransportKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for TransportKind {}

/// Where a transport's events come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportOrigin {
    /// The engine publishes them; one transport feeds one pod.
    Engine,
    /// Sidecars inside the engines post them.
    Sidecar,
    /// Relays publish them to a broker.
    Broker,
}

/// A task that runs until it is dropped.
pub type BrokerTask = Pin<Box<dyn Future<Output = Infallible> + Send>>;

/// The relaying of one pod.
pub struct RelayTask {
    /// Where its events come from.
    pub from: ZeroMq,
    /// The pod.
    pub pod: PodName,
    /// See [`relay`].
    pub epoch: Epoch,
    /// Called when the engine or the broker is unreachable.
    pub report: Box<dyn FnMut(RelayEvent<'_>) + Send>,
}

impl TransportKind {
    /// The transport of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        TRANSPORTS.iter().find(|kind| kind.name == name)
    }

    /// The broker whose URLs have this scheme, with or without TLS.
    #[must_use]
    pub fn of_scheme(scheme: &str) -> Option<&'static Self> {
        let is_meant = |kind: &&Self| {
            kind.origin == TransportOrigin::Broker
                && (kind.name == scheme || kind.tls_scheme == Some(scheme))
        };
        TRANSPORTS.iter().find(is_meant)
    }

    const fn feeds_several_pods(&self) -> bool {
        !matches!(self.origin, TransportOrigin::Engine)
    }

    /// Whether this build has it; if not, the feature of its name is missing.
    #[must_use]
    pub const fn is_built_in(&self) -> bool {
        !matches!(self.origin, TransportOrigin::Broker) || self.client.is_some()
    }

    /// Feeds pods from a broker, with a new transport after a panic.
    ///
    /// # Errors
    /// The address is invalid, or this build has no client of such a broker.
    pub fn consume(
        &self,
        address: BrokerStream,
        from: Vec<PodName>,
        pods: Arc<EventPods>,
        clock: Clock,
    ) -> Result<BrokerTask, String> {
        (self.client()?.consume)(address, from, pods, clock)
    }

    /// Relays a pod's events to a broker.
    ///
    /// # Errors
    /// The address is invalid, or this build has no client of such a broker.
    pub fn relay(&self, address: &BrokerStream, task: RelayTask) -> Result<BrokerTask, String> {
        (self.client()?.relay)(address, task)
    }

    fn client(&self) -> Result<&BrokerClient, String> {
        let name = self.name;
        self.client.as_ref().ok_or_else(|| match self.origin {
            TransportOrigin::Broker => {
                format!("this build has no {}; build it with --features {name}", self.title)
            }
            TransportOrigin::Engine | TransportOrigin::Sidecar => format!("{name} is not a broker"),
        })
    }
}

type ConsumeFn =
    fn(BrokerStream, Vec<PodName>, Arc<EventPods>, Clock) -> Result<BrokerTask, String>;

/// How a broker's transport and sink run, without their types.
#[derive(Debug)]
struct BrokerClient {
    consume: ConsumeFn,
    relay: fn(&BrokerStream, RelayTask) -> Result<BrokerTask, String>,
}

#[cfg_attr(
    not(any(feature = "redis", feature = "nats", feature = "kafka")),
    allow(dead_code, reason = "no broker is built in")
)]
impl BrokerClient {
    const fn of<T: BrokerTransport>() -> Self {
        Self { consume: consume_from::<T>, relay: relay_to::<T> }
    }
}

#[cfg_attr(
    not(any(feature = "redis", feature = "nats", feature = "kafka")),
    allow(dead_code, reason = "no broker is built in")
)]
fn consume_from<T: BrokerTransport>(
    address: BrokerStream,
    from: Vec<PodName>,
    pods: Arc<EventPods>,
    clock: Clock,
) -> Result<BrokerTask, String> {
    T::open(&address, &from)?;
    Ok(Box::pin(async move {
        let open = || T::open(&address, &from).expect("the same address was accepted above");
        supervise(open, &pods, clock).await
    }))
}

#[cfg_attr(
    not(any(feature = "redis", feature = "nats", feature = "kafka")),
    allow(dead_code, reason = "no broker is built in")
)]
fn relay_to<T: BrokerTransport>(
    address: &BrokerStream,
    task: RelayTask,
) -> Result<BrokerTask, String> {
    let sink = T::open_sink(address)?;
    Ok(Box::pin(relay(task.from, sink, task.pod, task.epoch, task.report)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// The names after `prefix` at the start of a line, in all source files of the crate.
    fn declared(prefix: &str) -> BTreeSet<String> {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut names = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(path).unwrap();
                let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
                names.extend(lines.map(|rest| rest.trim_end_matches(" {").to_owned()));
            }
        }
        names
    }

    #[test]
    fn every_transport_of_the_crate_is_in_the_table() {
        let mut transports = declared("impl Transport for ");
        let brokers = declared("impl BrokerTransport for ");
        assert_eq!(transports, ["Push", "ZeroMq"].map(str::to_owned).into(), "not a broker");
        assert_eq!(declared("impl<B: Broker> Transport for ").len(), 1, "all brokers");
        transports.extend(brokers.iter().cloned());
        assert_eq!(TRANSPORTS.len(), transports.len());
        let is_broker = |kind: &&TransportKind| kind.origin == TransportOrigin::Broker;
        assert_eq!(TRANSPORTS.iter().filter(is_broker).count(), brokers.len());
    }

    #[test]
    fn a_broker_is_built_in_with_the_feature_of_its_name() {
        let manifest = include_str!("../Cargo.toml");
        for kind in TRANSPORTS {
            let is_optional = manifest.contains(&format!("\n{} = [\"dep:", kind.name));
            assert_eq!(is_optional, kind.origin == TransportOrigin::Broker, "{}", kind.name);
            assert!(is_optional || kind.is_built_in(), "{}", kind.name);
        }
    }

    #[test]
    fn names_are_unique_and_sources_are_all_but_the_engines_own() {
        let names: BTreeSet<_> = TRANSPORTS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), TRANSPORTS.len());
        assert_eq!(SOURCE_KINDS, ["push", "nats", "redis", "kafka"]);
        assert!(SOURCE_KINDS.iter().all(|name| TransportKind::named(name).is_some()));
        assert!(TransportKind::named("smoke").is_none());
        for (scheme, name) in [("redis", "redis"), ("rediss", "redis"), ("tls", "nats")] {
            assert_eq!(TransportKind::of_scheme(scheme).unwrap().name, name);
        }
        assert!(TransportKind::of_scheme("zmq").is_none(), "not a broker");
    }
}
