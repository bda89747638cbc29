//! `wornpath replay`, run as a user runs it.

use crate::support::terminal::Terminal;
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Forty prompts of eight blocks; of each four in a row, the first six blocks are the same.
fn trace() -> String {
    let mut text = String::new();
    for number in 0..40_u64 {
        let ids: Vec<u64> =
            (0..8)
                .map(|block| {
                    if block < 6 {
                        100 * (number / 4) + block
                    } else {
                        100_000 + 10 * number + block
                    }
                })
                .collect();
        let time = 400 * number;
        writeln!(
            text,
            "{{\"timestamp\": {time}, \"input_length\": 4000, \"output_length\": 20, \"hash_ids\": {ids:?}}}"
        )
        .unwrap();
    }
    text
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn replay(arguments: &[&str]) -> Output {
    let profiles = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");
    Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .current_dir(profiles)
        .arg("replay")
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn bars_on_a_terminal_leave_only_the_table() {
    let trace = file("bars.jsonl", &trace());
    let profiles = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles");
    let profile = |name: &str| format!("{profiles}/{name}.yaml");
    let first = profile("round-robin");
    let second = profile("cache-aware");
    let command = [env!("CARGO_BIN_EXE_wornpath"), "replay", trace.to_str().unwrap()];
    let options = ["--profile", &first, "--profile", &second, "--pods", "4", "--seeds", "3"];
    let mut terminal = Terminal::run(&[&command[..], &options].concat(), 24, 130);
    terminal.wait_for("profile ");
    let shown = terminal.end(0);
    let rows: Vec<_> = shown.lines().filter(|line| !line.is_empty()).collect();
    let has = |at: usize, name: &str| rows.get(at).is_some_and(|row| row.starts_with(name));
    assert!(has(2, "round-robin ") && has(3, "cache-aware ") && has(4, "exit status"), "{shown}");
}

#[test]
fn profiles_are_compared_on_the_same_traffic() {
    let trace = file("compared.jsonl", &trace());
    let json = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compared.json");
    let html = json.with_extension("html");
    let arguments =
        [trace.to_str().unwrap(), "--profile", "round-robin.yaml", "--profile", "cache-aware.yaml"];
    let more =
        ["--pods", "4", "--seeds", "2", "--events-delay", "10ms", "--json", json.to_str().unwrap()];
    let page = ["--html", html.to_str().unwrap()];
    let output = replay(&[&arguments[..], &more, &page].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("round-robin") && table.contains("cache-aware"), "{table}");
    let figures: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("cache-aware") && page.contains("<svg"), "{page}");
    let rates = |profile: usize| {
        let runs = figures["profiles"][profile]["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        assert!(runs.iter().all(|run| run["requests"] == 40 && run["failures"] == 0), "{runs:?}");
        runs.iter().map(|run| run["hit_rate"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert!(rates(0).iter().all(|rate| *rate < 0.1), "in turn, nothing is found: {:?}", rates(0));
    assert!(
        rates(1).iter().all(|rate| *rate > 0.5),
        "three of four find six of eight: {:?}",
        rates(1)
    );
}

#[test]
fn invalid_lines_profiles_and_options_are_reported() {
    let good = file("good.jsonl", &trace());
    let bad = file("bad.jsonl", &format!("{}oops\n", trace()));
    let refusal = |trace: &PathBuf, arguments: &[&str]| {
        let output = replay(&[&[trace.to_str().unwrap()], arguments].concat());
        assert!(!output.status.success());
        text(&output.stderr).to_owned()
    };
    let profile = ["--profile", "least-load.yaml"];
    let error = refusal(&bad, &profile);
    assert!(error.contains("bad.jsonl: 1 invalid lines") && error.contains("line 41"), "{error}");
    let error = refusal(&good, &["--profile", "none.yaml"]);
    assert!(error.contains("cannot read none.yaml"), "{error}");
    assert!(refusal(&good, &[]).contains("--profile"));
    let error = refusal(&good, &[&profile[..], &["--events-delay", "5"]].concat());
    assert!(error.contains("write 100ms or 1.5s"), "{error}");
    let error = refusal(&good, &[&profile[..], &["--speed", "0"]].concat());
    assert!(error.contains("from 0.001"), "{error}");
    let kept = std::fs::read(&good).unwrap();
    let path = good.to_str().unwrap();
    for option in ["--json", "--html"] {
        let error = refusal(&good, &[&profile[..], &[option, path]].concat());
        assert!(error.contains("would overwrite an input"), "{error}");
        assert_eq!(std::fs::read(&good).unwrap(), kept);
    }
    let error = refusal(&good, &[&profile[..], &["--json", "x.out", "--html", "./x.out"]].concat());
    assert!(error.contains("both ./x.out"), "{error}");
    let error = refusal(&good, &[&profile[..], &["--kv-tokens", "0"]].concat());
    assert!(error.contains("give 1 or more"), "{error}");
    let error = refusal(&good, &[&profile[..], &["--block-size", "16"]].concat());
    assert!(
        error.contains("--block-size 16 does not fit: its prompts have blocks of 445 to 571 tokens; give --block-size 512"),
        "{error}"
    );
    let error = refusal(&good, &[&profile[..], &["--block-size", "18446744073709551615"]].concat());
    assert!(error.contains("from 1 to 65536"), "{error}");
    let packed = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("packed.jsonl");
    std::fs::write(&packed, [0x1f, 0x8b, 8, 0]).unwrap();
    assert!(refusal(&packed, &profile).contains("is a gzip file; unpack it"));
    let wrong = file("wrong.yaml", "score: [no_such_plugin]\npick: max_score\n");
    let error = refusal(&good, &["--profile", wrong.to_str().unwrap()]);
    assert!(error.contains("no_such_plugin"), "{error}");
}

#[test]
fn the_block_size_is_inferred_from_the_trace_and_one_that_no_size_fits_is_refused() {
    let line = |time: u64, tokens: usize, blocks: usize| {
        let ids: Vec<usize> = (0..blocks).collect();
        format!(
            "{{\"timestamp\": {time}, \"input_length\": {tokens}, \"output_length\": 2, \"hash_ids\": {ids:?}}}\n"
        )
    };
    let small = file("small.jsonl", &(line(0, 100, 7) + &line(9, 33, 3)));
    let output = replay(&[small.to_str().unwrap(), "--profile", "cache-aware.yaml"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("2 requests in blocks of 16 tokens"), "{output:?}");
    let mixed = file("mixed.jsonl", &(line(0, 100, 7) + &line(9, 3_000, 3)));
    let output = replay(&[mixed.to_str().unwrap(), "--profile", "cache-aware.yaml"]);
    let error = text(&output.stderr);
    assert!(
        !output.status.success() && error.contains("line 2: `input_length` is 3000"),
        "{error}"
    );
    assert!(error.contains("the lines before it have blocks of 13 to 16 tokens"), "{error}");
}

#[test]
fn a_huge_line_is_named() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("huge.jsonl");
    std::fs::write(&path, format!("{{\"prompt\": \"a\"}}\n{}", "x".repeat((64 << 20) + 9)))
        .unwrap();
    let huge = path.to_str().unwrap();
    let out = path.with_extension("out");
    let run = ["run", huge, "-o", out.to_str().unwrap(), "--pod", "http://127.0.0.1:1"];
    for arguments in [&["plan", huge][..], &["replay", huge, "--profile", "round-robin"], &run] {
        let binary = env!("CARGO_BIN_EXE_wornpath");
        let output = Command::new(binary).args(arguments).output().unwrap();
        let error = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(error.contains("line 2") && error.contains("67108864"), "{arguments:?}: {error}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn profiles_that_do_not_check_end_with_78_before_anything_runs_and_all_are_listed() {
    let trace = file("unused.jsonl", &trace());
    let wrong = file("wrong-again.yaml", "score: [no_such_plugin]\npick: {}\n");
    let all = ["least-load.yaml", wrong.to_str().unwrap(), "prefill-decode.yaml"];
    let profiles = all.map(|profile| ["--profile", profile]).concat();
    let output = replay(&[&[trace.to_str().unwrap()], &profiles[..]].concat());
    assert_eq!(output.status.code(), Some(78));
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    let error = text(&output.stderr);
    assert!(error.contains("wrong-again.yaml: 2 problems"), "{error}");
    assert!(error.contains("step `decode` needs the role `decode`, which no pod has"), "{error}");
}

#[test]
fn long_prompts_are_computed_on_pods_of_their_own_and_a_profile_of_one_step_gets_as_many_pods() {
    let trace = file("split.jsonl", &trace());
    let json = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("split.json");
    let trace = trace.to_str().unwrap();
    let profiles = ["--profile", "prefill-decode.yaml", "--profile", "cache-aware.yaml"];
    let pods = ["--pods", "prefill=1,decode=2", "--json", json.to_str().unwrap()];
    let output = replay(&[&[trace], &profiles[..], &pods].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("on 3 engines 8b-h200 (prefill 1, decode 2)"), "{shown}");
    let figures: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let run = |profile: usize| figures["profiles"][profile]["runs"][0].clone();
    for profile in 0..2 {
        assert_eq!((&run(profile)["requests"], &run(profile)["failures"]), (&40.into(), &0.into()));
    }
    // The slowest requests are those of new prompts: split, they wait for the transfer too.
    let longest = |profile: usize| run(profile)["ttft"]["longest"].as_f64().unwrap();
    assert!(longest(0) > longest(1) + 20.0, "{} {}", longest(0), longest(1));
    let output = replay(&[trace, "--profile", "cache-aware.yaml", "--pods", "prefill=1,decode"]);
    assert!(text(&output.stderr).contains("prefill=2,decode=2"), "{}", text(&output.stderr));
    let output = replay(&[trace, "--profile", "prefill-decode.yaml", "--pods", "prefill=2"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(text(&output.stderr).contains("the role `decode`"), "{}", text(&output.stderr));
    let three = "preprocess=1,prefill=1,decode=1";
    let profile = "preprocess-prefill-decode.yaml";
    let output = replay(&[trace, "--profile", profile, "--pods", three]);
    assert_eq!(output.status.code(), Some(78));
    assert!(
        text(&output.stderr).contains("a plan has the steps preprocess, prefill, decode; a replay"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_conversation_finds_its_own_answers_in_a_replay() {
    let turn = |start: &str, tokens: usize, ids: &str| {
        format!(
            "{{{start}, \"session_id\": 1, \"input_length\": {tokens}, \"output_length\": 600, \"hash_ids\": [{ids}]}}\n"
        )
    };
    let text_of =
        turn("\"timestamp\": 0", 1_100, "1, 2, 3") + &turn("\"delay\": 9", 2_000, "1, 2, 4, 5");
    let trace = file("conversation.jsonl", &text_of);
    let output = replay(&[trace.to_str().unwrap(), "--profile", "cache-aware.yaml"]);
    let shown = text(&output.stdout);
    assert!(
        shown.contains("blocks of 512 tokens, 1 replies cached, ideal hit rate 0.495"),
        "{shown}"
    );
    assert!(shown.contains("   0.495 "), "{shown}");
}

#[test]
fn a_fleet_file_says_which_pods_there_are_and_a_wrong_one_is_refused() {
    let trace = file("described.jsonl", &trace());
    let trace = trace.to_str().unwrap();
    let fleet = file(
        "described.yaml",
        "models: [{name: m}]\npods:\n  - {name: p, role: prefill, rack: r1}\n  - {name: near, role: decode, rack: r1, kv_tokens: 90000}\n  \
         - {name: slow, role: decode, rack: r2, speed: 70b-h100x4}\n",
    );
    let profiles = ["--profile", "prefill-decode.yaml", "--profile", "cache-aware.yaml"];
    let fleet = ["--fleet", fleet.to_str().unwrap()];
    let json = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("described.json");
    let more = ["--json", json.to_str().unwrap()];
    let output = replay(&[&[trace], &profiles[..], &fleet, &more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let pods = "on 3 engines 8b-h200, 70b-h100x4 (prefill 1, decode 2)";
    assert!(shown.contains(pods), "{shown}");
    let figures: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    // Near the prefill pod, and fast: all requests are decoded there.
    let split = &figures["profiles"][0]["runs"][0];
    assert_eq!((&split["failures"], &split["imbalance"]), (&0.into(), &3.0.into()), "{split}");
    let output = replay(&[&[trace], &profiles[..], &fleet, &["--pods", "3"]].concat());
    assert!(text(&output.stderr).contains("cannot be used with"), "{}", text(&output.stderr));
    let refusal = |described: &str| {
        let path = file("refused.yaml", described);
        let output =
            replay(&[&[trace], &profiles[..], &["--fleet", path.to_str().unwrap()]].concat());
        (output.status.code(), text(&output.stderr).to_owned())
    };
    let (code, error) = refusal("pods: [{name: a, rol: prefill}]");
    assert!(code == Some(78) && error.contains("did you mean `role`?"), "{error}");
    let (_, error) = refusal("pods: [{name: a, requests: 3}]");
    assert!(error.contains("pod `a`: `requests` is set; in a replay"), "{error}");
}
