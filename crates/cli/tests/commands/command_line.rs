//! Help, version, errors and closed pipes of the binary.

use std::process::{Command, Output, Stdio};

const FLEET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands/fleet.yaml");

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
    assert!(told.starts_with("error: ") && told.contains("No such file"), "{told}");
    assert!(!told.contains("backtrace") && told.lines().count() <= 3, "{told}");
}

/// Every command that can fail says so in one form, whether its arguments, its files or its
/// configuration are wrong.
#[test]
fn every_command_reports_an_error_in_the_same_form() {
    let all: [&[&str]; 12] = [
        &["plan", "absent.jsonl"],
        &["replay", "absent.jsonl", "--profile", "round-robin"],
        &["run", "absent.jsonl", "-o", "out.jsonl", "--pod", "http://127.0.0.1:1"],
        &["explain", "--profile", "round-robin", "--fleet", "absent.yaml"],
        &["serve", "-c", "absent.yaml"],
        &["serve", "--pod", "ftp://a"],
        &["epp", "--pod", "ftp://a"],
        &["engine", "--speed", "0"],
        &["top", "--once", "--admin", "http://127.0.0.1:1"],
        &["batch", "list", "--gateway", "http://127.0.0.1:1"],
        &["trace", "record", "x.jsonl", "--admin", "http://127.0.0.1:1"],
        &["events", "tail", "--from", "nonsense"],
    ];
    for arguments in all {
        let output = wornpath(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let told = text(&output.stderr);
        assert!(told.starts_with("error"), "{arguments:?}: {told}");
        assert!(!told.contains("Error:") && !told.contains("ERROR"), "{arguments:?}: {told}");
    }
    let logged = wornpath(&["serve", "-c", "absent.yaml", "--log-format", "json"]);
    let line: serde_json::Value = serde_json::from_slice(&logged.stderr).unwrap();
    assert_eq!(line["level"], "ERROR", "where programs read the log, it is a line of it: {line}");
}

#[test]
fn a_misspelt_name_of_a_profile_or_an_engine_is_answered_with_the_one_that_was_meant() {
    let suggestions: [(&[&str], &str); 4] = [
        (&["replay", "x", "--profile", "min-tftt"], "did you mean `min-ttft`? available: "),
        (&["explain", "--fleet", FLEET, "--profile", "cache-awar"], "did you mean `cache-aware`?"),
        (
            &["serve", "--pod", "http://a:1", "--policy", "roundrobin"],
            "did you mean `round-robin`?",
        ),
        (&["plan", "x", "--engine", "8b-h20"], "did you mean `8b-h200`? available: "),
    ];
    for (arguments, suggestion) in suggestions {
        let output = wornpath(arguments);
        let told = text(&output.stderr);
        assert!(!output.status.success() && told.contains(suggestion), "{arguments:?}: {told}");
    }
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
