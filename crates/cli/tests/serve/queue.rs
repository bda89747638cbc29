//! The wait queue: timeouts, order, and answers when it is full.

use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};

const ASK: &str = "/v1/completions";
const LONG: &str =
    r#"{"prompt": "long", "max_tokens": 100000, "ignore_eos": true, "stream": true}"#;

/// One engine that is slow enough to be busy, and a profile by which it takes one request at a
/// time.
fn busy(test: &str, hold: &str, more: &str) -> (Engines, Gateway) {
    let engines = Engines::start_at("1", &["--model", "m"]);
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\nprofiles:\n  one:\n    filter: [healthy, model, concurrency: {{requests: 1}}]\n    \
         pick: max_score\n    hold: {hold}\n{more}",
        engines.engines[0].http
    );
    let gateway = Gateway::configured(test, &text, 1);
    (engines, gateway)
}

fn long(gateway: &Gateway) -> Exchange {
    let mut exchange = gateway.open(ASK, &serde_json::from_str(LONG).unwrap());
    exchange.read_past("data: ");
    exchange
}

fn short() -> Value {
    json!({"prompt": "short", "max_tokens": 1})
}

#[test]
fn a_request_waits_until_the_pod_has_capacity_and_gets_429_if_the_queue_is_full() {
    let (_engines, gateway) = busy("queue_429", "{capacity: 2, deadline: 60s}", "");
    let first = long(&gateway);
    let waiting: Vec<_> = (0..2).map(|_| gateway.open(ASK, &short())).collect();
    eventually("two wait", || gateway.metric("wornpath_queue_waiting") as u64 == 2);
    let refused = gateway.post(ASK, &short());
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, Some("1")),
        "{}",
        refused.text
    );
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    drop(first);
    for waited in waiting {
        assert_eq!(waited.finish().unwrap().status, 200);
    }
    assert_eq!(gateway.metric("wornpath_queue_waiting") as u64, 0);
    assert!(gateway.log().contains("pod up"));
}

#[test]
fn a_queue_timeout_is_429_and_a_queue_without_pods_503() {
    let (engines, gateway) = busy("queue_503", "{capacity: 9, deadline: 300ms}", "");
    let first = long(&gateway);
    let late = gateway.post(ASK, &short());
    assert_eq!((late.status, late.header("retry-after").is_some()), (429, true), "{}", late.text);
    let waiting = [gateway.open(ASK, &short()), gateway.open(ASK, &short())];
    eventually("both wait", || gateway.metric("wornpath_queue_waiting") as u64 == 2);
    engines.control("POST", "/engines/0/crash", "");
    let mut statuses = waiting.map(|request| request.finish().unwrap().status);
    statuses.sort_unstable();
    assert!(matches!(statuses[0], 502 | 503), "one may find out that the pod is dead");
    assert_eq!(statuses[1], 503, "no pod is left to wait for");
    drop(first);
}

#[test]
fn a_client_that_disconnects_while_queued_frees_its_queue_entry() {
    let (_engines, gateway) = busy("queue_left", "{capacity: 1, deadline: 60s}", "");
    let first = long(&gateway);
    for _ in 0..3 {
        let waiting = gateway.open(ASK, &short());
        eventually("it waits", || gateway.metric("wornpath_queue_waiting") as u64 == 1);
        drop(waiting);
        eventually("its place is free", || gateway.metric("wornpath_queue_waiting") as u64 == 0);
    }
    drop(first);
    assert_eq!(gateway.post(ASK, &short()).status, 200);
}

#[test]
fn the_bytes_of_queued_requests_are_limited() {
    let more = "limits: {waiting: 2KiB}\n";
    let (_engines, gateway) = busy("queue_bytes", "{capacity: 99, deadline: 60s}", more);
    let first = long(&gateway);
    let large = json!({"prompt": "x".repeat(1500), "max_tokens": 1});
    let waiting = gateway.open(ASK, &large);
    eventually("one waits", || gateway.metric("wornpath_queue_waiting") as u64 == 1);
    let refused = gateway.post(ASK, &large);
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(
        refused.text.contains("wait queue full: buffered bodies exceed `limits.waiting`"),
        "{}",
        refused.text
    );
    drop(first);
    assert_eq!(waiting.finish().unwrap().status, 200);
}

pub(crate) fn digest(key: &str) -> &'static str {
    // sha256 of the keys "a", "b" and "c".
    match key {
        "a" => "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        "b" => "sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d",
        _ => "sha256:2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6",
    }
}

fn as_tenant(gateway: &Gateway, key: &str, body: &Value) -> Exchange {
    Exchange::open_with(&gateway.address, ASK, &[("authorization", &format!("Bearer {key}"))], body)
}

