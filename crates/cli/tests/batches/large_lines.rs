//! Batch lines longer than `limits.body`.

use super::{batch, folder, line, text};
use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use serde_json::json;

#[test]
fn a_line_larger_than_a_request_may_be_is_refused_and_never_held_in_memory() {
    let engines = Engines::start(&[]);
    let kept = folder("large");
    let gateway =
        Gateway::in_front_of(&engines, &["--batches", kept.join("kept").to_str().unwrap()]);
    let mut large = line(1);
    large["body"]["messages"][0]["content"] = json!("x".repeat(160 << 20));
    let input = kept.join("in.jsonl");
    std::fs::write(&input, format!("{}\n{large}\n", line(0))).unwrap();
    drop(large);
    let submitted = batch(&gateway, &["submit", input.to_str().unwrap(), "--watch"]);
    let said = text(&submitted.stdout);
    let most = 16 << 20;
    assert!(said.contains(&format!("line 2: body too large: more than {most} bytes")), "{said}");
    let peak = gateway.memory("VmHWM");
    assert!(peak < 140.0, "{peak} MiB, and the line alone has 160");
    std::fs::remove_file(input).unwrap();
}
