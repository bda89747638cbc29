//! Events that do not come, or cannot be understood: the log says why, once, and so does the admin
//! plane.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, folder, holds_for};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// A gateway in front of one engine, which says of the pod's events and models what is given.
fn start(test: &str, engines: &Engines, more: &str, pod: &str) -> Gateway {
    let file = folder(test).join("wornpath.yaml");
    let url = &engines.engines[0].http;
    let text = format!("{more}pods: [{{name: a, url: \"http://{url}\", model: m, {pod}}}]\n");
    fs::write(&file, text).unwrap();
    Gateway::start(&["-c", file.to_str().unwrap(), "--admin", "127.0.0.1:0"], 1)
}

fn feed(gateway: &Gateway) -> Value {
    gateway.ask("GET", "/pods/a", "").json()["events"]["feed"].clone()
}

/// How many lines of the log have all of these words.
fn lines(gateway: &Gateway, words: &[&str]) -> usize {
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    gateway.log().lines().filter(has_all).count()
}

const MODEL: &str = "models: [{name: m, tokenizer: bytes}]\n";

#[test]
fn an_unreachable_publisher_is_logged_once_and_shown() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway =
        start("event_alerts_zmq", &engines, MODEL, "events: \"zmq://127.0.0.1:1?replay=2\"");
    let words = ["zmq://127.0.0.1:1", "event source unreachable", "refused"];
    eventually("it is logged", || lines(&gateway, &words) > 0);
    let trouble = &feed(&gateway)["troubles"][0];
    assert!(trouble["source"].as_str().unwrap().starts_with("zmq://127.0.0.1:1"), "{trouble}");
    assert!(trouble["reason"].as_str().unwrap().contains("refused"), "{trouble}");
    // Several attempts fail in this time.
    holds_for(Duration::from_secs(1), "it is logged once", || lines(&gateway, &words) == 1);
}

#[cfg(feature = "redis")]
#[test]
fn an_unreachable_broker_is_reported_without_its_password() {
    let engines = Engines::start(&["--model", "m"]);
    let source = "event_sources: [{name: b, kind: redis, url: \"redis://:canary@127.0.0.1:1\", stream: s}]\n";
    let gateway = start("event_alerts_redis", &engines, &format!("{MODEL}{source}"), "events: b");
    eventually("it is logged", || lines(&gateway, &["event source unreachable", "redis://"]) > 0);
    assert_eq!(feed(&gateway)["troubles"][0]["source"], "redis://127.0.0.1:1/s");
    assert_eq!(feed(&gateway)["sources"], json!([]));
    assert!(!gateway.log().contains("canary") && !feed(&gateway).to_string().contains("canary"));
}

#[test]
fn malformed_events_are_reported_with_the_reason() {
    let engines = Engines::start(&["--model", "m"]);
    let at = &engines.engines[0];
    let events = format!("events: \"zmq://{}?replay={}\"", at.events, at.replay);
    let model = "models: [{name: m, tokenizer: bytes, block_size: 32}]\n";
    let gateway = start("unheard_size", &engines, model, &events);
    for number in 0..40 {
        let prompt = format!("{number} {}", "words ".repeat(20));
        gateway.post("/v1/completions", &json!({"model": "m", "prompt": prompt, "max_tokens": 1}));
    }
    eventually("it is quarantined", || feed(&gateway)["state"] == "quarantined");
    let words = ["cache events quarantined", "pod=\"a\"", "block"];
    eventually("it is logged", || lines(&gateway, &words) == 1);
}
