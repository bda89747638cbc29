//! `pod.placed_tokens`: the sum of the uncached tokens that each pod was sent.
//!
//! Sums are kept by slot, of which an index has a bounded number, together with the pod's identity:
//! the next pod in a slot starts at zero. They count what was planned, also for requests that
//! failed later.

use std::sync::{Mutex, PoisonError};

use wornpath_index::PodId;

use crate::fleet::FleetPod;

/// By slot, the pod and its sum.
#[derive(Debug, Default)]
pub(super) struct PlacedTokenSums(Mutex<Vec<Option<(PodId, u64)>>>);

impl PlacedTokenSums {
    /// Fills a column with the pods' sums.
    pub(super) fn fill<'a>(&self, pods: impl Iterator<Item = &'a FleetPod>, column: &mut [f64]) {
        let sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (pod, value) in pods.zip(column) {
            let sum = sums.get(pod.slot().position()).copied().flatten();
            *value = sum
                .filter(|(owner, _)| *owner == pod.id())
                .map_or(0.0, |(_, tokens)| tokens as f64);
        }
    }

    pub(super) fn add(&self, pod: &FleetPod, tokens: u64) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = pod.slot().position();
        if sums.len() <= at {
            sums.resize(at + 1, None);
        }
        let before =
            sums[at].filter(|(owner, _)| *owner == pod.id()).map_or(0, |(_, tokens)| tokens);
        sums[at] = Some((pod.id(), before.saturating_add(tokens)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::PodFacts;
    use wornpath_index::{Index, IndexLimits, Swept};

    #[test]
    fn the_next_pod_in_a_slot_starts_at_zero() {
        let index = Index::new(IndexLimits::default(), 1);
        let pod = || FleetPod::new(index.add_pod().unwrap(), PodFacts::serving("p", "m"));
        let placed = PlacedTokenSums::default();
        let sum = |pod: &FleetPod| {
            let mut column = [f64::NAN];
            placed.fill(std::iter::once(pod), &mut column);
            column[0]
        };
        let first = pod();
        placed.add(&first, 5);
        placed.add(&first, 2);
        assert_eq!(sum(&first), 7.0);
        index.remove_pod(first.id());
        while index.writer().sweep(1_000) != Swept::Clean {}
        let second = pod();
        assert_eq!(second.slot(), first.slot(), "the test needs the slot to be reused");
        assert_eq!(sum(&second), 0.0);
        placed.add(&second, 3);
        assert_eq!((sum(&second), sum(&first)), (3.0, 0.0));
    }
}
