//! Threads for work that takes long: they give way to those that answer clients.
//!
//! A thread that wakes up because a token has come should run at once. Beside one that tokenizes a long prompt on the
//! same core it would wait for the end of a slice of the scheduler's, which is milliseconds. Being nice is not enough
//! for that: whoever gets little is owed the more, and Linux pays it back before it lets the other one run, to a
//! batch job and to an idle one too. So such a thread also yields between pieces of a text, which gives up its claim.

use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::{Threads, step};
use crate::watchdog::stall::STUCK_AFTER;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use wornpath_blocks::set_yield_hook;

/// How nice such threads are: where every core is wanted, they get at most a third of what others do.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// Bytes of a prompt that even the slowest tokenizer gets through in a second. One without proven cuts takes a prompt
/// in one piece, and does not beat meanwhile.
const BYTES_A_SECOND: usize = 64 * 1024;

/// Runs work on low-priority threads, each piece under a name that the watchdog can report.
pub(crate) struct LowPriorityPool {
    background: Handle,
    threads: Arc<Threads>,
    /// Long prompts that may be prepared at once.
    permits: Arc<Semaphore>,
}

/// The pool is shutting down.
#[derive(Debug)]
pub(crate) struct PoolClosed;

impl LowPriorityPool {
    pub(crate) fn new(background: Handle, threads: Arc<Threads>, permits: usize) -> Self {
        Self { background, threads, permits: Arc::new(Semaphore::new(permits)) }
    }

    /// Runs `work`, which is about a prompt of `bytes`.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: &'static TaskName,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let threads = Arc::clone(&self.threads);
        let allowance = STUCK_AFTER + Duration::from_secs((bytes / BYTES_A_SECOND) as u64);
        self.background.spawn_blocking(move || {
            give_way();
            threads.run_job(task, allowance, work)
        })
    }

    /// The same, at most so many pieces of work at once as there are permits.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        task: &'static TaskName,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolClosed> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| PoolClosed)?;
        // The work goes on if its client disconnects; the permit is free when the work has ended.
        let work = move || {
            let done = work();
            drop(permit);
            done
        };
        self.spawn(task, bytes, work).await.map_err(|_| PoolClosed)
    }
}

/// Makes this thread a nice one that yields. Elsewhere than on Linux the whole process would be nice.
fn give_way() {
    set_yield_hook(|| {
        step();
        std::thread::yield_now();
    });
    #[cfg(target_os = "linux")]
    {
        thread_local!(static IS_NICE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
        if !IS_NICE.replace(true) {
            // Not being allowed to is no reason to refuse the work.
            let _ = rustix::process::setpriority_process(None, NICENESS);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn such_a_thread_is_nice_and_no_other() {
        let own = || rustix::process::getpriority_process(None).expect("a thread has a priority");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let runtime = runtime.expect("a runtime starts");
        let before = own();
        let on_such_a_thread = runtime.handle().spawn_blocking(move || {
            give_way();
            own()
        });
        let there = runtime.block_on(on_such_a_thread).expect("it ran");
        assert_eq!((there, own()), (NICENESS.max(before), before));
    }
}
