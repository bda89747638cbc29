//! `--pods` and `--fleet` of `replay`: how many engines there are, of which roles, and what else is
//! known of them.

use anyhow::{Context, bail, ensure};
use std::time::Duration;
use wornpath_routing::fleet_spec::{FleetSpec, PodSpec};
use wornpath_routing::{BreakerState, EventTrust, Health, PodFacts, Profile, Role};
use wornpath_sim::EngineProfile;
use wornpath_sim::replay::ReplayFleet;

/// How many pods there are of each role.
#[derive(Clone, Debug)]
pub(super) struct PodCounts(pub(super) Vec<(Role, usize)>);

const MAX_PODS: usize = 256;

pub(super) fn pod_counts(text: &str) -> Result<PodCounts, String> {
    let invalid = || {
        format!(
            "`{text}` is not a number of pods; write 8, or prefill=2,decode=2 for pods with roles"
        )
    };
    let mut counts: Vec<(Role, usize)> = Vec::new();
    for part in text.split(',') {
        let (role, count) = part.split_once('=').unwrap_or((Role::SERVE, part));
        let count = count.trim().parse().ok().filter(|count| *count > 0).ok_or_else(invalid)?;
        let role = role.trim();
        if role.is_empty() || counts.iter().any(|(known, _)| known.as_str() == role) {
            return Err(invalid());
        }
        counts.push((Role::named(role), count));
    }
    let all = counts.iter().fold(0_usize, |all, (_, count)| all.saturating_add(*count));
    match all <= MAX_PODS {
        true => Ok(PodCounts(counts)),
        false => Err(format!("{all} pods; give at most {MAX_PODS}")),
    }
}

/// The pods of a replay.
#[derive(Clone, Debug)]
pub(super) struct ReplayPods {
    /// What routers know of each.
    facts: Vec<PodFacts>,
    /// The engines that are not the replay's: pod number and profile.
    own_engines: Vec<(usize, EngineProfile)>,
}

impl ReplayPods {
    pub(super) fn of_counts(PodCounts(counts): &PodCounts) -> Self {
        let of_role = |(role, count): &(Role, usize)| std::iter::repeat_n(role.clone(), *count);
        let pod = |(number, role)| PodFacts {
            roles: vec![role],
            ..PodFacts::serving(&format!("pod-{number}"), "")
        };
        let facts = counts.iter().flat_map(of_role).enumerate().map(pod).collect();
        Self { facts, own_engines: Vec::new() }
    }

    /// The pods of a described fleet, or what a replay cannot do with them.
    pub(super) fn described(spec: &FleetSpec) -> anyhow::Result<Self> {
        let count = spec.pods.len();
        ensure!(count <= MAX_PODS, "the fleet has {count} pods; a replay has at most {MAX_PODS}");
        let mut pods = Self { facts: Vec::new(), own_engines: Vec::new() };
        for (number, pod) in spec.pods.iter().enumerate() {
            let name = &pod.facts.name;
            if let Some(key) = state_of(pod) {
                bail!(
                    "pod `{name}`: `{key}` is set; in a replay all pods are up and idle at first, with empty caches; remove it"
                );
            }
            if let Some(speed) = &pod.facts.engine {
                let engine = EngineProfile::built_in(speed.as_str());
                let engine = engine.with_context(|| format!("pod `{name}`: `speed`"))?;
                pods.own_engines.push((number, engine));
            }
            pods.facts.push(pod.facts.clone());
        }
        Ok(pods)
    }

    pub(super) fn all(&self) -> usize {
        self.facts.len()
    }

    /// The pods for a profile: those that were given, or as many that serve whole requests if its
    /// plans have one step and none of these pods can run it.
    pub(super) fn for_profile(&self, profile: &Profile) -> Self {
        let serve = Role::named(Role::SERVE);
        let needs_serve = profile.graph().steps.iter().all(|step| step.role == serve);
        let mut pods = self.clone();
        if needs_serve && !self.roles().contains(&serve) {
            pods.facts.iter_mut().for_each(|pod| pod.roles = vec![serve.clone()]);
        }
        pods
    }

    pub(super) fn roles(&self) -> Vec<Role> {
        let mut roles = Vec::new();
        for role in self.facts.iter().flat_map(|pod| &pod.roles) {
            if !roles.contains(role) {
                roles.push(role.clone());
            }
        }
        roles
    }

