//! Batches across reloads of the gateway's configuration.

use super::{batch, folder, input, line, text};
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};

#[test]
fn a_name_of_a_model_that_a_reload_adds_serves_batches() {
    let engines = Engines::start(&["--model", "m"]);
    let kept = folder("reloaded");
    let path = kept.join("wornpath.yaml");
    let configure = |models: Value| {
        let config = json!({
            "pods": [{"url": format!("http://{}", engines.engines[0].http)}],
            "models": models,
            "batch": {"folder": "kept"},
            "listen": {"client": "127.0.0.1:0"},
        });
        std::fs::write(&path, config.to_string()).unwrap();
    };
    configure(json!([{"name": "m", "tokenizer": "bytes"}]));
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let of_model = |number| {
        let mut line = line(number);
        line["body"]["model"] = json!("alias");
        line
    };
    let input = input(&kept, (0..4).map(of_model));
    let before = batch(&gateway, &["submit", &input, "--watch"]);
    assert!(text(&before.stdout).contains("completed: 0 of 4 answered, 4 failed"), "{before:?}");
    configure(json!([{"name": "m", "tokenizer": "bytes", "aliases": ["alias"]}]));
    gateway.signal("-HUP");
    let applied = "wornpath_config_reloads_total{result=\"applied\"}";
    eventually("the file is read again", || gateway.metric(applied) > 0.0);
    let after = batch(&gateway, &["submit", &input, "--watch"]);
    assert!(text(&after.stdout).contains("completed: 4 of 4 answered, 0 failed"), "{after:?}");
}

#[test]
fn a_running_batch_continues_after_the_line_limit_is_lowered() {
    let engines = Engines::start_at("20", &[]);
    let kept = folder("lowered");
    let path = kept.join("wornpath.yaml");
    let start = |lines: usize| {
        let config = json!({
            "pods": [{"url": format!("http://{}", engines.engines[0].http)}],
            "batch": {"folder": "kept", "lines": lines},
            "listen": {"client": "127.0.0.1:0"},
        });
        std::fs::write(&path, config.to_string()).unwrap();
        Gateway::start(&["-c", path.to_str().unwrap()], 1)
    };
    let gateway = start(400);
    let submitted = batch(&gateway, &["submit", &input(&kept, (0..400).map(line))]);
    let id = text(&submitted.stdout).split_whitespace().next().unwrap().to_owned();
    eventually("some lines are there", || {
        let state = gateway.get(&format!("/v1/batches/{id}")).json();
        state["request_counts"]["completed"].as_u64().unwrap() >= 20
    });
    drop(gateway);
    let watched = batch(&start(10), &["watch", &id]);
    assert!(text(&watched.stdout).contains("completed: 400 of 400 answered"), "{watched:?}");
}

#[test]
fn a_batch_continues_on_the_pods_that_replaced_its_own() {
    let first = Engines::start_at("20", &[]);
    let second = Engines::start_at("20", &[]);
    let kept = folder("replaced");
    let path = kept.join("wornpath.yaml");
    let configure = |served: &Engines| {
        let config = json!({
            "pods": [{"url": format!("http://{}", served.engines[0].http)}],
            "batch": {"folder": "kept"},
            "listen": {"client": "127.0.0.1:0"},
        });
        std::fs::write(&path, config.to_string()).unwrap();
    };
    configure(&first);
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let submitted = batch(&gateway, &["submit", &input(&kept, (0..2_000).map(line))]);
    let id = text(&submitted.stdout).split_whitespace().next().unwrap().to_owned();
    let state = || gateway.get(&format!("/v1/batches/{id}")).json();
    let done = || state()["request_counts"]["completed"].as_u64().unwrap();
    eventually("some lines are there", || done() >= 20);
    drop(first);
    // The engine is given up before it is replaced.
    let is_down = || gateway.get("/metrics").text.contains("health=\"down\"} 1");
    eventually("its requests have failed", is_down);
    let before = done();
    configure(&second);
    gateway.signal("-HUP");
    eventually("the batch goes on", || done() > before + 20);
}

#[test]
fn a_pod_that_joins_takes_part_in_a_running_batch_at_once() {
    let engines = Engines::start_at("20", &["--engines", "2"]);
    let kept = folder("joined");
    let path = kept.join("wornpath.yaml");
    let configure = |pods: usize| {
        let url =
            |engine: usize| json!({"url": format!("http://{}", engines.engines[engine].http)});
        let config = json!({
            "pods": (0..pods).map(url).collect::<Vec<_>>(),
            "batch": {"folder": "kept"},
            "listen": {"client": "127.0.0.1:0"},
        });
        std::fs::write(&path, config.to_string()).unwrap();
    };
    configure(1);
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let submitted = batch(&gateway, &["submit", &input(&kept, (0..4_000).map(line))]);
    let id = text(&submitted.stdout).split_whitespace().next().unwrap().to_owned();
    let done = || {
        let state = gateway.get(&format!("/v1/batches/{id}")).json();
        state["request_counts"]["completed"].as_u64().unwrap()
    };
    eventually("some lines are there", || done() >= 20);
    configure(2);
    gateway.signal("-HUP");
    // Planning again would have waited for half a minute.
    eventually("the second engine computes", || {
        engines.metric(1, "vllm:prompt_tokens_total") > 1_000.0
    });
    assert!(done() < 4_000, "the batch still runs");
}
