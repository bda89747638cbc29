//! Duplicate lines of a batch, computed once with `identical_once`.

use super::{batch, folder, input, line, text};
use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::Gateway;
use serde_json::{Value, json};

fn same(number: usize) -> Value {
    let mut same = line(number % 2);
    same["custom_id"] = json!(format!("id-{number}"));
    same["body"]["temperature"] = json!(0);
    same
}

fn computed(engines: &Engines) -> usize {
    engines.metric(0, "vllm:time_to_first_token_seconds_count") as usize
}

fn submit(gateway: &Gateway, input: &str, arguments: &[&str]) -> Value {
    let submitted = batch(gateway, &[&["submit", input, "--watch"], arguments].concat());
    assert!(text(&submitted.stdout).contains("completed: 30 of 30 answered"), "{submitted:?}");
    let id = text(&submitted.stdout).split_whitespace().next().unwrap();
    gateway.get(&format!("/v1/batches/{id}")).json()
}

#[test]
fn a_batch_computes_equal_lines_once_if_its_owner_asks() {
    let engines = Engines::start(&[]);
    let kept = folder("identical");
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    let input = input(&kept, (0..30).map(same));
    let plain = submit(&gateway, &input, &[]);
    assert_eq!((computed(&engines), plain.get("identical_once")), (30, None));
    let once = submit(&gateway, &input, &["--identical-once"]);
    assert_eq!((computed(&engines), &once["identical_once"]), (32, &json!(true)));
    let tokens = |batch: &Value| batch["usage"]["output_tokens"].as_u64().unwrap();
    assert_eq!(tokens(&plain), 15 * tokens(&once), "tokens are counted where they were computed");
    let content = format!("/v1/files/{}/content", once["output_file_id"].as_str().unwrap());
    let answers = gateway.get(&content).text;
    let mut ids: Vec<_> = answers
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].to_string())
        .collect();
    let mut expected: Vec<_> = (0..30).map(|number| format!("\"id-{number}\"")).collect();
    ids.sort();
    expected.sort();
    assert_eq!(ids, expected);
    let wrong = json!({"input_file_id": once["input_file_id"], "endpoint": "/v1/chat/completions", "completion_window": "24h", "identical_once": "yes"});
    let refused = Exchange::open(&gateway.address, "POST", "/v1/batches", &wrong.to_string());
    let refused = refused.finish().unwrap();
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("must be true or false"), "{}", refused.text);
}
