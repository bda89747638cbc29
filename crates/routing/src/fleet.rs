//! The fleet as decisions see it: facts of the pods, and their current state.
//!
//! The set of pods changes seldom: a [`Fleet`] is immutable, and a change makes a new one. The
//! state of a pod changes all the time: its [`PodState`] is a few cache lines of counters that
//! requests, probes and engine reports update in place, and that successive fleets share.

mod held_work;
mod learnt_loads;
mod learnt_rates;
mod pod_state;
mod reservation;
mod router_load;
mod slowness;

use core::net::SocketAddr;
use std::ops::Index;
use std::sync::Arc;

use wornpath_index::{PodId, PodSlot};

pub(crate) use held_work::HeldWork;
pub(crate) use learnt_loads::LoadedTokens;
pub(crate) use learnt_rates::{MeasuredPrefill, PrefillWork};
pub use pod_state::{BreakerState, EventTrust, Health, PodState};
pub use reservation::Reservation;
pub use router_load::RouterLoad;
pub(crate) use slowness::PublishedSpeed;

use crate::name::{Name, Role};

/// A pod's position in one [`Fleet`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Candidate(u32);

impl Candidate {
    /// The position as a number.
    #[must_use]
    pub const fn position(self) -> usize {
        self.0 as usize
    }
}

/// The pods, indexed by role, slot and kind.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    pods: Vec<FleetPod>,
    by_role: Vec<(Role, Vec<Candidate>)>,
    /// The pod of each slot of the index.
    by_slot: Vec<Option<Candidate>>,
    /// For each pod its kind, and for each kind its first pod.
    kind_of: Vec<u32>,
    kinds: Vec<Candidate>,
}

impl Fleet {
    /// The fleet of these pods, in this order.
    #[must_use]
    pub fn new(pods: Vec<FleetPod>) -> Self {
        let mut fleet = Self { pods, ..Self::default() };
        for (at, pod) in fleet.pods.iter().enumerate() {
            let candidate = Candidate(at as u32);
            for role in &pod.facts().roles {
                match fleet.by_role.iter_mut().find(|(known, _)| known == role) {
                    Some((_, members)) => members.push(candidate),
                    None => fleet.by_role.push((role.clone(), vec![candidate])),
                }
            }
            let slot = pod.slot().position();
            if fleet.by_slot.len() <= slot {
                fleet.by_slot.resize(slot + 1, None);
            }
            fleet.by_slot[slot] = Some(candidate);
            let like =
                |first: &Candidate| fleet.pods[first.position()].facts().is_like(pod.facts());
            let kind = fleet.kinds.iter().position(like).unwrap_or(fleet.kinds.len());
            if kind == fleet.kinds.len() {
                fleet.kinds.push(candidate);
            }
            fleet.kind_of.push(kind as u32);
        }
        fleet
    }

    /// One pod of each kind: pods that serve the same models and adapters with the same engine and
    /// memory. Fleets have few kinds, so what depends on these facts alone is asked once per kind.
    #[must_use]
    pub fn kinds(&self) -> &[Candidate] {
        &self.kinds
    }

    /// Which of [`Fleet::kinds`] a pod is.
    #[inline]
    #[must_use]
    pub fn kind(&self, candidate: Candidate) -> usize {
        self.kind_of[candidate.position()] as usize
    }

    /// Every pod, in order.
    #[must_use]
    pub fn pods(&self) -> &[FleetPod] {
        &self.pods
    }

    /// Every pod's position, in order.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> + use<> {
        (0..self.pods.len() as u32).map(Candidate)
    }

    /// The pods that have `role`.
    #[must_use]
    pub fn with_role(&self, role: &Role) -> &[Candidate] {
        self.by_role.iter().find(|(known, _)| known == role).map_or(&[], |(_, members)| members)
    }

    /// The roles that pods have.
    pub fn roles(&self) -> impl Iterator<Item = &Role> {
        self.by_role.iter().map(|(role, _)| role)
    }

    /// One more than the highest slot of the index that a pod is in.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.by_slot.len()
    }

    /// Reduces the depths of pods whose event streams have been silent for long.
    pub(crate) fn discount_stale(&self, depths: &mut [u32]) {
        for (depth, candidate) in depths.iter_mut().zip(&self.by_slot) {
            if let Some(candidate) = candidate.filter(|_| *depth > 0) {
                *depth = self[candidate].state().fresh_part(*depth);
            }
        }
    }

    /// The position of the pod in a slot of the index, if it is in the fleet.
    #[must_use]
    pub fn in_slot(&self, slot: PodSlot) -> Option<Candidate> {
        self.by_slot.get(slot.position()).copied().flatten()
    }

    /// The position of a pod, if this incarnation of it is in the fleet.
    #[must_use]
    pub fn find(&self, pod: PodId) -> Option<Candidate> {
        self.in_slot(pod.slot()).filter(|candidate| self[*candidate].id() == pod)
    }
}

