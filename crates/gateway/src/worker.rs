//! One of the threads that answer clients: its number, and what it decides with.

use crate::client::KvLease;
use crate::fleet::FleetSnapshot;
use crate::low_priority_pool::aside;
use crate::request_trace::{CallTrace, RequestTrace, kept};
use crate::settings::Length;
use crate::state::Gateway;
use crate::summary::{RequestSummary, Speculative};
use crate::wait_queue::Waiter;
use crate::watchdog::{TaskName, running};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OwnedSemaphorePermit;
use wornpath_blocks::BlockHash;
use wornpath_execution::{CallAttempt, Replan, Target, WorkerNumber};
use wornpath_index::{Moment, PodId};
use wornpath_routing::queue::Redecision;
use wornpath_routing::{
    DecisionEnv, DecisionState, Outcome, Profile, Rejection, Retry, Rng, RoutingContext,
    RoutingPlan, SpeculativeInsert,
};

/// How often a request is decided again because a concurrent one with its prefix was faster. Each time it
/// follows that one, so it loses again only to a third.
const MOST_RACES: usize = 4;

static DECIDE: TaskName = TaskName::new("decide a request");
static UPDATE_INDEX: TaskName = TaskName::new("update the index");

/// The speculative insert of a request's first plan, under the lock on its first missing block, until it is
/// committed. Contended only by the parts of one request.
pub(crate) type FirstInsert = Mutex<Option<SpeculativeInsert<OwnedSemaphorePermit>>>;

/// A thread that answers clients. Its lock is only ever wanted by itself, and by who polls the waiting
/// room: it costs next to nothing.
pub(crate) struct Worker {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) number: WorkerNumber,
    tools: Mutex<WorkerState>,
}

struct WorkerState {
    state: DecisionState,
    rng: Rng,
}

impl WorkerState {
    /// The inputs of a decision in this fleet, at this time.
    fn env<'a>(&'a mut self, roster: &'a FleetSnapshot, now: Moment) -> DecisionEnv<'a> {
        let Self { state, rng } = self;
        DecisionEnv { fleet: roster.fleet(), state, now, rng }
    }
}

impl Worker {
    pub(crate) fn new(gateway: Arc<Gateway>, number: usize) -> Self {
        let state = DecisionState::with_history(gateway.index(), Arc::new(gateway.memory.clone()));
        let tools = WorkerState { state, rng: gateway.chance(number) };
        Self { gateway, number: WorkerNumber(number), tools: Mutex::new(tools) }
    }

    /// Decides in this fleet, and commits the speculative insert of the plan at once.
    pub(crate) fn with_world<T>(
        &self,
        roster: &FleetSnapshot,
        now: Moment,
        decide: impl FnOnce(&mut DecisionEnv<'_>) -> T,
    ) -> T {
        let mut tools = self.tools();
        let decided = {
            let _running = running(&DECIDE);
            decide(&mut tools.env(roster, now))
        };
        // Not only with this thread's next decision: other threads decide too.
        let _running = running(&UPDATE_INDEX);
        tools.state.commit_pending();
        decided
    }

    /// Decides for a request of this length; again if another thread was faster to send the same new
    /// prefix to a pod.
    pub(crate) async fn decide(
        &self,
        length: Length,
        mut decide: impl FnMut(&mut DecisionEnv<'_>) -> Outcome,
    ) -> (Outcome, FirstInsert) {
        let gateway = &self.gateway;
        for _ in 0..MOST_RACES {
            let (outcome, insert) = {
                let mut tools = self.tools();
                let running = running(&DECIDE);
                let outcome = decide(&mut tools.env(&gateway.roster(), gateway.now()));
                drop(running);
                (outcome, tools.state.take_pending())
            };
            let Some(insert) = insert else { return (outcome, FirstInsert::default()) };
            let block = insert.first_missing();
            let Ok(lock) = gateway.claims.try_lock(block) else {
                // Without the plan: other threads would see the load that it reserves.
                drop((outcome, insert));
                gateway.claims.wait(block).await;
                continue;
            };
            if self.tools().state.has_lost_race(&insert) {
                continue;
            }
            if !length.is_long {
                return (outcome, Mutex::new(Some(insert.with_lock(lock))));
            }
            // Apart for a long prompt: streams on this thread would feel it.
            let owner = Arc::clone(gateway);
            let commit = move || insert.commit(owner.index());
            let committed = aside(gateway, &UPDATE_INDEX, length.bytes, commit);
            // It fails only if the gateway is ending.
            let _ = committed.await;
            return (outcome, FirstInsert::default());
        }
        (self.with_world(&gateway.roster(), gateway.now(), decide), FirstInsert::default())
    }

    /// Rolls back the insert of a prompt of `bytes` bytes that its pod has refused.
    fn rollback(&self, pod: PodId, chain: &[BlockHash], bytes: usize) {
        let gateway = &self.gateway;
        let mut tools = self.tools();
        // Apart for a long prompt: streams on this thread would feel it.
        if !gateway.settings().limits.length(bytes).is_long {
            let _running = running(&UPDATE_INDEX);
            tools.state.rollback(pod, chain);
            return;
        }
        let insert = tools.state.committed(pod, chain);
        let owner = Arc::clone(gateway);
        aside(gateway, &UPDATE_INDEX, bytes, move || insert.rollback(owner.index()));
    }

    /// Commits the insert of a request's first plan, if that was not done yet.
    pub(crate) fn commit(&self, insert: &FirstInsert) {
        let insert = insert.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(insert) = insert {
            let _running = running(&UPDATE_INDEX);
            self.tools().state.commit(insert);
        }
    }

    /// Commits as soon as `sent` has to wait, which it does for its engine: that computes meanwhile.
    pub(crate) async fn commit_after<T>(
        &self,
        insert: &FirstInsert,
        sent: impl Future<Output = T>,
    ) -> T {
        let mut sent = pin!(sent);
        let mut is_committed = false;
        poll_fn(|context| {
            let polled = sent.as_mut().poll(context);
            if !is_committed {
                self.commit(insert);
                is_committed = true;
            }
            polled
        })
        .await
    }

    /// Whether events have confirmed by now that a pod holds what was speculative when a request was sent there.
    pub(crate) fn is_confirmed(&self, prefix: &Speculative) -> bool {
        self.tools().state.is_confirmed(prefix.pod, prefix.last)
    }

    fn tools(&self) -> MutexGuard<'_, WorkerState> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A random number.
    pub(crate) fn random(&self) -> u64 {
        self.tools().rng.bits()
    }
}

/// Decides for the executor, always in the fleet as it is at that moment.
pub(crate) struct Dispatcher<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) profile: &'a Arc<Profile>,
    /// None only if the gateway ended while it waited.
    pub(crate) context: Option<RoutingContext>,
    /// Of the client's body.
    pub(crate) bytes: usize,
    /// Where calls are taken down, if they are.
    pub(crate) seen: Option<Box<RequestTrace>>,
    /// The fleet of the first decision, which is good for its plan.
    pub(crate) roster: Arc<FleetSnapshot>,
    /// Committed before anything else that the index learns of this request.
    pub(crate) insert: &'a FirstInsert,
    /// Where it is told what engines hold for each other, if several are at work.
    pub(crate) handover: Option<&'a KvLease>,
    /// Where it is told whose answer is waited for, and what was taken down: a client that leaves meanwhile lets nothing
    /// come to its end.
    pub(crate) record: Option<&'a mut RequestSummary>,
}

