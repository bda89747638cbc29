//! The real binary, run as a user runs it.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::process::{Command, Output, Stdio};

fn wornpath(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wornpath")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The cells of a prompt's line in each of the demo's tables, from the token count on.
fn lines_of(demo: &str, prompt: &str) -> Vec<Vec<String>> {
    demo.lines()
        .filter_map(|line| line.trim_start().strip_prefix(prompt))
        .map(|rest| rest.split_whitespace().map(str::to_owned).collect())
        .collect()
}

#[test]
fn recorded_engines_show_who_holds_what_and_what_eviction_and_removal_change() {
    let output = wornpath(&["demo", "--recorded"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let demo = text(&output.stdout);
    let cells = |rows: [&str; 3]| {
        rows.map(|row| row.split(' ').map(str::to_owned).collect::<Vec<_>>()).to_vec()
    };
    assert_eq!(
        lines_of(demo, "a file of code"),
        cells(["160 160 gpu - - engine-1", "160 32 gpu - - engine-1", "160 64 gpu - engine-1"])
    );
    assert_eq!(
        lines_of(demo, "a long count"),
        cells([
            "192 - 192 gpu 64 gpu engine-2",
            "192 - 192 host 64 gpu engine-2",
            "192 - 192 host engine-2",
        ])
    );
    assert_eq!(
        lines_of(demo, "a count with a new ending"),
        cells([
            "128 - 64 gpu 128 gpu engine-3",
            "128 - 64 host 128 gpu engine-3",
            "128 - 64 host engine-2",
        ])
    );
    assert_eq!(
        lines_of(demo, "a count, other tenant"),
        cells(["64 - - 64 gpu engine-3", "64 - - 64 gpu engine-3", "64 - - any: nobody has it",])
    );
}

#[test]
fn users_see_why_it_failed_and_not_where_in_the_code() {
    let output = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["plan", "there-is-no-such-file.jsonl"])
        .env("RUST_BACKTRACE", "full")
        .output()
        .unwrap();
    let told = text(&output.stderr);
    assert!(!output.status.success() && told.contains("there-is-no-such-file.jsonl"), "{told}");
    assert!(told.starts_with("Error: ") && told.contains("No such file"), "{told}");
    assert!(!told.contains("backtrace") && told.lines().count() <= 3, "{told}");
}

#[test]
fn help_says_where_to_start_and_version_says_which_one_this_is() {
    let help = wornpath(&["--help"]);
    assert!(help.status.success());
    assert!(text(&help.stdout).contains("Start with `wornpath demo`"), "{}", text(&help.stdout));
    let version = wornpath(&["--version"]);
    let expected = format!("wornpath {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&version.stdout), expected);
}

#[test]
fn an_unknown_subcommand_fails_and_says_so() {
    let output = wornpath(&["fly"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("unrecognized subcommand 'fly'"));
    assert_eq!(wornpath(&[]).status.code(), Some(2));
}

#[test]
fn a_reader_that_stops_early_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["demo", "--recorded"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}
