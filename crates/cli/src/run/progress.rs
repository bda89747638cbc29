//! Progress of a run: one line that is redrawn on a terminal. Elsewhere only problems are printed,
//! once.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, interval};
use wornpath_jobs::RunProgress;

const PERIOD: Duration = Duration::from_millis(200);
const BAR: usize = 24;

pub(super) struct Display {
    seen: watch::Receiver<RunProgress>,
    /// Addresses of the engines.
    pods: Vec<String>,
    started: Instant,
    /// Lines that were done before this run.
    before: Option<u32>,
}

impl Display {
    pub(super) fn start(seen: watch::Receiver<RunProgress>, pods: Vec<String>) -> Self {
        Self { seen, pods, started: Instant::now(), before: None }
    }

    /// Shows until it is dropped.
    pub(super) async fn show(mut self) {
        if !stderr().is_terminal() {
            return self.print_problems().await;
        }
        let mut ticks = interval(PERIOD);
        let mut is_unreachable_printed = false;
        loop {
            ticks.tick().await;
            let progress = self.seen.borrow().clone();
            if progress.gone > 0 && !is_unreachable_printed {
                is_unreachable_printed = true;
                let _ = writeln!(stderr(), "\r\x1b[2K{}", self.unreachable(&progress));
            }
            if progress.counts.total == 0 {
                continue;
            }
            let done = progress.counts.total - progress.counts.pending();
            let before = *self.before.get_or_insert(done);
            let line = line(&progress, done - before, self.started.elapsed());
            // A closed terminal does not stop the run.
            let _ = write!(stderr(), "\r\x1b[2K{line}");
            let _ = stderr().flush();
        }
    }

    fn unreachable(&self, progress: &RunProgress) -> String {
        let reason = progress.trouble.as_ref();
        let reason = reason.map(|(pod, reason)| format!(" ({}: {reason})", self.pods[*pod]));
        format!("engines unreachable: {}{}; retrying", progress.gone, reason.unwrap_or_default())
    }

    /// Prints each kind of problem the first time that it occurs.
    async fn print_problems(mut self) {
        let mut is_unreachable_printed = false;
        let mut is_blocked_printed = false;
        loop {
            let progress = self.seen.borrow_and_update().clone();
            if progress.gone > 0 && !is_unreachable_printed {
                is_unreachable_printed = true;
                let _ = writeln!(stderr(), "{}", self.unreachable(&progress));
            }
            if let Some(reason) = progress.blocked
                && !is_blocked_printed
            {
                is_blocked_printed = true;
                let _ = writeln!(stderr(), "waiting: {reason}");
            }
            if self.seen.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if self.before.is_some() {
            let _ = writeln!(stderr());
        }
    }
}

/// The progress line; this run has added `new` results in `time`.
fn line(progress: &RunProgress, new: u32, time: Duration) -> String {
    let counts = progress.counts;
    let done = counts.total - counts.pending();
    let share = f64::from(done) / f64::from(counts.total.max(1));
    let filled = (share * BAR as f64) as usize;
    let rate = f64::from(new) / time.as_secs_f64().max(1e-3);
    let mut line = format!(
        "[{}{}] {:3.0}%  {done}/{}  {rate:.1}/s",
        "#".repeat(filled),
        ".".repeat(BAR - filled),
        100.0 * share,
        counts.total
    );
    if progress.usage.input > 0 {
        let hits = 100.0 * progress.usage.cached as f64 / progress.usage.input as f64;
        line.push_str(&format!("  hits {hits:.0}%"));
    }
    if counts.failed > 0 {
        line.push_str(&format!("  failed {}", counts.failed));
    }
    if progress.gone > 0 {
        line.push_str(&format!("  engines unreachable {}", progress.gone));
    }
    if new > 0 {
        let left = (f64::from(counts.pending()) / rate) as u64;
        line.push_str(&format!("  ETA {}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60));
    }
    if let Some(reason) = &progress.blocked {
        line.push_str(&format!("  waiting: {reason}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_jobs::{Counts, TokenUsage};

    #[test]
    fn the_rate_of_a_resumed_run_counts_only_its_own_results() {
        let progress = RunProgress {
            counts: Counts { total: 200, completed: 99, failed: 1 },
            usage: TokenUsage { input: 100, cached: 75, output: 9 },
            ..RunProgress::default()
        };
        let line = line(&progress, 50, Duration::from_secs(10));
        assert_eq!(
            line,
            "[############............]  50%  100/200  5.0/s  hits 75%  failed 1  ETA 0:00:20"
        );
    }
}
