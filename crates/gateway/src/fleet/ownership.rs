//! Who brought which pod, so that a configuration that is read again does not send away what it never listed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use wornpath_config::PodConfig;

/// Who brought a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PodOwner {
    /// The configuration lists it.
    Listed,
    /// The finder of that number found it.
    Finder(usize),
    /// A finder that is not configured any more found it: whoever finds it next may have it.
    FormerFinder,
    /// Somebody added it over the admin plane.
    Operator,
}

/// Every pod by its name, with who brought it.
#[derive(Debug, Default)]
pub struct Ownership(Mutex<BTreeMap<String, (PodOwner, PodConfig)>>);

/// Somebody else brought a pod of that name or address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("pod `{name}`: {what} already in use by pod `{other}`; remove that pod first")]
pub struct OwnedName {
    /// The pod that cannot come.
    pub name: String,
    /// What they share.
    pub what: &'static str,
    /// The pod that is there.
    pub other: String,
}

impl Ownership {
    /// Takes a pod in, or what is newly known of it.
    ///
    /// # Errors
    /// If somebody else brought one of its name or address.
    pub fn bring(&self, bringer: PodOwner, pod: PodConfig) -> Result<(), OwnedName> {
        let mut pods = self.pods();
        for (name, (by, other)) in pods.iter() {
            let mine = *by == bringer && *name == pod.name;
            let what = if *name == pod.name { "name" } else { "address" };
            if !mine && (*name == pod.name || other.url == pod.url) {
                return Err(OwnedName { name: pod.name, what, other: name.clone() });
            }
        }
        pods.insert(pod.name.clone(), (bringer, pod));
        Ok(())
    }

    /// Lets a pod go, if `bringer` brought it.
    pub fn release(&self, bringer: PodOwner, name: &str) -> Option<PodConfig> {
        let mut pods = self.pods();
        pods.get(name).filter(|(by, _)| *by == bringer)?;
        pods.remove(name).map(|(_, pod)| pod)
    }

    /// The finder `bringer` looks no more. What it brought stays until somebody finds it, or nobody does.
    pub fn abandon(&self, bringer: PodOwner) {
        for (by, _) in self.pods().values_mut().filter(|(by, _)| *by == bringer) {
            *by = PodOwner::FormerFinder;
        }
    }

    /// No finder looks any more. Whether any had brought something.
    pub fn abandon_all(&self) -> bool {
        let mut pods = self.pods();
        let found = pods.values_mut().filter(|(by, _)| matches!(by, PodOwner::Finder(_)));
        found.map(|(by, _)| *by = PodOwner::FormerFinder).count() > 0
    }

    /// Takes over a pod that was abandoned, if it is just as it was. Whether it was.
    pub fn adopt(&self, bringer: PodOwner, pod: &PodConfig) -> bool {
        let mut pods = self.pods();
        let Some((by, known)) = pods.get_mut(&pod.name) else { return false };
        let is_same = *by == PodOwner::FormerFinder && known == pod;
        if is_same {
            *by = bringer;
        }
        is_same
    }

    /// Forgets a pod, whoever brought it.
    pub(crate) fn strike(&self, name: &str) {
        self.pods().remove(name);
    }

