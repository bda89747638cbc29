//! Requests for a batch whose files were deleted.

use super::{batch, folder, line, text};
use crate::support::engines::{Engines, Exchange, Response};
use crate::support::gateway::Gateway;
use serde_json::{Value, json};

fn ask(gateway: &Gateway, method: &str, path: &str) -> Response {
    Exchange::open(&gateway.address, method, path, "").finish().unwrap()
}

/// A batch that has ended with one answer and one failure.
fn ended(gateway: &Gateway, folder: &str) -> Value {
    let mut wrong = line(1);
    wrong["body"]["model"] = json!("none");
    let input = super::folder(folder).join("in.jsonl");
    std::fs::write(&input, format!("{}\n{wrong}", line(0))).unwrap();
    let submitted = batch(gateway, &["submit", input.to_str().unwrap(), "--watch"]);
    let said = text(&submitted.stdout);
    assert!(said.contains("completed: 1 of 2 answered, 1 failed"), "{submitted:?}");
    let id = said.split_whitespace().next().unwrap();
    gateway.get(&format!("/v1/batches/{id}")).json()
}

#[test]
fn a_batch_without_its_files_is_not_retried_or_planned_and_the_file_is_named() {
    let engines = Engines::start(&[]);
    let kept = folder("deleted");
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    for (field, has_plan) in [("input_file_id", false), ("error_file_id", true)] {
        let batch = ended(&gateway, "deleted-input");
        let id = batch["id"].as_str().unwrap();
        let file = batch[field].as_str().unwrap();
        assert_eq!(ask(&gateway, "DELETE", &format!("/v1/files/{file}")).status, 200);
        let named = |answer: Response| {
            assert_eq!(answer.status, 409, "{}", answer.text);
            let gone = format!("file `{file}` was deleted");
            assert!(answer.text.contains(&gone), "{}", answer.text);
        };
        named(ask(&gateway, "POST", &format!("/v1/batches/{id}/retry")));
        let plan = ask(&gateway, "GET", &format!("/v1/batches/{id}/plan"));
        match has_plan {
            true => assert_eq!(plan.status, 200, "{}", plan.text),
            false => named(plan),
        }
    }
}

#[test]
fn the_results_of_a_retried_batch_expire_as_those_of_the_first() {
    let engines = Engines::start(&[]);
    let kept = folder("retried-expiry");
    let gateway = Gateway::in_front_of(&engines, &["--batches", kept.to_str().unwrap()]);
    let first = ended(&gateway, "retried-input");
    let new = json!({
        "input_file_id": first["input_file_id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "1h",
        "output_expires_after": {"anchor": "created_at", "seconds": 5_000},
    });
    let mut id = gateway.post("/v1/batches", &new).json()["id"].as_str().unwrap().to_owned();
    for _ in 0..2 {
        let watched = batch(&gateway, &["watch", &id]);
        assert!(text(&watched.stdout).contains("completed: "), "{watched:?}");
        let errors = gateway.get(&format!("/v1/batches/{id}")).json()["error_file_id"].clone();
        let file = gateway.get(&format!("/v1/files/{}", errors.as_str().unwrap())).json();
        let lasts = file["expires_at"].as_u64().unwrap() - file["created_at"].as_u64().unwrap();
        assert_eq!(lasts, 5_000, "{file}");
        let again = ask(&gateway, "POST", &format!("/v1/batches/{id}/retry"));
        id = again.json()["id"].as_str().unwrap().to_owned();
    }
}

#[test]
fn a_batch_is_not_retried_without_disk_space_and_leaves_no_file() {
    let engines = Engines::start(&[]);
    let kept = folder("retried-quota");
    let path = kept.join("wornpath.yaml");
    let mut wrong = line(1);
    wrong["body"]["model"] = json!("none");
    let text = format!("{wrong}\n");
    let config = json!({
        "pods": [{"url": format!("http://{}", engines.engines[0].http)}],
        // Enough for the input, the form around it and its results.
        "batch": {"folder": "kept", "quota_bytes": text.len() * 2 - 10},
        "listen": {"client": "127.0.0.1:0"},
    });
    std::fs::write(&path, config.to_string()).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let input = kept.join("in.jsonl");
    std::fs::write(&input, &text).unwrap();
    let submitted = batch(&gateway, &["submit", input.to_str().unwrap(), "--watch"]);
    let said = super::text(&submitted.stdout);
    assert!(said.contains("completed: 0 of 1 answered, 1 failed"), "{submitted:?}");
    let id = said.split_whitespace().next().unwrap();
    let files = || gateway.get("/v1/files").json()["data"].as_array().unwrap().len();
    let before = files();
    let refused = ask(&gateway, "POST", &format!("/v1/batches/{id}/retry"));
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(refused.text.contains("storage quota exceeded"), "{}", refused.text);
    assert_eq!(files(), before);
}
