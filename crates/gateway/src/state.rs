//! What all threads of a gateway share.

use crate::batches::Batches;
use crate::block_size;
use crate::checkpoint::Checkpoint;
use crate::config::KeyError;
use crate::fleet::FleetSnapshot;
use crate::metrics::Metrics;
use crate::prefix_locks::PrefixLocks;
use crate::quota::Quotas;
use crate::request_trace::Sampler;
use crate::routing::{Routing, RoutingError};
use crate::routing_history::ApproximateHistory;
use crate::settings::Settings;
use crate::summary::{RequestSummary, SummaryObserver};
use crate::traffic_recorder::TrafficRecorder;
use crate::wait_queue::WaitRooms;
use crate::watchdog::Threads;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use wornpath_events::{EventClock, EventPods};
use wornpath_execution::{EndpointError, RetryBudget};
use wornpath_index::{Capacity, Index, IndexLimits, Moment, NoSlot};
use wornpath_routing::{FleetPod, Health, Rng};

/// Blocks that a pod is expected to hold where prompts are matched by their text: a million tokens in blocks of 512
/// bytes, as much as the largest caches hold. Whoever remembers more believes in what has long been evicted.
const EXPECTED_TEXT_BLOCKS: usize = 8 << 10;

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Something is wrong with the profiles.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// Something is wrong with an address.
    #[error("pod `{pod}`: {cause}")]
    Address {
        /// Whose.
        pod: String,
        /// What.
        cause: EndpointError,
    },
    /// Something is wrong with a pod's key.
    #[error("pod `{pod}`: the file `{}` {cause}", file.display())]
    Key {
        /// Whose.
        pod: String,
        /// Where it should be.
        file: PathBuf,
        /// What.
        cause: KeyError,
    },
    /// Two pods have one name.
    #[error("there is a pod `{0}` already; give each a name of its own")]
    Twice(String),
    /// The index is full.
    #[error("{0}; set `limits.pods`, at most 4096, and start again")]
    NoSlot(#[from] NoSlot),
    /// A profile does without guesses.
    #[error(
        "pod `{pod}` sends no cache events, and profile `{profile}` says `without_events: refuse`; give the pod `events`, \
         or let the profile guess with `without_events: approximate`"
    )]
    WithoutEvents {
        /// Who sends none.
        pod: String,
        /// Which.
        profile: String,
    },
    /// Events cannot be understood without knowing what model they are about.
    #[error(
        "pod `{0}` sends events, but its model is not known; give `model` and list that under `models`, or give --model and --tokenizer"
    )]
    EventsWithoutModel(String),
}

/// Whether clients should come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// No pod has answered yet.
    Starting,
    /// Yes.
    Ready,
    /// It is about to end.
    Draining,
}

/// Shared by everything that serves.
pub struct Gateway {
    pub(crate) settings: RwLock<Arc<Settings>>,
    pub(crate) routing: RwLock<Arc<Routing>>,
    pub(crate) roster: RwLock<Arc<FleetSnapshot>>,
    /// Held while the roster is replaced.
    pub(crate) changing: Mutex<()>,
    index: Index,
    /// Pods that the index has room for.
    pub(crate) slots: usize,
    events: Arc<EventPods>,
    /// What is known of pods, on disk.
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) memory: ApproximateHistory,
    clock: EventClock,
    seed: u64,
    pub(crate) claims: PrefixLocks,
    pub(crate) lobby: WaitRooms,
    /// Told when somebody was asked what it serves.
    pub(crate) introduced: Notify,
    pub(crate) quotas: Quotas,
    pub(crate) sampler: Sampler,
    pub(crate) tape: TrafficRecorder,
    pub(crate) budget: RetryBudget,
    /// Where long prompts are tokenized: so many at once.
    pub(crate) preparers: Arc<Semaphore>,
    /// The event loop of everything that is no request.
    background: Handle,
    /// The heartbeats of all threads.
    pub(crate) threads: Arc<Threads>,
    readiness: AtomicU8,
    connections: AtomicUsize,
    observers: OnceLock<Vec<Arc<dyn SummaryObserver>>>,
    metrics: OnceLock<Arc<Metrics>>,
    batches: OnceLock<Arc<Batches>>,
}