    /// Who brought a pod, and what it is.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<(PodOwner, PodConfig)> {
        self.pods().get(name).cloned()
    }

    /// The configuration was read again and lists these. What others brought stays, unless there is news of it among
    /// them.
    pub fn relist(&self, listed: &[PodConfig], news: &[PodConfig]) {
        let is_same = |one: &PodConfig, pod: &PodConfig| one.name == pod.name || one.url == pod.url;
        let mut pods = self.pods();
        pods.retain(|_, (by, pod)| {
            *by != PodOwner::Listed && !news.iter().any(|other| is_same(other, pod))
        });
        for pod in listed {
            if !pods.values().any(|(by, other)| *by != PodOwner::Listed && is_same(other, pod)) {
                pods.insert(pod.name.clone(), (PodOwner::Listed, pod.clone()));
            }
        }
    }

    /// Every pod that the configuration does not list.
    #[must_use]
    pub fn unlisted(&self) -> Vec<PodConfig> {
        let pods = self.pods();
        let unlisted = pods.values().filter(|(by, _)| *by != PodOwner::Listed);
        unlisted.map(|(_, pod)| pod.clone()).collect()
    }

    /// Every pod.
    #[must_use]
    pub fn all(&self) -> Vec<PodConfig> {
        self.pods().values().map(|(_, pod)| pod.clone()).collect()
    }

    /// The pods that somebody brought.
    #[must_use]
    pub fn brought_by(&self, bringer: PodOwner) -> Vec<PodConfig> {
        let pods = self.pods();
        pods.values().filter(|(by, _)| *by == bringer).map(|(_, pod)| pod.clone()).collect()
    }

    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, (PodOwner, PodConfig)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, host: &str) -> PodConfig {
        PodConfig::default().at(name.into(), format!("http://{host}"))
    }

    #[test]
    fn nobody_takes_a_pod_that_somebody_else_brought() {
        let roll = Ownership::default();
        let listed = [pod("a", "a:1")];
        roll.relist(&listed, &listed);
        roll.bring(PodOwner::Finder(0), pod("b", "b:1")).unwrap();
        roll.bring(PodOwner::Finder(0), pod("b", "b:2")).unwrap();
        let taken = roll.bring(PodOwner::Operator, pod("b", "c:1")).unwrap_err();
        assert_eq!(taken.what, "name");
        let taken = roll.bring(PodOwner::Finder(1), pod("c", "a:1")).unwrap_err();
        assert_eq!((taken.what, taken.other.as_str()), ("address", "a"));
        assert_eq!(roll.release(PodOwner::Operator, "b"), None);
        assert_eq!(roll.release(PodOwner::Finder(0), "b"), Some(pod("b", "b:2")));
    }

    #[test]
    fn only_what_is_just_as_it_was_passes_to_the_next_finder() {
        let roll = Ownership::default();
        let [former, next] = [0, 1].map(PodOwner::Finder);
        roll.bring(former, pod("a", "a:1")).unwrap();
        roll.bring(former, pod("b", "b:1")).unwrap();
        assert!(!roll.adopt(next, &pod("a", "a:1")), "it is still looked for");
        roll.abandon(former);
        assert!(roll.adopt(next, &pod("a", "a:1")));
        assert!(!roll.adopt(next, &pod("b", "b:2")));
        assert_eq!(roll.brought_by(next), [pod("a", "a:1")]);
        assert_eq!(roll.brought_by(PodOwner::FormerFinder), [pod("b", "b:1")]);
    }

    #[test]
    fn a_new_list_replaces_the_old_one_and_leaves_the_others() {
        let roll = Ownership::default();
        let listed = [pod("a", "a:1"), pod("b", "b:1")];
        roll.relist(&listed, &listed);
        roll.bring(PodOwner::Operator, pod("c", "c:1")).unwrap();
        roll.bring(PodOwner::Finder(0), pod("d", "d:1")).unwrap();
        roll.relist(&[pod("b", "b:1"), pod("e", "d:1")], &[pod("e", "d:1")]);
        assert_eq!(roll.unlisted(), [pod("c", "c:1")], "d is listed under another name now");
        assert_eq!(roll.get("a"), None);
        assert_eq!(roll.get("e").unwrap().0, PodOwner::Listed);
    }

    #[test]
    fn who_was_put_in_the_place_of_a_listed_pod_stays_until_there_is_news_of_that() {
        let roll = Ownership::default();
        let listed = [pod("a", "a:1")];
        roll.relist(&listed, &listed);
        roll.strike("a");
        roll.bring(PodOwner::Operator, pod("a", "z:1")).unwrap();
        roll.relist(&listed, &[]);
        assert_eq!(roll.get("a"), Some((PodOwner::Operator, pod("a", "z:1"))));
        let moved = [pod("a", "a:2")];
        roll.relist(&moved, &moved);
        assert_eq!(roll.all(), moved);
    }
}
