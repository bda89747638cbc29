//! Progress of a run. Problems are printed above it, each once, and the first failure of each kind
//! when it occurs: a run of hours need not end for its user to learn that it is in vain.

use super::failed_lines::NewFailures;
use crate::progress::LineProgress;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use wornpath_jobs::RunProgress;

const PERIOD: Duration = Duration::from_millis(200);

pub(super) struct Display {
    seen: watch::Receiver<RunProgress>,
    /// Addresses of the engines.
    pods: Vec<String>,
    failures: NewFailures,
    lines: LineProgress,
}

impl Display {
    /// Shows a run whose failed lines are written to `errors`.
    pub(super) fn start(
        seen: watch::Receiver<RunProgress>,
        pods: Vec<String>,
        errors: PathBuf,
    ) -> Self {
        let failures = NewFailures::of(errors);
        Self { seen, pods, failures, lines: LineProgress::start() }
    }

    /// Shows until it is dropped.
    pub(super) async fn show(mut self) {
        let mut is_unreachable_printed = false;
        let mut is_blocked_printed = false;
        let mut failed = 0;
        let mut redraw = tokio::time::interval(PERIOD);
        loop {
            let progress = self.seen.borrow_and_update().clone();
            if progress.gone > 0 && !is_unreachable_printed {
                is_unreachable_printed = true;
                self.lines.print(&self.unreachable(&progress));
            }
            if let Some(reason) = &progress.blocked
                && !is_blocked_printed
            {
                is_blocked_printed = true;
                self.lines.print(&format!("waiting: {reason}"));
            }
            if progress.counts.failed > failed {
                failed = progress.counts.failed;
                for failure in self.failures.read() {
                    self.lines.print(&failure);
                }
            }
            self.draw(&progress);
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() { return },
                _ = redraw.tick() => {}
            }
        }
    }

    fn draw(&mut self, progress: &RunProgress) {
        let counts = progress.counts;
        let done = counts.total - counts.pending();
        self.lines.show(done.into(), counts.total.into(), details(progress));
    }

    fn unreachable(&self, progress: &RunProgress) -> String {
        let reason = progress.trouble.as_ref();
        let reason = reason.map(|(pod, reason)| format!(" ({}: {reason})", self.pods[*pod]));
        format!("engines unreachable: {}{}; retrying", progress.gone, reason.unwrap_or_default())
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        // The last state stays on the screen, above the summary.
        let last = self.seen.borrow().clone();
        self.draw(&last);
        self.lines.abandon();
    }
}

/// What is worth knowing beside the number of lines.
fn details(progress: &RunProgress) -> String {
    let mut details = String::new();
    if progress.usage.input > 0 {
        let hits = 100.0 * progress.usage.cached as f64 / progress.usage.input as f64;
        details.push_str(&format!("  hits {hits:.0}%"));
    }
    if progress.counts.failed > 0 {
        details.push_str(&format!("  failed {}", progress.counts.failed));
    }
    if progress.gone > 0 {
        details.push_str(&format!("  engines unreachable {}", progress.gone));
    }
    if let Some(reason) = &progress.blocked {
        details.push_str(&format!("  waiting: {reason}"));
    }
    details
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_jobs::{Counts, TokenUsage};

    #[test]
    fn the_bar_says_how_much_was_cached_and_what_went_wrong() {
        let progress = RunProgress {
            counts: Counts { total: 200, completed: 99, failed: 1 },
            usage: TokenUsage { input: 100, cached: 75, output: 9 },
            ..RunProgress::default()
        };
        assert_eq!(details(&progress), "  hits 75%  failed 1");
        assert_eq!(
            details(&RunProgress { gone: 2, ..progress }),
            "  hits 75%  failed 1  engines unreachable 2"
        );
        assert_eq!(details(&RunProgress::default()), "");
    }
}
