//! Heartbeats: each thread has a counter that only the thread itself advances, and the name of its
//! current task.
//!
//! On a thread with an event loop, a task advances the counter twice a second: if another task does
//! not return, the counter stops. A thread of the blocking pool advances it when a job begins and
//! ends, and before every chunk of text that it tokenizes. The cost is relaxed stores to a cache
//! line that no other thread writes; a request reads no clock and takes no lock. A job that waits
//! for a disk or a database has no heartbeat: the operating system may block it for longer than any
//! limit, and a restart would not help.

use arc_swap::ArcSwap;
use std::cell::RefCell;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::watchdog::stall::{HeartbeatReading, NAME_WORDS, STUCK_AFTER, Stall, TaskName};

/// Time between two beats of an event loop.
const BEAT_INTERVAL: Duration = Duration::from_millis(500);

thread_local! {
    /// The heartbeat of this thread, if it has one.
    static CURRENT: RefCell<Option<Arc<Heartbeat>>> = const { RefCell::new(None) };
}

/// One thread's heartbeat.
#[derive(Debug)]
pub struct Heartbeat {
    thread: String,
    beats: AtomicU64,
    /// Whether beats are expected: its event loop or a job is running.
    is_active: AtomicBool,
    /// Milliseconds that may pass without a beat.
    allowance: AtomicU64,
    task: [AtomicU64; NAME_WORDS],
    /// Written only by the watchdog.
    is_stuck: AtomicBool,
}

impl Heartbeat {
    fn new(thread: String) -> Self {
        Self {
            thread,
            beats: AtomicU64::new(0),
            is_active: AtomicBool::new(false),
            allowance: AtomicU64::new(0),
            task: Default::default(),
            is_stuck: AtomicBool::new(false),
        }
    }

    /// Beats on a single-threaded event loop until the guard is dropped.
    pub fn beat_on(self: &Arc<Self>, event_loop: &Handle) -> Watched {
        self.begin(STUCK_AFTER);
        let heartbeat = Arc::clone(self);
        let task = event_loop.spawn(async move {
            CURRENT.set(Some(Arc::clone(&heartbeat)));
            loop {
                heartbeat.advance();
                tokio::time::sleep(BEAT_INTERVAL).await;
            }
        });
        Watched { heartbeat: Arc::clone(self), task: Some(task.abort_handle()) }
    }

    /// Whether the watchdog found the thread stuck and it has not recovered.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Relaxed)
    }

    pub(crate) fn set_stuck(&self, is_stuck: bool) {
        self.is_stuck.store(is_stuck, Relaxed);
    }

    pub(crate) fn read(&self) -> HeartbeatReading<'_> {
        HeartbeatReading {
            thread: &self.thread,
            task: self.task(),
            beats: self.is_active.load(Relaxed).then(|| self.beats.load(Relaxed)),
            allowance: Duration::from_millis(self.allowance.load(Relaxed)),
        }
    }

    fn begin(&self, allowance: Duration) {
        let allowance = u64::try_from(allowance.as_millis()).unwrap_or(u64::MAX);
        self.allowance.store(allowance, Relaxed);
        self.advance();
        self.is_active.store(true, Relaxed);
    }

    fn advance(&self) {
        self.beats.fetch_add(1, Relaxed);
    }

    fn task(&self) -> TaskName {
        TaskName::from_words(self.task.each_ref().map(|word| word.load(Relaxed)))
    }

    fn set_task(&self, task: &TaskName) {
        for (word, new) in self.task.iter().zip(task.words()) {
            word.store(new, Relaxed);
        }
    }
}

/// Guard: the watchdog expects beats of an event loop or a job until this is dropped.
pub struct Watched {
    heartbeat: Arc<Heartbeat>,
    task: Option<AbortHandle>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.heartbeat.is_active.store(false, Relaxed);
        self.heartbeat.advance();
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Polls `future` under a task name, which the watchdog reports if a poll does not return.
pub fn named<F: Future>(task: impl Into<TaskName>, future: F) -> impl Future<Output = F::Output> {
    let task = task.into();
    let mut future = Box::pin(future);
    poll_fn(move |context| {
        let _running = running(&task);
        future.as_mut().poll(context)
    })
}

/// Sets the current task of this thread until the guard is dropped, which restores the previous
/// one.
pub(crate) fn running(task: &TaskName) -> Running {
    let before = on_current(|heartbeat| {
        let before = heartbeat.task();
        heartbeat.set_task(task);
        before
    });
    Running { before, _of_this_thread: PhantomData }
}

/// Guard of [`running`]. Not `Send`: it belongs to the thread that made it.
pub(crate) struct Running {
    before: Option<TaskName>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            on_current(|heartbeat| heartbeat.set_task(before));
        }
    }
}

/// Records progress of this thread's job.
pub(crate) fn step() {
    on_current(Heartbeat::advance);
}

fn on_current<T>(apply: impl FnOnce(&Heartbeat) -> T) -> Option<T> {
    // Also none on a thread that is exiting.
    CURRENT.try_with(|current| current.borrow().as_deref().map(apply)).ok().flatten()
}

