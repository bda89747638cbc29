//! What one finder has found so far, and what must change for it to be there.
//!
//! A finder owns the pods it brought, and only those: a pod of the configuration or of the admin plane is
//! never touched by it. A look that fails changes nothing. A pod that is missing once may be missing by
//! chance, since resolvers leave records out now and then; one that is missing twice has gone. What was found
//! is compared with what came, not with what was found before: so a pod that could not come comes later.

use wornpath_config::PodConfig;

/// Looks in a row that a pod must be missing from.
const GONE_AFTER: u32 = 2;

/// The pods of one finder.
#[derive(Clone, Debug, Default)]
pub struct DiscoveredPods {
    pods: Vec<(PodConfig, u32)>,
}

/// What is to be done. All that goes must go before anything comes: pods may have swapped their addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodDiff {
    /// Pods that have gone, or are known otherwise than they came.
    pub going: Vec<PodConfig>,
    /// Pods that are there and have not come yet, or not like this.
    pub coming: Vec<PodConfig>,
}

/// How sure a finder is that what it does not see is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscoveredPod {
    /// What is missing has gone: a file was written as it is.
    Sharp,
    /// What is missing may be there all the same: a name server's answer.
    Blurred,
}

impl DiscoveredPods {
    /// Exactly `request_trace` are there now, as far as can be seen.
    pub fn look(&mut self, seen: &[PodConfig], sight: DiscoveredPod) {
        let patience = if sight == DiscoveredPod::Sharp { 1 } else { GONE_AFTER };
        self.pods.retain_mut(|(known, missing)| {
            match seen.iter().find(|pod| pod.name == known.name) {
                Some(pod) => {
                    *missing = 0;
                    known.clone_from(pod);
                }
                None => *missing += 1,
            }
            *missing < patience
        });
        for pod in seen {
            if self.pods().all(|known| known.name != pod.name) {
                self.pods.push((pod.clone(), 0));
            }
        }
    }

    /// What must change where exactly `came` have come.
    #[must_use]
    pub fn changes(&self, came: &[PodConfig]) -> PodDiff {
        let is_found = |pod: &&PodConfig| self.pods().any(|found| found == *pod);
        PodDiff {
            going: came.iter().filter(|pod| !is_found(pod)).cloned().collect(),
            coming: self.pods().filter(|pod| !came.contains(pod)).cloned().collect(),
        }
    }

    /// The pods that are there.
    pub fn pods(&self) -> impl Iterator<Item = &PodConfig> {
        self.pods.iter().map(|(pod, _)| pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, port: u16) -> PodConfig {
        PodConfig::default().at(name.into(), format!("http://host:{port}"))
    }

    fn names(found: &DiscoveredPods) -> Vec<&str> {
        found.pods().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn pods_come_and_go_with_a_file_at_once() {
        let mut found = DiscoveredPods::default();
        let [a, b, c] = [pod("a", 1), pod("b", 2), pod("c", 3)];
        found.look(&[a.clone(), b.clone()], DiscoveredPod::Sharp);
        found.look(&[b.clone(), c.clone()], DiscoveredPod::Sharp);
        let changes = found.changes(&[a.clone(), b.clone()]);
        assert_eq!(changes, PodDiff { going: vec![a], coming: vec![c.clone()] });
        let mut labelled = b.clone();
        labelled.labels.push(("x".into(), "y".into()));
        found.look(&[labelled.clone(), c.clone()], DiscoveredPod::Sharp);
        let changes = found.changes(&[b.clone(), c]);
        assert_eq!(changes, PodDiff { going: vec![b], coming: vec![labelled] });
    }

    #[test]
    fn pods_that_swap_their_addresses_both_go_before_either_comes() {
        let mut found = DiscoveredPods::default();
        found.look(&[pod("a", 2), pod("b", 1)], DiscoveredPod::Sharp);
        let changes = found.changes(&[pod("a", 1), pod("b", 2)]);
        assert_eq!(changes.going, [pod("a", 1), pod("b", 2)]);
        assert_eq!(changes.coming, [pod("a", 2), pod("b", 1)]);
    }

    #[test]
    fn what_could_not_come_is_to_come_until_it_has() {
        let mut found = DiscoveredPods::default();
        found.look(&[pod("a", 1)], DiscoveredPod::Sharp);
        for _ in 0..2 {
            assert_eq!(found.changes(&[]).coming, [pod("a", 1)]);
        }
        assert_eq!(found.changes(&[pod("a", 1)]), PodDiff { going: vec![], coming: vec![] });
    }

    #[test]
    fn a_record_that_is_left_out_once_removes_nobody() {
        let mut found = DiscoveredPods::default();
        let [a, b] = [pod("a", 1), pod("b", 2)];
        found.look(&[a.clone(), b.clone()], DiscoveredPod::Blurred);
        found.look(std::slice::from_ref(&a), DiscoveredPod::Blurred);
        assert_eq!(names(&found), ["a", "b"]);
        found.look(&[a.clone(), b], DiscoveredPod::Blurred);
        found.look(std::slice::from_ref(&a), DiscoveredPod::Blurred);
        assert_eq!(names(&found), ["a", "b"], "it was there in between");
        found.look(&[a], DiscoveredPod::Blurred);
        assert_eq!(names(&found), ["a"]);
    }
}
