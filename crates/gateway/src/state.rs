//! What all threads of a gateway share.

use crate::asked::Asked;
use crate::batches::Batches;
use crate::lobby::Lobby;
use crate::memory::{BLOCK_TOKENS, Memory};
use crate::metrics::Metrics;
use crate::quota::Quotas;
use crate::record::{Observe, Record};
use crate::roster::Roster;
use crate::routing::{Routing, RoutingError};
use crate::seen::Sampler;
use crate::settings::Settings;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use wornpath_events::{Clock, Pods, Serving, ZeroMq, supervise};
use wornpath_execution::{AddressError, Endpoint, RetryBudget};
use wornpath_index::{Capacity, Index, Limits, Moment, NoSlot, PodId};
use wornpath_routing::queue::QueueRulesError;
use wornpath_routing::{EventTrust, Health, Pod};
use wornpath_events::{Clock, Pods, Rules};
use wornpath_execution::{AddressError, RetryBudget};
use wornpath_index::{Capacity, Index, Limits, Moment, NoSlot};
use wornpath_routing::{Health, Pod};

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
        cause: AddressError,
    },
    /// Two pods have one name.
    #[error("there is a pod `{0}` already; give each a name of its own")]
    Twice(String),
    /// The index is full.
    #[error(transparent)]
    NoSlot(#[from] NoSlot),
    /// Events cannot be understood without knowing what model they are about.
    #[error(
        "pod `{0}` sends events, but its model is not known; give `model`, and the model's `block_size`"
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
    pub(crate) roster: RwLock<Arc<Roster>>,
    /// Held while the roster is replaced.
    pub(crate) changing: Mutex<()>,
    index: Index,
    /// Pods that the index has room for.
    pub(crate) slots: usize,
    events: Arc<Pods>,
    pub(crate) memory: Memory,
    clock: Clock,
    seed: u64,
    pub(crate) lobby: Lobby,
    pub(crate) quotas: Quotas,
    pub(crate) sampler: Sampler,
    pub(crate) budget: RetryBudget,
    /// Where long prompts are tokenized: so many at once.
    pub(crate) preparers: Semaphore,
    /// The event loop of everything that is no request.
    background: Handle,
    readiness: AtomicU8,
    connections: AtomicUsize,
    observers: OnceLock<Vec<Arc<dyn Observe>>>,
    metrics: OnceLock<Arc<Metrics>>,
    batches: OnceLock<Arc<Batches>>,
}

