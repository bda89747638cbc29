//! Progress bar of a replay, on standard error, so that tables can be piped, and only on a
//! terminal.

use std::io::{IsTerminal, Write, stderr};

const WIDTH: usize = 30;

/// A bar that is redrawn in place, and erased when dropped.
pub(super) struct ReplayProgress {
    title: String,
    all: usize,
}

impl ReplayProgress {
    /// The bar of one run of one profile; none without a terminal.
    pub(super) fn new(profile: &str, run: u64, runs: u64, all: usize) -> Option<Self> {
        let title = format!("{profile}, run {run} of {runs}");
        stderr().is_terminal().then(|| Self { title, all })
    }

    /// Redraws the bar if the percentage has changed with the last of `ended` requests.
    pub(super) fn show(&self, ended: usize) {
        if let Some(line) = line(&self.title, ended, self.all) {
            // A closed terminal is not an error.
            let _ = write!(stderr(), "\r{line}");
        }
    }
}

impl Drop for ReplayProgress {
    fn drop(&mut self) {
        let _ = write!(stderr(), "\r\x1b[K");
    }
}

/// The bar, if its percentage differs from that of one request less.
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
