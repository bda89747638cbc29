//! `wornpath batch submit --watch` shows a batch while it runs.

use super::{batch, folder, input, line, text};
use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use crate::support::terminal::Terminal;

fn in_front_of_slow_engines(name: &str, lines: usize) -> (Engines, Gateway, String) {
    let engines = Engines::start_at("1", &["--fault", "slow=4"]);
    let kept = folder(name);
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    let input = input(&folder(&format!("{name}_input")), (0..lines).map(line));
    (engines, gateway, input)
}

#[test]
fn a_terminal_shows_a_watched_batch_with_its_rate_and_the_time_left() {
    let (_engines, gateway, input) = in_front_of_slow_engines("live", 450);
    let url = format!("http://{}", gateway.address);
    let binary = env!("CARGO_BIN_EXE_wornpath");
    let submit = [binary, "batch", "submit", &input, "--watch", "--gateway", &url];
    let mut terminal = Terminal::run(&submit, 24, 120);
    terminal.wait_for("validating");
    terminal.wait("some lines are done, and the time left is known", |screen| {
        let shown = screen.contents();
        let bar = shown.lines().find(|row| row.contains("/450 ")).unwrap_or_default();
        let done = bar.split("/450").next().and_then(|row| row.split_whitespace().last());
        let done: usize = done.and_then(|done| done.parse().ok()).unwrap_or(0);
        (1..450).contains(&done) && bar.contains("ETA ") && !bar.contains("ETA –")
    });
    let shown = terminal.end(0);
    assert!(shown.contains("completed: 450 of 450 answered, 0 failed"), "{shown}");
    assert!(!shown.contains("0 of 0") && !shown.contains("ETA"), "the bar is erased: {shown}");
}

#[test]
fn without_a_terminal_a_watched_batch_prints_its_states_and_its_progress() {
    let (_engines, gateway, input) = in_front_of_slow_engines("printed", 450);
    let ended = batch(&gateway, &["submit", &input, "--watch"]);
    assert!(ended.status.success(), "{ended:?}");
    let told = text(&ended.stderr);
    assert!(told.contains("in progress") && told.contains(" of 450 lines"), "{told}");
    assert!(!text(&ended.stdout).contains("0 of 0"), "{ended:?}");
}
