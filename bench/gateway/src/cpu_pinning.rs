//! CPU affinity and real-time priority for engines and clients.
//!
//! A gateway's delay of a token can be measured only if engine and client are never delayed
//! themselves. They run on another CPU than the gateway, with real-time priority if that is
//! allowed.

use rustix::thread::{CpuSet, Pid, gettid, sched_setaffinity};
use std::fs;
use std::ops::Range;
use std::process::{Command, Stdio};

/// Pins all threads of a process to these CPUs.
pub(crate) fn pin_process(process: u32, processors: Range<usize>) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    processors.for_each(|processor| set.set(processor));
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?.file_name().to_string_lossy().parse()?;
        sched_setaffinity(Pid::from_raw(thread), &set)?;
    }
    Ok(())
}

/// Gives a thread real-time priority, which needs a privilege. Returns whether it succeeded.
pub(crate) fn set_realtime(thread: u32) -> bool {
    let words = ["--fifo", "--pid", "10", &thread.to_string()];
    let status = Command::new("chrt").args(words).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The id of the calling thread.
pub(crate) fn this_thread() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}
