//! Lines whose answers take their time.

use super::{batch, folder, input, line, text};
use crate::gateway::Gateway;
use crate::recorder::Recorder;
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
