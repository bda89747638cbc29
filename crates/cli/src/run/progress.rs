//! Progress of a run: a bar on a terminal. Elsewhere only problems are printed, once.

use crate::progress::{STEPS, bar};
use indicatif::ProgressBar;
use std::io::{Write, stderr};
use std::time::Duration;
use tokio::sync::watch;
use wornpath_jobs::RunProgress;

const PERIOD: Duration = Duration::from_millis(200);

pub(super) struct Display {
    seen: watch::Receiver<RunProgress>,
    /// Addresses of the engines.
    pods: Vec<String>,
    bar: ProgressBar,
}

impl Display {
    pub(super) fn start(seen: watch::Receiver<RunProgress>, pods: Vec<String>) -> Self {
        Self { seen, pods, bar: bar(0, STEPS) }
    }

    /// Shows until it is dropped.
    pub(super) async fn show(mut self) {
        let mut is_unreachable_printed = false;
        let mut is_blocked_printed = false;
        let mut is_started = false;
        let mut redraw = tokio::time::interval(PERIOD);
        loop {
            let progress = self.seen.borrow_and_update().clone();
            if progress.gone > 0 && !is_unreachable_printed {
                is_unreachable_printed = true;
                self.print(&self.unreachable(&progress));
            }
            if let Some(reason) = &progress.blocked
                && !is_blocked_printed
            {
                is_blocked_printed = true;
                self.print(&format!("waiting: {reason}"));
            }
            self.draw(&progress);
            if progress.counts.total > 0 && !is_started {
                // The rate counts only the results of this run.
                is_started = true;
                self.bar.reset_eta();
            }
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() { return },
                _ = redraw.tick() => {}
            }
        }
    }

    fn draw(&self, progress: &RunProgress) {
        let counts = progress.counts;
        if counts.total > 0 {
            self.bar.set_length(counts.total.into());
            self.bar.set_position((counts.total - counts.pending()).into());
            self.bar.set_message(details(progress));
        }
    }

    /// Prints a line above the bar.
    fn print(&self, line: &str) {
        self.bar.suspend(|| {
            // A closed terminal does not stop the run.
            let _ = writeln!(stderr(), "{line}");
        });
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
        self.draw(&self.seen.borrow());
        if self.bar.length() > Some(0) {
            self.bar.abandon();
        }
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
