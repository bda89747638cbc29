//! Threads for work that takes long: they give way to those that answer clients.
//!
//! A thread that wakes up because a token has come should run at once. Beside one that tokenizes a long prompt on the
//! same core it would wait for the end of a slice of the scheduler's, which is milliseconds. Being nice is not enough
//! for that: whoever gets little is owed the more, and Linux pays it back before it lets the other one run, to a
//! batch job and to an idle one too. So such a thread also yields between pieces of a text, which gives up its claim.

use crate::state::Gateway;
use crate::watchdog::{STUCK_AFTER, TaskName, step};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use wornpath_blocks::pause_with;

/// How nice such threads are: where every core is wanted, they get at most a third of what others do.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// Bytes of a prompt that even the slowest tokenizer gets through in a second. One without proven cuts takes a prompt
/// in one piece, and does not beat meanwhile.
const BYTES_A_SECOND: usize = 64 * 1024;

/// Runs `work` on such a thread, under a name, on a prompt of so many bytes.
pub(crate) fn aside<T: Send + 'static>(
    gateway: &Gateway,
    task: &'static TaskName,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let threads = Arc::clone(&gateway.threads);
    let allowance = STUCK_AFTER + Duration::from_secs((bytes / BYTES_A_SECOND) as u64);
    gateway.background().spawn_blocking(move || {
        give_way();
        threads.run_job(task, allowance, work)
    })
}

/// Makes this thread a nice one that yields. Elsewhere than on Linux the whole process would be nice.
fn give_way() {
    pause_with(|| {
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
