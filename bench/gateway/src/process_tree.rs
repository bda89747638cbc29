//! CPU time and memory of a process and all its descendants, from `/proc`.

use std::collections::HashMap;
use std::fs;

/// CPU time in nanoseconds, by thread.
pub(crate) type CpuTimes = HashMap<u32, u64>;

/// The process and everything it started.
pub(crate) fn members(root: u32) -> Vec<u32> {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name is in parentheses and may hold anything; after it come the state and the parent.
        let after = stat.rsplit(')').next().unwrap_or_default();
        if let Some(parent) =
            after.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok())
        {
            parents.push((pid, parent));
        }
    }
    let mut members = vec![root];
    let mut at = 0;
    while at < members.len() {
        let parent = members[at];
        members.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    members
}

/// CPU time of every thread of the tree.
pub(crate) fn cpu_times(root: u32) -> CpuTimes {
    let mut times = CpuTimes::new();
    for pid in members(root) {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let id = task.file_name().to_str().and_then(|name| name.parse().ok());
            let stat = fs::read_to_string(task.path().join("schedstat")).ok();
            let nanos = stat.and_then(|stat| stat.split_ascii_whitespace().next()?.parse().ok());
            if let (Some(id), Some(nanos)) = (id, nanos) {
                times.insert(id, nanos);
            }
        }
    }
    times
}

/// Nanoseconds between two readings. A thread that exited in between is not counted.
pub(crate) fn cpu_between(before: &CpuTimes, after: &CpuTimes) -> u64 {
    after.iter().map(|(id, nanos)| nanos.saturating_sub(before.get(id).copied().unwrap_or(0))).sum()
}

/// Proportional set size in bytes; a page that several processes share counts once.
pub(crate) fn memory(root: u32) -> u64 {
    let pss = |pid: &u32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    members(root).iter().filter_map(pss).sum::<u64>() * 1024
}
