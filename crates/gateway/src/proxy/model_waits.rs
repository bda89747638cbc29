//! Requests that wait, by model: the signal that pods are missing.
//!
//! A request waits in the wait queue while every pod is busy, or for the first pod of its model.
//! Both are counted by model, so that an autoscaler sees which pool to enlarge.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wornpath_index::Moment;
use wornpath_routing::Name;

/// The waiting requests of all models.
#[derive(Debug, Default)]
pub(crate) struct ModelWaits {
    models: Mutex<HashMap<Name, ModelWait>>,
    /// Those that wait for a first pod.
    without_pod: AtomicUsize,
    /// Bytes of the bodies of those.
    bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct ModelWait {
    /// When each began, in this order.
    since: BTreeMap<u64, Moment>,
    next: u64,
}

/// The waiting requests of one model.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct WaitingModel {
    pub(crate) requests: usize,
    /// How long the first of them has waited.
    pub(crate) longest: Duration,
}

/// Counts a request as waiting until it is dropped.
pub(crate) struct WaitingRequest<'a> {
    waits: &'a ModelWaits,
    model: Name,
    number: u64,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        let mut models = self.waits.lock();
        let Some(wait) = models.get_mut(&self.model) else { return };
        wait.since.remove(&self.number);
        if wait.since.is_empty() {
            models.remove(&self.model);
        }
    }
}

impl ModelWaits {
    pub(crate) fn enter(&self, model: &Name, now: Moment) -> WaitingRequest<'_> {
        let mut models = self.lock();
        let wait = models.entry(model.clone()).or_default();
        let number = wait.next;
        wait.next += 1;
        wait.since.insert(number, now);
        WaitingRequest { waits: self, model: model.clone(), number }
    }

    pub(crate) fn of(&self, model: &Name, now: Moment) -> WaitingModel {
        let models = self.lock();
        let Some(wait) = models.get(model) else { return WaitingModel::default() };
        let first = wait.since.values().next();
        let longest = first.map_or(Duration::ZERO, |since| now.since(*since));
        WaitingModel { requests: wait.since.len(), longest }
    }

    /// Admits a request that waits for a first pod; none if `most` requests or bytes wait already.
    pub(crate) fn admit(&self, bytes: usize, most: MostWithoutPod) -> Option<WithoutPod<'_>> {
        let waiting = self.without_pod.fetch_add(1, Relaxed);
        let held = self.bytes.fetch_add(bytes, Relaxed);
        let admitted = WithoutPod { waits: self, bytes };
        (waiting < most.requests && held + bytes <= most.bytes).then_some(admitted)
    }

    /// Requests that wait for a first pod.
    pub(crate) fn without_pod(&self) -> usize {
        self.without_pod.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, ModelWait>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many requests, and bytes of their bodies, may wait for a first pod.
#[derive(Clone, Copy)]
pub(crate) struct MostWithoutPod {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
}

/// A request without a pod, and its bytes, until it is dropped.
pub(crate) struct WithoutPod<'a> {
    waits: &'a ModelWaits,
    bytes: usize,
}

impl Drop for WithoutPod<'_> {
    fn drop(&mut self) {
        self.waits.without_pod.fetch_sub(1, Relaxed);
        self.waits.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_counts_its_waiting_requests_and_the_longest_wait() {
        let waits = ModelWaits::default();
        let [a, b] = ["a", "b"].map(Name::from);
        let at = Moment::from_secs;
        let first = waits.enter(&a, at(1));
        let second = waits.enter(&a, at(3));
        let of_b = waits.enter(&b, at(4));
        let longest = Duration::from_secs(4);
        assert_eq!(waits.of(&a, at(5)), WaitingModel { requests: 2, longest });
        drop(first);
        let longest = Duration::from_secs(2);
        assert_eq!(waits.of(&a, at(5)), WaitingModel { requests: 1, longest });
        drop((second, of_b));
        assert_eq!(waits.of(&a, at(5)), WaitingModel::default());
        assert!(waits.lock().is_empty(), "names of models do not accumulate");
    }
}
