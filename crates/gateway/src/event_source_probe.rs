//! Events of pods that are asked where they publish: `GET /kv_event_sources`.

use crate::pod_lifecycle::judge;
use crate::probe;
use bytes::Bytes;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use wornpath_events::{EventClock, EventPods, PodName, ZeroMq, ZmqAddress, supervise};
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
            tracing::info!(pod = %self.pod, from = %known, "publishes its cache events");
            let new = || ZeroMq::new(Arc::clone(&self.pod), known.clone());
            let make = || new().with_dial_policy(Arc::clone(&judge));
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
                    tracing::warn!(pod = %self.pod, "does not say where it publishes its cache events: {problem}");
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
        listed.remove(&self.rank).ok_or(format!("/kv_event_sources: found no rank {}", self.rank))
    }
}
