//! Low-priority threads for long work, such as tokenizing a long prompt.
//!
//! A worker that wakes up because a token has arrived should run at once. If a thread on the same
//! core is tokenizing a long prompt, the worker waits for the end of a scheduler slice, which is
//! milliseconds. A higher nice value is not enough: Linux credits a thread for the time that it did
//! not get, also under `SCHED_BATCH` and `SCHED_IDLE`, and lets it use that credit before the
//! worker runs. So these threads also yield between pieces of a text, which gives up the credit. A
//! tokenizer that cannot split a text does not yield within it.
//!
//! Clients choose the texts, so long work takes turns between senders ([`FairQueue`]), and is given
//! up between two pieces of a text if its client disconnects or its deadline passes.

use crate::proxy::fair_queue::{FairQueue, Load, Ticket};
use crate::proxy::sender::Sender;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::{Threads, step};
use crate::watchdog::stall::STUCK_AFTER;
use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wornpath_blocks::set_yield_hook;
use wornpath_config::{BodyLength, GatewayLimits, TenantSettings};

/// The nice value of these threads: on a fully loaded machine they get at most a third of the CPU
/// time that other threads get.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// Bytes of a prompt that even the slowest tokenizer processes in a second. A tokenizer without
/// proven split points takes a prompt in one piece, without a heartbeat, so the watchdog allows for
/// this time.
const BYTES_PER_SECOND: usize = 64 * 1024;

/// Where a body comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin<'a> {
    /// A client with a tenant's key.
    Tenant(&'a TenantSettings),
    /// A client, where there are no tenants.
    Address(IpAddr),
    /// A batch.
    Batch,
}

/// A body as work for the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyWork<'a> {
    pub(crate) length: BodyLength,
    pub(crate) origin: Origin<'a>,
    /// When tokenizing it is given up. A batch has none, and a short body needs none.
    pub(crate) deadline: Option<Instant>,
}

impl<'a> BodyWork<'a> {
    pub(crate) fn new(bytes: usize, origin: Origin<'a>, limits: &GatewayLimits) -> Self {
        let length = limits.length(bytes);
        let has_deadline = length.is_long && !matches!(origin, Origin::Batch);
        let deadline = has_deadline.then(|| Instant::now() + limits.tokenize_time);
        Self { length, origin, deadline }
    }

    fn load(&self) -> Load<Sender> {
        let (sender, weight) = match self.origin {
            Origin::Tenant(tenant) => (Sender::Tenant(tenant.name.clone()), tenant.weight),
            Origin::Address(address) => (Sender::at(address), 1),
            Origin::Batch => (Sender::Batches, 1),
        };
        Load { sender, weight, bytes: self.length.bytes }
    }
}

/// Runs jobs on low-priority threads, each under a name that the watchdog can report.
pub(crate) struct LowPriorityPool {
    background: Handle,
    threads: Arc<Threads>,
    turns: Arc<Turns>,
}

/// Why work in the pool has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PoolError {
    /// The gateway is shutting down.
    Closed,
    /// Too many bytes wait, and most are of this sender.
    QueueFull,
    /// The deadline has passed.
    Timeout,
}

impl LowPriorityPool {
    /// A pool whose senders share so many threads; see [`FairQueue`].
    pub(crate) fn new(background: Handle, threads: Arc<Threads>, shared: usize) -> Self {
        let turns = Arc::new(Turns(Mutex::new(FairQueue::new(shared))));
        Self { background, threads, turns }
    }

