//! Event sources that serve several pods: sidecars that push, and brokers.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use wornpath_events::{PodName, PodTokens, Push, PushAccess, PushService, TokenDigest, consume};
use wornpath_index::PodId;

use crate::fleet::reload::RunningConfig;
use crate::listener::{Acceptor, Admission, ConnectionLimits, serve_connections, tls_handshake};
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::named;
use wornpath_config::tls::ListenerTls;
use wornpath_config::{EventSource, EventSourceConfig, SourceKind};

/// Half of the connections are left to callers whose requests are allowed.
const CONNECTIONS: ConnectionLimits = ConnectionLimits { total: 4096, unadmitted: 2048 };

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
        _ = listen(&running, &service, listener, access) => {}
        _ = consume(push, &events, running.pods().clock()) => {}
    }
}

/// Accepts connections of sidecars and serves them.
async fn listen(
    running: &Arc<RunningConfig>,
    service: &PushService,
    listener: Arc<TcpListener>,
    access: PushAccess,
) -> Infallible {
    serve_connections(Acceptor::new(listener, "events"), CONNECTIONS, |stream, admission| {
        let tls = running.pods().settings().tls.events.clone();
        let connection =
            SidecarConnection { service: service.clone(), access: access.clone(), admission };
        named("cache events of a sidecar", connection.serve(stream, tls))
    })
    .await
}

/// A connection to the event listener.
struct SidecarConnection {
    service: PushService,
    access: PushAccess,
    admission: Admission,
}

impl SidecarConnection {
    /// Serves it until it closes.
    async fn serve(self, stream: TcpStream, tls: Option<ListenerTls>) {
        let Self { service, access, admission } = self;
        let admitted = move || admission.admit();
        match tls {
            None => service.serve_connection(stream, access, admitted).await,
            Some(tls) => {
                if let Some(stream) = tls_handshake(stream, &tls).await {
                    service.serve_connection(stream, access, admitted).await;
                }
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
