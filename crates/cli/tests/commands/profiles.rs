//! `wornpath check` and `wornpath explain`, run as a user runs them.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const REQUEST: &str = r#"{"prompt": "You are a helpful assistant. Say goodbye."}"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn wornpath(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    // A command that refuses its arguments may exit before it reads its input.
    let is_gone = |error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe;
    assert!(written.as_ref().err().is_none_or(is_gone), "{written:?}");
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_good_profile_is_good_and_can_be_printed_and_drawn() {
    let profile = "../../profiles/cache-affinity.yaml";
    let plain = wornpath(&["check", profile], "");
    assert!(plain.status.success());
    assert_eq!(text(&plain.stdout), format!("{profile}: good\n"));
    let printed = wornpath(&["check", "--print", profile], "");
    assert!(
        text(&printed.stdout).contains("  - cache_affinity: {best: 8, unsure: 0.5, weight: 2}")
    );
    let graph = wornpath(&["check", "--graph", profile], "");
    assert!(text(&graph.stdout).contains("block_hash"), "{}", text(&graph.stdout));
    assert!(text(&graph.stdout).contains("← Tokens  → BlockHashes"));
}

#[test]
fn a_bad_profile_ends_with_78_and_every_problem_for_people_and_machines() {
    let bad = "../routing/tests/problems/everything_at_once.yaml";
    let shown = wornpath(&["check", bad], "");
    assert_eq!(shown.status.code(), Some(78));
    assert!(text(&shown.stdout).contains("everything_at_once.yaml: 6 problems"));
    let json = wornpath(&["check", "--json", bad, "../../profiles/round-robin.yaml"], "");
    assert_eq!(json.status.code(), Some(78));
    let reports: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(reports[0]["problems"].as_array().unwrap().len(), 6);
    assert_eq!(reports[1]["good"], true);
}

