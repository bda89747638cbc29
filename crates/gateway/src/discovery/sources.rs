//! Brings the events of the sources that feed several pods: sidecars that post, and brokers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use wornpath_events::{PodName, PodTokens, Push, PushAccess, PushService, TokenDigest, consume};
use wornpath_index::PodId;

use crate::config::{EventSourceConfig, Events, RunningConfig, SourceKind};
use crate::http_conn;
use crate::tls::ListenerTls;
use crate::watchdog::{TaskName, named};

const MOST_CONNECTIONS: usize = 4096;
/// How long to wait when the system gives no more connections.
const OUT_OF_CONNECTIONS: Duration = Duration::from_millis(100);

/// Listens for sidecars, for as long as it is polled.
pub async fn take_pushes(
    running: Arc<RunningConfig>,
    listener: Arc<TcpListener>,
    access: PushAccess,
) {
    let tokens = Arc::<PodTokens>::default();
    let (push, service) = Push::new(Arc::clone(&tokens));
    let events = Arc::clone(running.gateway().events());
    let follow = async {
        let mut changes = running.changes();
        loop {
            let config = running.config();
            let pushing = config
                .sources()
                .iter()
                .filter(|source| matches!(source.kind, SourceKind::Push { .. }));
            tokens.set(pushing.flat_map(|source| fed_by(&running, source)).collect());
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = follow => {}
        _ = listen(&running, &service, &listener, access) => {}
        _ = consume(push, &events, running.gateway().clock()) => {}
    }
}

/// Lets sidecars in, and answers them.
async fn listen(
    running: &Arc<RunningConfig>,
    service: &PushService,
    listener: &TcpListener,
    access: PushAccess,
) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => {
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(OUT_OF_CONNECTIONS).await;
                    continue;
                };
                let tls = running.gateway().settings().tls.events.clone();
                let hear_out = hear_out(service.clone(), access.clone(), stream, tls);
                connections.spawn(named("cache events of a sidecar", hear_out));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection, to its end.
async fn hear_out(
    service: PushService,
    access: PushAccess,
    stream: TcpStream,
    tls: Option<ListenerTls>,
) {
    match tls {
        None => service.serve_connection(stream, access).await,
        Some(tls) => {
            if let Some(stream) = http_conn::greeted(stream, &tls).await {
                service.serve_connection(stream, access).await;
            }
        }
    }
}

/// Reads brokers, each from the beginning again when its pods change, for as long as it is polled.
pub async fn read_brokers(running: Arc<RunningConfig>) {
    let mut changes = running.changes();
    loop {
        changes.mark_unchanged();
        let wanted = brokers(&running);
        let mut reading = JoinSet::new();
        for (kind, pods, _) in &wanted {
            read(&mut reading, &running, kind, pods);
        }
        while brokers(&running) == wanted {
            if changes.changed().await.is_err() {
                return;
            }
        }
        reading.shutdown().await;
    }
}

/// Every broker with the pods that it speaks of, and which incarnations of them are there.
fn brokers(running: &RunningConfig) -> Vec<(SourceKind, Vec<PodName>, Vec<PodId>)> {
    let config = running.config();
    let is_broker = |source: &&EventSourceConfig| !matches!(source.kind, SourceKind::Push { .. });
    let brokers = config.sources().iter().filter(is_broker);
    let roster = running.gateway().roster();
    let with_pods = |source: &EventSourceConfig| {
        let pods: Vec<_> = fed_by(running, source).into_iter().map(|(pod, _)| pod).collect();
        let there = pods.iter().filter_map(|pod| roster.named(pod));
        let there = there.map(|seat| seat.pod.id()).collect();
        (source.kind.clone(), pods, there)
    };
    brokers.map(with_pods).collect()
}

/// The pods that name a source, and the tokens of those that have their own.
fn fed_by(
    running: &RunningConfig,
    source: &EventSourceConfig,
) -> Vec<(PodName, Option<TokenDigest>)> {
    let named = Events::Source(source.name.clone());
    let mut fed = Vec::new();
    for pod in running.roll().all().into_iter().filter(|pod| pod.events.contains(&named)) {
        let token = pod.event_token.map(|token| token.0);
        fed.extend(pod.settings().iter().map(|rank| (rank.facts.name.as_str().into(), token)));
    }
    fed
}

fn read(
    reading: &mut JoinSet<()>,
    running: &Arc<RunningConfig>,
    source: &SourceKind,
    pods: &[PodName],
) {
    let SourceKind::Broker { kind, address } = source else { return };
    let events = Arc::clone(running.gateway().events());
    let clock = running.gateway().clock();
    match kind.consume(address.clone(), pods.to_vec(), events, clock) {
        Ok(task) => {
            let name = TaskName::new(&format!("cache events over {}", kind.title));
            reading.spawn(named(name, async move {
                task.await;
            }));
        }
        Err(error) => tracing::error!("{} source `{}`: {error}", kind.name, address.stream),
    }
}