impl Dispatcher<'_> {
    /// The request is sent to whoever answers in this plan.
    pub(crate) fn goes_to(&mut self, plan: &RoutingPlan) {
        let Some(record) = &mut self.record else { return };
        let seat = plan.steps.last().and_then(|step| self.roster.seat(step.pod?));
        record.pod = seat.map(|seat| (seat.pod.id(), seat.pod.facts().name.clone()));
    }

    /// Nobody answers.
    pub(crate) fn goes_nowhere(&mut self) {
        if let Some(record) = &mut self.record {
            record.pod = None;
        }
    }
}

impl Drop for Dispatcher<'_> {
    fn drop(&mut self) {
        if let Some(record) = &mut self.record {
            record.seen = kept(self.seen.take());
        }
    }
}

impl Replan for Dispatcher<'_> {
    fn target(&self, pod: PodId) -> Option<Target> {
        self.roster.target(pod)
    }

    async fn replan(&mut self, retry: Retry<'_>) -> Result<RoutingPlan, Rejection> {
        let (worker, gateway) = (self.worker, &self.worker.gateway);
        worker.commit(self.insert);
        if retry.step.is_none() && self.handover.is_some_and(KvLease::has_client_left) {
            return Err(Rejection::unavailable("the client has left"));
        }
        let ending = || Rejection::unavailable("the gateway is ending");
        let mut context = self.context.take().ok_or_else(ending)?;
        self.roster = gateway.roster();
        let outcome = worker.with_world(&self.roster, gateway.now(), |world| {
            self.profile.replan(&mut context, world, retry)
        });
        let (context, decided) = match outcome {
            Outcome::Plan(plan) => (Some(context), Ok(plan)),
            Outcome::Reject(rejection) => (Some(context), Err(rejection)),
            Outcome::Hold(hold) => {
                let again =
                    Redecision { step: retry.step.cloned(), excluded: retry.excluded.to_vec() };
                let waiter = Waiter { profile: self.profile, context, again, bytes: self.bytes };
                let waited = Box::pin(gateway.lobby.wait(worker, hold, waiter)).await;
                self.roster = gateway.roster();
                waited
            }
        };
        self.context = context;
        if let Ok(plan) = &decided {
            self.goes_to(plan);
        }
        decided
    }

    fn now(&self) -> Moment {
        self.worker.gateway.now()
    }

    fn begins(&self) -> Option<Moment> {
        self.seen.as_ref().map(|_| self.now())
    }

    fn answered(&mut self, called: CallAttempt<'_>) {
        let ended = self.now();
        let Some(seen) = &mut self.seen else { return };
        let CallAttempt { step, endpoint, started, failure } = called;
        let (step, url) = (step.clone(), endpoint.url().to_owned());
        let failure = failure.map(ToString::to_string);
        seen.calls.push(CallTrace { step, url, started, ended, failure });
    }

    fn refused(&mut self, pod: PodId) {
        let blocks = self.context.as_ref().and_then(|it| self.profile.prompt_blocks(it));
        if let Some(blocks) = blocks {
            self.worker.commit(self.insert);
            self.worker.rollback(pod, &blocks.chain, self.bytes);
        }
    }

    fn hands_over(&mut self, until: Option<Moment>) {
        if let Some(handover) = self.handover {
            handover.is_held(until);
        }
    }

    fn room(&mut self) -> u64 {
        self.worker.random() >> 1
    }
}
