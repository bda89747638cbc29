//! Progress of all commands, on standard error, so that results can be piped. On a terminal it is a
//! bar, which is erased when it is dropped; elsewhere, as in the log of a CI job, work on lines
//! prints a line now and then ([`LineProgress`]), and other bars nothing.

use indicatif::{FormattedDuration, HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::{Write as _, stderr};
use std::time::Duration;
use tokio::time::Instant;

/// Where there is no terminal, the first line of progress comes after this time, and the time
/// between lines doubles up to the second.
const FIRST_LINE: Duration = Duration::from_secs(2);
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// Lines or requests, with their rate.
pub(crate) const STEPS: &str =
    "{prefix}[{bar:24}] {percent:>3}%  {pos}/{len}  {rate}  ETA {left}{msg}";
/// The share of something that is done again and again.
pub(crate) const SHARE: &str = "{prefix}[{bar:24}] {percent:>3}%";
/// Bytes of a file.
pub(crate) const BYTES: &str = "{prefix}[{bar:24}] {percent:>3}%  {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  ETA {left}";

/// A bar of so many steps, drawn by one of the templates above.
pub(crate) fn bar(all: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a test draws every template");
    let style = style.progress_chars("##.").with_key("rate", rate).with_key("left", left);
    ProgressBar::new(all).with_style(style)
}

/// The progress of work on lines: a bar on a terminal, printed lines elsewhere.
pub(crate) struct LineProgress {
    bar: ProgressBar,
    is_started: bool,
    began: Instant,
    next_line: Duration,
}

impl LineProgress {
    pub(crate) fn start() -> Self {
        Self { bar: bar(0, STEPS), is_started: false, began: Instant::now(), next_line: FIRST_LINE }
    }

    /// Shows that `done` of `all` lines have ended, and more; nothing while `all` is not known.
    pub(crate) fn show(&mut self, done: u64, all: u64, more: String) {
        if all == 0 {
            return;
        }
        self.bar.set_length(all);
        self.bar.set_message(more);
        if !self.is_started {
            // The rate counts only what ends from now on.
            self.is_started = true;
            self.bar.set_position(done);
            self.bar.reset_eta();
        }
        self.bar.set_position(done);
        if self.bar.is_hidden() && self.began.elapsed() >= self.next_line {
            self.next_line = self.began.elapsed() + self.next_line.min(BETWEEN_LINES);
            let shown = Shown { done, all, rate: self.bar.per_sec(), left: self.bar.eta() };
            self.print(&shown.line(&self.bar.message()));
        }
    }

    /// Prints a line above the bar.
    pub(crate) fn print(&self, line: &str) {
        self.bar.suspend(|| {
            // A closed terminal does not stop the command.
            let _ = writeln!(stderr(), "{line}");
        });
    }

    /// Leaves the last state on the screen, if there was any.
    pub(crate) fn abandon(&self) {
        if self.is_started {
            self.bar.abandon();
        }
    }

    /// Erases the bar.
    pub(crate) fn erase(&self) {
        self.bar.finish_and_clear();
    }
}

/// What a line of progress says.
struct Shown {
    done: u64,
    all: u64,
    rate: f64,
    left: Duration,
}

impl Shown {
    fn line(&self, more: &str) -> String {
        let Self { done, all, rate, left } = self;
        let left = match *rate > 0.0 && done < all {
            true => format!(", {rate:.1}/s, about {} left", HumanDuration(*left)),
            false => String::new(),
        };
        format!("{done} of {all} lines{left}{more}")
    }
}

fn rate(state: &ProgressState, out: &mut dyn Write) {
    // A bar that cannot be drawn is no failure of the command.
    let _ = write!(out, "{:.1}/s", state.per_sec());
}

/// Hours, minutes and seconds that are left; a dash until there is a rate.
fn left(state: &ProgressState, out: &mut dyn Write) {
    let is_known = state.per_sec() > 0.0 || state.is_finished();
    let _ = match is_known {
        true => write!(out, "{}", FormattedDuration(state.eta())),
        false => write!(out, "–"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_is_left_once_there_is_a_rate() {
        let mut shown = Shown { done: 20, all: 100, rate: 0.0, left: Duration::ZERO };
        assert_eq!(shown.line("  failed 1"), "20 of 100 lines  failed 1");
        shown.rate = 0.5;
        shown.left = Duration::from_secs(160);
        assert_eq!(shown.line(""), "20 of 100 lines, 0.5/s, about 3 minutes left");
    }

    #[test]
    fn every_template_is_valid() {
        for template in [STEPS, SHARE, BYTES] {
            assert!(!bar(10, template).is_finished());
        }
    }
}