impl Index<Candidate> for Fleet {
    type Output = FleetPod;

    #[inline]
    fn index(&self, candidate: Candidate) -> &FleetPod {
        &self.pods[candidate.position()]
    }
}

/// An engine process, or one data-parallel rank of it.
#[derive(Clone, Debug)]
pub struct FleetPod {
    id: PodId,
    facts: Arc<PodFacts>,
    pod_state: Arc<PodState>,
}

/// The facts of a pod, from configuration and discovery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodFacts {
    /// Its name, unique in the fleet.
    pub name: Name,
    /// The address that it shares with its other ranks.
    pub endpoint: Name,
    /// The same as data planes know it; none if it has a host name or a path.
    pub address: Option<SocketAddr>,
    /// Its data-parallel rank, if the endpoint has several.
    pub rank: Option<u32>,
    /// Its roles in plans.
    pub roles: Vec<Role>,
    /// Base models that it serves.
    pub models: Vec<Name>,
    /// LoRA adapters that it can serve.
    pub loras: Vec<Name>,
    /// The longest prompt plus answer, in tokens.
    pub context_tokens: Option<u32>,
    /// How many tokens its KV cache holds.
    pub kv_tokens: Option<u64>,
    /// The engine profile of its speed.
    pub engine: Option<Name>,
    /// Free labels, in the order they were given.
    pub labels: Vec<(Name, Name)>,
    /// Its location.
    pub topology: Topology,
}

/// The location of a pod, from near to far. Unknown levels are none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Topology {
    /// The machine.
    pub host: Option<Name>,
    /// The rack, or the machines behind one switch.
    pub rack: Option<Name>,
    /// The zone.
    pub zone: Option<Name>,
    /// The region.
    pub region: Option<Name>,
}

impl PodFacts {
    /// A pod that answers whole requests for `model`, without further facts.
    #[must_use]
    pub fn serving(name: &str, model: &str) -> Self {
        Self {
            name: name.into(),
            endpoint: name.into(),
            address: None,
            rank: None,
            roles: vec![Role::named(Role::SERVE)],
            models: vec![model.into()],
            loras: Vec::new(),
            context_tokens: None,
            kv_tokens: None,
            engine: None,
            labels: Vec::new(),
            topology: Topology::default(),
        }
    }

    /// Whether two pods serve the same with the same engine and memory.
    fn is_like(&self, other: &Self) -> bool {
        self.models == other.models
            && self.loras == other.loras
            && self.context_tokens == other.context_tokens
            && self.kv_tokens == other.kv_tokens
            && self.engine == other.engine
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &Name) -> Option<&Name> {
        self.labels.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }
}

impl FleetPod {
    /// A new pod: healthy and idle.
    #[must_use]
    pub fn new(id: PodId, facts: PodFacts) -> Self {
        Self { id, facts: Arc::new(facts), pod_state: Arc::default() }
    }

    /// The same pod with other facts and the same load.
    #[must_use]
    pub fn with_facts(&self, facts: PodFacts) -> Self {
        Self { id: self.id, facts: Arc::new(facts), pod_state: Arc::clone(&self.pod_state) }
    }

    /// The same engine in another incarnation, with an unknown cache and the same load.
    #[must_use]
    pub fn anew(&self, id: PodId, facts: PodFacts) -> Self {
        Self { id, ..self.with_facts(facts) }
    }

    /// The incarnation of the pod.
    #[must_use]
    pub const fn id(&self) -> PodId {
        self.id
    }

    /// Its slot in the index.
    #[inline]
    #[must_use]
    pub fn slot(&self) -> PodSlot {
        self.id.slot()
    }

    /// Its facts.
    #[must_use]
    pub fn facts(&self) -> &PodFacts {
        &self.facts
    }

    /// Its current state.
    #[inline]
    #[must_use]
    pub const fn state(&self) -> &Arc<PodState> {
        &self.pod_state
    }
}

#[cfg(test)]
mod tests;
