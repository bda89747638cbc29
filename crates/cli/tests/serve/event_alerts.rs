//! Events that do not come, or cannot be understood: the log says why, once, and so does the admin
//! plane.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, folder};
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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

/// A publisher that closes every connection after the greeting.
struct ClosingPublisher {
    address: String,
    closed: Arc<AtomicUsize>,
}

impl ClosingPublisher {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let closed = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&closed);
        let _listening = std::thread::Builder::new()
            .spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    // What is left unread would reset the connection.
                    let _ = stream.read_exact(&mut [0; 64]);
                    drop(stream);
                    counted.fetch_add(1, Relaxed);
                }
            })
            .unwrap();
        Self { address, closed }
    }
}

#[test]
fn an_unreachable_publisher_is_logged_once_and_shown() {
    let engines = Engines::start(&["--model", "m"]);
    let publisher = ClosingPublisher::start();
    let source = format!("zmq://{}", publisher.address);
    let events = format!("events: \"{source}?replay=2\"");
    let gateway = start("event_alerts_zmq", &engines, MODEL, &events);
    let words = [&source, "event source unreachable", "closed the connection"];
    eventually("it is logged", || lines(&gateway, &words) > 0);
    let trouble = &feed(&gateway)["troubles"][0];
    assert!(trouble["source"].as_str().unwrap().starts_with(&source), "{trouble}");
    assert!(trouble["reason"].as_str().unwrap().contains("closed the connection"), "{trouble}");
    eventually("more attempts have failed", || publisher.closed.load(Relaxed) >= 4);
    assert_eq!(lines(&gateway, &words), 1, "{}", gateway.log());
}

#[cfg(feature = "redis")]
#[test]
fn an_unreachable_broker_is_reported_without_its_password() {
    let engines = Engines::start(&["--model", "m"]);
    let password = folder("event_alerts_password").join("password");
    fs::write(&password, "canary\n").unwrap();
    let source = format!(
        "event_sources: [{{name: b, kind: redis, url: \"redis://me@127.0.0.1:1\", stream: s, \
         password_file: \"{}\"}}]\n",
        password.display()
    );
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
