//! The process: CPU time, memory, open files, as every Prometheus client names them.

use crate::observe::metrics::family;
use crate::observe::metrics::page::MetricsPage;

/// Adds what the system knows of this process; nothing where there is no `/proc`.
pub(crate) fn write(page: &mut MetricsPage) {
    let Some(read) = ProcessFigures::read() else { return };
    let gauges = [
        (family::PROCESS_CPU, Some(read.cpu_seconds)),
        (family::PROCESS_START, read.start_seconds),
        (family::PROCESS_RESIDENT, Some(read.resident_bytes)),
        (family::PROCESS_VIRTUAL, Some(read.virtual_bytes)),
        (family::PROCESS_THREADS, Some(read.threads)),
        (family::PROCESS_FDS, read.open_files),
        (family::PROCESS_MAX_FDS, Some(read.max_files)),
    ];
    for (family, value) in gauges {
        let lines = page.family(family);
        if let Some(value) = value {
            lines.value(&[], value);
        }
    }
}

struct ProcessFigures {
    cpu_seconds: f64,
    start_seconds: Option<f64>,
    resident_bytes: f64,
    virtual_bytes: f64,
    threads: f64,
    open_files: Option<f64>,
    max_files: f64,
}

/// Places in `/proc/self/stat` after the name of the process, which may contain spaces.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const THREADS: usize = 17;
const START_TIME: usize = 19;
const VIRTUAL_BYTES: usize = 20;

/// Times in `/proc` are in this unit, whatever the kernel's own is.
const TICKS_PER_SECOND: f64 = 100.0;

impl ProcessFigures {
    fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        let (_, rest) = text.rsplit_once(") ")?;
        let figures: Vec<&str> = rest.split_ascii_whitespace().collect();
        let figure = |at: usize| figures.get(at)?.parse::<f64>().ok();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Some(Self {
            cpu_seconds: (figure(USER_TIME)? + figure(SYSTEM_TIME)?) / TICKS_PER_SECOND,
            start_seconds: start_time(figure(START_TIME)?),
            resident_bytes: resident_bytes()?,
            virtual_bytes: figure(VIRTUAL_BYTES)?,
            threads: figure(THREADS)?,
            open_files: open_files(),
            max_files: limit.map_or(f64::INFINITY, |limit| limit as f64),
        })
    }
}

/// When the process was started, in seconds since 1970.
fn start_time(ticks_since_boot: f64) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let boot = text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse::<f64>();
    Some(boot.ok()? + ticks_since_boot / TICKS_PER_SECOND)
}

fn resident_bytes() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024.0)
}

fn open_files() -> Option<f64> {
    let files = std::fs::read_dir("/proc/self/fd").ok()?;
    // One of them is the folder that is being read.
    Some(files.count().saturating_sub(1) as f64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_this_process_are_plausible() {
        let read = ProcessFigures::read().unwrap();
        assert!(read.resident_bytes > 1e6 && read.virtual_bytes > read.resident_bytes);
        assert!(read.threads >= 1.0 && read.open_files.unwrap() >= 3.0 && read.max_files > 3.0);
        // Later than 2020.
        assert!(read.start_seconds.unwrap() > 1.5e9 && read.cpu_seconds >= 0.0);
    }
}
