//! The fleet of a replay: engines with what routers know of them, the routers in front, and its
//! faults.

use crate::profile::EngineProfile;
use std::time::Duration;
use wornpath_routing::{PodFacts, Role};

/// A fleet of engines, the routers in front of it, and its faults.
#[derive(Clone, Debug)]
pub struct ReplayFleet {
    /// The profile of the engines that have none of their own.
    pub engine: EngineProfile,
    /// Engines of other profiles: pod number and profile.
    pub own_engines: Vec<(usize, EngineProfile)>,
    /// Number of engines, 1 to 256.
    pub pods: usize,
    /// What routers know of each pod, in order, with the KV capacity and the engine profile of
    /// those that have their own. Pods beyond the end serve whole requests.
    pub facts: Vec<PodFacts>,
    /// KV capacity of each other engine in tokens; the profile's capacity if `None`.
    pub kv_tokens: Option<usize>,
    /// KV capacity of each engine's host memory in tokens, as a second tier.
    pub host_tokens: usize,
    /// KV capacity of each engine's disk in tokens, as a third tier.
    pub disk_tokens: usize,
    /// Pods that are slower than the profile: pod number and factor.
    pub slow: Vec<(usize, f64)>,
    /// A pod that is slow until then, and at its profile's speed afterwards.
    pub recovers: Option<(usize, Duration)>,
    /// Whether the routers know the engine profile; else they assume their default.
    pub is_engine_known: bool,
    /// The slowdown that the routers know of, in the same form.
    pub known_slow: Vec<(usize, f64)>,
    /// A pod that is drained, and when: it gets no new requests, those without a token are sent
    /// elsewhere, and responses that have begun are finished.
    pub drained: Option<(usize, Duration)>,
    /// Number of routers, each with its share of the requests.
    pub routers: usize,
    /// The interval at which routers tell each other what they send; none knows of the others if
    /// `None`.
    pub exchange: Option<Duration>,
    /// The delay of cache events to the routers.
    pub events_delay: Duration,
    /// If set, the routers get no cache events: they estimate the cache of each pod from the
    /// prompts that they send it, up to this many tokens.
    pub estimated_tokens: Option<u64>,
    /// Seed of all random choices.
    pub seed: u64,
}

impl ReplayFleet {
    /// Engines at their profile's speed, each serving whole requests, behind one router that gets
    /// cache events without delay.
    #[must_use]
    pub fn new(engine: EngineProfile, pods: usize, seed: u64) -> Self {
        Self {
            engine,
            pods,
            own_engines: Vec::new(),
            facts: Vec::new(),
            kv_tokens: None,
            host_tokens: 0,
            disk_tokens: 0,
            slow: Vec::new(),
            is_engine_known: true,
            known_slow: Vec::new(),
            drained: None,
            recovers: None,
            routers: 1,
            exchange: None,
            events_delay: Duration::ZERO,
            estimated_tokens: None,
            seed,
        }
    }

    /// The same with as many pods of each role, in this order.
    #[must_use]
    pub fn with_roles(self, counts: &[(Role, usize)]) -> Self {
        let of_role = |(role, count): &(Role, usize)| std::iter::repeat_n(role.clone(), *count);
        let roles = counts.iter().flat_map(of_role).enumerate();
        let facts = roles.map(|(pod, role)| PodFacts { roles: vec![role], ..unnamed(pod) });
        self.with_facts(facts.collect())
    }

    /// The same with these pods.
    #[must_use]
    pub fn with_facts(self, facts: Vec<PodFacts>) -> Self {
        Self { pods: facts.len(), facts, ..self }
    }

    /// The profile of a pod's engine.
    pub(super) fn engine_of(&self, pod: usize) -> &EngineProfile {
        let own = self.own_engines.iter().find(|(at, _)| *at == pod);
        own.map_or(&self.engine, |(_, engine)| engine)
    }

    /// What routers know of each pod.
    pub(super) fn known_facts(&self) -> Vec<PodFacts> {
        let known = |pod: usize| {
            let mut facts = self.facts.get(pod).cloned().unwrap_or_else(|| unnamed(pod));
            let engine = self.engine_of(pod);
            let kv_tokens = self.kv_tokens.unwrap_or(engine.kv_tokens()) as u64;
            facts.kv_tokens.get_or_insert(kv_tokens);
            if facts.engine.is_none() && self.is_engine_known {
                facts.engine = Some(engine.name().into());
            }
            facts
        };
        (0..self.pods).map(known).collect()
    }
}

/// A pod that serves whole requests.
fn unnamed(pod: usize) -> PodFacts {
    PodFacts::serving(&format!("pod-{pod}"), "")
}
