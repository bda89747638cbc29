//! Requests that name no model, or one that nothing serves; and paths that no engine should get.

use crate::support::engines::{Engines, Response};
use crate::support::gateway::Gateway;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_model_that_is_missing_or_unknown_is_answered_with_the_list_in_the_clients_words() {
    let first = Engines::start(&["--model", "small"]);
    let second = Engines::start(&["--model", "large"]);
    let [a, b] = [&first, &second].map(|engines| engines.engines[0].http.clone());
    let pods =
        format!("pods: [{{name: a, url: \"http://{a}\"}}, {{name: b, url: \"http://{b}\"}}]");
    let gateway = Gateway::configured("models", &pods, 2);
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
    let missing = gateway.post(CHAT, &body);
    let message = |answer: &Response| answer.json()["error"]["message"].clone();
    assert_eq!(missing.status, 400, "{}", missing.text);
    assert_eq!(message(&missing), "`model` is missing; available: `large`, `small`");
    body["model"] = json!("huge");
    let unknown = gateway.post(CHAT, &body);
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    let expected = "the model `huge` does not exist; available: `large`, `small`";
    assert_eq!(message(&unknown), expected);
    body["model"] = json!("small");
    assert_eq!(gateway.post(CHAT, &body).status, 200);
}

#[test]
fn where_one_model_is_served_its_name_may_be_left_out() {
    let engines = Engines::start(&["--model", "small"]);
    let pods = format!("pods: [{{name: a, url: \"http://{}\"}}]", engines.engines[0].http);
    let gateway = Gateway::configured("one_model", &pods, 1);
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
    assert_eq!(gateway.post(CHAT, &body).status, 200);
}

#[test]
fn files_and_batches_go_to_an_engine_only_if_a_route_says_so() {
    let engines = Engines::start(&["--model", "small"]);
    let pods = format!("pods: [{{name: a, url: \"http://{}\"}}]\n", engines.engines[0].http);
    let gateway = Gateway::configured("no_batches", &pods, 1);
    for path in ["/v1/files", "/v1/files/file-1/content", "/v1/batches", "/v1/batches/b/cancel"] {
        let answer = gateway.get(path);
        assert_eq!(answer.status, 404, "{path}: {}", answer.text);
        assert!(answer.text.contains("--batches"), "{path}: {}", answer.text);
    }
    let route = "routes: [{match: {path: \"/v1/files*\"}, profile: cache-aware-text}, {profile: cache-aware-text}]\n";
    let gateway = Gateway::configured("routed_files", &format!("{pods}{route}"), 1);
    let answer = gateway.get("/v1/files");
    assert!(!answer.text.contains("--batches"), "the engine's own answer: {}", answer.text);
    assert!(gateway.get("/v1/batches").text.contains("--batches"));
}
