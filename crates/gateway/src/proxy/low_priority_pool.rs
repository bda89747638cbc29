//! Low-priority threads for long work, such as tokenizing a long prompt.
//!
//! A worker that wakes up because a token has arrived should run at once. If a thread on the same
//! core is tokenizing a long prompt, the worker waits for the end of a scheduler slice, which is
//! milliseconds. A higher nice value is not enough: Linux credits a thread for the time that it did
//! not get, also under `SCHED_BATCH` and `SCHED_IDLE`, and lets it use that credit before the
//! worker runs. So these threads also yield between pieces of a text, which gives up the credit. A
//! tokenizer that cannot split a text does not yield within it.

use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::{Threads, step};
use crate::watchdog::stall::STUCK_AFTER;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use wornpath_blocks::set_yield_hook;

/// The nice value of these threads: on a fully loaded machine they get at most a third of the CPU
/// time that other threads get.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// Bytes of a prompt that even the slowest tokenizer processes in a second. A tokenizer without
/// proven split points takes a prompt in one piece, without a heartbeat, so the watchdog allows for
/// this time.
const BYTES_PER_SECOND: usize = 64 * 1024;

/// Runs jobs on low-priority threads, each under a name that the watchdog can report.
pub(crate) struct LowPriorityPool {
    background: Handle,
    threads: Arc<Threads>,
    /// Limits the long prompts that are prepared concurrently.
    permits: Arc<Semaphore>,
}

/// The pool is shutting down.
#[derive(Debug)]
pub(crate) struct PoolClosed;

impl LowPriorityPool {
    pub(crate) fn new(background: Handle, threads: Arc<Threads>, permits: usize) -> Self {
        Self { background, threads, permits: Arc::new(Semaphore::new(permits)) }
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

    /// Like [`Self::spawn`], but waits for a permit, so that the number of concurrent jobs is
    /// limited.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        task: &'static TaskName,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolClosed> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| PoolClosed)?;
        // The job continues if its client disconnects; it holds the permit until it has ended.
        let work = move || {
            let result = work();
            drop(permit);
            result
        };
        self.spawn(task, bytes, work).await.map_err(|_| PoolClosed)
    }
}

/// Raises the nice value of this thread and makes it yield. Only on Linux does a nice value apply
/// to a single thread; elsewhere it would apply to the whole process, so it is not set.
fn lower_priority() {
    set_yield_hook(|| {
        step();
        std::thread::yield_now();
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

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
}
