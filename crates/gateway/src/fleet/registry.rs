//! The pod registry: pods, settings and profiles in force, and the state of the pods' caches.
//!
//! Readers take an immutable [`FleetSnapshot`]; a change builds another one under a lock and swaps
//! it in. `lifecycle` adds, removes and reconfigures pods.

use crate::fleet::index_memory::within_memory;
use crate::fleet::peer_routers::PeerRouters;
use crate::fleet::reachability::CheckRequests;
use crate::fleet::routing_history::ApproximateHistory;
use crate::fleet::snapshot::{FleetSnapshot, PodEntry};
use crate::fleet::tokenizer_check::TokenChecks;
use crate::fleet::tokenizer_finder::TokenizerSearches;
use crate::observe::request_trace::Sampler;
use crate::observe::timestamp::Timestamp;
use crate::routes::{RouteTable, RoutingError};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use wornpath_config::{KeyError, ModelSettings, PodConfig, Settings};
use wornpath_events::{BlockIdScheme, Clock, EventPods, ServedModel};
use wornpath_exchange::{Origin, RouterId};
use wornpath_execution::EndpointError;
use wornpath_index::{Capacity, Index, IndexLimits, Moment, NoSlot, PodId};
use wornpath_routing::{Name, RoutingHistory};

/// Limit on speculative blocks per pod where prompts are matched by their text: a million tokens in
/// blocks of 512 bytes, as much as the largest caches hold. With more, the index would keep blocks
/// that were evicted long ago.
const SPECULATIVE_TEXT_BLOCKS: usize = 8 << 10;

/// Why settings or a pod cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The profiles or routes are invalid.
    #[error(transparent)]
    RouteTable(#[from] RoutingError),
    /// The address of a pod or of its event source is invalid or not allowed.
    #[error("pod `{pod}`: {cause}")]
    Address {
        /// The pod's name.
        pod: String,
        /// Why the address is refused.
        cause: EndpointError,
    },
    /// The key of a pod cannot be read.
    #[error("pod `{pod}`: key file `{}` {cause}", file.display())]
    Key {
        /// The pod's name.
        pod: String,
        /// The key file.
        file: PathBuf,
        /// Why it cannot be used.
        cause: KeyError,
    },
    /// Two pods have the same name.
    #[error("duplicate pod name `{0}`; give each pod a unique name")]
    DuplicateName(String),
    /// The index has no slot left for a pod.
    #[error("{0}; raise `limits.pods` (at most 4096) and restart")]
    NoSlot(#[from] NoSlot),
    /// A profile refuses pods without cache events.
    #[error(
        "pod `{pod}` sends no cache events, and profile `{profile}` sets `without_events: refuse`; set `events` of the \
         pod, or `without_events: approximate` in the profile"
    )]
    WithoutEvents {
        /// The pod without events.
        pod: String,
        /// The profile that refuses it.
        profile: String,
    },
}

/// The pods, and all state that routing decisions read.
pub struct PodRegistry {
    pub(crate) settings: RwLock<Arc<Settings>>,
    pub(crate) routes: RwLock<Arc<RouteTable>>,
    pub(crate) snapshot: RwLock<Arc<FleetSnapshot>>,
    /// Held while the snapshot is replaced.
    pub(crate) changing: Mutex<()>,
    index: Index,
    /// Slots for pods in the index.
    pub(crate) slots: usize,
    events: Arc<EventPods>,
    pub(crate) history: ApproximateHistory,
    /// The other routers, if anything is exchanged with them.
    pub(crate) peer_routers: Option<Arc<PeerRouters>>,
    /// Chooses the decisions that are explained, at the rate of the settings.
    pub(crate) sampler: Sampler,
    clock: Clock,
    /// Runs all background tasks.
    background: Handle,
    /// Notified when the first query for the models of a pod has ended.
    pub(crate) models_queried: Notify,
    /// Pods that the probe loop is to check at once.
    pub(crate) check_requests: CheckRequests,
    pub(crate) searches: TokenizerSearches,
    pub(crate) token_checks: TokenChecks,
}