    /// Runs `work` on a prompt of `bytes`, which extend the watchdog's timeout.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: &'static TaskName,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let threads = Arc::clone(&self.threads);
        let allowance = STUCK_AFTER + Duration::from_secs((bytes / BYTES_PER_SECOND) as u64);
        self.background.spawn_blocking(move || {
            lower_priority();
            threads.run_job(task, allowance, work)
        })
    }

    /// Waits for the turn of a body's sender. At most `most_bytes` of all bodies wait.
    pub(crate) async fn turn(
        &self,
        body: &BodyWork<'_>,
        most_bytes: usize,
    ) -> Result<PoolTurn, PoolError> {
        let load = body.load();
        let sender = load.sender.clone();
        let (grant, granted) = oneshot::channel();
        let ticket = self.turns.push(load, grant, most_bytes);
        let mut waiting = CancelOnDrop { turns: &self.turns, sender, ticket: Some(ticket) };
        // The grant is dropped only if the bound on bytes displaces it.
        let turn = granted.await.map_err(|_| PoolError::QueueFull)?;
        waiting.ticket = None;
        Ok(turn)
    }

    /// Like [`Self::turn`], until the deadline of the body.
    pub(crate) async fn turn_in_time(
        &self,
        body: &BodyWork<'_>,
        most_bytes: usize,
    ) -> Result<PoolTurn, PoolError> {
        let turn = self.turn(body, most_bytes);
        match body.deadline {
            None => turn.await,
            Some(deadline) => {
                let turn = tokio::time::timeout_at(deadline, turn).await;
                turn.unwrap_or(Err(PoolError::Timeout))
            }
        }
    }

    /// Runs `work` on a body whose turn it is. Dropping the job stops it where it yields.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        turn: PoolTurn,
        task: &'static TaskName,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> PoolJob<T> {
        let is_stopped = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&is_stopped);
        let work = move || {
            let _turn = turn;
            let _stoppable = Stoppable::by(flag);
            work()
        };
        PoolJob { handle: self.spawn(task, bytes, work), is_stopped }
    }
}

/// Work under way.
pub(crate) struct PoolJob<T> {
    handle: JoinHandle<T>,
    is_stopped: Arc<AtomicBool>,
}

impl<T> PoolJob<T> {
    /// The result; if it is not there by the deadline, the work is stopped where it yields.
    pub(crate) async fn result_by(mut self, deadline: Option<Instant>) -> Result<T, PoolError> {
        if let Some(deadline) = deadline
            && let Ok(done) = tokio::time::timeout_at(deadline, &mut self).await
        {
            return done;
        }
        if deadline.is_some() {
            self.is_stopped.store(true, Relaxed);
        }
        self.await
    }
}

impl<T> Future for PoolJob<T> {
    type Output = Result<T, PoolError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(context).map_err(|_| PoolError::Closed)
    }
}

impl<T> Drop for PoolJob<T> {
    fn drop(&mut self) {
        self.is_stopped.store(true, Relaxed);
    }
}

type Grant = oneshot::Sender<PoolTurn>;

/// The turns of all senders.
struct Turns(Mutex<FairQueue<Sender, Grant>>);

/// The right to use a thread; dropping it passes it on.
pub(crate) struct PoolTurn {
    turns: Arc<Turns>,
    /// None if it was passed on already.
    sender: Option<Sender>,
}

impl Drop for PoolTurn {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            let mut queue = self.turns.lock();
            queue.end(&sender);
            self.turns.grant(&mut queue);
        }
    }
}

/// Removes work from the queue whose client disconnects, or whose deadline passes.
struct CancelOnDrop<'a> {
    turns: &'a Turns,
    sender: Sender,
    ticket: Option<Ticket>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.turns.lock().cancel(&self.sender, ticket);
        }
    }
}

impl Turns {
    fn push(self: &Arc<Self>, load: Load<Sender>, grant: Grant, most_bytes: usize) -> Ticket {
        let mut queue = self.lock();
        let ticket = queue.push(load, grant);
        self.grant(&mut queue);
        while queue.displace(most_bytes).is_some() {}
        ticket
    }

