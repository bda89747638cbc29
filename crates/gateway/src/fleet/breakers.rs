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
                    tracing::info!(%pod, url, "cut off again: it failed when it was tried");
                }
                (_, BreakerState::Open) => {
                    tracing::warn!(%pod, url, "cut off: it cannot be reached, broke off, or failed several times in a row");
                }
                (_, BreakerState::HalfOpen) => {
                    tracing::info!(%pod, url, "answers again; one request at a time may try it");
                }
                // At its limit a pod may rest several times a second.
                (_, BreakerState::Resting) => {
                    tracing::debug!(%pod, url, "is busy, and left alone for a while");
                }
                (BreakerState::Resting, BreakerState::Closed) => {
                    tracing::debug!(%pod, url, "has rested, and takes requests again");
                }
                (_, BreakerState::Closed) => tracing::info!(%pod, url, "takes requests again"),
            }
        }
        self.0.retain(|url, _| snapshot.entries().iter().any(|entry| entry.endpoint.url() == url));
    }
}