    /// The engines' names, and how many have which role unless all serve whole requests.
    pub(super) fn shown(&self, engine: &EngineProfile) -> String {
        let mut names: Vec<&str> = Vec::new();
        for pod in 0..self.all() {
            let own = self.own_engines.iter().find(|(at, _)| *at == pod);
            let name = own.map_or(engine, |(_, own)| own).name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let names = names.join(", ");
        let roles = self.roles();
        if roles.iter().all(|role| role.as_str() == Role::SERVE) {
            return names;
        }
        let count = |role: &Role| {
            format!("{role} {}", self.facts.iter().filter(|pod| pod.roles.contains(role)).count())
        };
        format!("{names} ({})", roles.iter().map(count).collect::<Vec<_>>().join(", "))
    }

    /// These pods behind a router; those without an engine of their own have `engine`.
    pub(super) fn fleet(&self, engine: &EngineProfile, seed: u64) -> ReplayFleet {
        ReplayFleet {
            own_engines: self.own_engines.clone(),
            ..ReplayFleet::new(engine.clone(), 0, seed).with_facts(self.facts.clone())
        }
    }
}

/// A key of a pod that says what it is doing or holds.
fn state_of(pod: &PodSpec) -> Option<&'static str> {
    let keys = [
        ("holds", !pod.holds.is_empty()),
        ("requests", pod.requests > 0),
        ("waiting", pod.waiting > 0),
        ("kv_usage", pod.kv_usage > 0.0),
        ("health", pod.health != Health::Up),
        ("breaker", pod.breaker != BreakerState::Closed),
        ("event_trust", pod.trust != EventTrust::Exact),
        ("silence", pod.silence != Some(Duration::ZERO)),
    ];
    keys.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> anyhow::Result<ReplayPods> {
        ReplayPods::described(&FleetSpec::read("fleet.yaml", text).unwrap())
    }

    #[test]
    fn pods_are_a_number_or_numbers_of_roles() {
        let engine = EngineProfile::built_in("8b-h200").unwrap();
        let shown = |text: &str| {
            let pods = pod_counts(text).map(|counts| ReplayPods::of_counts(&counts));
            pods.map(|pods| (pods.all(), pods.shown(&engine)))
        };
        assert_eq!(shown("8").unwrap(), (8, "8b-h200".to_owned()));
        assert_eq!(shown("serve=3").unwrap(), (3, "8b-h200".to_owned()));
        let roles = "8b-h200 (prefill 2, decode 3)".to_owned();
        assert_eq!(shown("prefill=2,decode=3").unwrap(), (5, roles));
        for wrong in ["", "0", "-1", "x", "prefill=", "=2", "decode=0", "a=1,a=2", "prefill=2,"] {
            let error = shown(wrong).unwrap_err();
            assert!(error.starts_with(&format!("`{wrong}` is not a number of pods")), "{error}");
        }
        let error = shown("prefill=200,decode=57").unwrap_err();
        assert_eq!(error, "257 pods; give at most 256");
    }

    #[test]
    fn described_pods_have_their_roles_engines_and_places_and_begin_idle() {
        let engine = EngineProfile::built_in("8b-h200").unwrap();
        let pods = described(
            "pods:\n  - {name: p, role: prefill, rack: r1}\n  - {name: d, role: [decode, prefill], kv_tokens: 9000, speed: 70b-h100x4}\n",
        )
        .unwrap();
        assert_eq!(pods.shown(&engine), "8b-h200, 70b-h100x4 (prefill 2, decode 1)");
        let fleet = pods.fleet(&engine, 1);
        assert_eq!((fleet.pods, fleet.own_engines.len()), (2, 1));
        assert_eq!(fleet.facts[0].topology.rack, Some("r1".into()));
        for (key, value) in [("requests", "2"), ("health", "down"), ("event_trust", "guessed")] {
            let error = described(&format!("pods: [{{name: a, {key}: {value}}}]")).unwrap_err();
            assert!(error.to_string().starts_with(&format!("pod `a`: `{key}` is set")), "{error}");
        }
        let error = described("pods: [{name: a, speed: warp}]").unwrap_err();
        assert!(format!("{error:#}").contains("pod `a`: `speed`: unknown engine profile `warp`"));
    }
}
