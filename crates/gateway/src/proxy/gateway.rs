//! The state that all workers share: pods, queues, quotas, budgets, and the APIs around them.
//!
//! It is made once at startup and lives as long as the process; each field locks by itself, so
//! there is no lock on the whole.

use crate::fleet::block_size;
use crate::fleet::checkpoint::Checkpoint;
use crate::fleet::registry::{ApplyError, PodRegistry};
use crate::fleet::snapshot::FleetSnapshot;
use crate::local_api::LocalApi;
use crate::observe::metrics::Metrics;
use crate::observe::summary::{RequestSummary, SummaryObserver};
use crate::observe::traffic_recorder::TrafficRecorder;
use crate::proxy::body_budget::BodyBudget;
use crate::proxy::continuation::reason::Continuations;
use crate::proxy::low_priority_pool::LowPriorityPool;
use crate::proxy::model_waits::ModelWaits;
use crate::proxy::quota::Quotas;
use crate::proxy::shadow::{Comparison, Shadow};
use crate::proxy::wait_queue::WaitQueues;
use crate::routes::RouteTable;
use crate::watchdog::heartbeat::Threads;
use std::array;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use wornpath_blocks::BlockHash;
use wornpath_config::{ModelSettings, Settings};
use wornpath_events::Clock;
use wornpath_execution::{BudgetRules, PoisonRequests, RetryBudget};
use wornpath_index::Moment;
use wornpath_routing::Name;
use wornpath_routing::{FleetPod, Health, Rng};

/// Whether the gateway takes requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// No pod is up.
    Starting,
    /// At least one pod is up, or requests may wait for one.
    Ready,
    /// The gateway is shutting down.
    Draining,
}

/// Shared by all workers, and by the local and admin APIs.
pub struct Gateway {
    pods: Arc<PodRegistry>,
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
    pub(crate) prefix_locks: PrefixLocks,
    pub(crate) wait_queue: WaitQueues,
    pub(crate) model_waits: ModelWaits,
    pub(crate) shadow: Shadow,
    pub(crate) quotas: Quotas,
    bodies: Arc<BodyBudget>,
    pub(crate) budget: RetryBudget,
    pub(crate) tenant_budgets: TenantBudgets,
    pub(crate) poison: PoisonRequests,
    pub(crate) continuations: Continuations,
    recorder: TrafficRecorder,
    pub(crate) pool: LowPriorityPool,
    threads: Arc<Threads>,
    seed: u64,
    is_draining: AtomicBool,
    is_cut: AtomicBool,
    connections: AtomicUsize,
    observers: OnceLock<Vec<Arc<dyn SummaryObserver>>>,
    metrics: OnceLock<Arc<Metrics>>,
    local_api: OnceLock<Arc<dyn LocalApi>>,
}

impl Gateway {
    /// Restores the checkpoint and adds the configured pods. Everything that is not a request runs
    /// on `background`.
    ///
    /// # Errors
    /// If the settings cannot be used.
    pub fn new(
        mut settings: Settings,
        background: Handle,
        seed: u64,
    ) -> Result<Arc<Self>, ApplyError> {
        let checkpoint = settings.checkpoint.clone().map(Checkpoint::new).map(Arc::new);
        let records = checkpoint.as_ref().map_or_else(Vec::new, |checkpoint| checkpoint.read());
        block_size::restore(&mut settings, &records);
        let clock = Clock::start();
        let threads = Arc::<Threads>::default();
        let pods = settings.pods.clone();
        let gateway = Arc::new(Self {
            checkpoint,
            prefix_locks: PrefixLocks::default(),
            wait_queue: WaitQueues::default(),
            model_waits: ModelWaits::default(),
            shadow: Shadow::default(),
            quotas: Quotas::default(),
            bodies: Arc::default(),
            budget: RetryBudget::new(settings.retries, clock.now()),
            tenant_budgets: TenantBudgets::default(),
            poison: PoisonRequests::new(rng(seed, usize::MAX).bits()),
            continuations: Continuations::default(),
            recorder: TrafficRecorder::default(),
            pool: LowPriorityPool::new(
                background.clone(),
                Arc::clone(&threads),
                settings.workers.get(),
            ),
            threads,
            pods: Arc::new(PodRegistry::new(settings, background, clock)?),
            seed,
            is_draining: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            observers: OnceLock::new(),
            metrics: OnceLock::new(),
            local_api: OnceLock::new(),
        });
        gateway.pods.events().load_checkpoint(records);
        for pod in pods {
            gateway.pods.add_pod(pod)?;
        }
        Ok(gateway)
    }

