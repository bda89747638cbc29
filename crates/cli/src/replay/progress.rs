//! How far a replay has come, on a terminal.
//!
//! Written to stderr, so that tables can be piped; nobody reads a log of percentages, so only to a terminal.

use std::io::{IsTerminal, Write, stderr};

const WIDTH: usize = 30;

/// A line that is written over and over, and wiped when dropped.
pub(super) struct ReplayProgress {
    title: String,
    all: usize,
}

impl ReplayProgress {
    /// The bar of one run of one profile, if there is a terminal to show it.
    pub(super) fn new(profile: &str, (run, runs): (u64, u64), all: usize) -> Option<Self> {
        let title = format!("{profile}, run {run} of {runs}");
        stderr().is_terminal().then(|| Self { title, all })
    }

    /// So many requests have ended. Draws when the percentage changes.
    pub(super) fn show(&self, ended: usize) {
        if let Some(line) = line(&self.title, ended, self.all) {
            // Whoever closed the terminal does not want to see it.
            let _ = write!(stderr(), "\r{line}");
        }
    }
}

impl Drop for ReplayProgress {
    fn drop(&mut self) {
        let _ = write!(stderr(), "\r\x1b[K");
    }
}

/// The bar, if it is another one than after one request less.
fn line(title: &str, ended: usize, all: usize) -> Option<String> {
    let percent = |ended: usize| 100 * ended / all.max(1);
    let now = percent(ended);
    if now == percent(ended.saturating_sub(1)) {
        return None;
    }
    let done = WIDTH * now / 100;
    Some(format!("{title} [{}{}] {now}%", "#".repeat(done), " ".repeat(WIDTH - done)))
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn the_bar_grows_to_the_end_and_is_drawn_once_a_percent() {
        let drawn: Vec<_> = (1..=1000).filter_map(|ended| line("p", ended, 1000)).collect();
        assert_eq!(drawn.len(), 100);
        assert_eq!(drawn[0], format!("p [{}] 1%", " ".repeat(30)));
        assert_eq!(drawn[99], format!("p [{}] 100%", "#".repeat(30)));
        assert_eq!(line("p", 0, 0), None, "nothing to do is no progress");
    }
}