    /// Starts the work that there are threads for.
    fn grant(self: &Arc<Self>, queue: &mut FairQueue<Sender, Grant>) {
        while let Some((sender, grant)) = queue.start() {
            let turn = PoolTurn { turns: Arc::clone(self), sender: Some(sender) };
            // Its client disconnected just now. The turn must not take the lock again.
            if let Err(mut turn) = grant.send(turn)
                && let Some(sender) = turn.sender.take()
            {
                queue.end(&sender);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, FairQueue<Sender, Grant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// Whether the job of this thread is to stop; none outside of a job that can be stopped.
    static IS_STOPPED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Makes the job of this thread stop by a flag until this is dropped.
struct Stoppable;

impl Stoppable {
    fn by(flag: Arc<AtomicBool>) -> Self {
        IS_STOPPED.set(Some(flag));
        Self
    }

    fn is_stopped() -> bool {
        IS_STOPPED.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Relaxed)))
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        IS_STOPPED.set(None);
    }
}

/// Raises the nice value of this thread and makes it yield. Only on Linux does a nice value apply
/// to a single thread; elsewhere it would apply to the whole process, so it is not set.
fn lower_priority() {
    set_yield_hook(|| {
        step();
        std::thread::yield_now();
        if Stoppable::is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    #[cfg(target_os = "linux")]
    {
        thread_local!(static IS_NICE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
        if !IS_NICE.replace(true) {
            // Without the permission to change the priority, the work is done all the same.
            let _ = rustix::process::setpriority_process(None, NICENESS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(shared: usize) -> LowPriorityPool {
        LowPriorityPool::new(Handle::current(), Arc::default(), shared)
    }

    fn body(last: u8, deadline: Option<Instant>) -> BodyWork<'static> {
        let origin = Origin::Address(IpAddr::from([10, 0, 0, last]));
        BodyWork { length: BodyLength { bytes: 100, is_long: true }, origin, deadline }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_the_low_priority_thread_gets_a_higher_nice_value() {
        let nice_value =
            || rustix::process::getpriority_process(None).expect("a thread has a priority");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let runtime = runtime.expect("a runtime starts");
        let before = nice_value();
        let job = runtime.handle().spawn_blocking(move || {
            lower_priority();
            nice_value()
        });
        let lowered = runtime.block_on(job).expect("the job ran");
        assert_eq!(lowered, NICENESS.max(before));
        assert_eq!(nice_value(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_a_turn_or_at_the_deadline_and_leaves_nothing_behind() {
        let pool = pool(1);
        let first = pool.turn(&body(1, None), 1000).await.unwrap();
        let deadline = Some(Instant::now() + Duration::from_secs(5));
        let late = pool.turn_in_time(&body(1, deadline), 1000).await;
        assert_eq!(late.err(), Some(PoolError::Timeout));
        let second = body(1, None);
        let (turn, ()) = tokio::join!(pool.turn(&second, 1000), async { drop(first) });
        drop(turn.unwrap());
        // A client that disconnects while it waits, and one that does so with its turn granted.
        let first = pool.turn(&body(1, None), 1000).await.unwrap();
        let mut gone = Box::pin(pool.turn(&second, 1000));
        let mut granted = Box::pin(pool.turn(&second, 1000));
        assert!(poll_once(&mut gone).is_pending() && poll_once(&mut granted).is_pending());
        drop(gone);
        drop(first);
        drop(granted);
        assert!(pool.turn(&second, 1000).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_bound_on_waiting_bytes_displaces_the_sender_with_the_most() {
        let pool = pool(1);
        let turns = [pool.turn(&body(1, None), 200).await, pool.turn(&body(2, None), 200).await];
        let [greedy, modest] = [body(1, None), body(2, None)];
        let mut first = Box::pin(pool.turn(&greedy, 200));
        let mut second = Box::pin(pool.turn(&greedy, 200));
        assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
        let mut other = Box::pin(pool.turn(&modest, 200));
        assert!(poll_once(&mut other).is_pending());
        assert_eq!(second.await.err(), Some(PoolError::QueueFull));
        drop(turns);
        assert!(first.await.is_ok() && other.await.is_ok());
    }

    fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[tokio::test]
    async fn work_stops_where_it_yields_when_its_deadline_passes_or_its_client_disconnects() {
        static WORK: TaskName = TaskName::new("work");
        let pool = pool(1);
        let until_stopped = || {
            while !Stoppable::is_stopped() {
                std::thread::yield_now();
            }
            "stopped"
        };
        let one = body(1, Some(Instant::now()));
        let turn = pool.turn(&one, 1000).await.unwrap();
        let late = pool.start(turn, &WORK, 100, until_stopped).result_by(one.deadline).await;
        assert_eq!(late, Ok("stopped"));
        let turn = pool.turn(&one, 1000).await.unwrap();
        drop(pool.start(turn, &WORK, 100, until_stopped));
        // The next turn comes only when that work has ended.
        assert!(pool.turn(&one, 1000).await.is_ok());
    }
}
