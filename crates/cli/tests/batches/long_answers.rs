//! Engines whose answers are long: those of all batches share one budget of memory.

use super::{batch, folder, input, line, text};
use crate::support::gateway::Gateway;
use crate::support::recorder::Recorder;
use serde_json::Value;

const MIB: usize = 1 << 20;

#[test]
fn long_answers_wait_for_memory_and_one_that_is_too_long_fails_its_line() {
    const LINES: usize = 32;
    let engine = Recorder::start();
    let kept = folder("long-answers");
    let config = format!(
        "pods: [{{url: \"http://{}\"}}]\nbatch: {{folder: kept, answers: 16MiB}}\n\
         listen: {{client: \"127.0.0.1:0\"}}\n",
        engine.address
    );
    let path = kept.join("wornpath.yaml");
    std::fs::write(&path, config).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let before = gateway.memory("VmHWM");
    engine.pad(7 * MIB);
    let many = input(&kept, (0..LINES).map(line));
    let ended = batch(&gateway, &["submit", &many, "--watch"]);
    let told = text(&ended.stdout);
    assert!(told.contains("completed: 32 of 32 answered, 0 failed"), "{ended:?}");
    let grown = gateway.memory("VmHWM") - before;
    // The budget, copies while records are written, and the buffers of 32 connections.
    assert!(grown < 170.0, "{LINES} answers of 7 MiB took {grown} MiB");
    engine.pad(9 * MIB);
    let one = input(&kept, (0..1).map(line));
    let ended = batch(&gateway, &["submit", &one, "--watch"]);
    let told = text(&ended.stdout);
    assert!(told.contains("completed: 0 of 1 answered, 1 failed"), "{ended:?}");
    let id = told.split_whitespace().next().unwrap();
    let errors = batch(&gateway, &["errors", id]);
    let error: Value = serde_json::from_str(text(&errors.stdout).trim()).unwrap();
    assert_eq!(error["error"]["code"], "response_too_large", "{error}");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("longer than 8388608 bytes, half of the 16777216"), "{message}");
    assert!(message.contains("raise `answers` of `batch`"), "{message}");
    assert_eq!(engine.posted().len(), LINES + 1, "it was sent once");
}
