//! `pod.placed_tokens`: what each pod was sent to compute.
//!
//! By slot, because there are at most as many as an index has, and with the pod's identity beside the sum:
//! the next pod in a slot starts at nothing.

use std::sync::{Mutex, PoisonError};

use wornpath_index::PodId;

use crate::fleet::FleetPod;

#[derive(Debug, Default)]
pub(super) struct Placed(Mutex<Vec<Option<(PodId, u64)>>>);

impl Placed {
    /// One sum for each pod.
    pub(super) fn fill<'a>(&self, pods: impl Iterator<Item = &'a FleetPod>, column: &mut [f64]) {
        let sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (pod, place) in pods.zip(column) {
            let sum = sums.get(pod.slot().position()).copied().flatten();
            *place = sum.filter(|(of, _)| *of == pod.id()).map_or(0.0, |(_, tokens)| tokens as f64);
        }
    }

    pub(super) fn add(&self, pod: &FleetPod, tokens: u64) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = pod.slot().position();
        if sums.len() <= at {
            sums.resize(at + 1, None);
        }
        let before = sums[at].filter(|(of, _)| *of == pod.id()).map_or(0, |(_, tokens)| tokens);
        sums[at] = Some((pod.id(), before.saturating_add(tokens)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::PodFacts;
    use wornpath_index::{Index, IndexLimits, Swept};

    #[test]
    fn the_next_pod_in_a_slot_starts_at_nothing() {
        let index = Index::new(IndexLimits::default(), 1);
        let pod = || FleetPod::new(index.add_pod().unwrap(), PodFacts::serving("p", "m"));
        let placed = Placed::default();
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
        assert_eq!(second.slot(), first.slot(), "or this shows nothing");
        assert_eq!(sum(&second), 0.0);
        placed.add(&second, 3);
        assert_eq!((sum(&second), sum(&first)), (3.0, 0.0));
    }
}
