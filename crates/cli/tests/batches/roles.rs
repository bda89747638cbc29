//! Batches in a fleet with prefill and decode pods.

use super::{batch, folder, input, line, text};
use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use serde_json::json;

/// A gateway before engines of these roles, one each.
fn in_front_of(engines: &Engines, name: &str, profile: &str, roles: &[&str]) -> Gateway {
    let pods = engines.engines.iter().zip(roles);
    let pods: Vec<_> = pods
        .map(|(engine, role)| json!({"url": format!("http://{}", engine.http), "role": [role], "model": "m"}))
        .collect();
    let config = json!({
        "pods": pods,
        "models": [{"name": "m", "tokenizer": "bytes"}],
        "routes": [{"profile": profile}],
        "batch": {"folder": "kept"},
        "listen": {"client": "127.0.0.1:0"},
    });
    let path = folder(name).join("wornpath.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    Gateway::start(&["-c", path.to_str().unwrap()], roles.len())
}

#[test]
fn a_batch_that_no_pod_may_serve_fails_and_says_which_role_is_missing() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let gateway = in_front_of(&engines, "unserved", "prefill-decode", &["prefill", "decode"]);
    let input = input(&folder("unserved-input"), (0..3).map(line));
    let ended = batch(&gateway, &["submit", &input, "--watch"]);
    let said = text(&ended.stdout);
    assert!(said.contains("  failed\n") && said.contains("has the role `serve`"), "{ended:?}");
    assert_eq!(gateway.log().matches("has the role `serve`").count(), 1, "{}", gateway.log());
}

#[test]
fn a_batch_is_planned_only_for_pods_that_serve() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let gateway = in_front_of(&engines, "served", "cache-aware", &["prefill", "serve"]);
    let input = input(&folder("served-input"), (0..40).map(line));
    let ended = batch(&gateway, &["submit", &input, "--watch"]);
    assert!(text(&ended.stdout).contains("completed: 40 of 40 answered"), "{ended:?}");
    let id = text(&ended.stdout).split_whitespace().next().unwrap();
    let plan = gateway.get(&format!("/v1/batches/{id}/plan")).json();
    let segments = plan["segments"].as_array().unwrap();
    assert!(segments.iter().all(|part| part["pod"] == segments[0]["pod"]), "{plan}");
    assert_eq!(engines.metric(0, "vllm:prompt_tokens_total"), 0.0);
}