impl Gateway {
    /// A gateway that nobody has connected to yet. What is no request runs on `background`.
    ///
    /// # Errors
    /// If the settings cannot be used.
    pub fn new(settings: Settings, background: Handle, seed: u64) -> Result<Arc<Self>, ApplyError> {
        let routing = Routing::check(&settings)?;
        let capacity = Capacity::for_pods(settings.pods.len().max(256)).unwrap_or_default();
        let index = Index::new(Limits { capacity, ..Limits::default() }, seed);
        let clock = Clock::start();
        let (pods, rules) = (settings.pods.clone(), settings.event_rules);
        let gateway = Arc::new(Self {
            lobby: Lobby::default(),
            quotas: Quotas::default(),
            sampler: Sampler::new(&settings),
            budget: RetryBudget::new(settings.retries, clock.now()),
            preparers: Semaphore::new(settings.workers.get()),
            settings: RwLock::new(Arc::new(settings)),
            routing: RwLock::new(Arc::new(routing)),
            roster: RwLock::default(),
            changing: Mutex::new(()),
            events: Arc::new(Pods::new(index.clone(), rules)),
            index,
            memory: Memory::default(),
            slots: capacity.pods(),
            clock,
            seed,
            background,
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
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.roster.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Which pod holds what.
    #[must_use]
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// The pods' events.
    #[must_use]
    pub const fn events(&self) -> &Arc<Pods> {
        &self.events
    }

    /// The clock that all moments are read from.
    #[must_use]
    pub const fn clock(&self) -> Clock {
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

    /// Whether clients should come.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        if self.readiness.load(Relaxed) == 1 {
            return Readiness::Draining;
        }
        let is_up = |pod: &Pod| pod.vitals().health() == Health::Up;
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
    pub fn observe(&self, observers: Vec<Arc<dyn Observe>>) {
        // Set once, when the server is put together.
        let _ = self.observers.set(observers);
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

    /// Takes a pod in. It gets requests once it has answered a probe.
    ///
    /// # Errors
    /// If it is there already, its address is none, or the index is full.
    pub fn add_pod(&self, settings: PodSettings) -> Result<(), ApplyError> {
        let _changing = lock(&self.changing);
        let roster = self.roster();
        let name = settings.facts.name.clone();
        if roster.named(name.as_str()).is_some() {
            return Err(ApplyError::Twice(name.to_string()));
        }
        let same = roster.seats().iter().find(|seat| seat.settings.url == settings.url);
        let (endpoint, cards) = match same {
            Some(seat) => (Arc::clone(&seat.endpoint), Arc::clone(&seat.cards)),
            None => {
                let now = self.settings();
                let endpoint = Endpoint::new(&settings.url, now.breaker, now.workers.get());
                let wrong = |cause| ApplyError::Address { pod: name.to_string(), cause };
                (Arc::new(endpoint.map_err(wrong)?), Arc::default())
            }
        };
        let (id, feeder) = match &settings.events {
            None => (self.guess(&settings)?, None),
            Some(source) => {
                let serving = self.serving(&settings)?;
                let pod: Arc<str> = name.as_str().into();
                let id = self.events.add(&pod, serving)?;
                (id, self.feed(&pod, source, (&endpoint, settings.facts.rank)))
            }
        };
        let pod = Pod::new(id, settings.facts.clone());
        let vitals = pod.vitals();
        // Until it has answered a probe, nobody knows what it serves.
        vitals.set_health(Health::Down);
        vitals.set_trust(if settings.events.is_some() {
            EventTrust::Unsure
        } else {
            EventTrust::Guessed
        });
        endpoint.show(vitals);
        let mut seats = roster.seats().to_vec();
        seats.push(Seat { settings, pod, endpoint, cards, feeder });
        self.seat(seats);
        Ok(())
    }

    /// Takes a pod out at once; requests on it go on. Whether it was there.
    pub fn remove_pod(&self, name: &str) -> bool {
        let _changing = lock(&self.changing);
        let mut seats = self.roster().seats().to_vec();
        let Some(at) = seats.iter().position(|seat| *seat.pod.facts().name.as_str() == *name)
        else {
            return false;
        };
        let seat = seats.remove(at);
        self.seat(seats);
        if let Some(feeder) = &seat.feeder {
            feeder.abort();
        }
        self.memory.0.remove(seat.pod.id());
        if !self.events.remove(name) {
            self.index.remove_pod(seat.pod.id());
        }
        true
    }

    /// Sends a pod nothing new. Whether it was there.
    pub fn drain_pod(&self, name: &str) -> bool {
        let roster = self.roster();
        let Some(seat) = roster.named(name) else { return false };
        seat.pod.vitals().set_health(Health::Draining);
        true
    }

    /// Checks new settings and goes by them; if they cannot be used, everything stays as it is. Where it
    /// listens, and with how many threads, stays in any case.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn apply(&self, settings: Settings) -> Result<(), ApplyError> {
        let routing = Routing::check(&settings)?;
        for pod in &settings.pods {
            Endpoint::new(&pod.url, settings.breaker, 1)
                .map_err(|cause| ApplyError::Address { pod: pod.facts.name.to_string(), cause })?;
        }
        let before = self.settings();
        let wanted = settings.pods.clone();
        *self.routing.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routing);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        for old in before.pods.iter().filter(|old| !wanted.contains(old)) {
            self.remove_pod(old.facts.name.as_str());
        }
        for new in wanted.into_iter().filter(|new| !before.pods.contains(new)) {
            self.add_pod(new)?;
        }
        Ok(())
    }

    /// A pod said what it serves.
    pub(crate) fn introduce(&self, url: &str, cards: &Arc<[Value]>) {
        let _changing = lock(&self.changing);
        let mut seats = self.roster().seats().to_vec();
        for seat in seats.iter_mut().filter(|seat| seat.settings.url == url) {
            let mut facts = seat.pod.facts().clone();
            if seat.settings.facts.models.is_empty() {
                let name = |card: &Value| card["id"].as_str().map(Into::into);
                let is_base = |card: &&Value| !card["parent"].is_string();
                facts.models = cards.iter().filter(is_base).filter_map(name).collect();
                facts.loras = cards.iter().filter(|card| !is_base(card)).filter_map(name).collect();
            }
            seat.cards = Arc::clone(cards);
            if facts != *seat.pod.facts() {
                seat.pod = seat.pod.with_facts(facts);
            }
        }
        self.seat(seats);
    }

    pub(crate) fn ended(&self, record: &Record) {
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
    pub(crate) const fn seed(&self, worker: usize) -> u64 {
        self.seed.wrapping_add((worker as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn seat(&self, seats: Vec<Seat>) {
        let roster = Roster::new(seats, self.routing().aliases());
        *self.roster.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(roster);
    }

    /// Takes a pod into the index that says nothing of its cache. Never silently: what is believed of it is a
    /// guess.
    fn guess(&self, pod: &PodSettings) -> Result<PodId, NoSlot> {
        let id = self.index.add_pod()?;
        let name = &pod.facts.name;
        let Some(tokens) = pod.facts.kv_tokens else {
            tracing::warn!(pod = %name, "sends no cache events: for a while after a prompt was sent there it is guessed to be cached; give `events`, or `kv_tokens` for a better guess");
            return Ok(id);
        };
        let settings = self.settings();
        let model = pod.facts.models.first();
        let known = settings
            .models
            .iter()
            .find(|known| model.is_none_or(|name| *name == *known.name.as_str()));
        let block_tokens = known.map_or(BLOCK_TOKENS, |model| model.block_size.get());
        let capacity = usize::try_from(tokens).unwrap_or(usize::MAX) / block_tokens;
        tracing::warn!(pod = %name, blocks = capacity, "sends no cache events: what it holds is guessed from what it is sent");
        self.memory.0.add(id, capacity);
        Ok(id)
    }

    /// How a pod's events are to be understood.
    fn serving(&self, pod: &PodSettings) -> Result<Serving, ApplyError> {
        let settings = self.settings();
        let named = pod.facts.models.first();
        let model = settings
            .models
            .iter()
            .find(|model| named.is_none_or(|name| *name == *model.name.as_str()))
            .ok_or_else(|| ApplyError::EventsWithoutModel(pod.facts.name.to_string()))?;
        Ok(Serving {
            key: settings.key.clone(),
            model: model.name.clone(),
            block_size: model.block_size,
            names: wornpath_events::Names::default(),
        })
    }

    /// Starts to listen to a pod's engine, if it is the engine that speaks.
    fn feed(
        &self,
        pod: &Arc<str>,
        source: &EventSource,
        (endpoint, rank): (&Arc<Endpoint>, Option<u32>),
    ) -> Option<AbortHandle> {
        let (events, clock, pod) = (Arc::clone(&self.events), self.clock, Arc::clone(pod));
        let fed = match source {
            EventSource::Elsewhere => return None,
            EventSource::ZeroMq(address) => {
                let address = address.clone();
                self.background.spawn(async move {
                    let make = || ZeroMq::new(Arc::clone(&pod), address.clone());
                    supervise(make, &events, clock).await;
                })
            }
            EventSource::Asked => {
                let endpoint = Arc::clone(endpoint);
                let asked = Asked { pod, endpoint, rank: rank.unwrap_or(0) };
                self.background.spawn(async move {
                    asked.follow(events, clock).await;
                })
            }
        };
        Some(fed.abort_handle())
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
