//! Instruments that nothing else makes wait.
//!
//! Whether a gateway keeps a token waiting can be told only if engine and client do not wait themselves. They run on
//! another processor than the gateway, and before all else there, if that is allowed.

use rustix::thread::{CpuSet, Pid, gettid, sched_setaffinity};
use std::fs;
use std::ops::Range;
use std::process::{Command, Stdio};

/// Lets all threads of a process run on these processors only.
pub(crate) fn keep(process: u32, processors: Range<usize>) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    processors.for_each(|processor| set.set(processor));
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?.file_name().to_string_lossy().parse()?;
        sched_setaffinity(Pid::from_raw(thread), &set)?;
    }
    Ok(())
}

/// Whether a thread runs before all others from now on; that takes a privilege.
pub(crate) fn is_urgent(thread: u32) -> bool {
    let words = ["--fifo", "--pid", "10", &thread.to_string()];
    let status = Command::new("chrt").args(words).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// This thread's number.
pub(crate) fn this_thread() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}
