//! Signs that a pod may be gone: a source of its events that is lost, a scrape that is missed. The
//! probe loop then connects to the pod at once, although it did so a moment ago.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use wornpath_events::PodStatus;

/// Pods that could not be reached by others than the probe loop, by address.
#[derive(Debug, Default)]
pub(crate) struct CheckRequests(Mutex<HashSet<String>>);

impl CheckRequests {
    pub(crate) fn add(&self, url: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(url.to_owned());
    }

    pub(crate) fn take(&self) -> HashSet<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The pods with a source of events that is unreachable.
#[derive(Debug, Default)]
pub(crate) struct LostSources(HashSet<Arc<str>>);

impl LostSources {
    /// The pods that have lost a source since the last call.
    pub(crate) fn update<'a>(&mut self, events: &'a [PodStatus]) -> Vec<&'a str> {
        let lost = events.iter().filter(|status| !status.errors.is_empty());
        let lost: HashSet<_> = lost.map(|status| &status.pod).collect();
        let new = lost.iter().filter(|pod| !self.0.contains(**pod)).map(|pod| &***pod).collect();
        self.0 = lost.into_iter().cloned().collect();
        new
    }
}
