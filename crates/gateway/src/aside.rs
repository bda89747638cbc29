//! Threads for work that takes long: they give way to those that answer clients.
//!
//! A thread that wakes up because a token has come should run at once. Beside one that tokenizes a long prompt on the
//! same core it would wait for the end of a slice of the scheduler's, which is milliseconds. Being nice is not enough
//! for that: whoever gets little is owed the more, and Linux pays it back before it lets the other one run, to a
//! batch job and to an idle one too. So such a thread also yields between pieces of a text, which gives up its claim.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use wornpath_blocks::pause_with;

/// How nice such threads are: where every core is wanted, they get at most a third of what others do.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// Runs `work` on such a thread.
pub(crate) fn aside<T: Send + 'static>(
    handle: &Handle,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    handle.spawn_blocking(move || {
        give_way();
        work()
    })
}

/// Makes this thread a nice one that yields. Elsewhere than on Linux the whole process would be nice.
fn give_way() {
    pause_with(std::thread::yield_now);
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
        let there = runtime.block_on(aside(runtime.handle(), own)).expect("it ran");
        assert_eq!((there, own()), (NICENESS.max(before), before));
    }
}