    /// The pods, their settings, events and index.
    #[must_use]
    pub const fn pods(&self) -> &Arc<PodRegistry> {
        &self.pods
    }

    /// The time since the gateway started.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.pods.now()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.pods.settings()
    }

    /// The profiles in force, and the rules that select one for a request.
    #[must_use]
    pub fn routes(&self) -> Arc<RouteTable> {
        self.pods.routes()
    }

    /// The current pods.
    #[must_use]
    pub fn snapshot(&self) -> Arc<FleetSnapshot> {
        self.pods.snapshot()
    }

    /// The traffic recorder.
    #[must_use]
    pub const fn recorder(&self) -> &TrafficRecorder {
        &self.recorder
    }

    /// The heartbeats of all threads.
    #[must_use]
    pub const fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }

    /// The budget of request bodies in memory.
    #[must_use]
    pub const fn bodies(&self) -> &Arc<BodyBudget> {
        &self.bodies
    }

    /// Requests in the wait queue, and those that wait for the first pod of their model.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.wait_queue.waiting() + self.model_waits.without_pod()
    }

    /// Retries made, and retries that the budget refused.
    #[must_use]
    pub fn retries(&self) -> (u64, u64) {
        (self.budget.spent(), self.budget.refused())
    }

    /// The retry budget of a tenant.
    pub(crate) fn tenant_budget(&self, tenant: Option<&Name>) -> Option<Arc<RetryBudget>> {
        let rules = self.settings().retries;
        Some(self.tenant_budgets.of(tenant?, rules, self.now()))
    }

    /// Requests that were refused because they had broken the connections to two pods.
    #[must_use]
    pub fn poison_refused(&self) -> u64 {
        self.poison.refused()
    }

    /// What the shadow profile would have chosen, with the names of the first profile and the
    /// shadow.
    #[must_use]
    pub fn shadow_comparisons(&self) -> Vec<((String, String), Comparison)> {
        self.shadow.comparisons()
    }

    /// Open connections of clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Whether the gateway is shutting down.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    /// Whether load balancers should send requests to this gateway.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        if self.is_draining() {
            return Readiness::Draining;
        }
        let is_up = |pod: &FleetPod| pod.state().health() == Health::Up;
        // A model without pods only gets one if requests for it arrive.
        let waits = |model: &ModelSettings| !model.wait_for_pod.is_zero();
        if self.snapshot().fleet().pods().iter().any(is_up)
            || self.settings().models.iter().any(waits)
        {
            Readiness::Ready
        } else {
            Readiness::Starting
        }
    }

    /// Sets the observers of every request. Call it once, before the first request.
    pub fn observe(&self, observers: Vec<Arc<dyn SummaryObserver>>) {
        // A second call changes nothing.
        let _ = self.observers.set(observers);
    }

    /// Lets the observers flush before the process ends.
    pub(crate) async fn finish(&self) {
        for observer in self.observers.get().into_iter().flatten() {
            observer.finish().await;
        }
    }

    /// Sets the metrics that `/metrics` shows. Call it once, before the first request.
    pub fn count(&self, metrics: Arc<Metrics>) {
        // A second call changes nothing.
        let _ = self.metrics.set(metrics);
    }

    /// The metrics, if any are kept.
    #[must_use]
    pub fn metrics(&self) -> Option<&Arc<Metrics>> {
        self.metrics.get()
    }

    /// Serves a local API next to those of the engines. Call it once, before the first request.
    pub fn serve_locally(&self, api: Arc<dyn LocalApi>) {
        // A second call changes nothing.
        let _ = self.local_api.set(api);
    }

    /// The local API, if one is set.
    #[must_use]
    pub fn local_api(&self) -> Option<&Arc<dyn LocalApi>> {
        self.local_api.get()
    }

    /// Tells the observers that a request has ended.
    pub(crate) fn ended(&self, summary: &RequestSummary) {
        // Without the request id and the prompt: the client chooses both, and they may be private.
        tracing::debug!(
            api = summary.api.name(),
            profile = %summary.profile,
            pod = summary.pod.as_ref().map(|(_, name)| name.as_str()),
            status = summary.status,
            end = summary.ended.word(),
            retries = summary.retries,
            took = ?summary.total,
            "request ended"
        );
        self.recorder.ended(summary);
        for observer in self.observers.get().into_iter().flatten() {
            observer.ended(summary);
        }
    }

    pub(crate) fn start_draining(&self) {
        self.is_draining.store(true, Relaxed);
    }

    /// Ends what is in flight with an error, when it is polled next.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Relaxed);
    }

    /// Whether the drain took too long: what is in flight ends with an error.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Relaxed)
    }

    pub(crate) const fn connection_count(&self) -> &AtomicUsize {
        &self.connections
    }

    /// The random generator of a worker.
    pub(crate) fn rng(&self, worker: usize) -> Rng {
        rng(self.seed, worker)
    }
}

