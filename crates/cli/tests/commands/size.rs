//! `wornpath size`, run as a user runs it.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

const TRAFFIC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/traffic.jsonl");

fn size(arguments: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_wornpath");
    Command::new(binary).args(["size", TRAFFIC]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The p95 of the time to first token that `replay` measures on so many pods, in milliseconds.
fn replayed(pods: usize) -> f64 {
    let json = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("size-{pods}.json"));
    let count = pods.to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["replay", TRAFFIC, "--profile", "cache-aware", "--speed", "2", "--pods", &count])
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    report["profiles"][0]["runs"][0]["ttft"]["p95"].as_f64().unwrap()
}

/// The brute force is another command: `replay`, once for every number of pods.
#[test]
fn the_answer_is_the_smallest_fleet_that_a_replay_shows_to_be_enough() {
    let html = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("size.html");
    let page = html.to_str().unwrap();
    let slo = ["--slo", "p95 ttft 500ms", "--speed", "2", "--max-pods", "12"];
    let output = size(&[&slo[..], &["--json", "--html", page]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pods = report["pods"].as_u64().unwrap() as usize;
    let by_count: BTreeMap<usize, f64> =
        (1..=pods + 1).map(|pods| (pods, replayed(pods))).collect();
    let enough = by_count.iter().find(|(_, p95)| **p95 <= 500.0).map(|(pods, _)| *pods);
    assert_eq!(enough, Some(pods), "{by_count:?}");
    assert!(pods > 1, "the traffic is too little to say anything: {by_count:?}");
    for point in report["curve"].as_array().unwrap() {
        let count = point["pods"].as_u64().unwrap() as usize;
        let value = point["values"][0]["milliseconds"].as_f64();
        if let (Some(value), Some(p95)) = (value, by_count.get(&count)) {
            assert!((value - p95).abs() < 1e-6, "{point} is {p95} by replay");
        }
        assert_eq!(point["meets"], count >= pods, "{point}");
    }
    let tokens = report["kv_tokens_per_pod"].as_u64().unwrap();
    assert!(tokens < 945_029 && report["kv_bytes_per_pod"] == tokens * 131_072, "{report}");
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("class=\"limit\"") && page.contains(&format!("{pods} pods meet")));
    assert!(!page.contains("http://") && !page.contains("<script"), "nothing from elsewhere");
}

#[test]
fn the_text_says_what_a_pod_more_or_less_would_do_and_what_it_costs() {
    let output = size(&["--slo", "p95 ttft 500ms", "--speed", "2", "--price-per-hour", "3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    for part in [
        "blocks of 512 tokens",
        " pods meet p95 ttft 500ms: p95 ttft ",
        "One pod less misses: p95 ttft ",
        "One pod more: p95 ttft ",
        "KV cache: ",
        "Cost: ",
        "a pod more or less is 3.00 an hour",
        "##########|",
    ] {
        assert!(told.contains(part), "no `{part}` in {told}");
    }
}

#[test]
fn objectives_that_nothing_meets_end_with_1_and_say_how_near_it_came() {
    let output = size(&["--slo", "p95 ttft 1ms", "--max-pods", "3"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = text(&output.stdout);
    assert!(
        told.contains("No number of pods up to 3 meets p95 ttft 1ms; with 3 it misses: p95"),
        "{told}"
    );
}

#[test]
fn what_cannot_be_sized_is_refused_with_the_cure() {
    let refusal = |arguments: &[&str]| {
        let output = size(arguments);
        assert!(!output.status.success(), "{output:?}");
        text(&output.stderr).to_owned()
    };
    assert!(refusal(&[]).contains("--slo"));
    let error = refusal(&["--slo", "p95 ttf 500ms"]);
    assert!(error.contains("unknown latency `ttf`; did you mean `ttft`?"), "{error}");
    let error = refusal(&["--slo", "p95 ttft"]);
    assert!(error.contains("write a percentile, a latency and a limit"), "{error}");
    let slo = ["--slo", "p95 ttft 1s"];
    let error = refusal(&[&slo[..], &["--kv-tokens", "2000"]].concat());
    assert!(error.contains("more than the 2000 of an engine's KV cache"), "{error}");
    let error = refusal(&[&slo[..], &["--profile", "cache-awar"]].concat());
    assert!(error.contains("did you mean `cache-aware`?"), "{error}");
    let error = refusal(&[&slo[..], &["--html", TRAFFIC]].concat());
    assert!(error.contains("would overwrite an input"), "{error}");
    let error = refusal(&[&slo[..], &["--max-pods", "0"]].concat());
    assert!(error.contains("--max-pods"), "{error}");
}
