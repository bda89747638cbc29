//! The chart history, as a dashboard that is opened later gets it.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually, eventually_within, folder};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

fn history(gateway: &Gateway, seconds: u64) -> Value {
    let answer = gateway.ask("GET", &format!("/history?seconds={seconds}"), "");
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn known(history: &Value, series: &str) -> Vec<f64> {
    history["series"][series].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

/// Changes as `kind pod`, in their order.
fn changes(gateway: &Gateway) -> Vec<String> {
    let told = history(gateway, 3600);
    let changes = told["changes"].as_array().unwrap().iter();
    let shown = changes.map(|it| {
        format!("{} {}", it["kind"].as_str().unwrap(), it["pod"].as_str().unwrap_or("-"))
    });
    shown.collect()
}

#[test]
fn what_happened_before_the_page_was_opened_is_remembered() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let [a, b] = [0, 1].map(|at| &engines.engines[at].http);
    let file = folder("history").join("wornpath.yaml");
    let pods = format!(
        "pods:\n  - {{name: a, url: \"http://{a}\", model: m}}\n  - {{name: b, url: \"http://{b}\", model: m}}\n"
    );
    fs::write(&file, &pods).unwrap();
    let arguments = ["-c", file.to_str().unwrap(), "--admin", "127.0.0.1:0"];
    let gateway = Gateway::start(&arguments, 2);
    eventually("the start is noted", || {
        changes(&gateway).iter().any(|it| it == "router_started -")
    });
    for _ in 0..20 {
        let body = json!({"model": "m", "prompt": "words", "max_tokens": 2});
        assert_eq!(gateway.post("/v1/completions", &body).status, 200);
    }
    gateway.ask("POST", "/pods/b/drain", "");
    let has = |wanted: &str| changes(&gateway).iter().any(|it| it == wanted);
    eventually("the drain is noted", || has("pod_draining b"));
    fs::write(&file, format!("{pods}explained: 2\n")).unwrap();
    eventually("the reload is noted", || has("reload_applied -"));
    fs::write(&file, "pods: 3\n").unwrap();
    eventually("the refusal is noted", || has("reload_refused -"));
    gateway.ask("DELETE", "/pods/b", "");
    eventually("the removal is noted", || has("pod_removed b"));
    engines.control("POST", "/engines/0/crash", "");
    eventually_within(Duration::from_secs(30), "the crash is noted", || has("pod_down a"));
    let told = history(&gateway, 120);
    assert_eq!((&told["step"], told["series"]["p99"].as_array().unwrap().len()), (&json!(1), 120));
    assert!(known(&told, "requests").iter().any(|rate| *rate > 0.0), "{told}");
    assert!(known(&told, "p99").iter().any(|time| *time > 0.0), "{told}");
    let longer = history(&gateway, 86_400);
    assert_eq!(
        (&longer["step"], longer["series"]["requests"].as_array().unwrap().len()),
        (&json!(60), 1440)
    );
    let wrong = gateway.ask("GET", "/history?seconds=long", "");
    assert_eq!(wrong.status, 400, "{}", wrong.text);
}
