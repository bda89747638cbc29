//! One of the threads that answer clients: its number, and what it decides with.

use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::request_trace::{CallTrace, RequestTrace, kept};
use crate::observe::summary::{RequestSummary, Speculative};
use crate::proxy::gateway::Gateway;
use crate::proxy::kv_lease::KvLease;
use crate::proxy::prefix_locks::PrefixLock;
use crate::proxy::wait_queue::{Decider, Waiter};
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::running;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wornpath_blocks::BlockHash;
use wornpath_config::BodyLength;
use wornpath_execution::{CallAttempt, Replan, Target, WorkerNumber};
use wornpath_index::{Moment, PodId};
use wornpath_routing::queue::Redecision;
use wornpath_routing::{
    DecisionEnv, DecisionState, Outcome, PendingInsert, Profile, Rejection, Retry, Rng,
    RoutingContext, RoutingPlan,
};

/// How often a request is decided again because another one with its prefix was faster. Each time it finds
/// that other one, so it loses again only to a third.
const MOST_RACES: usize = 4;

static DECIDE: TaskName = TaskName::new("decide a request");
static UPDATE_INDEX: TaskName = TaskName::new("update the index");

/// A thread that answers clients. Its lock is only ever wanted by itself, and by who polls the waiting
/// room: it costs next to nothing.
pub struct Worker {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) number: WorkerNumber,
    tools: Mutex<WorkerState>,
}

struct WorkerState {
    desk: DecisionState,
    rng: Rng,
}

impl WorkerState {
    fn look<T>(
        &mut self,
        snapshot: &FleetSnapshot,
        now: Moment,
        decide: impl FnOnce(&mut DecisionEnv<'_>) -> T,
    ) -> T {
        let Self { desk, rng } = self;
        let _running = running(&DECIDE);
        decide(&mut DecisionEnv { fleet: snapshot.fleet(), desk, now, rng })
    }
}

impl Worker {
    /// A worker of that number, which no other worker has.
    #[must_use]
    pub fn new(gateway: Arc<Gateway>, number: usize) -> Self {
        let desk = DecisionState::with_memory(
            gateway.pods().index(),
            Arc::new(gateway.pods().history.clone()),
        );
        let tools = WorkerState { desk, rng: gateway.rng(number) };
        Self { gateway, number: WorkerNumber(number), tools: Mutex::new(tools) }
    }

    /// Shows the world to `decide`, as it is now, and tells the index what comes of it.
    pub(crate) fn with_world<T>(
        &self,
        snapshot: &FleetSnapshot,
        now: Moment,
        decide: impl FnOnce(&mut DecisionEnv<'_>) -> T,
    ) -> T {
        let mut tools = self.tools();
        let decided = tools.look(snapshot, now, decide);
        // Not only with this thread's next decision: other threads decide too.
        let _running = running(&UPDATE_INDEX);
        tools.desk.settle();
        decided
    }

    /// Decides for a request whose body is so long; again if another thread was faster to send the
    /// same new prefix somewhere.
    pub(crate) async fn decide(
        &self,
        length: BodyLength,
        mut decide: impl FnMut(&mut DecisionEnv<'_>) -> Outcome,
    ) -> (Outcome, PendingIndexUpdate) {
        let gateway = &self.gateway;
        for _ in 0..MOST_RACES {
            let (outcome, unsettled) = {
                let mut tools = self.tools();
                let outcome = tools.look(&gateway.snapshot(), gateway.now(), &mut decide);
                (outcome, tools.desk.unsettled())
            };
            let Some(unsettled) = unsettled else {
                return (outcome, PendingIndexUpdate::default());
            };
            let frontier = unsettled.frontier();
            let Ok(claim) = gateway.prefix_locks.try_hold(frontier) else {
                // Not with a plan: its load would be seen by all who decide meanwhile.
                drop((outcome, unsettled));
                gateway.prefix_locks.wait(frontier).await;
                continue;
            };
            if self.tools().desk.is_beaten(&unsettled) {
                continue;
            }
            if !length.is_long {
                return (outcome, PendingIndexUpdate::new(unsettled, claim));
            }
            // Apart for a long prompt: streams on this thread would feel it.
            let owner = Arc::clone(gateway);
            let tell = move || unsettled.tell(owner.pods().index());
            let told = gateway.pool.spawn(&UPDATE_INDEX, length.bytes, tell);
            // It fails only if the gateway is ending.
            let _ = told.await;
            return (outcome, PendingIndexUpdate::default());
        }
        (self.with_world(&gateway.snapshot(), gateway.now(), decide), PendingIndexUpdate::default())
    }

    /// A pod has refused a prompt of so many bytes, of which it was expected to hold the chain.
    fn withdraw(&self, pod: PodId, chain: &[BlockHash], bytes: usize) {
        let gateway = &self.gateway;
        let mut tools = self.tools();
        // Apart for a long prompt: streams on this thread would feel it.
        if !gateway.settings().limits.length(bytes).is_long {
            let _running = running(&UPDATE_INDEX);
            tools.desk.withdraw(pod, chain);
            return;
        }
        let (withdrawal, owner) = (tools.desk.withdrawal(pod, chain), Arc::clone(gateway));
        gateway.pool.spawn(&UPDATE_INDEX, bytes, move || withdrawal.tell(owner.pods().index()));
    }

    /// Whether events have confirmed by now that a pod holds what was speculative when a request was sent there.
    pub(crate) fn is_confirmed(&self, prefix: &Speculative) -> bool {
        self.tools().desk.is_confirmed(prefix.pod, prefix.last)
    }

    fn tools(&self) -> MutexGuard<'_, WorkerState> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs work that may take long in the low-priority pool.
    pub(crate) async fn run_apart<T: Send + 'static>(
        &self,
        task: &'static TaskName,
        length: BodyLength,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Rejection> {
        let closed = |_| Rejection::unavailable("the gateway is shutting down");
        self.gateway.pool.run(task, length.bytes, work).await.map_err(closed)
    }

    /// The gateway that the worker belongs to.
    #[must_use]
    pub const fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// A random number.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.tools().rng.bits()
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
        self.with_world(&self.gateway.snapshot(), now, decide);
    }
}

/// What the index is to be told of a plan, and the claim under which that is done. Locked only ever by one request.
#[derive(Default)]
pub(crate) struct PendingIndexUpdate(Mutex<Option<(PendingInsert, Option<PrefixLock>)>>);

impl PendingIndexUpdate {
    fn new(unsettled: PendingInsert, claim: Option<PrefixLock>) -> Self {
        Self(Mutex::new(Some((unsettled, claim))))
    }

