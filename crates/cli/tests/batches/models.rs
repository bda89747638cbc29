//! Batches in a fleet with pods of several models.

use super::{batch, folder, input, line, text};
use crate::support::engines::Engines;
use crate::support::gateway::Gateway;
use serde_json::json;

#[test]
fn a_batch_is_planned_for_the_pods_and_by_the_tokenizer_of_its_model() {
    let [first, second] =
        ["a", "b"].map(|model| Engines::start(&["--engines", "2", "--model", model]));
    let kept = folder("models");
    let of = |served: &Engines, model: &str| {
        let pod = |at: &crate::support::engines::Ports| json!({"url": format!("http://{}", at.http), "model": model});
        served.engines.iter().map(pod).collect::<Vec<_>>()
    };
    let pods = [of(&first, "a"), of(&second, "b")].concat();
    let config = json!({
        "pods": pods,
        "models": [
            {"name": "a", "tokenizer": "bytes", "block_size": 16},
            {"name": "b", "tokenizer": "bytes", "block_size": 64, "aliases": ["other"]},
        ],
        "batch": {"folder": "kept"},
        "listen": {"client": "127.0.0.1:0"},
    });
    let path = kept.join("wornpath.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 4);
    for model in ["b", "other"] {
        let of_model = |number| {
            let mut line = line(number);
            line["body"]["model"] = json!(model);
            line
        };
        let input = input(&kept, (0..40).map(of_model));
        let ended = batch(&gateway, &["submit", &input, "--watch"]);
        assert!(text(&ended.stdout).contains("completed: 40 of 40 answered"), "{ended:?}");
        let id = text(&ended.stdout).split_whitespace().next().unwrap();
        let plan = gateway.get(&format!("/v1/batches/{id}/plan")).json();
        let mut pods: Vec<_> =
            plan["segments"].as_array().unwrap().iter().map(|part| &part["pod"]).collect();
        pods.dedup();
        assert_eq!(pods.len(), 2, "both pods of the model, and no other: {plan}");
        let shared = plan["groups"][0]["shared_tokens"].as_u64().unwrap();
        assert_eq!(shared % 64, 0, "in blocks of its model: {plan}");
    }
}
