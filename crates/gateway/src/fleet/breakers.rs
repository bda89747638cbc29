//! Says in the log when a pod is cut off, and when it is back.

use crate::fleet::snapshot::FleetSnapshot;
use std::collections::HashMap;
use wornpath_routing::BreakerState;

/// Who was cut off when somebody last looked, by address.
#[derive(Debug, Default)]
pub(crate) struct Breakers(HashMap<String, BreakerState>);

impl Breakers {
    /// Looks at everybody. Pods at one address have one breaker.
    pub(crate) fn look(&mut self, snapshot: &FleetSnapshot) {
        for entry in snapshot.entries() {
            let (now, url) = (entry.pod.vitals().breaker(), entry.endpoint.url());
            let before = self.0.get(url).copied().unwrap_or(BreakerState::Closed);
            if now == before {
                continue;
            }
            self.0.insert(url.to_owned(), now);
            let pod = &entry.pod.facts().name;
            match (before, now) {
                (BreakerState::HalfOpen, BreakerState::Open) => {
                    tracing::info!(%pod, url, reason = "trial request failed", "pod down");
                }
                (_, BreakerState::Open) => {
                    tracing::warn!(%pod, url, reason = "unreachable, connection broken or repeated failures", "pod down");
                }
                (_, BreakerState::HalfOpen) => {
                    tracing::info!(%pod, url, "pod half-open: trying one request at a time");
                }
                // At its limit a pod may rest several times a second.
                (_, BreakerState::Resting) => {
                    tracing::debug!(%pod, url, "pod overloaded; backing off");
                }
                (BreakerState::Resting, BreakerState::Closed) => {
                    tracing::debug!(%pod, url, "pod backoff over");
                }
                (_, BreakerState::Closed) => tracing::info!(%pod, url, "pod up"),
            }
        }
        self.0.retain(|url, _| snapshot.entries().iter().any(|entry| entry.endpoint.url() == url));
    }
}
