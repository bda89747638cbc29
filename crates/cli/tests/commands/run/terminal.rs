//! Progress of a run in a terminal.

use super::files::{Job, questions};
use crate::support::engines::Engines;
use crate::support::terminal::Terminal;

#[test]
fn a_terminal_shows_a_bar_with_the_time_left_and_then_the_summary() {
    let engines = Engines::start(&["--engines", "2"]);
    let job = Job::new("bar", questions(6, 10));
    let pods: Vec<_> = engines.engines.iter().map(|at| format!("http://{}", at.http)).collect();
    let input = job.input.to_str().unwrap().to_owned();
    let output = job.output();
    let command = [env!("CARGO_BIN_EXE_wornpath"), "run", &input, "-o", output.to_str().unwrap()];
    let command = [&command[..], &["--pod", &pods[0], "--pod", &pods[1]]].concat();
    let mut terminal = Terminal::run(&command, 24, 150);
    terminal.wait_for("ETA ");
    let shown = terminal.end(0);
    let bars = shown.lines().filter(|line| line.contains("ETA ")).count();
    assert_eq!(bars, 1, "{shown}");
    assert!(shown.contains("[########################] 100%  60/60  "), "{shown}");
    assert!(shown.contains("60 of 60 lines answered, 0 failed, 0 left"), "{shown}");
}