/// A generator for each worker. Its state is itself random: with states one step apart, two workers
/// would draw the same numbers, and their requests would get the same ids.
fn rng(seed: u64, worker: usize) -> Rng {
    Rng::new(Rng::new(seed.wrapping_add(worker as u64)).bits())
}

/// So many that threads with different prompts rarely share a lock.
const LOCKS: usize = 256;

#[derive(Debug)]
pub(crate) struct PrefixLocks([Arc<Semaphore>; LOCKS]);

impl Default for PrefixLocks {
    fn default() -> Self {
        Self(array::from_fn(|_| Arc::new(Semaphore::new(1))))
    }
}

impl PrefixLocks {
    /// Locks a block, unless another thread has it. Without a block there is nothing to lock.
    pub(crate) fn try_lock(
        &self,
        block: Option<BlockHash>,
    ) -> Result<Option<OwnedSemaphorePermit>, TryAcquireError> {
        let Some(block) = block else { return Ok(None) };
        Arc::clone(self.lock_of(block)).try_acquire_owned().map(Some)
    }

    /// Waits until the lock on a block is free.
    pub(crate) async fn wait(&self, block: Option<BlockHash>) {
        if let Some(block) = block {
            let _permit = self.lock_of(block).acquire().await;
        }
    }

    fn lock_of(&self, block: BlockHash) -> &Arc<Semaphore> {
        &self.0[(block.0 % LOCKS as u64) as usize]
    }
}

/// The retry budgets of tenants: as many as were configured since the start.
#[derive(Debug, Default)]
pub(crate) struct TenantBudgets(Mutex<HashMap<Name, Arc<RetryBudget>>>);

impl TenantBudgets {
    /// The budget of a tenant; `rules` are those of the router.
    pub(crate) fn of(&self, tenant: &Name, rules: BudgetRules, now: Moment) -> Arc<RetryBudget> {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = tenants.get(tenant) {
            return Arc::clone(budget);
        }
        let budget = Arc::new(RetryBudget::new(rules.of_tenant(), now));
        tenants.insert(tenant.clone(), Arc::clone(&budget));
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_workers_draw_the_same_numbers() {
        for seed in 0..20 {
            let drawn = (0..64).flat_map(|worker| {
                let mut rng = rng(seed, worker);
                (0..100).map(move |_| rng.bits()).collect::<Vec<_>>()
            });
            assert_eq!(drawn.collect::<HashSet<_>>().len(), 6400, "{seed}");
        }
    }
}
