//! The pods that one watcher has found, and the changes that bring its pods in line with them.
//!
//! A watcher owns the pods that it added, and only those. A failed poll changes nothing. Resolvers
//! omit records now and then, so a pod must be missing from two DNS answers in a row before it is
//! removed. The pods found are compared with the pods added, not with those of the previous poll,
//! so a pod that was refused is added later.

use wornpath_config::PodConfig;

/// Answers in a row that must lack a pod before it is removed, if they are lossy.
const REMOVE_AFTER: u32 = 2;

/// The pods of one watcher.
#[derive(Clone, Debug, Default)]
pub struct DiscoveredPods {
    /// Each with the number of answers in a row that lacked it.
    pods: Vec<(PodConfig, u32)>,
}

/// Changes to apply: all removals first, since pods may have swapped addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodDiff {
    /// Pods that disappeared, or whose description changed.
    pub removed: Vec<PodConfig>,
    /// Pods that are new, or whose description changed.
    pub added: Vec<PodConfig>,
}

/// Whether a listing can be trusted to contain every pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completeness {
    /// A pod that is missing is gone: a file.
    Complete,
    /// A pod may be missing by chance: an answer of a DNS resolver.
    Lossy,
}

impl DiscoveredPods {
    /// Replaces the pods by those of a new listing.
    pub fn update(&mut self, listed: &[PodConfig], completeness: Completeness) {
        let remove_after = if completeness == Completeness::Complete { 1 } else { REMOVE_AFTER };
        self.pods.retain_mut(|(known, missing)| {
            match listed.iter().find(|pod| pod.name() == known.name()) {
                Some(pod) => {
                    *missing = 0;
                    known.clone_from(pod);
                }
                None => *missing += 1,
            }
            *missing < remove_after
        });
        for pod in listed {
            if self.pods().all(|known| known.name() != pod.name()) {
                self.pods.push((pod.clone(), 0));
            }
        }
    }

    /// The changes that turn the `current` pods of the watcher into those found.
    #[must_use]
    pub fn diff(&self, current: &[PodConfig]) -> PodDiff {
        let is_found = |pod: &&PodConfig| self.pods().any(|found| found == *pod);
        PodDiff {
            removed: current.iter().filter(|pod| !is_found(pod)).cloned().collect(),
            added: self.pods().filter(|pod| !current.contains(pod)).cloned().collect(),
        }
    }

    /// The pods found so far.
    pub fn pods(&self) -> impl Iterator<Item = &PodConfig> {
        self.pods.iter().map(|(pod, _)| pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, port: u16) -> PodConfig {
        PodConfig::default().at(name, &format!("http://host:{port}"))
    }

    fn names(found: &DiscoveredPods) -> Vec<&str> {
        found.pods().map(|pod| pod.name()).collect()
    }

    #[test]
    fn a_complete_listing_adds_and_removes_pods_at_once() {
        let mut found = DiscoveredPods::default();
        let [a, b, c] = [pod("a", 1), pod("b", 2), pod("c", 3)];
        found.update(&[a.clone(), b.clone()], Completeness::Complete);
        found.update(&[b.clone(), c.clone()], Completeness::Complete);
        let changes = found.diff(&[a.clone(), b.clone()]);
        assert_eq!(changes, PodDiff { removed: vec![a], added: vec![c.clone()] });
        let mut labelled = b.clone();
        labelled.facts.labels.push(("x".into(), "y".into()));
        found.update(&[labelled.clone(), c.clone()], Completeness::Complete);
        let changes = found.diff(&[b.clone(), c]);
        assert_eq!(changes, PodDiff { removed: vec![b], added: vec![labelled] });
    }

    #[test]
    fn pods_that_swap_addresses_are_both_removed_before_either_is_added() {
        let mut found = DiscoveredPods::default();
        found.update(&[pod("a", 2), pod("b", 1)], Completeness::Complete);
        let changes = found.diff(&[pod("a", 1), pod("b", 2)]);
        assert_eq!(changes.removed, [pod("a", 1), pod("b", 2)]);
        assert_eq!(changes.added, [pod("a", 2), pod("b", 1)]);
    }

    #[test]
    fn a_pod_stays_to_be_added_until_it_is_added() {
        let mut found = DiscoveredPods::default();
        found.update(&[pod("a", 1)], Completeness::Complete);
        for _ in 0..2 {
            assert_eq!(found.diff(&[]).added, [pod("a", 1)]);
        }
        assert_eq!(found.diff(&[pod("a", 1)]), PodDiff { removed: vec![], added: vec![] });
    }

    #[test]
    fn a_record_missing_from_one_lossy_answer_removes_no_pod() {
        let mut found = DiscoveredPods::default();
        let [a, b] = [pod("a", 1), pod("b", 2)];
        found.update(&[a.clone(), b.clone()], Completeness::Lossy);
        found.update(std::slice::from_ref(&a), Completeness::Lossy);
        assert_eq!(names(&found), ["a", "b"]);
        found.update(&[a.clone(), b], Completeness::Lossy);
        found.update(std::slice::from_ref(&a), Completeness::Lossy);
        assert_eq!(names(&found), ["a", "b"], "it was listed in between");
        found.update(&[a], Completeness::Lossy);
        assert_eq!(names(&found), ["a"]);
    }
}
