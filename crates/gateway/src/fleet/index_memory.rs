//! The memory that the index may take: half of what the process has, which a container or the
//! machine limits.

use std::fs;
use std::path::Path;

use wornpath_index::IndexLimits;

/// Files that contain the memory limit of a container in bytes, by version of cgroups.
const CGROUP_LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// The limits with as many blocks as fit into half of the memory; unchanged where the system does
/// not tell how much there is.
pub(super) fn within_memory(limits: IndexLimits) -> IndexLimits {
    let read = |path: &str| fs::read_to_string(Path::new(path)).unwrap_or_default();
    let limits_of_container = CGROUP_LIMITS.map(read);
    match memory(&read("/proc/meminfo"), &limits_of_container) {
        Some(bytes) => limits.within(bytes / 2),
        None => limits,
    }
}

/// The least of the machine's memory and the limits of its container. `max`, or nothing, is no
/// limit.
fn memory(meminfo: &str, limits_of_container: &[String]) -> Option<usize> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = total.and_then(|total| total.trim().strip_suffix("kB")?.trim().parse().ok());
    let machine = kibibytes.and_then(|kib: usize| kib.checked_mul(1024));
    let containers = limits_of_container.iter().filter_map(|limit| limit.trim().parse().ok());
    machine.into_iter().chain(containers).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        let meminfo = "MemTotal:       24634648 kB\nMemFree:        12634648 kB\n";
        let bytes = 24_634_648 * 1024;
        assert_eq!(memory(meminfo, &[]), Some(bytes));
        assert_eq!(memory(meminfo, &["max\n".into(), String::new()]), Some(bytes));
        assert_eq!(memory(meminfo, &["1073741824\n".into()]), Some(1 << 30));
        // Version 1 writes the largest number for no limit.
        assert_eq!(memory(meminfo, &["9223372036854771712\n".into()]), Some(bytes));
        assert_eq!(memory("", &[String::new()]), None);
    }

    #[test]
    fn a_process_that_knows_its_memory_limits_the_index_by_it() {
        let limits = within_memory(IndexLimits::default());
        let is_told = memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), &[]);
        assert_eq!(limits.blocks != IndexLimits::default().blocks, is_told.is_some());
    }
}
