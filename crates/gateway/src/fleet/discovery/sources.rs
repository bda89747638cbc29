//! Event sources that serve several pods: sidecars that push, and brokers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use wornpath_events::{PodName, PodTokens, Push, PushAccess, PushService, TokenDigest, consume};
use wornpath_index::PodId;

use crate::fleet::reload::RunningConfig;
use crate::listener;
use crate::watchdog::heartbeat::named;
use wornpath_config::tls::ListenerTls;
use wornpath_config::{EventSourceConfig, Events, SourceKind};

const MAX_CONNECTIONS: usize = 4096;
/// Delay after a failed accept, such as when file descriptors run out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Accepts events that sidecars push; never returns.
pub async fn serve_pushes(
    running: Arc<RunningConfig>,
    listener: Arc<TcpListener>,
    access: PushAccess,
) {
    let tokens = Arc::<PodTokens>::default();
    let (push, service) = Push::new(Arc::clone(&tokens));
    let events = Arc::clone(running.pods().events());
    let follow = async {
        let mut changes = running.changes();
        loop {
            let config = running.config();
            let pushing = config
                .sources()
                .iter()
                .filter(|source| matches!(source.kind, SourceKind::Push { .. }));
            tokens.are(pushing.flat_map(|source| pods_of(&running, source)).collect());
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = follow => {}
        _ = listen(&running, &service, &listener, access) => {}
        _ = consume(push, &events, running.pods().clock()) => {}
    }
}

/// Accepts connections of sidecars and serves them.
async fn listen(
    running: &Arc<RunningConfig>,
    service: &PushService,
    listener: &TcpListener,
    access: PushAccess,
) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                };
                let tls = running.pods().settings().tls.events.clone();
                let serve = serve_connection(service.clone(), access.clone(), stream, tls);
                connections.spawn(named("cache events of a sidecar", serve));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection until it closes.
async fn serve_connection(
    service: PushService,
    access: PushAccess,
    stream: TcpStream,
    tls: Option<ListenerTls>,
) {
    match tls {
        None => service.speak(stream, access).await,
        Some(tls) => {
            if let Some(stream) = listener::tls_handshake(stream, &tls).await {
                service.speak(stream, access).await;
            }
        }
    }
}

/// Consumes all brokers, and restarts the consumers when the pods of any of them change; never
/// returns while `running` lives.
pub async fn consume_brokers(running: Arc<RunningConfig>) {
    let mut changes = running.changes();
    loop {
        changes.mark_unchanged();
        let subscriptions = subscriptions(&running);
        let mut consumers = JoinSet::new();
        for subscription in &subscriptions {
            consume_broker(&mut consumers, &running, subscription);
        }
        while self::subscriptions(&running) == subscriptions {
            if changes.changed().await.is_err() {
                return;
            }
        }
        consumers.shutdown().await;
    }
}

/// A broker and the pods whose events it carries.
#[derive(PartialEq)]
struct BrokerSubscription {
    kind: SourceKind,
    pods: Vec<PodName>,
    /// The present incarnations of the pods: a pod that was replaced is read from the start.
    incarnations: Vec<PodId>,
}

fn subscriptions(running: &RunningConfig) -> Vec<BrokerSubscription> {
    let config = running.config();
    let is_broker = |source: &&EventSourceConfig| !matches!(source.kind, SourceKind::Push { .. });
    let brokers = config.sources().iter().filter(is_broker);
    let snapshot = running.pods().snapshot();
    let with_pods = |source: &EventSourceConfig| {
        let pods: Vec<_> = pods_of(running, source).into_iter().map(|(pod, _)| pod).collect();
        let entries = pods.iter().filter_map(|pod| snapshot.named(pod));
        let incarnations = entries.map(|entry| entry.pod.id()).collect();
        BrokerSubscription { kind: source.kind.clone(), pods, incarnations }
    };
    brokers.map(with_pods).collect()
}

/// The pods that name a source, with their own tokens where they have one.
fn pods_of(
    running: &RunningConfig,
    source: &EventSourceConfig,
) -> Vec<(PodName, Option<TokenDigest>)> {
    let named = Events::Source(source.name.clone());
    let mut pods = Vec::new();
    for pod in running.ownership().all().into_iter().filter(|pod| pod.events.contains(&named)) {
        let token = pod.event_token.map(|token| token.0);
        pods.extend(pod.settings().iter().map(|rank| (rank.facts.name.as_str().into(), token)));
    }
    pods
}

#[cfg_attr(
    not(any(feature = "nats", feature = "redis", feature = "kafka")),
    expect(unused_variables, reason = "no broker is built in")
)]
fn consume_broker(
    consumers: &mut JoinSet<()>,
    running: &Arc<RunningConfig>,
    BrokerSubscription { kind, pods, .. }: &BrokerSubscription,
) {
    match kind {
        SourceKind::Push { .. } => {}
        #[cfg(feature = "nats")]
        SourceKind::Nats { url, stream } => {
            let events = Arc::clone(running.pods().events());
            let clock = running.pods().clock();
            let url = url.clone();
            let stream = stream.clone();
            let pods = pods.clone();
            consumers.spawn(named("cache events over NATS", async move {
                let make = || wornpath_events::Nats::new(&url, &stream, &pods);
                wornpath_events::supervise(make, &events, clock).await;
            }));
        }
        #[cfg(feature = "kafka")]
        SourceKind::Kafka { brokers, topic } => {
            let events = Arc::clone(running.pods().events());
            let clock = running.pods().clock();
            let brokers = brokers.clone();
            let topic = topic.clone();
            let pods = pods.clone();
            consumers.spawn(named("cache events over Kafka", async move {
                let make = || wornpath_events::Kafka::new(&brokers, &topic, &pods);
                wornpath_events::supervise(make, &events, clock).await;
            }));
        }
        #[cfg(feature = "redis")]
        SourceKind::Redis { url, stream } => {
            let events = Arc::clone(running.pods().events());
            let clock = running.pods().clock();
            let url = url.clone();
            let stream = stream.clone();
            let pods = pods.clone();
            consumers.spawn(named("cache events over Redis", async move {
                let make = || wornpath_events::RedisStreams::new(&url, &stream, &pods);
                if let Err(error) = make() {
                    tracing::error!(stream, %error, "invalid Redis event source");
                    return;
                }
                let make = || make().expect("`make` succeeded above with the same arguments");
                wornpath_events::supervise(make, &events, clock).await;
            }));
        }
        // The configuration check refuses brokers that are not built in.
        #[cfg(not(all(feature = "nats", feature = "redis", feature = "kafka")))]
        _ => {}
    }
}
