//! `wornpath demo`, run as a user runs it.
#![allow(clippy::disallowed_methods, reason = "processes live in real time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn demo() -> Command {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    demo.args(["demo", "--requests", "300"]);
    demo
}

/// The cells of the line that begins so.
fn cells<'a>(shown: &'a str, name: &str) -> Vec<&'a str> {
    let line = shown.lines().find_map(|line| line.trim_start().strip_prefix(name));
    line.unwrap_or_else(|| panic!("no line `{name}` in {shown}")).split_whitespace().collect()
}

#[test]
fn the_demo_compares_policies_explains_and_loses_a_pod_but_no_request() {
    let output = demo().arg("--once").output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{shown}{said}");
    let rates: Vec<f64> = cells(&shown, "prompt tokens from caches")
        .iter()
        .map(|cell| cell.trim_end_matches('%').parse().unwrap())
        .collect();
    assert!(rates.len() == 2 && rates[1] > rates[0], "{shown}");
    assert_eq!(cells(&shown, "failed requests"), ["0", "0"], "{shown}");
    assert!(shown.contains("0 failed requests; "), "{shown}");
    assert!(shown.contains("240 of 240 answered, 0 failed"), "{shown}");
    // What was planned is what was done: the plan is that of the request, and not of another like
    // it.
    let after = |words: &str| {
        shown.split(words).nth(1).unwrap_or_else(|| panic!("no `{words}` in {shown}"))
    };
    let split = after("plan: prefill on pod-0, then decode on ");
    let pod = split.lines().next().unwrap();
    assert!(split.contains(&format!("result: {pod} answered; ")), "{shown}");
    let pod = after("→").split_whitespace().next().unwrap();
    assert!(after("→").contains(&format!("result: {pod} answered; ")), "{shown}");
}

#[test]
fn the_demo_serves_until_a_signal_and_shuts_down_cleanly() {
    let mut child = demo().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let admin = first.split(['/', ' ']).find(|word| word.starts_with("127.0.0.1:"));
    let admin = admin.unwrap_or_else(|| panic!("no dashboard in `{first}`")).to_owned();
    let mut shown = String::new();
    while !shown.contains("/openapi.json") {
        let Some(line) = lines.next() else {
            let ended = child.wait_with_output().unwrap();
            panic!(
                "the demo ended before it invited to send requests: {shown}{}",
                String::from_utf8_lossy(&ended.stderr)
            );
        };
        shown.push_str(&line.unwrap());
        shown.push('\n');
    }
    let url = format!("http://{admin}");
    let mut top = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    let looked = top.args(["top", "--once", "--admin", &url]).output().unwrap();
    let looked = String::from_utf8(looked.stdout).unwrap();
    assert!(looked.contains("4 of 4 pods up") && looked.contains("240 of 240 lines"), "{looked}");
    assert!(!looked.contains("\n0 requests/s"), "traffic goes on: {looked}");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let left = std::fs::read_dir(std::env::temp_dir()).unwrap().map(|entry| entry.unwrap().path());
    let left =
        left.filter(|path| path.to_string_lossy().contains(&format!("wornpath-demo-{pid}-")));
    assert_eq!(left.collect::<Vec<_>>(), [] as [PathBuf; 0], "its folder goes with it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn ctrl_c_during_the_comparison_ends_the_demo_and_leaves_no_process_behind() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    demo.args(["demo", "--requests", "1000000"]);
    let mut child = demo.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let begins = |line: &String| line.contains("under each policy");
    assert!(lines.by_ref().map(Result::unwrap).any(|line| begins(&line)), "it did not begin");
    let pid = child.id().to_string();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    assert_eq!(children.unwrap_or_default(), "", "engines and gateway live in the one process");
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let interrupted = Instant::now();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let status = child.wait().unwrap();
    let took = interrupted.elapsed();
    assert_eq!(status.code(), Some(130), "{rest:?}");
    assert!(took < Duration::from_secs(6), "waits only for what is in flight: {took:?}");
    assert_eq!(rest.last().map(String::as_str), Some("Interrupted."), "{rest:?}");
}
