//! A worker: one of the threads that answer clients, with what it decides with.

use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::summary::Speculative;
use crate::proxy::gateway::Gateway;
use crate::proxy::wait_queue::Decider;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::running;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OwnedSemaphorePermit;
use wornpath_blocks::BlockHash;
use wornpath_config::BodyLength;
use wornpath_execution::WorkerNumber;
use wornpath_index::{Moment, PodId};
use wornpath_routing::{DecisionEnv, DecisionState, Outcome, Rng, SpeculativeInsert};

/// How often a request is decided again because a concurrent one with its prefix was faster. Each
/// time it follows that one, so it loses again only to a third.
const MAX_RACES: usize = 4;

static DECIDE: TaskName = TaskName::new("decide a request");
static UPDATE_INDEX: TaskName = TaskName::new("update the index");

/// The speculative insert of a plan, with the lock on the first block that its pod lacks.
pub(crate) type LockedInsert = SpeculativeInsert<OwnedSemaphorePermit>;

/// A thread that answers clients. Its lock is contended only while another thread polls the wait
/// queue, so it costs next to nothing.
pub struct Worker {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) number: WorkerNumber,
    inner: Mutex<WorkerState>,
}

struct WorkerState {
    state: DecisionState,
    rng: Rng,
}

impl WorkerState {
    /// The inputs of a decision in this fleet, at this time.
    fn env<'a>(&'a mut self, snapshot: &'a FleetSnapshot, now: Moment) -> DecisionEnv<'a> {
        let Self { state, rng } = self;
        DecisionEnv { fleet: snapshot.fleet(), state, now, rng }
    }
}

impl Worker {
    /// A worker. No other worker of the gateway has its number.
    #[must_use]
    pub fn new(gateway: Arc<Gateway>, number: usize) -> Self {
        let state =
            DecisionState::with_history(gateway.pods().index(), gateway.pods().routing_history());
        let inner = WorkerState { state, rng: gateway.rng(number) };
        Self { gateway, number: WorkerNumber(number), inner: Mutex::new(inner) }
    }

    /// Decides in this fleet, and commits the speculative insert of the plan at once.
    pub(crate) fn decide_now<T>(
        &self,
        snapshot: &FleetSnapshot,
        now: Moment,
        decide: impl FnOnce(&mut DecisionEnv<'_>) -> T,
    ) -> T {
        let mut inner = self.inner();
        let decided = {
            let _running = running(&DECIDE);
            decide(&mut inner.env(snapshot, now))
        };
        // Not only with this thread's next decision: other threads decide too.
        let _running = running(&UPDATE_INDEX);
        inner.state.commit_pending();
        decided
    }

    /// Decides for a request of this length; again if another thread was faster to send the same
    /// new prefix to a pod. Without an insert, the index is updated already.
    pub(crate) async fn decide(
        &self,
        length: BodyLength,
        mut decide: impl FnMut(&mut DecisionEnv<'_>) -> Outcome,
    ) -> (Outcome, Option<LockedInsert>) {
        let gateway = &self.gateway;
        for _ in 0..MAX_RACES {
            let (outcome, insert) = {
                let mut inner = self.inner();
                let running = running(&DECIDE);
                let outcome = decide(&mut inner.env(&gateway.snapshot(), gateway.now()));
                drop(running);
                (outcome, inner.state.take_pending())
            };
            let Some(insert) = insert else { return (outcome, None) };
            let block = insert.first_missing();
            let Ok(lock) = gateway.prefix_locks.try_lock(block) else {
                // Without the plan: other threads would see the load that it reserves.
                drop((outcome, insert));
                gateway.prefix_locks.wait(block).await;
                continue;
            };
            if self.inner().state.has_lost_race(&insert) {
                continue;
            }
            if !length.is_long {
                return (outcome, Some(insert.with_lock(lock)));
            }
            // In the pool for a long prompt: streams on this thread would stall.
            let owner = Arc::clone(gateway);
            let commit = move || insert.commit(owner.pods().index());
            let committed = gateway.pool.spawn(&UPDATE_INDEX, length.bytes, commit);
            // It fails only if the gateway is shutting down.
            let _ = committed.await;
            return (outcome, None);
        }
        (self.decide_now(&gateway.snapshot(), gateway.now(), decide), None)
    }

    /// Decides without effects, to explain what was decided.
    pub(crate) fn rehearse<T>(&self, decide: impl FnOnce(&mut DecisionEnv<'_>) -> T) -> T {
        let _running = running(&DECIDE);
        let snapshot = self.gateway.snapshot();
        let mut state = DecisionState::rehearsing(self.gateway.pods().index());
        let mut rng = Rng::new(self.random());
        let fleet = snapshot.fleet();
        let now = self.gateway.now();
        decide(&mut DecisionEnv { fleet, state: &mut state, now, rng: &mut rng })
    }

    /// Rolls back the insert of a prompt of `bytes` bytes that its pod has refused.
    pub(crate) fn rollback(&self, pod: PodId, chain: &[BlockHash], bytes: usize) {
        let gateway = &self.gateway;
        let mut inner = self.inner();
        // In the pool for a long prompt: streams on this thread would stall.
        if !gateway.settings().limits.length(bytes).is_long {
            let _running = running(&UPDATE_INDEX);
            inner.state.rollback(pod, chain);
            return;
        }
        let insert = inner.state.committed(pod, chain);
        let owner = Arc::clone(gateway);
        gateway.pool.spawn(&UPDATE_INDEX, bytes, move || insert.rollback(owner.pods().index()));
    }

    /// Commits the insert of a plan whose request is on its way.
    pub(crate) fn commit(&self, insert: LockedInsert) {
        let _running = running(&UPDATE_INDEX);
        self.inner().state.commit(insert);
    }

    /// Whether events have confirmed by now what was speculative when a request was sent.
    pub(crate) fn is_confirmed(&self, prefix: &Speculative) -> bool {
        self.inner().state.is_confirmed(prefix.pod, prefix.last)
    }

    fn inner(&self) -> MutexGuard<'_, WorkerState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gateway that the worker belongs to.
    #[must_use]
    pub const fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// A random number.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.inner().rng.bits()
    }
}

impl Decider for Worker {
    fn now(&self) -> Moment {
        self.gateway.now()
    }

    fn most_waiting_bytes(&self) -> usize {
        self.gateway.settings().limits.waiting_bytes
    }

    fn decide_with(&self, now: Moment, decide: impl FnOnce(&mut DecisionEnv<'_>)) {
        self.decide_now(&self.gateway.snapshot(), now, decide);
    }
}
