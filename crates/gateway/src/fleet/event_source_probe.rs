//! Events of pods that are asked where they publish: `GET /kv_event_sources`.

use crate::fleet::probe;
use bytes::Bytes;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use wornpath_events::{DialPolicy, EventClock, EventPods, PodName, ZeroMq, ZmqAddress, supervise};
use wornpath_execution::Endpoint;

/// How often a pod is asked: it may have been restarted with other ports.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// How often one is asked that has not told yet.
const ASK_SOON: Duration = Duration::from_millis(500);

/// A pod that is asked where it publishes.
pub(crate) struct EventSourceProbe {
    pub(crate) pod: PodName,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) rank: u32,
}

impl EventSourceProbe {
    /// Feeds the pod from wherever it says, for as long as it is polled.
    pub(crate) async fn follow(self, events: Arc<EventPods>, clock: EventClock) -> Infallible {
        let (mut known, judge) = (self.first().await, judge(&self.endpoint));
        loop {
            tracing::info!(pod = %self.pod, source = %known, "event source discovered");
            let new = || ZeroMq::new(Arc::clone(&self.pod), known.clone());
            let make = || new().judged_by(Arc::clone(&judge));
            known = tokio::select! {
                never = supervise(make, &events, clock) => match never {},
                another = self.another(&known) => another,
            };
        }
    }

    async fn first(&self) -> ZmqAddress {
        let mut is_told = false;
        loop {
            match self.ask().await {
                Ok(address) => return address,
                Err(problem) if !is_told => {
                    is_told = true;
                    tracing::warn!(pod = %self.pod, reason = problem, "event source discovery failed");
                }
                Err(_) => {}
            }
            tokio::time::sleep(ASK_SOON).await;
        }
    }

    /// Waits until the pod publishes elsewhere.
    async fn another(&self, known: &ZmqAddress) -> ZmqAddress {
        loop {
            tokio::time::sleep(ASK_AGAIN).await;
            match self.ask().await {
                Ok(address) if address != *known => return address,
                _ => {}
            }
        }
    }

    async fn ask(&self) -> Result<ZmqAddress, String> {
        let body: Bytes = probe::fetch(&self.endpoint, "/kv_event_sources").await?;
        let authority = self.endpoint.authority().to_str().unwrap_or_default();
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let mut listed = ZmqAddress::listed(&body, host).map_err(|error| error.to_string())?;
        listed
            .remove(&self.rank)
            .ok_or(format!("/kv_event_sources: no entry for rank {}", self.rank))
    }
}

/// Events come from where pods may be, by the rules of the moment when somebody connects.
pub(crate) fn judge(endpoint: &Arc<Endpoint>) -> DialPolicy {
    let (endpoint, is_told) = (Arc::clone(endpoint), AtomicBool::new(false));
    Arc::new(move |address| {
        let judged = endpoint.admits(address).map_err(|forbidden| forbidden.to_string());
        if let (Err(why), false) = (&judged, is_told.swap(judged.is_err(), Relaxed)) {
            tracing::warn!(url = endpoint.url(), reason = why, "event source refused");
        }
        judged
    })
}
