//! Pod ownership: which source added each pod, so that a configuration reload removes only the pods
//! that the configuration itself listed.
//!
//! A pod has one owner, and only its owner releases it. When a discovery watcher is no longer
//! configured, its pods become orphans: the next watcher that finds a pod unchanged adopts it, and
//! the pod keeps all its state.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use wornpath_config::PodConfig;

/// The source that added a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PodOwner {
    /// The configuration lists it.
    Listed,
    /// The discovery watcher with that number found it.
    Watcher(usize),
    /// A watcher that is no longer configured found it; the next watcher that finds it adopts it.
    Orphaned,
    /// An operator added it through the admin plane.
    Operator,
}

/// A pod and its owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedPod {
    /// The source that added the pod.
    pub owner: PodOwner,
    /// The pod as its owner described it.
    pub config: PodConfig,
}

/// All pods by name, with their owners.
#[derive(Debug, Default)]
pub struct Ownership(Mutex<BTreeMap<String, OwnedPod>>);

/// The name or address of a pod belongs to a pod of another owner.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("pod `{name}`: {what} already in use by pod `{other}`; remove that pod first")]
pub struct OwnedName {
    /// The pod that cannot be added.
    pub name: String,
    /// What both pods have in common: `name` or `address`.
    pub what: &'static str,
    /// The pod that uses it.
    pub other: String,
}

impl Ownership {
    /// Adds a pod, or replaces the description of one that the same owner added.
    ///
    /// # Errors
    /// If its name or address is in use by another pod.
    pub fn add(&self, owner: PodOwner, pod: PodConfig) -> Result<(), OwnedName> {
        let mut pods = self.pods();
        for (name, other) in pods.iter() {
            let is_update = other.owner == owner && *name == *pod.name();
            let what = if *name == *pod.name() { "name" } else { "address" };
            if !is_update && is_same(&other.config, &pod) {
                return Err(OwnedName { name: pod.name().to_owned(), what, other: name.clone() });
            }
        }
        pods.insert(pod.name().to_owned(), OwnedPod { owner, config: pod });
        Ok(())
    }

    /// Removes a pod if `owner` added it, and returns its description.
    pub fn release(&self, owner: PodOwner, name: &str) -> Option<PodConfig> {
        let mut pods = self.pods();
        pods.get(name).filter(|pod| pod.owner == owner)?;
        pods.remove(name).map(|pod| pod.config)
    }

    /// Orphans the pods of a watcher that is no longer configured.
    pub fn orphan(&self, owner: PodOwner) {
        for pod in self.pods().values_mut().filter(|pod| pod.owner == owner) {
            pod.owner = PodOwner::Orphaned;
        }
    }

    /// Orphans the pods of all watchers. Returns whether there were any.
    pub fn orphan_all(&self) -> bool {
        let mut pods = self.pods();
        let found = pods.values_mut().filter(|pod| matches!(pod.owner, PodOwner::Watcher(_)));
        found.map(|pod| pod.owner = PodOwner::Orphaned).count() > 0
    }

    /// Transfers an orphaned pod to `owner` if its description is unchanged. Returns whether it
    /// did.
    pub fn adopt(&self, owner: PodOwner, pod: &PodConfig) -> bool {
        let mut pods = self.pods();
        let Some(known) = pods.get_mut(pod.name()) else { return false };
        let is_same = known.owner == PodOwner::Orphaned && known.config == *pod;
        if is_same {
            known.owner = owner;
        }
        is_same
    }

    /// Removes a pod, whichever source owns it.
    pub(crate) fn remove(&self, name: &str) {
        self.pods().remove(name);
    }

