//! Lines whose answers take their time, and batches that wait for their turn.

use super::{batch, folder, input, line, text};
use crate::gateway::{Gateway, eventually};
use crate::recorder::Recorder;
use crate::served::Served;
use serde_json::json;
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
fn batches_that_wait_for_their_turn_take_no_room_from_those_that_run() {
    let engines = Served::start_at("1", &[]);
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
    // The first had all of the room until the others came.
    std::thread::sleep(Duration::from_secs(2));
    let running = || engines.metric(0, "vllm:num_requests_running");
    eventually("four run, with two requests each", || running() >= 7.0);
}