    /// Tells it, if that was not done yet.
    pub(crate) fn tell(&self, worker: &Worker) {
        let untold = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((unsettled, _claim)) = untold {
            let _running = running(&UPDATE_INDEX);
            worker.tools().desk.tell(unsettled);
        }
    }

    /// Tells it as soon as `sent` has to wait, which it does for its engine: that is at work meanwhile.
    pub(crate) async fn tell_after<T>(&self, worker: &Worker, sent: impl Future<Output = T>) -> T {
        let (mut sent, mut is_told) = (pin!(sent), false);
        poll_fn(|context| {
            let polled = sent.as_mut().poll(context);
            if !is_told {
                self.tell(worker);
                is_told = true;
            }
            polled
        })
        .await
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
    pub(crate) snapshot: Arc<FleetSnapshot>,
    /// Of the first decision, if nothing has come of it yet: whatever is told later follows that.
    pub(crate) untold: &'a PendingIndexUpdate,
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
        let entry = plan.steps.last().and_then(|step| self.snapshot.entry(step.pod?));
        record.pod = entry.map(|entry| (entry.pod.id(), entry.pod.facts().name.clone()));
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
            record.trace = kept(self.seen.take());
        }
    }
}

impl Replan for Dispatcher<'_> {
    fn target(&self, pod: PodId) -> Option<Target> {
        self.snapshot.target(pod)
    }

    async fn replan(&mut self, retry: Retry<'_>) -> Result<RoutingPlan, Rejection> {
        let (worker, gateway) = (self.worker, &self.worker.gateway);
        self.untold.tell(worker);
        if retry.step.is_none() && self.handover.is_some_and(KvLease::has_client_left) {
            return Err(Rejection::unavailable("the client has left"));
        }
        let ending = || Rejection::unavailable("the gateway is ending");
        let mut context = self.context.take().ok_or_else(ending)?;
        self.snapshot = gateway.snapshot();
        let outcome = worker.with_world(&self.snapshot, gateway.now(), |world| {
            self.profile.replan(&mut context, world, retry)
        });
        let (context, decided) = match outcome {
            Outcome::Plan(plan) => (Some(context), Ok(plan)),
            Outcome::Reject(rejection) => (Some(context), Err(rejection)),
            Outcome::Hold(hold) => {
                let again =
                    Redecision { step: retry.step.cloned(), excluded: retry.excluded.to_vec() };
                let waiter = Waiter { profile: self.profile, context, again, bytes: self.bytes };
                let waited = Box::pin(gateway.wait_queue.wait(worker, hold, waiter)).await;
                self.snapshot = gateway.snapshot();
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
            self.untold.tell(self.worker);
            self.worker.withdraw(pod, &blocks.chain, self.bytes);
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
