//! Help, version, errors and closed pipes of the binary.

use std::process::{Command, Output, Stdio};

fn wornpath(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wornpath")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn an_error_shows_its_causes_and_no_backtrace() {
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
fn a_command_whose_reader_closes_the_pipe_exits_with_0() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["completions", "bash"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}
