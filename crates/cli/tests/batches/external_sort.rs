//! Batches whose hashes exceed the memory limit.

use super::{batch, folder, input, line, text};
use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use serde_json::{Value, json};
use std::path::Path;

/// The plan and the end of a batch, with so much memory for hashes.
fn planned(engines: &Engines, kept: &Path, memory: usize) -> Value {
    let pods: Vec<_> =
        engines.engines.iter().map(|at| json!({"url": format!("http://{}", at.http)})).collect();
    let config = json!({
        "pods": pods,
        "batch": {"folder": "kept", "planning_memory": memory},
        "listen": {"client": "127.0.0.1:0"},
    });
    let path = kept.join("wornpath.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 2);
    let input = input(kept, (0..60).map(line));
    let submitted = batch(&gateway, &["submit", &input, "--watch"]);
    assert!(text(&submitted.stdout).contains("completed: 60 of 60 answered"), "{submitted:?}");
    let id = text(&submitted.stdout).split_whitespace().next().unwrap();
    let mut plan = gateway.get(&format!("/v1/batches/{id}/plan")).json();
    plan["batch_id"] = Value::Null;
    plan
}

#[test]
fn a_batch_planned_on_disk_has_the_plan_made_in_memory_and_leaves_nothing() {
    let engines = Engines::start(&["--engines", "2"]);
    let kept = folder("long");
    let in_memory = planned(&engines, &kept, 64 << 20);
    // As if a gateway had died between two steps.
    std::fs::write(kept.join("kept/spill-1-0"), "").unwrap();
    assert_eq!(planned(&engines, &kept, 1 << 10), in_memory);
    let left = std::fs::read_dir(kept.join("kept")).unwrap();
    let names: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("spill")), "{names:?}");
}
