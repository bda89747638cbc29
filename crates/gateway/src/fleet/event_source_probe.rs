//! Event source discovery: `GET /kv_event_sources` tells where an engine publishes its cache
//! events.

use crate::fleet::probe;
use bytes::Bytes;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use wornpath_events::{DialPolicy, EventClock, EventPods, PodName, ZeroMq, ZmqAddress, supervise};
use wornpath_execution::Endpoint;

/// Interval between two queries: an engine may be restarted with other ports.
const QUERY_INTERVAL: Duration = Duration::from_secs(10);
/// Interval before the first successful query.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A pod that is queried for its event source.
pub(crate) struct EventSourceProbe {
    pub(crate) pod: PodName,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) rank: u32,
}

impl EventSourceProbe {
    /// Subscribes to the source that the pod names, and follows it when it moves; never returns.
    pub(crate) async fn follow(self, events: Arc<EventPods>, clock: EventClock) -> Infallible {
        let mut known = self.first_address().await;
        let policy = dial_policy(&self.endpoint);
        loop {
            tracing::info!(pod = %self.pod, source = %known, "event source discovered");
            let new = || ZeroMq::new(Arc::clone(&self.pod), known.clone());
            let make = || new().with_dial_policy(Arc::clone(&policy));
            known = tokio::select! {
                never = supervise(make, &events, clock) => match never {},
                moved = self.moved_from(&known) => moved,
            };
        }
    }

    async fn first_address(&self) -> ZmqAddress {
        let mut is_logged = false;
        loop {
            match self.query().await {
                Ok(address) => return address,
                Err(problem) if !is_logged => {
                    is_logged = true;
                    tracing::warn!(pod = %self.pod, reason = problem, "event source discovery failed");
                }
                Err(_) => {}
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Waits until the pod publishes at another address.
    async fn moved_from(&self, known: &ZmqAddress) -> ZmqAddress {
        loop {
            tokio::time::sleep(QUERY_INTERVAL).await;
            match self.query().await {
                Ok(address) if address != *known => return address,
                _ => {}
            }
        }
    }

    async fn query(&self) -> Result<ZmqAddress, String> {
        let body: Bytes = probe::fetch(&self.endpoint, "/kv_event_sources").await?;
        let authority = self.endpoint.authority().to_str().unwrap_or_default();
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let mut listed = ZmqAddress::listed(&body, host).map_err(|error| error.to_string())?;
        listed
            .remove(&self.rank)
            .ok_or(format!("/kv_event_sources: no entry for rank {}", self.rank))
    }
}

/// Admits the addresses of an event source by the egress policy in force at the time of the
/// connection.
pub(crate) fn dial_policy(endpoint: &Arc<Endpoint>) -> DialPolicy {
    let endpoint = Arc::clone(endpoint);
    let is_logged = AtomicBool::new(false);
    Arc::new(move |address| {
        let admitted = endpoint.admits(address).map_err(|error| error.to_string());
        if let (Err(why), false) = (&admitted, is_logged.swap(admitted.is_err(), Relaxed)) {
            tracing::warn!(url = endpoint.url(), reason = why, "event source refused");
        }
        admitted
    })
}
