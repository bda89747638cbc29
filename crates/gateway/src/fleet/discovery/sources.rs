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
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::named;
use wornpath_config::tls::ListenerTls;
use wornpath_config::{EventSource, EventSourceConfig, SourceKind};

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
            tokens.set(pushing.flat_map(|source| pods_of(&running, source)).collect());
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
        None => service.serve_connection(stream, access).await,
        Some(tls) => {
            if let Some(stream) = listener::tls_handshake(stream, &tls).await {
                service.serve_connection(stream, access).await;
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
    let named = EventSource::Source(source.name.clone());
    let mut pods = Vec::new();
    for pod in running.ownership().all().into_iter().filter(|pod| pod.events.contains(&named)) {
        let token = pod.event_token.map(|token| token.0);
        pods.extend(pod.per_rank().iter().map(|rank| (rank.facts.name.as_str().into(), token)));
    }
    pods
}

fn consume_broker(
    consumers: &mut JoinSet<()>,
    running: &Arc<RunningConfig>,
    subscription: &BrokerSubscription,
) {
    let SourceKind::Broker { kind, address } = &subscription.kind else { return };
    let events = Arc::clone(running.pods().events());
    let clock = running.pods().clock();
    match kind.consume(address.clone(), subscription.pods.clone(), events, clock) {
        Ok(task) => {
            let name = TaskName::new(&format!("cache events over {}", kind.title));
            consumers.spawn(named(name, async move {
                task.await;
            }));
        }
        Err(error) => {
            let stream = &address.stream;
            tracing::error!(broker = kind.name, %stream, "event source invalid: {error}");
        }
    }
}
