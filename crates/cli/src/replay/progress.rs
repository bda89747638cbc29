//! Progress of a replay: a bar of the current run, and one of all runs if there are several.

use crate::progress::{STEPS, bar};
use indicatif::{MultiProgress, ProgressBar};

/// The bars of all runs of all profiles.
pub(super) struct ReplayProgress {
    bars: MultiProgress,
    runs: ProgressBar,
    run: Option<ProgressBar>,
}

impl ReplayProgress {
    pub(super) fn new(runs: u64) -> Self {
        let bars = MultiProgress::new();
        let all = if runs > 1 { bar(runs, STEPS) } else { ProgressBar::hidden() };
        Self { runs: bars.add(all).with_prefix("all runs "), bars, run: None }
    }

    /// Begins the bar of a run of so many requests; the runs before it have ended.
    pub(super) fn begin(&mut self, title: String, requests: usize) -> &ProgressBar {
        if let Some(last) = self.run.take() {
            last.finish_and_clear();
            self.runs.inc(1);
        }
        let run = bar(requests as u64, STEPS).with_prefix(title + " ");
        self.run.insert(self.bars.insert(0, run))
    }

    /// Writes something else to the terminal meanwhile.
    pub(super) fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bars.suspend(write)
    }
}
