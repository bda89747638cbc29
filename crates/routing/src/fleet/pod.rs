//! One pod: its facts, and a handle to its state.

use std::sync::Arc;

use wornpath_index::{PodId, PodSlot};

use super::pod_state::PodState;
use crate::name::{Name, Role};

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
    pub(super) fn is_like(&self, other: &Self) -> bool {
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