#[test]
fn a_role_that_no_described_pod_can_play_is_a_problem() {
    let profile = "../../profiles/prefill-decode.yaml";
    assert!(wornpath(&["check", profile], "").status.success());
    let checked = wornpath(&["check", profile, "--fleet", "tests/commands/fleet.yaml"], "");
    assert_eq!(checked.status.code(), Some(78));
    assert!(text(&checked.stdout).contains("which no pod has"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let output = wornpath(&["check", "absent.yaml"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("cannot read absent.yaml"));
}

#[test]
fn every_file_is_checked_whatever_is_wrong_with_those_before_it() {
    let good = "../../profiles/geo.yaml";
    let bad = "../routing/tests/problems/cycle.yaml";
    let output = wornpath(&["check", "absent.yaml", good], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).starts_with("error: cannot read absent.yaml: "));
    assert!(text(&output.stdout).ends_with("geo.yaml: good\n"));
    let output = wornpath(&["check", "--json", "absent.yaml", bad, good], "");
    assert_eq!(
        output.status.code(),
        Some(78),
        "what cannot be used is worse than what is not there"
    );
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(reports[0]["error"].as_str().unwrap().starts_with("cannot read absent.yaml"));
    assert_eq!([&reports[1]["good"], &reports[2]["good"]], [false, true]);
}

#[test]
fn a_printed_profile_checks_and_prints_the_same() {
    let printed = wornpath(&["check", "--print", "../../profiles/prefill-decode.yaml"], "");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("printed.yaml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let again = wornpath(&["check", "--print", file.to_str().unwrap()], "");
    let body = |output: &Output| text(&output.stdout).split_once('\n').unwrap().1.to_owned();
    assert_eq!(body(&again), body(&printed));
}

#[test]
fn a_built_in_profile_is_found_by_its_name_and_an_unknown_name_lists_them_all() {
    let by_path = wornpath(&["check", "--print", "../../profiles/lmetric.yaml"], "");
    let by_name = wornpath(&["check", "--print", "lmetric"], "");
    let body = |output: &Output| text(&output.stdout).split_once('\n').unwrap().1.to_owned();
    assert_eq!(body(&by_name), body(&by_path));
    let unknown = wornpath(&["check", "lmetrik"], "");
    assert_eq!(unknown.status.code(), Some(1));
    let said = text(&unknown.stdout);
    assert!(
        said.contains(
            "`lmetrik` is neither a file nor a built-in profile; did you mean `lmetric`? available: cache-affinity, "
        ),
        "{said}"
    );
    let as_file = text(&wornpath(&["check", "lmetrik.yaml"], "").stdout).to_owned();
    assert!(
        as_file.contains("cannot read lmetrik.yaml; did you mean the built-in profile `lmetric`?"),
        "{as_file}"
    );
    let elsewhere = text(&wornpath(&["check", "./lmetric"], "").stdout).to_owned();
    assert!(elsewhere.contains("cannot read ./lmetric"), "{elsewhere}");
}

/// A fleet with two problems.
fn bad_fleet() -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad-fleet.yaml");
    std::fs::write(&file, "pods: [{name: a, requests: -1}, {name: a, helth: up}]\n").unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_fleet_that_cannot_be_used_ends_with_78_and_the_profile_is_checked_all_the_same() {
    let fleet = bad_fleet();
    let cycle = "../routing/tests/problems/cycle.yaml";
    let checked = wornpath(&["check", cycle, "--fleet", &fleet], "");
    assert_eq!(checked.status.code(), Some(78));
    let explained = wornpath(&["explain", "--profile", cycle, "--fleet", &fleet], REQUEST);
    assert_eq!(explained.status.code(), Some(78));
    for output in [&checked, &explained] {
        let shown = text(&output.stdout);
        assert!(shown.contains("bad-fleet.yaml: 3 problems; the fleet is not usable"), "{shown}");
        assert!(shown.contains("cycle.yaml: 2 problems; the profile is not usable"), "{shown}");
    }
    let json = wornpath(&["explain", "--json", "--profile", cycle, "--fleet", &fleet], REQUEST);
    let all: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(all["problems"].as_array().unwrap().len(), 5);
}

#[test]
fn the_same_request_gets_the_same_plan_in_every_process() {
    let plan = || {
        let profile = ["explain", "--json", "--profile", "../../profiles/llm-d.yaml"];
        let fleet = ["--fleet", "tests/commands/fleet.yaml", "--seed", "7"];
        let output = wornpath(&[&profile[..], &fleet].concat(), REQUEST);
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        all["outcome"]["plan"].to_string()
    };
    assert!(plan().contains("\"pod\":"));
    assert_eq!(plan(), plan());
}

#[test]
fn explain_shows_dropped_pods_scores_and_the_plan() {
    let arguments = [
        "explain",
        "--profile",
        "../../profiles/cache-affinity.yaml",
        "--fleet",
        "tests/commands/fleet.yaml",
    ];
    let output = wornpath(&arguments, REQUEST);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("c    0       dropped by healthy: draining"), "{shown}");
    assert!(shown.contains("serve: a, fallback "), "{shown}");
    assert!(shown.contains("32 tokens cached (8 blocks on gpu)"), "{shown}");

    let output = wornpath(&[&arguments[..], &["--json"]].concat(), REQUEST);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["outcome"]["plan"]["steps"][0]["pod"], "a");
    assert_eq!(all["explanation"]["steps"][0]["candidates"][1]["blocks"], 4);
}

#[test]
fn a_held_conversation_is_found_by_the_request_that_continues_it() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conversation.yaml");
    let held = "messages: [{role: system, content: You are a helpful assistant.}]";
    let models = "models: [{name: m, block_size: 4, tokenizer: bytes}]";
    let pods = format!("pods: [{{name: a}}, {{name: b, holds: [{{{held}}}]}}]");
    std::fs::write(&file, format!("{models}\n{pods}\n")).unwrap();
    let profile = ["explain", "--json", "--profile", "../../profiles/cache-affinity.yaml"];
    let body = r#"{"messages": [{"role": "system", "content": "You are a helpful assistant."},
                                {"role": "user", "content": "Hello"}]}"#;
    let fleet = ["--fleet", file.to_str().unwrap()];
    let output = wornpath(&[&profile[..], &fleet].concat(), body);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["outcome"]["plan"]["steps"][0]["pod"], "b", "{all:#}");
    assert_eq!(all["explanation"]["steps"][0]["candidates"][1]["blocks"], 10, "{all:#}");
}

#[test]
fn explain_refuses_an_invalid_request_or_profile() {
    let fleet = ["--fleet", "tests/commands/fleet.yaml"];
    let profile = ["explain", "--profile", "../../profiles/round-robin.yaml"];
    let output = wornpath(&[&profile[..], &fleet].concat(), "{}");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("neither `messages` nor `prompt`"));
    for (header, problem) in
        [("x-session", "has no colon"), ("x session: 1", "invalid header name")]
    {
        let output = wornpath(&[&profile[..], &fleet, &["--header", header]].concat(), REQUEST);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(problem), "{output:?}");
    }
    let profile = ["explain", "--profile", "../routing/tests/problems/cycle.yaml"];
    let output = wornpath(&[&profile[..], &fleet].concat(), REQUEST);
    assert_eq!(output.status.code(), Some(78));
}
