//! The priority that engines get for offline requests.

use super::{batch, folder, input, text};
use crate::support::gateway::Gateway;
use crate::support::recorder::{Recorder, Sent};
use serde_json::{Value, json};

/// Runs a batch of three lines and then a client's request, and says what the engine was sent.
fn sent(name: &str, rules: &Value) -> Vec<Sent> {
    let engine = Recorder::start();
    let kept = folder(name);
    let mut rules = rules.clone();
    rules["folder"] = json!("kept");
    let config = json!({
        "pods": [{"url": format!("http://{}", engine.address)}],
        "batch": rules,
        "listen": {"client": "127.0.0.1:0"},
    });
    let path = kept.join("wornpath.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let gateway = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let line = |number: u32| {
        // One of them would like to go first.
        let body = json!({"model": "m", "prompt": format!("Line {number}"), "priority": -5});
        let mut line = json!({"custom_id": number.to_string(), "method": "POST", "url": "/v1/completions", "body": body});
        if number > 0 {
            line["body"].as_object_mut().unwrap().remove("priority");
        }
        line
    };
    let input = input(&kept, (0..3).map(line));
    let ended = batch(&gateway, &["submit", &input, "--endpoint", "/v1/completions", "--watch"]);
    assert!(text(&ended.stdout).contains("completed: 3 of 3 answered"), "{ended:?}");
    let online = gateway.post("/v1/completions", &json!({"model": "m", "prompt": "Online"}));
    assert_eq!(online.status, 200, "{}", online.text);
    engine.posted()
}

fn priorities(sent: &[Sent], is_online: bool) -> Vec<Value> {
    let own = sent.iter().filter(|sent| (sent.body["prompt"] == "Online") == is_online);
    own.map(|sent| sent.body["priority"].clone()).collect()
}

#[test]
fn engines_with_priority_scheduling_get_offline_requests_at_the_lowest_priority() {
    let sent = sent("priority", &json!({"priority": 100}));
    assert_eq!(priorities(&sent, false), [json!(100), json!(100), json!(100)], "{sent:?}");
    assert_eq!(priorities(&sent, true), [Value::Null], "clients' requests stay as they are");
}

#[test]
fn engines_without_priority_scheduling_get_no_priority() {
    let sent = sent("no-priority", &json!({}));
    let own = priorities(&sent, false);
    assert_eq!(own.len(), 3);
    assert_eq!(own.iter().filter(|priority| priority.is_null()).count(), 2, "{sent:?}");
}
