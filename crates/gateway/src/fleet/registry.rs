//! The pod registry: pods, settings and profiles in force, and what is known of pods' caches.
//!
//! Readers take an immutable [`FleetSnapshot`]; a change builds another one under a lock and swaps it
//! in. `lifecycle` adds, removes and reconfigures pods.

use crate::fleet::snapshot::FleetSnapshot;
use crate::routes::{RouteTable, RoutingError};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use wornpath_blocks::BlockHash;
use wornpath_config::{KeyError, Settings};
use wornpath_events::{ApproximateCaches, EventClock, EventPods, SentPrompt};
use wornpath_execution::EndpointError;
use wornpath_index::{Capacity, Index, IndexLimits, IndexWriter, Moment, NoSlot, PodId};
use wornpath_routing::RoutingHistory;

/// Speculative blocks kept for a pod where prompts are matched by their text: a million tokens in
/// blocks of 512 bytes, as much as the largest caches hold. With more, the index would believe in
/// blocks that were evicted long ago.
const SPECULATIVE_TEXT_BLOCKS: usize = 8 << 10;

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Something is wrong with the profiles.
    #[error(transparent)]
    RouteTable(#[from] RoutingError),
    /// Something is wrong with an address.
    #[error("pod `{pod}`: {cause}")]
    Address {
        /// Whose.
        pod: String,
        /// What.
        cause: EndpointError,
    },
    /// Something is wrong with a pod's key.
    #[error("pod `{pod}`: key file `{}` {cause}", file.display())]
    Key {
        /// Whose.
        pod: String,
        /// Where it should be.
        file: PathBuf,
        /// What.
        cause: KeyError,
    },
    /// Two pods have one name.
    #[error("duplicate pod name `{0}`; give each pod a unique name")]
    Twice(String),
    /// The index is full.
    #[error("{0}; raise `limits.pods` (at most 4096) and restart")]
    NoSlot(#[from] NoSlot),
    /// A profile does without guesses.
    #[error(
        "pod `{pod}` sends no cache events, and profile `{profile}` sets `without_events: refuse`; set `events` of the \
         pod, or `without_events: approximate` in the profile"
    )]
    WithoutEvents {
        /// Who sends none.
        pod: String,
        /// Which.
        profile: String,
    },
    /// Events cannot be understood without knowing what model they are about.
    #[error(
        "pod `{0}` sends cache events, but its model is unknown; set `model` and list it under `models`, or pass \
         --model and --tokenizer"
    )]
    EventsWithoutModel(String),
}

/// What pods without cache events were sent, from which the index guesses what they hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApproximateHistory(pub(crate) Arc<ApproximateCaches>);

impl RoutingHistory for ApproximateHistory {
    fn sent(
        &self,
        writer: &mut IndexWriter,
        pod: PodId,
        chain: &[BlockHash],
        block_tokens: usize,
    ) -> bool {
        self.0.sent(writer, pod, SentPrompt { chain, block_tokens })
    }

    fn refused(&self, writer: &mut IndexWriter, pod: PodId, chain: &[BlockHash]) -> bool {
        self.0.refused(writer, pod, chain)
    }
}

/// Pods, and what decisions about them are made with.
pub struct PodRegistry {
    pub(crate) settings: RwLock<Arc<Settings>>,
    pub(crate) routes: RwLock<Arc<RouteTable>>,
    pub(crate) snapshot: RwLock<Arc<FleetSnapshot>>,
    /// Held while the snapshot is replaced.
    pub(crate) changing: Mutex<()>,
    index: Index,
    /// Pods that the index has room for.
    pub(crate) slots: usize,
    events: Arc<EventPods>,
    pub(crate) history: ApproximateHistory,
    clock: EventClock,
    /// Runs everything that is not a request.
    background: Handle,
    /// Notified after a pod was asked what it serves.
    pub(crate) introduced: Notify,
}

impl PodRegistry {
    /// A registry without pods.
    ///
    /// # Errors
    /// If a profile of the settings is invalid.
    pub(crate) fn new(
        settings: Settings,
        background: Handle,
        clock: EventClock,
        seed: u64,
    ) -> Result<Self, RoutingError> {
        let routes = RouteTable::check(&settings)?;
        // Fewer would save next to nothing.
        let room = settings.pods.len().max(settings.limits.pods).max(256);
        let capacity = Capacity::for_pods(room).unwrap_or_default();
        let mut limits = IndexLimits { capacity, ..IndexLimits::default() };
        if !settings.models.iter().any(|model| model.tokenizer.is_some()) {
            limits.expected_per_pod = SPECULATIVE_TEXT_BLOCKS;
        }
        let index = Index::new(limits, seed);
        let events = Arc::new(EventPods::new(index.clone(), settings.event_rules));
        Ok(Self {
            settings: RwLock::new(Arc::new(settings)),
            routes: RwLock::new(Arc::new(routes)),
            snapshot: RwLock::default(),
            changing: Mutex::new(()),
            index,
            slots: capacity.pods(),
            events,
            history: ApproximateHistory::default(),
            clock,
            background,
            introduced: Notify::new(),
        })
    }

    /// The time since the start.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The profiles in force, and which requests each is for.
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
    pub const fn clock(&self) -> EventClock {
        self.clock
    }

    /// The event loop of everything that is not a request.
    #[must_use]
    pub const fn background(&self) -> &Handle {
        &self.background
    }

    /// What is guessed of the cache of a pod without events.
    #[must_use]
    pub fn approximate_size(&self, pod: PodId) -> Option<wornpath_events::ApproximateSize> {
        self.history.0.status(pod)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
