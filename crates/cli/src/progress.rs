//! Progress bars of all commands. They are drawn on standard error, so that results can be piped,
//! and not at all where that is no terminal. A bar is erased when it is dropped.

use indicatif::{FormattedDuration, ProgressBar, ProgressState, ProgressStyle};
use std::fmt::Write;

/// Lines or requests, with their rate.
pub(crate) const STEPS: &str =
    "{prefix}[{bar:24}] {percent:>3}%  {pos}/{len}  {rate}  ETA {left}{msg}";
/// Bytes of a file.
pub(crate) const BYTES: &str = "{prefix}[{bar:24}] {percent:>3}%  {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  ETA {left}";

/// A bar of so many steps, drawn by one of the templates above.
pub(crate) fn bar(all: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a test draws every template");
    let style = style.progress_chars("##.").with_key("rate", rate).with_key("left", left);
    ProgressBar::new(all).with_style(style)
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
    fn every_template_is_valid() {
        for template in [STEPS, BYTES] {
            assert!(!bar(10, template).is_finished());
        }
    }
}