    /// A pod by name, with its owner.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<OwnedPod> {
        self.pods().get(name).cloned()
    }

    /// Replaces the pods that the configuration lists. Pods of other owners stay, unless `changed`,
    /// the entries that are new or different, has one of the same name or address.
    pub fn set_listed(&self, listed: &[PodConfig], changed: &[PodConfig]) {
        let mut pods = self.pods();
        pods.retain(|_, pod| {
            pod.owner != PodOwner::Listed
                && !changed.iter().any(|other| is_same(other, &pod.config))
        });
        for config in listed {
            let is_used = pods
                .values()
                .any(|other| other.owner != PodOwner::Listed && is_same(&other.config, config));
            if !is_used {
                let pod = OwnedPod { owner: PodOwner::Listed, config: config.clone() };
                pods.insert(config.name().to_owned(), pod);
            }
        }
    }

    /// The pods that the configuration does not list.
    #[must_use]
    pub fn unlisted(&self) -> Vec<PodConfig> {
        let pods = self.pods();
        let unlisted = pods.values().filter(|pod| pod.owner != PodOwner::Listed);
        unlisted.map(|pod| pod.config.clone()).collect()
    }

    /// The pods of all owners.
    #[must_use]
    pub fn all(&self) -> Vec<PodConfig> {
        self.pods().values().map(|pod| pod.config.clone()).collect()
    }

    /// The pods of one owner.
    #[must_use]
    pub fn owned_by(&self, owner: PodOwner) -> Vec<PodConfig> {
        let pods = self.pods();
        pods.values().filter(|pod| pod.owner == owner).map(|pod| pod.config.clone()).collect()
    }

    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, OwnedPod>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether two pods conflict: they have the same name or the same address.
pub(crate) fn is_same(one: &PodConfig, other: &PodConfig) -> bool {
    one.facts.name == other.facts.name || one.facts.endpoint == other.facts.endpoint
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, host: &str) -> PodConfig {
        PodConfig::default().at(name, &format!("http://{host}"))
    }

    #[test]
    fn a_name_or_address_of_another_owner_is_refused_and_not_released() {
        let ownership = Ownership::default();
        let listed = [pod("a", "a:1")];
        ownership.set_listed(&listed, &listed);
        ownership.add(PodOwner::Watcher(0), pod("b", "b:1")).unwrap();
        ownership.add(PodOwner::Watcher(0), pod("b", "b:2")).unwrap();
        let conflict = ownership.add(PodOwner::Operator, pod("b", "c:1")).unwrap_err();
        assert_eq!(conflict.what, "name");
        let conflict = ownership.add(PodOwner::Watcher(1), pod("c", "a:1")).unwrap_err();
        assert_eq!((conflict.what, conflict.other.as_str()), ("address", "a"));
        assert_eq!(ownership.release(PodOwner::Operator, "b"), None);
        assert_eq!(ownership.release(PodOwner::Watcher(0), "b"), Some(pod("b", "b:2")));
    }

    #[test]
    fn only_an_unchanged_orphan_is_adopted() {
        let ownership = Ownership::default();
        let [former, next] = [0, 1].map(PodOwner::Watcher);
        ownership.add(former, pod("a", "a:1")).unwrap();
        ownership.add(former, pod("b", "b:1")).unwrap();
        assert!(!ownership.adopt(next, &pod("a", "a:1")), "its watcher is still configured");
        ownership.orphan(former);
        assert!(ownership.adopt(next, &pod("a", "a:1")));
        assert!(!ownership.adopt(next, &pod("b", "b:2")));
        assert_eq!(ownership.owned_by(next), [pod("a", "a:1")]);
        assert_eq!(ownership.owned_by(PodOwner::Orphaned), [pod("b", "b:1")]);
    }

    #[test]
    fn a_new_list_replaces_the_old_one_and_keeps_pods_of_other_owners() {
        let ownership = Ownership::default();
        let listed = [pod("a", "a:1"), pod("b", "b:1")];
        ownership.set_listed(&listed, &listed);
        ownership.add(PodOwner::Operator, pod("c", "c:1")).unwrap();
        ownership.add(PodOwner::Watcher(0), pod("d", "d:1")).unwrap();
        ownership.set_listed(&[pod("b", "b:1"), pod("e", "d:1")], &[pod("e", "d:1")]);
        assert_eq!(ownership.unlisted(), [pod("c", "c:1")], "d is listed under another name now");
        assert_eq!(ownership.get("a"), None);
        assert_eq!(ownership.get("e").unwrap().owner, PodOwner::Listed);
    }

    #[test]
    fn a_pod_that_replaced_a_listed_one_stays_until_its_entry_changes() {
        let ownership = Ownership::default();
        let listed = [pod("a", "a:1")];
        ownership.set_listed(&listed, &listed);
        ownership.remove("a");
        ownership.add(PodOwner::Operator, pod("a", "z:1")).unwrap();
        ownership.set_listed(&listed, &[]);
        let expected = OwnedPod { owner: PodOwner::Operator, config: pod("a", "z:1") };
        assert_eq!(ownership.get("a"), Some(expected));
        let moved = [pod("a", "a:2")];
        ownership.set_listed(&moved, &moved);
        assert_eq!(ownership.all(), moved);
    }
}
