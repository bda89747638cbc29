//! Brings the events of the sources that feed several pods: sidecars that post, and brokers.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use wornpath_events::{Access, PodName, Push, consume};

use crate::config::{EventSource, Events, Running, SourceKind};

/// Listens for sidecars, for as long as it is polled.
pub async fn take_pushes(running: Arc<Running>, listener: TcpListener, access: Access) {
    let known = Arc::<RwLock<BTreeSet<PodName>>>::default();
    let asked = Arc::clone(&known);
    let knows = move |pod: &str| asked.read().unwrap_or_else(PoisonError::into_inner).contains(pod);
    let (push, service) = Push::new(knows);
    let events = Arc::clone(running.gateway().events());
    let follow = async {
        let mut changes = running.changes();
        loop {
            let config = running.config();
            let pushing = config
                .sources()
                .iter()
                .filter(|source| matches!(source.kind, SourceKind::Push { .. }));
            let pods = pushing.flat_map(|source| fed_by(&running, source)).collect();
            *known.write().unwrap_or_else(PoisonError::into_inner) = pods;
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = follow => {}
        _ = service.serve(listener, access) => {}
        _ = consume(push, &events, running.gateway().clock()) => {}
    }
}

/// Reads brokers, each from the beginning again when its pods change, for as long as it is polled.
pub async fn read_brokers(running: Arc<Running>) {
    let mut changes = running.changes();
    loop {
        changes.mark_unchanged();
        let wanted = brokers(&running);
        let mut reading = JoinSet::new();
        for (kind, pods) in &wanted {
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

/// Every broker with the pods that it speaks of.
fn brokers(running: &Running) -> Vec<(SourceKind, Vec<PodName>)> {
    let config = running.config();
    let is_broker = |source: &&EventSource| !matches!(source.kind, SourceKind::Push { .. });
    let brokers = config.sources().iter().filter(is_broker);
    brokers.map(|source| (source.kind.clone(), fed_by(running, source))).collect()
}

/// The pods that name a source.
fn fed_by(running: &Running, source: &EventSource) -> Vec<PodName> {
    let named = Events::Source(source.name.clone());
    let pods = running.roll().all().into_iter().filter(|pod| pod.events.contains(&named));
    pods.flat_map(|pod| pod.settings()).map(|pod| pod.facts.name.as_str().into()).collect()
}

#[cfg_attr(
    not(any(feature = "nats", feature = "redis")),
    expect(unused_variables, reason = "no broker is built in")
)]
fn read(reading: &mut JoinSet<()>, running: &Arc<Running>, kind: &SourceKind, pods: &[PodName]) {
    match kind {
        SourceKind::Push { .. } => {}
        #[cfg(feature = "nats")]
        SourceKind::Nats { url, stream } => {
            let (events, clock) =
                (Arc::clone(running.gateway().events()), running.gateway().clock());
            let (url, stream, pods) = (url.clone(), stream.clone(), pods.to_vec());
            reading.spawn(async move {
                let make = || wornpath_events::Nats::new(&url, &stream, &pods);
                wornpath_events::supervise(make, &events, clock).await;
            });
        }
        #[cfg(feature = "redis")]
        SourceKind::Redis { url, stream } => {
            let (events, clock) =
                (Arc::clone(running.gateway().events()), running.gateway().clock());
            let (url, stream, pods) = (url.clone(), stream.clone(), pods.to_vec());
            reading.spawn(async move {
                match wornpath_events::RedisStreams::new(&url, &stream, &pods) {
                    Ok(streams) => {
                        consume(streams, &events, clock).await;
                    }
                    Err(error) => tracing::error!("redis source `{stream}`: {error}"),
                }
            });
        }
        // A configuration with a broker that is not built in was refused.
        #[cfg(not(all(feature = "nats", feature = "redis")))]
        _ => {}
    }
}
