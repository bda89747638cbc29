//! A model without pods: its requests wait for the first one, and are the signal to start it.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, folder};
use serde_json::json;
use std::fs;
use std::path::PathBuf;

const ASK: &str = "/v1/completions";

/// A router for the model `m`, whose pods are listed in a file, and which has none.
fn without_pods(test: &str, wait: &str) -> (Gateway, PathBuf) {
    let folder = folder(test);
    let pods = folder.join("pods.yaml");
    fs::write(&pods, "pods: []\n").unwrap();
    let file = folder.join("wornpath.yaml");
    let text = format!(
        "models: [{{name: m, tokenizer: bytes, wait_for_pod: {wait}}}]\ndiscovery: [{{file: pods.yaml, every: 20ms}}]\n"
    );
    fs::write(&file, text).unwrap();
    let arguments = ["-c", file.to_str().unwrap(), "--admin", "127.0.0.1:0"];
    (Gateway::start(&arguments, 0), pods)
}

#[test]
fn a_request_for_a_model_without_pods_waits_for_the_first_one_and_raises_the_signal() {
    let (gateway, pods) = without_pods("from_zero", "60s");
    assert_eq!(gateway.get("/ready").status, 200, "or no request would ever arrive");
    assert_eq!(gateway.metric("wornpath_model_waiting_requests{model=\"m\"}") as u64, 0);
    let body = json!({"model": "m", "prompt": "a", "max_tokens": 1});
    let waiting: Vec<_> = (0..3).map(|_| gateway.open(ASK, &body)).collect();
    let signal = || gateway.metric("wornpath_model_waiting_requests{model=\"m\"}") as u64;
    eventually("the signal is raised", || signal() == 3);
    assert_eq!(gateway.metric("wornpath_queue_waiting") as u64, 3);
    assert_eq!(gateway.metric("wornpath_model_pods{model=\"m\"}") as u64, 0);
    let waited = || gateway.metric("wornpath_model_waiting_seconds{model=\"m\"}");
    eventually("it tells how long", || waited() > 0.1);
    let engines = Engines::start(&["--model", "m"]);
    let url = &engines.engines[0].http;
    fs::write(&pods, format!("pods: [{{name: a, url: \"http://{url}\", model: m}}]\n")).unwrap();
    for request in waiting {
        let answer = request.finish().unwrap();
        assert_eq!((answer.status, answer.pod()), (200, "a"), "{}", answer.text);
    }
    assert_eq!((signal(), waited()), (0, 0.0));
    assert_eq!(gateway.metric("wornpath_model_pods{model=\"m\"}") as u64, 1);
}

#[test]
fn the_wait_for_a_first_pod_ends_with_503_and_a_client_that_leaves_ends_it_too() {
    let (gateway, _pods) = without_pods("from_zero_late", "300ms");
    let body = json!({"model": "m", "prompt": "a"});
    let late = gateway.post(ASK, &body);
    assert_eq!(late.status, 503, "{}", late.text);
    assert!(late.text.contains("model `m` has no pod that is up; waited 300ms"), "{}", late.text);
    assert!(late.header("retry-after").is_some());
    let other = gateway.post(ASK, &json!({"model": "other", "prompt": "a"}));
    assert_eq!(other.status, 503, "a pod may come that serves it: {}", other.text);
    assert!(!other.text.contains("waited"), "another model does not wait: {}", other.text);
    let (patient, _pods) = without_pods("from_zero_left", "60s");
    let left = patient.open(ASK, &body);
    let signal = || patient.metric("wornpath_model_waiting_requests{model=\"m\"}") as u64;
    eventually("it waits", || signal() == 1);
    drop(left);
    eventually("it is forgotten", || signal() == 0);
}

#[test]
fn a_router_whose_models_do_not_wait_is_not_ready_without_pods() {
    let (gateway, _pods) = without_pods("from_zero_off", "0s");
    assert_eq!(gateway.get("/ready").status, 503);
    assert_eq!(gateway.post(ASK, &json!({"model": "m", "prompt": "a"})).status, 503);
}

#[test]
fn prefill_backlog_and_kv_pressure_of_a_model_are_sums_and_means_over_its_pods() {
    let engines = Engines::start_at("1", &["--engines", "2", "--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &["--admin", "127.0.0.1:0"]);
    (0..2).for_each(|engine| engines.set_faults(engine, r#"{"hang": true}"#));
    let prompt = "a long prompt that takes a while ".repeat(3000);
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 50, "stream": true});
    let request = gateway.open(ASK, &body);
    let backlog = || gateway.metric("wornpath_model_prefill_tokens{model=\"m\"}");
    eventually("the prompt is counted", || backlog() > 0.0);
    let page = gateway.get("/metrics").text;
    let sum = |name: &str| -> f64 {
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let of_pods = sum("wornpath_pod_prefill_tokens{");
    assert_eq!(sum("wornpath_model_prefill_tokens{"), of_pods, "{page}");
    assert_eq!(sum("wornpath_model_kv_usage_ratio{"), sum("wornpath_pod_kv_usage_ratio{") / 2.0);
    assert_eq!(sum("wornpath_model_pods{") as u64, 2);
    drop(request);
    let pod = gateway.ask("GET", "/pods", "").json()["pods"][0]["name"].clone();
    let drained = gateway.ask("POST", &format!("/pods/{}/drain", pod.as_str().unwrap()), "");
    assert_eq!(drained.status, 200, "{}", drained.text);
    assert_eq!(gateway.metric("wornpath_model_pods{model=\"m\"}") as u64, 1);
}
