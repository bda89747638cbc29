//! Batches that are cancelled, expire or fail, from the command line.

use super::{batch, folder, input, line, text};
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Lines whose answers take a while.
fn long(number: usize) -> Value {
    let mut line = line(number);
    (line["body"]["max_tokens"], line["body"]["ignore_eos"]) = (json!(400), json!(true));
    line
}

/// What the output and the errors of a batch say, by whom.
fn ends(gateway: &Gateway, id: &str) -> (BTreeSet<String>, BTreeSet<(String, String)>) {
    let batch = gateway.get(&format!("/v1/batches/{id}")).json();
    let lines = |file: &Value| match file.as_str() {
        None => Vec::new(),
        Some(file) => {
            let content = gateway.get(&format!("/v1/files/{file}/content")).text;
            content.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect()
        }
    };
    let id = |line: &Value| line["custom_id"].as_str().unwrap().to_owned();
    let errors = lines(&batch["error_file_id"]);
    let code = |line: &Value| (id(line), line["error"]["code"].as_str().unwrap().to_owned());
    (lines(&batch["output_file_id"]).iter().map(id).collect(), errors.iter().map(code).collect())
}

fn id_of(said: &str) -> String {
    said.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_cancelled_batch_keeps_its_results_and_lists_the_other_lines() {
    let engines = Engines::start_at("5", &["--engines", "2"]);
    let kept = folder("cancelled");
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    let input = input(&kept, (0..600).map(long));
    let id = id_of(text(&batch(&gateway, &["submit", &input]).stdout));
    let results = || text(&batch(&gateway, &["results", &id]).stdout).lines().count();
    eventually("partial results can be had", || results() >= 5);
    let cancelled = batch(&gateway, &["cancel", &id]);
    assert!(text(&cancelled.stdout).contains(" cancelling: "), "{cancelled:?}");
    let watched = batch(&gateway, &["watch", &id]);
    assert!(text(&watched.stdout).contains(" cancelled: "), "{watched:?}");
    let (done, errors) = ends(&gateway, &id);
    assert!((5..600).contains(&done.len()), "{}", done.len());
    assert_eq!(done.len() + errors.len(), 600, "outputs and errors are the input");
    assert!(errors.iter().all(|(line, code)| code == "batch_cancelled" && !done.contains(line)));
    assert_eq!(results(), done.len());
    let listed = batch(&gateway, &["list"]);
    assert!(text(&listed.stdout).contains(&format!("{id}  cancelled: ")), "{listed:?}");
}

#[test]
fn an_expired_batch_can_be_retried() {
    let engines = Engines::start_at("5", &["--engines", "2"]);
    let kept = folder("expired");
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    let input = input(&kept, (0..600).map(long));
    let ended = batch(&gateway, &["submit", &input, "--window", "2s", "--watch"]);
    assert!(text(&ended.stdout).contains(" expired: "), "{ended:?}");
    let id = id_of(text(&ended.stdout));
    let (done, errors) = ends(&gateway, &id);
    assert!(!errors.is_empty() && errors.iter().all(|(_, code)| code == "batch_expired"));
    assert_eq!(done.len() + errors.len(), 600);
    let again = batch(&gateway, &["retry", &id]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    let again = id_of(text(&again.stdout));
    eventually("only the rest is computed", || {
        let again = gateway.get(&format!("/v1/batches/{again}")).json();
        again["request_counts"]["total"].as_u64() == Some(errors.len() as u64)
    });
}

#[test]
fn a_queued_batch_expires_in_time_and_is_cancelled_at_once() {
    let engines = Engines::start_at("1", &[]);
    let kept = folder("waiting");
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    let input = input(&kept, (0..300).map(long));
    let running: Vec<_> =
        (0..4).map(|_| id_of(text(&batch(&gateway, &["submit", &input]).stdout))).collect();
    let status = |id: &str| gateway.get(&format!("/v1/batches/{id}")).json()["status"].clone();
    for id in &running {
        eventually("it has its turn", || status(id) == "in_progress");
    }
    let late = batch(&gateway, &["submit", &input, "--window", "1s"]);
    let late = id_of(text(&late.stdout));
    let unwanted = batch(&gateway, &["submit", &input]);
    let unwanted = id_of(text(&unwanted.stdout));
    assert_eq!(status(&unwanted), "validating");
    let _ = batch(&gateway, &["cancel", &unwanted]);
    eventually("it is cancelled", || status(&unwanted) == "cancelled");
    eventually("it expires", || status(&late) == "expired");
    for (id, why) in [(unwanted, "batch_cancelled"), (late, "batch_expired")] {
        let (done, errors) = ends(&gateway, &id);
        assert_eq!((done.len(), errors.len()), (0, 300));
        assert!(errors.iter().all(|(_, code)| code == why));
    }
    assert!(running.iter().all(|id| status(id) == "in_progress"), "no batch has ended");
}
