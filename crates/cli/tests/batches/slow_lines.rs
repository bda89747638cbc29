//! Lines with slow answers, and queued batches.

use super::{batch, folder, input, line, text};
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use crate::support::recorder::Recorder;
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn a_line_may_take_longer_than_clients_wait_for_a_first_byte() {
    let engine = Recorder::start();
    engine.answer_after(Duration::from_millis(1_500));
    let kept = folder("patient");
    let config = format!(
        "pods: [{{url: \"http://{}\"}}]\ntimeouts: {{first_byte: 500ms}}\nbatch: {{folder: kept}}\n\
         listen: {{client: \"127.0.0.1:0\"}}\n",
        engine.address
    );
    let path = kept.join("wornpath.yaml");
    std::fs::write(&path, config).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let ended = batch(&gateway, &["submit", &input(&kept, (0..1).map(line)), "--watch"]);
    assert!(text(&ended.stdout).contains("completed: 1 of 1 answered"), "{ended:?}");
    assert_eq!(engine.posted().len(), 1, "it was sent once");
}

#[test]
fn queued_batches_use_none_of_the_window_of_running_ones() {
    let engines = Engines::start_at("1", &[]);
    let kept = folder("turns");
    let config = json!({
        "pods": [{"url": format!("http://{}", engines.engines[0].http)}],
        "batch": {"folder": "kept", "window": 8},
        "listen": {"client": "127.0.0.1:0"},
    });
    let path = kept.join("wornpath.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let input = input(&kept, (0..2_000).map(line));
    for _ in 0..8 {
        let submitted = batch(&gateway, &["submit", &input]);
        assert!(submitted.status.success(), "{submitted:?}");
    }
    // The first batch has the whole window until the others start.
    eventually("four batches run", || {
        let list = gateway.get("/v1/batches").json();
        let is_running = |batch: &&Value| batch["status"] == "in_progress";
        list["data"].as_array().unwrap().iter().filter(is_running).count() >= 4
    });
    let running = || engines.metric(0, "vllm:num_requests_running");
    eventually("four run, with two requests each", || running() >= 7.0);
}
