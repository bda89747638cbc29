//! Batch plans that use the prefixes that pods have cached.

use super::{batch, folder, input, text};
use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use serde_json::json;

/// A document, with a question about it.
fn prompt(document: usize, question: usize) -> String {
    format!("{}Question {question}?", format!("Document {document}. ").repeat(200))
}

#[test]
fn parts_of_a_plan_go_to_the_pods_that_hold_their_prefixes() {
    // Once each way round: by chance it is right once.
    for holders in [[0, 1], [1, 0]] {
        let engines = Engines::start(&["--engines", "2", "--model", "m"]);
        let kept = folder(&format!("matched-{}", holders[0]));
        let pods = engines.engines.iter().enumerate().map(|(number, at)| {
            let events = format!("zmq://{}?replay={}", at.events, at.replay);
            json!({"url": format!("http://{}", at.http), "name": number.to_string(), "engine": "vllm", "events": events})
        });
        let config = json!({
            "models": [{"name": "m", "tokenizer": "bytes"}],
            "pods": pods.collect::<Vec<_>>(),
            "batch": {"folder": "kept"},
            "listen": {"client": "127.0.0.1:0"},
        });
        let path = kept.join("wornpath.yaml");
        std::fs::write(&path, config.to_string()).unwrap();
        let arguments = ["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"];
        let gateway = Gateway::start(&arguments, 2);
        for (document, engine) in holders.into_iter().enumerate() {
            let body = json!({"model": "m", "prompt": prompt(document, 0), "max_tokens": 1});
            assert_eq!(engines.complete(engine, &body).status, 200);
        }
        eventually("the gateway has heard of both", || {
            let prefixes = gateway.ask("GET", "/index/prefixes", "").json();
            let held = |pod: usize| {
                prefixes["runs"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|run| run["holders"] == json!([pod]))
            };
            held(0) && held(1)
        });
        let line = |number: usize| {
            let body = json!({"model": "m", "prompt": prompt(number % 2, number), "max_tokens": 4});
            json!({"custom_id": number.to_string(), "method": "POST", "url": "/v1/completions", "body": body})
        };
        let input = input(&kept, (0..40).map(line));
        let said = batch(&gateway, &["submit", &input, "--endpoint", "/v1/completions"]);
        let id = text(&said.stdout).split_whitespace().next().unwrap().to_owned();
        let plan = gateway.get(&format!("/v1/batches/{id}/plan")).json();
        let segments = plan["segments"].as_array().unwrap();
        assert_eq!(segments.len(), 2, "{plan}");
        for segment in segments {
            let document = (segment["first_line"].as_u64().unwrap() as usize - 1) % 2;
            assert_eq!(segment["pod"], holders[document].to_string(), "{plan}");
        }
    }
}