/// All threads with a heartbeat, and which of them are stuck. Reads take no lock.
#[derive(Default)]
pub struct Threads {
    all: ArcSwap<Vec<Weak<Heartbeat>>>,
    /// Held while a thread is added.
    adding: Mutex<()>,
    stuck: ArcSwap<Vec<Stall>>,
    stalls: AtomicU64,
}

impl Threads {
    /// Registers a thread. It is watched from its first beat on.
    pub fn add(&self, thread: &str) -> Arc<Heartbeat> {
        self.add_as(|_| thread.to_owned())
    }

    /// Runs a job on this thread of the blocking pool; `allowance` is the time allowed without
    /// progress.
    pub(crate) fn run_job<T>(
        &self,
        task: &TaskName,
        allowance: Duration,
        job: impl FnOnce() -> T,
    ) -> T {
        let heartbeat = CURRENT.with(|current| {
            let mut current = current.borrow_mut();
            Arc::clone(current.get_or_insert_with(|| self.add_as(first_free)))
        });
        heartbeat.begin(allowance);
        let _watched = Watched { heartbeat, task: None };
        let _running = running(task);
        job()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Heartbeat>> {
        self.all.load().iter().filter_map(Weak::upgrade).collect()
    }

    /// The threads that are currently stuck.
    pub(crate) fn stuck(&self) -> Arc<Vec<Stall>> {
        self.stuck.load_full()
    }

    /// Number of stalls found so far.
    pub(crate) fn stalls(&self) -> u64 {
        self.stalls.load(Relaxed)
    }

    pub(crate) fn set_stuck(&self, stuck: Vec<Stall>, new: usize) {
        self.stalls.fetch_add(new as u64, Relaxed);
        self.stuck.store(Arc::new(stuck));
    }

    fn add_as(&self, name: impl FnOnce(&[Arc<Heartbeat>]) -> String) -> Arc<Heartbeat> {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let existing = self.all();
        let heartbeat = Arc::new(Heartbeat::new(name(&existing)));
        let all = existing.iter().chain([&heartbeat]).map(Arc::downgrade).collect();
        self.all.store(Arc::new(all));
        heartbeat
    }
}

/// Pool threads start and exit: the numbers of exited threads are reused.
fn first_free(existing: &[Arc<Heartbeat>]) -> String {
    let mut names = (0..=existing.len()).map(|number| format!("blocking-{number}"));
    let is_free = |name: &String| existing.iter().all(|heartbeat| heartbeat.thread != *name);
    names.find(is_free).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_name_is_that_of_the_innermost_guard_and_a_long_one_is_truncated() {
        let threads = Threads::default();
        let heartbeat = threads.add("worker-0");
        CURRENT.set(Some(Arc::clone(&heartbeat)));
        let name = || heartbeat.read().task.to_string();
        assert_eq!(name(), "unnamed");
        let outer = running(&TaskName::new("client connection"));
        let inner = running(&TaskName::new(&"ä".repeat(40)));
        assert_eq!(name(), "ä".repeat(24));
        drop(inner);
        assert_eq!(name(), "client connection");
        let cut = running(&TaskName::new(&format!("a{}", "ä".repeat(40))));
        assert_eq!(name(), format!("a{}", "ä".repeat(23)), "no half of a character");
        drop((cut, outer));
        assert_eq!(name(), "unnamed");
        CURRENT.set(None);
    }

    #[test]
    fn a_pool_thread_beats_with_its_jobs_and_its_number_is_reused() {
        let threads = Arc::new(Threads::default());
        let job = |threads: &Arc<Threads>| {
            let inside = threads.run_job(&"tokenize".into(), STUCK_AFTER, || {
                let before = threads.all()[0].read().beats;
                step();
                (before, threads.all()[0].read().beats, threads.all()[0].read().task)
            });
            let all = threads.all();
            let after = all[0].read();
            (inside, (after.thread.to_owned(), after.beats, after.task))
        };
        for _ in 0..2 {
            let (inside, after) =
                std::thread::scope(|scope| scope.spawn(|| job(&threads)).join().unwrap());
            assert_eq!(inside, (Some(1), Some(2), "tokenize".into()));
            assert_eq!(after, ("blocking-0".to_owned(), None, TaskName::default()));
            assert!(threads.all().is_empty(), "the thread has exited");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_loop_beats_until_its_guard_is_dropped_and_reports_task_names() {
        let threads = Threads::default();
        let heartbeat = threads.add("accept");
        let watched = heartbeat.beat_on(&Handle::current());
        let first = heartbeat.read().beats;
        tokio::time::sleep(3 * BEAT_INTERVAL).await;
        assert!(heartbeat.read().beats > first);
        let task = named("accept connections", async { heartbeat.read().task }).await;
        assert_eq!(task.to_string(), "accept connections");
        drop(watched);
        assert_eq!(heartbeat.read().beats, None);
        CURRENT.set(None);
    }
}
