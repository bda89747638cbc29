//! The block size that engines report: taken where none is configured, and compared where one is,
//! before the first request.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, folder};
use crate::support::recorder::Recorder;
use serde_json::{Value, json};
use std::fs;

/// A model `m`, of which `more` is said, and one engine whose events are followed.
fn text(engines: &Engines, more: &str) -> String {
    let at = &engines.engines[0];
    format!(
        "models: [{{name: m, tokenizer: bytes{more}}}]\n\
         pods: [{{name: a, url: \"http://{}\", model: m, events: \"zmq://{}?replay={}\"}}]\n",
        at.http, at.events, at.replay
    )
}

fn start(test: &str, engines: &Engines, more: &str) -> Gateway {
    Gateway::configured(test, &text(engines, more), 1)
}

fn pod(gateway: &Gateway) -> Value {
    gateway.ask("GET", "/pods/a", "").json()
}

/// Lines of the log, up to the one by which the pod is up, that have these words.
fn before_it_is_up(gateway: &Gateway, words: &[&str]) -> usize {
    let log = gateway.log();
    let lines = log.lines().take_while(|line| !line.contains("pod up"));
    lines.filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// Prompts that end everywhere in a block, each twice: the second time as much is cached as is
/// predicted.
fn must_come_true(gateway: &Gateway) {
    let last = || gateway.ask("GET", "/decisions?last=1", "").json()["decisions"][0].clone();
    for length in (33..=97).step_by(8) {
        let prompt = format!("{length:02}{}", "x".repeat(length - 2));
        let batches = || pod(gateway)["events"]["feed"]["batches"]["applied"].clone();
        let before = batches();
        let ask = || {
            let body = json!({"model": "m", "prompt": prompt, "max_tokens": 1});
            assert_eq!(gateway.post("/v1/completions", &body).status, 200);
        };
        ask();
        eventually("its blocks are known", || batches() != before);
        ask();
        eventually("it is remembered", || {
            let last = last();
            last["prompt_tokens"] == length && last["cached_tokens"]["actual"] != 0
        });
        let cached = &last()["cached_tokens"];
        assert_eq!(cached["predicted"], cached["actual"], "of {length} tokens");
    }
}

#[test]
fn without_a_configured_size_that_of_the_engine_counts_from_the_first_request_on() {
    let engines = Engines::start(&["--model", "m", "--block-size", "32"]);
    let gateway = start("block_size_reported", &engines, "");
    let words = ["block size reported by engines", "model=\"m\"", "block_size=32"];
    assert_eq!(before_it_is_up(&gateway, &words), 1, "{}", gateway.log());
    must_come_true(&gateway);
    let shown = json!({"index": 32, "source": "reported", "engine": 32, "mismatch": null});
    assert_eq!(pod(&gateway)["block_size"], shown);
    assert!(!gateway.log().contains("mismatch"), "{}", gateway.log());
}

#[test]
fn events_that_came_before_the_size_was_known_are_read_by_it() {
    let engines = Engines::start(&["--model", "m", "--block-size", "8"]);
    // More than a pod may send that cannot be understood, by blocks of 16.
    for number in 0..40 {
        let prompt = format!("{number} {}", "words ".repeat(20));
        engines.complete(0, &json!({"model": "m", "prompt": prompt, "max_tokens": 1}));
    }
    let gateway = start("block_size_small", &engines, "");
    eventually("its events are exact", || pod(&gateway)["events"]["trust"] == "exact");
    assert_eq!(pod(&gateway)["events"]["feed"]["state"], "live");
    must_come_true(&gateway);
}

#[test]
fn a_configured_size_that_is_not_the_engines_is_warned_of_once_before_the_first_request() {
    for (configured, engine, harm) in [
        (16, "32", "predictions for this pod are off by less than 32 tokens"),
        (32, "16", "its cache events do not align with the index's blocks and are refused"),
    ] {
        let engines = Engines::start(&["--model", "m", "--block-size", engine]);
        let test = format!("block_size_{configured}");
        let gateway = start(&test, &engines, &format!(", block_size: {configured}"));
        let cure = format!("set `block_size` of model `m` to {engine}, or --block-size {engine}");
        let words = [
            "WARN block size mismatch: ",
            harm,
            &cure,
            "pod=a",
            &format!("configured={configured}"),
            &format!("engine={engine}"),
        ];
        assert_eq!(before_it_is_up(&gateway, &words), 1, "{}", gateway.log());
        let shown = pod(&gateway)["block_size"].clone();
        assert_eq!([&shown["index"], &shown["source"]], [&json!(configured), &json!("configured")]);
        assert!(shown["mismatch"].as_str().unwrap().contains(&cure), "{shown}");
        // The engine is asked again and again how it is.
        let scrapes = || gateway.metric("wornpath_scrapes_total{pod=\"a\",result=\"read\"}");
        let before = scrapes();
        eventually("it was asked again", || scrapes() > before + 1.0);
        assert_eq!(gateway.log().matches("mismatch").count(), 1, "{}", gateway.log());
    }
}

#[test]
fn a_size_that_is_the_engines_is_not_warned_of() {
    let engines = Engines::start(&["--model", "m", "--block-size", "32"]);
    let gateway = start("block_size_right", &engines, ", block_size: 32");
    must_come_true(&gateway);
    assert!(!gateway.log().contains("block size"), "{}", gateway.log());
}

#[test]
fn an_engine_that_does_not_report_its_size_is_said_to_be_assumed() {
    let engine = Recorder::start();
    let text = format!(
        "models: [{{name: m, tokenizer: bytes}}]\npods: [{{name: a, url: \"http://{}\", model: m}}]\n",
        engine.address
    );
    let gateway = Gateway::configured("block_size_assumed", &text, 1);
    let words = [
        "WARN engine does not report its block size; assuming 16 tokens",
        "set `block_size` of the model, or --block-size",
        "pod=a",
        "model=\"m\"",
    ];
    assert_eq!(before_it_is_up(&gateway, &words), 1, "{}", gateway.log());
    let shown = json!({"index": 16, "source": "assumed", "engine": null, "mismatch": null});
    assert_eq!(pod(&gateway)["block_size"], shown);
}

#[test]
fn a_reload_reports_a_block_size_that_needs_a_restart_and_no_other() {
    let engines = Engines::start(&["--model", "m", "--block-size", "32"]);
    let file = folder("block_size_reload").join("wornpath.yaml");
    fs::write(&file, text(&engines, "")).unwrap();
    let gateway = Gateway::start(&["-c", file.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1);
    for (more, waits) in [
        ("", json!([])),
        (", block_size: 16", json!(["models[].block_size"])),
        (", block_size: 32", json!([])),
    ] {
        fs::write(&file, text(&engines, more)).unwrap();
        let answer = gateway.ask("POST", "/config/reload", "").json();
        assert_eq!(answer["wants_restart"], waits, "{more}");
        assert_eq!(pod(&gateway)["block_size"]["index"], 32, "{more}");
    }
    must_come_true(&gateway);
}

#[test]
fn a_checkpoint_by_the_engines_size_counts_after_a_restart() {
    let engines = Engines::start(&["--model", "m", "--block-size", "32"]);
    let folder = folder("block_size_checkpoint");
    let file = folder.join("wornpath.yaml");
    let checkpoint = folder.join("checkpoint").display().to_string();
    let text = format!("{}checkpoint: {{file: \"{checkpoint}\"}}\n", text(&engines, ""));
    fs::write(&file, text).unwrap();
    let start = || Gateway::start(&["-c", file.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1);
    let mut first = start();
    must_come_true(&first);
    first.signal("-TERM");
    assert!(first.child.wait().unwrap().success());
    let second = start();
    eventually("it is confirmed", || pod(&second)["events"]["feed"]["checkpoint"] == "confirmed");
}