impl Gateway {
    /// A gateway that nobody has connected to yet. What is no request runs on `background`.
    ///
    /// # Errors
    /// If the settings cannot be used.
    pub fn new(
        mut settings: Settings,
        background: Handle,
        seed: u64,
    ) -> Result<Arc<Self>, ApplyError> {
        let checkpoint = settings.checkpoint.clone().map(Checkpoint::new);
        let records = checkpoint.as_ref().map_or_else(Vec::new, Checkpoint::read);
        block_size::recall(&mut settings, &records);
        let routing = Routing::check(&settings)?;
        // Fewer would spare next to nothing.
        let room = settings.pods.len().max(settings.limits.pods).max(256);
        let capacity = Capacity::for_pods(room).unwrap_or_default();
        let mut limits = IndexLimits { capacity, ..IndexLimits::default() };
        if !settings.models.iter().any(|model| model.tokenizer.is_some()) {
            limits.expected_per_pod = EXPECTED_TEXT_BLOCKS;
        }
        let index = Index::new(limits, seed);
        let clock = EventClock::start();
        let (pods, rules) = (settings.pods.clone(), settings.event_rules);
        let events = Arc::new(EventPods::new(index.clone(), rules));
        events.load_checkpoint(records);
        let gateway = Arc::new(Self {
            claims: PrefixLocks::default(),
            lobby: WaitRooms::default(),
            introduced: Notify::new(),
            quotas: Quotas::default(),
            sampler: Sampler::new(&settings),
            tape: TrafficRecorder::default(),
            budget: RetryBudget::new(settings.retries, clock.now()),
            preparers: Arc::new(Semaphore::new(settings.workers.get())),
            settings: RwLock::new(Arc::new(settings)),
            routing: RwLock::new(Arc::new(routing)),
            roster: RwLock::default(),
            changing: Mutex::new(()),
            events,
            checkpoint,
            index,
            memory: ApproximateHistory::default(),
            slots: capacity.pods(),
            clock,
            seed,
            background,
            threads: Arc::default(),
            readiness: AtomicU8::new(0),
            connections: AtomicUsize::new(0),
            observers: OnceLock::new(),
            metrics: OnceLock::new(),
            batches: OnceLock::new(),
        });
        for pod in pods {
            gateway.add_pod(pod)?;
        }
        Ok(gateway)
    }

    /// The time since the start.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// What it was started or last reloaded with.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The profiles in force.
    #[must_use]
    pub fn routing(&self) -> Arc<Routing> {
        Arc::clone(&self.routing.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Who is there.
    #[must_use]
    pub fn roster(&self) -> Arc<FleetSnapshot> {
        Arc::clone(&self.roster.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Which pod holds what.
    #[must_use]
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// The pods' events.
    #[must_use]
    pub const fn events(&self) -> &Arc<EventPods> {
        &self.events
    }

    /// The clock that all moments are read from.
    #[must_use]
    pub const fn clock(&self) -> EventClock {
        self.clock
    }

    /// Requests that wait for a pod.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lobby.waiting()
    }

    /// Retries made, and retries for which the budget did not suffice.
    #[must_use]
    pub fn retries(&self) -> (u64, u64) {
        (self.budget.spent(), self.budget.refused())
    }

    /// Connections of clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Whether it is about to end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.readiness.load(Relaxed) == 1
    }

    /// Whether clients should come.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        if self.is_draining() {
            return Readiness::Draining;
        }
        let is_up = |pod: &FleetPod| pod.vitals().health() == Health::Up;
        if self.roster().fleet().pods().iter().any(is_up) {
            Readiness::Ready
        } else {
            Readiness::Starting
        }
    }

    /// The event loop of everything that is no request.
    #[must_use]
    pub const fn background(&self) -> &Handle {
        &self.background
    }

    /// Whoever wants to know of every request; before the first one comes.
    pub fn observe(&self, observers: Vec<Arc<dyn SummaryObserver>>) {
        // Set once, when the server is put together.
        let _ = self.observers.set(observers);
    }

    /// Lets whoever observes pass on what they keep, before the process ends.
    pub(crate) async fn finish(&self) {
        for observer in self.observers.get().into_iter().flatten() {
            observer.finish().await;
        }
    }

    /// What is counted, for the page about it; before the first request comes.
    pub fn count(&self, metrics: Arc<Metrics>) {
        // Set once, when the server is put together.
        let _ = self.metrics.set(metrics);
    }

    /// What is counted, if anything is.
    #[must_use]
    pub fn metrics(&self) -> Option<&Arc<Metrics>> {
        self.metrics.get()
    }

    pub(crate) fn ended(&self, record: &RequestSummary) {
        // Neither the client's name for it nor what it asked for: both are its own words.
        tracing::debug!(
            api = record.api.word(),
            profile = %record.profile,
            pod = record.pod.as_ref().map(|(_, name)| name.as_str()),
            status = record.status,
            end = record.ended.word(),
            retries = record.retries,
            took = ?record.total,
            "a request ended"
        );
        self.tape.ended(record);
        for observer in self.observers.get().into_iter().flatten() {
            observer.ended(record);
        }
    }

    /// Offline work, if it is served.
    pub(crate) fn batches(&self) -> Option<&Arc<Batches>> {
        self.batches.get()
    }

    pub(crate) fn keep_batches(&self, batches: Arc<Batches>) {
        // Set once, when the server is put together.
        let _ = self.batches.set(batches);
    }

    pub(crate) fn start_draining(&self) {
        self.readiness.store(1, Relaxed);
    }

    pub(crate) const fn connection_count(&self) -> &AtomicUsize {
        &self.connections
    }

    /// Where a worker's chance comes from.
    pub(crate) fn chance(&self, worker: usize) -> Rng {
        chance(self.seed, worker)
    }
}

/// A generator for each worker. Its state is itself drawn: states that follow from each other by a step would
/// give two workers the same numbers, and their requests the same names.
fn chance(seed: u64, worker: usize) -> Rng {
    Rng::new(Rng::new(seed.wrapping_add(worker as u64)).bits())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_workers_draw_the_same_numbers() {
        for seed in 0..20 {
            let drawn = (0..64).flat_map(|worker| {
                let mut chance = chance(seed, worker);
                (0..100).map(move |_| chance.bits()).collect::<Vec<_>>()
            });
            assert_eq!(drawn.collect::<HashSet<_>>().len(), 6400, "{seed}");
        }
    }
}