#[test]
fn a_quota_limits_the_requests_in_flight_of_a_tenant() {
    let tenants = format!(
        "tenants:\n  - {{name: a, key_digest: \"{}\", quota: 2}}\n  - {{name: b, key_digest: \"{}\"}}\n",
        digest("a"),
        digest("b")
    );
    let (_engines, gateway) = busy("queue_quota", "{capacity: 99, deadline: 60s}", &tenants);
    let mut first = as_tenant(&gateway, "a", &serde_json::from_str(LONG).unwrap());
    first.read_past("data: ");
    let second = as_tenant(&gateway, "a", &short());
    eventually("one waits", || gateway.metric("wornpath_queue_waiting") as u64 == 1);
    let third = as_tenant(&gateway, "a", &short()).finish().unwrap();
    assert_eq!((third.status, third.header("retry-after")), (429, Some("1")), "{}", third.text);
    let other = as_tenant(&gateway, "b", &short());
    eventually("the other tenant waits", || gateway.metric("wornpath_queue_waiting") as u64 == 2);
    drop(first);
    assert_eq!((second.finish().unwrap().status, other.finish().unwrap().status), (200, 200));
    assert_eq!(as_tenant(&gateway, "a", &short()).finish().unwrap().status, 200);
}

#[test]
fn tenants_are_served_by_their_weight() {
    let tenants = format!(
        "tenants:\n  - {{name: a, key_digest: \"{}\", weight: 3}}\n  - {{name: b, key_digest: \"{}\"}}\n",
        digest("a"),
        digest("b")
    );
    let hold = "{capacity: 99, deadline: 60s, order: arrival}";
    let (_engines, gateway) = busy("queue_weight", hold, &tenants);
    let mut first = as_tenant(&gateway, "a", &serde_json::from_str(LONG).unwrap());
    first.read_past("data: ");
    let body = json!({"prompt": "x".repeat(4000), "max_tokens": 8});
    let waiting: Vec<_> = (0..8)
        .map(|number| {
            let exchange = as_tenant(&gateway, if number % 2 == 0 { "a" } else { "b" }, &body);
            eventually("it waits", || {
                gateway.metric("wornpath_queue_waiting") as u64 == number + 1
            });
            exchange
        })
        .collect();
    drop(first);
    let ended: Vec<_> = waiting.into_iter().map(|waited| waited.finish().unwrap().status).collect();
    assert_eq!(ended, [200; 8]);
    // In the order in which they were answered, the latest first.
    let all = gateway.ask("GET", "/decisions?last=8", "").json();
    let mut tenants: Vec<_> = all["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| decision["tenant"].as_str().unwrap().to_owned())
        .collect();
    tenants.reverse();
    let early = tenants[..4].iter().filter(|tenant| *tenant == "a").count();
    assert!(early >= 3, "three of the first four are a's: {tenants:?}");
}

#[test]
fn each_profile_has_its_own_queue_rules() {
    let engines = Engines::start_at("1", &["--model", "m"]);
    let profile = |hold: &str| {
        format!(
            "{{filter: [healthy, model, concurrency: {{requests: 1}}], pick: max_score, hold: {hold}}}"
        )
    };
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\nprofiles:\n  patient: {}\n  curt: {}\n\
         routes:\n  - {{match: {{path: /v1/chat/completions}}, profile: curt}}\n  - {{profile: patient}}\n",
        engines.engines[0].http,
        profile("{capacity: 9, deadline: 60s}"),
        profile("{capacity: 1, deadline: 60s}"),
    );
    let gateway = Gateway::configured("queue_own", &text, 1);
    let first = long(&gateway);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
    let mut waiting: Vec<_> = (0..3).map(|_| gateway.open(ASK, &short())).collect();
    waiting.push(gateway.open("/v1/chat/completions", &chat));
    eventually("all wait", || gateway.metric("wornpath_queue_waiting") as u64 == 4);
    assert_eq!(gateway.post("/v1/chat/completions", &chat).status, 429, "one may wait there");
    waiting.push(gateway.open(ASK, &short()));
    eventually("more may wait here", || gateway.metric("wornpath_queue_waiting") as u64 == 5);
    drop(first);
    for waited in waiting {
        assert_eq!(waited.finish().unwrap().status, 200);
    }
}

#[test]
fn a_retry_waits_in_the_queue_like_any_request() {
    let engines = Engines::start_at("1", &["--engines", "2", "--model", "m"]);
    let text = format!(
        "pods: [{{url: \"http://{}\"}}, {{url: \"http://{}\"}}]\nprofiles:\n  one:\n    \
         filter: [healthy, model, concurrency: {{requests: 1}}]\n    pick: round_robin\n    hold: {{deadline: 60s}}\n",
        engines.engines[0].http, engines.engines[1].http
    );
    let gateway = Gateway::configured("queue_retry", &text, 2);
    let mut streaming = gateway.open(ASK, &serde_json::from_str(LONG).unwrap());
    let head = streaming.read_past("data: ");
    let whole = gateway.open(ASK, &json!({"prompt": "a", "max_tokens": 5000}));
    eventually("both work", || {
        [0, 1].iter().all(|at| engines.metric(*at, "vllm:num_requests_running") as u64 == 1)
    });
    // The one that has not begun to answer dies: its request waits for the other pod, which is
    // busy.
    let busy = usize::from(head.contains(&engines.engines[1].http));
    engines.control("POST", &format!("/engines/{}/crash", 1 - busy), "");
    eventually("it waits", || gateway.metric("wornpath_queue_waiting") as u64 == 1);
    drop(streaming);
    eventually("it has gone to the other", || {
        engines.metric(busy, "vllm:num_requests_running") as u64 == 1
            && gateway.metric("wornpath_queue_waiting") as u64 == 0
    });
    drop(whole);
}