impl PodRegistry {
    /// A registry without pods.
    ///
    /// # Errors
    /// If a profile of the settings is invalid.
    pub(crate) fn new(
        settings: Settings,
        background: Handle,
        clock: Clock,
    ) -> Result<Self, RoutingError> {
        let routes = RouteTable::check(&settings)?;
        // A smaller table would save next to nothing.
        let pods = settings.pods.len().max(settings.limits.pods).max(256);
        let capacity = Capacity::for_pods(pods).unwrap_or_default();
        let mut limits = within_memory(IndexLimits { capacity, ..IndexLimits::default() });
        if !routes.wants_tokens() {
            limits.speculative_per_pod = SPECULATIVE_TEXT_BLOCKS;
        }
        // Request ids are random numbers that clients see, and their generator can be run backwards.
        // So the index has a seed of its own.
        let index = Index::new(limits, RandomState::new().hash_one(0));
        let events = Arc::new(EventPods::new(index.clone(), settings.event_rules));
        let origin = || Origin {
            router: RouterId(RandomState::new().hash_one(1)),
            started: Timestamp::now().0,
        };
        let history = ApproximateHistory::default();
        let peers = || PeerRouters::new(origin(), &index, history.clone());
        let peer_routers = settings.exchange.as_ref().map(|_| Arc::new(peers()));
        Ok(Self {
            settings: RwLock::new(Arc::new(settings)),
            routes: RwLock::new(Arc::new(routes)),
            snapshot: RwLock::default(),
            changing: Mutex::new(()),
            index,
            slots: capacity.pods(),
            events,
            history,
            peer_routers,
            sampler: Sampler::default(),
            clock,
            background,
            models_queried: Notify::new(),
            check_requests: CheckRequests::default(),
            searches: TokenizerSearches::default(),
            token_checks: TokenChecks::default(),
        })
    }

    /// The time since the process started.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The profiles in force and their routes.
    #[must_use]
    pub fn routes(&self) -> Arc<RouteTable> {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The pods as they are now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<FleetSnapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The index: which pod holds which blocks.
    #[must_use]
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// The pods' cache events.
    #[must_use]
    pub const fn events(&self) -> &Arc<EventPods> {
        &self.events
    }

    /// The clock that all moments are read from.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// The runtime of all background tasks.
    #[must_use]
    pub const fn background(&self) -> &Handle {
        &self.background
    }

    /// The size of the approximate cache of a pod without events; none if it has events or no
    /// `kv_tokens`.
    #[must_use]
    pub fn approximate_size(&self, pod: PodId) -> Option<wornpath_events::ApproximateSize> {
        self.history.0.status(pod)
    }

    /// The record of what is sent, for a worker.
    pub(crate) fn routing_history(&self) -> Arc<dyn RoutingHistory> {
        match &self.peer_routers {
            Some(routers) => Arc::new(routers.history()),
            None => Arc::new(self.history.clone()),
        }
    }

    /// How many other routers this one hears of.
    #[must_use]
    pub fn known_routers(&self) -> usize {
        self.peer_routers.as_ref().map_or(0, |routers| routers.known())
    }

    /// Decodes the events of a pod by the model that it serves, as known now.
    pub(crate) fn bind_model(&self, entry: &PodEntry) {
        if !entry.has_events() {
            return;
        }
        let pod = entry.pod.facts();
        // An entry always had a model when it was added; if that is no longer listed, nothing
        // changes.
        if let Some(served) = served_model(&entry.config, &pod.models, &self.settings()) {
            self.events().set_served_model(pod.name.as_str(), served, self.now());
        }
    }
}

/// The model that a pod's events are about; none if no model is listed that it may serve.
///
/// Block hashes depend on the model, so that equal prompts of two models differ. If the pod's model
/// is not configured, it is the first listed one among those that the pod `reported`. Before its
/// report the pod gets no requests, and its events count for the first listed model, which is right
/// if there is only one.
pub(crate) fn served_model(
    pod: &PodConfig,
    reported: &[Name],
    settings: &Settings,
) -> Option<ServedModel> {
    let listed = |name: &Name| settings.models.iter().find(|model| *name == *model.name.as_str());
    let model: Option<&ModelSettings> = match pod.facts.models.first() {
        Some(name) => listed(name),
        None => reported.iter().find_map(listed).or(settings.models.first()),
    };
    let model = model?;
    Some(ServedModel {
        key: settings.key.clone(),
        model: model.name.clone(),
        block_size: model.block_size.tokens(),
        id_scheme: BlockIdScheme::default(),
    })
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
