//! Batches through the real binary: the official client, and a gateway that is killed while they
//! run.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::disallowed_methods, reason = "processes live in real time")]

mod commands;
mod damage;
#[cfg(feature = "postgres")]
mod database;
mod dedup;
mod deleted_files;
mod disk;
mod external_sort;
mod large_lines;
mod live_progress;
mod long_answers;
mod models;
mod prefix_match;
mod priority;
mod quotas;
mod reload;
mod retention;
mod roles;
#[cfg(feature = "postgres")]
#[path = "../../../jobs/tests/crash/server.rs"]
#[allow(dead_code, reason = "shared with the tests of the store, which use the rest")]
mod server;
mod slow_lines;
mod stalled_clients;
#[path = "../support/mod.rs"]
mod support;
mod tenants;
mod terminal_states;

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("batches").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn line(number: usize) -> Value {
    let content = format!("{}Question {number}?", format!("Document {}. ", number % 4).repeat(50));
    json!({
        "custom_id": format!("id-{number}"),
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"max_tokens": 24, "messages": [{"role": "user", "content": content}]},
    })
}

/// Writes lines to be submitted.
fn input(folder: &Path, lines: impl Iterator<Item = Value>) -> String {
    let path = folder.join("in.jsonl");
    let lines: Vec<_> = lines.map(|line| line.to_string()).collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn batch(gateway: &Gateway, arguments: &[&str]) -> Output {
    let url = format!("http://{}", gateway.address);
    let binary = env!("CARGO_BIN_EXE_wornpath");
    Command::new(binary).arg("batch").args(arguments).args(["--gateway", &url]).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Whether the official client is installed; a failure with `WORNPATH_PEERS=required`.
fn has_client() -> bool {
    let found = Command::new("python3").args(["-c", "import openai"]).output();
    let is_there = found.is_ok_and(|found| found.status.success());
    let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
    assert!(is_there || !required, "python3 has no `openai`; install it with pip");
    is_there
}

#[test]
fn the_official_client_uploads_creates_polls_downloads_cancels_and_expires() {
    if !has_client() {
        eprintln!("NOT CHECKED: the official client, because python3 has no `openai`");
        return;
    }
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let kept = folder("client");
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/batches/client.py");
    let url = format!("http://{}", gateway.address);
    let output = Command::new("python3").arg(script).arg(url).output().unwrap();
    let out = text(&output.stdout);
    let error = text(&output.stderr);
    assert!(output.status.success(), "{out}{error}");
    assert!(out.ends_with("every_interface\n"), "{out}");
}

#[test]
fn a_killed_gateway_resumes_its_batches_and_publishes_each_line_once() {
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let kept = folder("killed");
    let arguments = ["--batches", kept.to_str().unwrap()];
    let mut gateway = Gateway::in_front_of(&engines, &arguments);
    let input = kept.join("in.jsonl");
    let lines: Vec<_> = (0..400).map(|number| line(number).to_string()).collect();
    std::fs::write(&input, lines.join("\n")).unwrap();
    let submitted = batch(&gateway, &["submit", input.to_str().unwrap()]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    let id = text(&submitted.stdout).split_whitespace().next().unwrap().to_owned();
    let done = |gateway: &Gateway| {
        let json = gateway.get(&format!("/v1/batches/{id}")).json();
        json["request_counts"]["completed"].as_u64().unwrap()
    };
    for round in 1..=3 {
        eventually("some lines are there", || done(&gateway) >= round * 60);
        gateway.child.kill().unwrap();
        gateway.child.wait().unwrap();
        let before = round * 60;
        gateway = Gateway::in_front_of(&engines, &arguments);
        assert!(done(&gateway) >= before, "what was acknowledged is there");
    }
    let watched = batch(&gateway, &["watch", &id]);
    assert!(watched.status.success(), "{}", text(&watched.stderr));
    assert!(
        text(&watched.stdout).contains("completed: 400 of 400 answered, 0 failed"),
        "{watched:?}"
    );
    let results = batch(&gateway, &["results", &id]);
    let answers: Vec<Value> =
        text(&results.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: BTreeSet<_> = answers.iter().map(|answer| answer["custom_id"].to_string()).collect();
    assert_eq!((answers.len(), ids.len()), (400, 400));
    let listed = batch(&gateway, &["list"]);
    assert!(text(&listed.stdout).contains(&id), "{listed:?}");
}

#[test]
fn a_retry_runs_the_failed_lines_only() {
    let engines = Engines::start(&[]);
    let kept = folder("retried");
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    let mut wrong = line(1);
    wrong["body"]["model"] = json!("none");
    let input = kept.join("in.jsonl");
    std::fs::write(&input, format!("{}\n{wrong}\n{}", line(0), line(2))).unwrap();
    let submitted = batch(&gateway, &["submit", input.to_str().unwrap(), "--watch"]);
    assert!(
        text(&submitted.stdout).contains("completed: 2 of 3 answered, 1 failed"),
        "{submitted:?}"
    );
    assert!(text(&submitted.stdout).contains("\n  1 failed: status 404"), "{submitted:?}");
    let id = text(&submitted.stdout).split_whitespace().next().unwrap().to_owned();
    let again = batch(&gateway, &["retry", &id]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    let again = text(&again.stdout).split_whitespace().next().unwrap().to_owned();
    let watched = batch(&gateway, &["watch", &again]);
    assert!(text(&watched.stdout).contains("completed: 0 of 1 answered, 1 failed"), "{watched:?}");
    let cancelled = batch(&gateway, &["cancel", &again]);
    let error = text(&cancelled.stderr);
    assert!(error.contains("is completed and cannot become cancelling"), "{cancelled:?}");
}

#[test]
fn the_storage_of_a_tenant_is_limited_and_the_plan_is_explained() {
    let engines = Engines::start(&["--engines", "2"]);
    let kept = folder("limited");
    let pods: Vec<_> = engines
        .engines
        .iter()
        .map(|engine| json!({"url": format!("http://{}", engine.http)}))
        .collect();
    let config = json!({
        "pods": pods,
        "batch": {"folder": "kept", "lines": 12, "quota_bytes": 65536, "quota_batches": 1},
        "listen": {"client": "127.0.0.1:0"},
    });
    let path = kept.join("wornpath.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 2);
    let input = kept.join("in.jsonl");
    let write = |lines: usize| {
        let lines: Vec<_> = (0..lines).map(|number| line(number).to_string()).collect();
        std::fs::write(&input, lines.join("\n")).unwrap();
    };
    let submit = |arguments: &[&str]| {
        batch(&gateway, &[&["submit", input.to_str().unwrap()], arguments].concat())
    };
    write(12);
    let first = submit(&["--watch"]);
    assert!(text(&first.stdout).contains("completed: 12 of 12 answered"), "{first:?}");
    assert!(kept.join("kept/journal").exists(), "paths start beside the configuration");
    let id = text(&first.stdout).split_whitespace().next().unwrap().to_owned();
    let plan = gateway.get(&format!("/v1/batches/{id}/plan")).json();
    assert_eq!((&plan["object"], &plan["requests"]), (&json!("batch.plan"), &json!(12)));
    let requests = plan["segments"].as_array().unwrap().iter();
    assert_eq!(requests.map(|part| part["requests"].as_u64().unwrap()).sum::<u64>(), 12);
    let least = &plan["least_tokens"];
    let planned = &plan["planned_tokens"];
    let all = &plan["prompt_tokens"];
    let [least, planned, all] = [least, planned, all].map(|tokens| tokens.as_u64().unwrap());
    assert!(least <= planned && planned < all / 2, "{plan}");
    assert_eq!(plan["groups"][0]["requests"], 3, "{plan}");
    write(13);
    let long = submit(&["--watch"]);
    assert!(text(&long.stdout).contains("failed"), "{long:?}");
    write(12);
    let mut refused = submit(&[]);
    for _ in 0..8 {
        refused = submit(&["--watch"]);
    }
    let error = text(&refused.stderr);
    assert!(error.contains("storage quota exceeded: limit 65536 bytes"), "{refused:?}");
}

/// Two gateways, one database: both run one batch, one of them is killed, and every line is
/// published once.
#[cfg(feature = "postgres")]
#[test]
fn gateways_that_share_a_database_share_a_batch_and_survive_each_other() {
    let Some(database) = server::Database::start() else { return };
    let address =
        format!("postgres://wornpath@127.0.0.1:{}/postgres?sslmode=disable", database.port);
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let first = Gateway::in_front_of(&engines, &["--batches", &address]);
    let mut second = Gateway::in_front_of(&engines, &["--batches", &address]);
    let input = folder("shared").join("in.jsonl");
    // Long lines, so that there are several segments.
    let long = |number: usize| {
        let mut line = line(number);
        let pad = format!("{} {number}", "word ".repeat(600));
        line["body"]["messages"][0]["content"] = json!(pad);
        line.to_string()
    };
    let lines: Vec<_> = (0..600).map(long).collect();
    std::fs::write(&input, lines.join("\n")).unwrap();
    let submitted = batch(&first, &["submit", input.to_str().unwrap()]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    let id = text(&submitted.stdout).split_whitespace().next().unwrap().to_owned();
    let done = |gateway: &Gateway| {
        let json = gateway.get(&format!("/v1/batches/{id}")).json();
        json["request_counts"]["completed"].as_u64().unwrap()
    };
    eventually("some lines are there, whomever one asks", || done(&second) >= 100);
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    let before = done(&first);
    let watched = batch(&first, &["watch", &id]);
    assert!(
        text(&watched.stdout).contains("completed: 600 of 600 answered, 0 failed"),
        "{before} before, {watched:?}"
    );
    let results = batch(&first, &["results", &id]);
    let ids: Vec<String> = text(&results.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].to_string())
        .collect();
    let distinct: BTreeSet<_> = ids.iter().collect();
    assert_eq!((ids.len(), distinct.len()), (600, 600));
}
