//! Answers to clients while no engine fails.

use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn prompt(text: &str) -> Value {
    json!({"prompt": text, "max_tokens": 4})
}

#[test]
fn each_pod_is_used_in_turn() {
    let engines = Engines::start(&["--engines", "3"]);
    let gateway = Gateway::in_front_of(&engines, &["--policy", "round-robin"]);
    let pods: Vec<_> =
        (0..6).map(|_| gateway.post("/v1/completions", &prompt("a")).pod().to_owned()).collect();
    assert_eq!(pods.iter().collect::<BTreeSet<_>>().len(), 3, "{pods:?}");
    assert_eq!(pods[..3], pods[3..]);
}

#[test]
fn a_prompt_is_routed_to_the_pod_that_got_its_prefix() {
    let engines = Engines::start(&["--engines", "4"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    for conversation in 0..8 {
        let mut text = format!("{conversation}: ").repeat(400);
        let first = gateway.post("/v1/completions", &prompt(&text)).pod().to_owned();
        for _ in 0..3 {
            text.push_str(&"and on ".repeat(50));
            let next = gateway.post("/v1/completions", &prompt(&text));
            assert_eq!(next.pod(), first);
            assert!(next.cached_tokens() > 1000, "{}", next.text);
            let reason = next.header("x-wornpath-reason").unwrap();
            assert!(reason.contains("tokens cached"), "{reason}");
        }
    }
}

#[test]
fn with_the_engines_own_events_the_prediction_is_what_the_engine_reports() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let pods: Vec<_> = engines
        .engines
        .iter()
        .map(|at| format!("http://{},events=zmq://{}?replay={}", at.http, at.events, at.replay))
        .collect();
    let arguments = ["--pod", &pods[0], "--pod", &pods[1], "--tokenizer", "bytes", "--model", "m"];
    let gateway = Gateway::start(&arguments, 2);
    let line = format!("wornpath_pod_event_last_sequence{{pod=\"{}\"}} ", engines.engines[1].http);
    let last_event = || {
        let page = gateway.get("/metrics").text;
        let value = page.lines().find_map(|known| known.strip_prefix(&line));
        value.map_or(-1.0, |value| value.parse::<f64>().unwrap())
    };
    let mut number = 0;
    eventually("what went straight to the second engine is known by its events", || {
        number += 1;
        let text = format!("{number:04}").repeat(250);
        let before = last_event();
        assert_eq!(engines.complete(1, &prompt(&text)).status, 200);
        // The gateway routes a prompt by the events that it has applied before.
        eventually("the events of the prompt are applied", || last_event() > before);
        let answer = gateway.post("/v1/completions", &prompt(&text));
        answer.pod() == engines.engines[1].http
            && answer
                .header("x-wornpath-reason")
                .unwrap()
                .contains("992 tokens cached (62 blocks on gpu)")
            && answer.cached_tokens() == 992
    });
}

#[test]
fn a_stream_comes_chunk_by_chunk_and_ends_as_the_engine_ends_it() {
    let engines = Engines::start(&[]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    let chat =
        json!({"messages": [{"role": "user", "content": "hi"}], "stream": true, "max_tokens": 5});
    let through = gateway.post("/v1/chat/completions", &chat);
    assert_eq!(through.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = through.events();
    assert_eq!(events.last(), Some(&"[DONE]"));
    assert_eq!(events.len(), 7, "a beginning, five tokens and an end: {events:?}");
}

#[test]
fn models_health_and_other_paths_of_engines_are_served() {
    let engines = Engines::start(&["--engines", "2", "--model", "m", "--adapter", "sql"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    let models = gateway.get("/v1/models").json();
    let names: Vec<_> = models["data"].as_array().unwrap().iter().map(|card| &card["id"]).collect();
    assert_eq!(names, ["m", "sql"]);
    assert_eq!(gateway.get("/health").status, 200);
    assert_eq!(gateway.get("/ready").text, "ready");
    assert!(gateway.get("/version").json()["version"].is_string());
    assert_eq!(gateway.post("/tokenize", &json!({"prompt": "abc"})).json()["count"], 3);
    let embedding = gateway.post("/v1/embeddings", &json!({"input": "abc"})).json();
    assert_eq!(embedding["data"][0]["embedding"].as_array().unwrap().len(), 64);
    let documents = json!({"query": "abc", "documents": ["x", "abc"]});
    let ranked = gateway.post("/v1/rerank", &documents).json();
    assert_eq!(ranked["results"][0]["index"], 1, "{ranked}");
    let adapted = gateway.post("/v1/completions", &json!({"model": "sql", "prompt": "a"}));
    assert_eq!((adapted.status, &adapted.json()["model"]), (200, &json!("sql")));
}

#[test]
fn errors_have_the_form_of_the_clients_api() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &["--max-body", "1000"]);
    let unknown = gateway.post("/v1/completions", &json!({"model": "n", "prompt": "a"}));
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let anthropic = gateway.post(path, &json!({"model": "n", "messages": []})).json();
        assert_eq!(
            (&anthropic["type"], &anthropic["error"]["type"]),
            (&json!("error"), &json!("not_found_error")),
            "{path}"
        );
    }
    let large = gateway.post("/v1/completions", &prompt(&"x".repeat(2000)));
    assert_eq!((large.status, large.header("x-request-id").is_some()), (413, true));
    let wrong = Exchange::open(&gateway.address, "POST", "/v1/completions", "{\"prompt\": ")
        .finish()
        .unwrap();
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.json()["error"]["message"].as_str().unwrap().contains("not JSON"),
        "{}",
        wrong.text
    );
    let refused_by_engine =
        gateway.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 0}));
    assert_eq!(refused_by_engine.status, 400, "{}", refused_by_engine.text);
}

#[test]
fn a_request_is_cancelled_when_its_client_disconnects() {
    let engines = Engines::start_at("1", &["--answer-tokens", "100000"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    let endless = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    let mut client = gateway.open("/v1/chat/completions", &endless);
    client.read_past("data: ");
    assert_eq!(engines.metric(0, "vllm:num_requests_running") as u64, 1);
    drop(client);
    eventually("the engine stopped", || engines.metric(0, "vllm:num_requests_running") < 1.0);
}

#[test]
fn a_client_that_disconnects_before_its_answer_is_counted_and_frees_its_pod() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    engines.set_faults(0, "{\"hang\": true}");
    let client = gateway.open("/v1/completions", &prompt("is anybody there?"));
    let load = format!("wornpath_pod_requests{{pod=\"{}\"}}", engines.engines[0].http);
    eventually("it is under way", || gateway.metric(&load) > 0.0);
    drop(client);
    let pod = &engines.engines[0].http;
    let counted = format!("pod=\"{pod}\",status=\"499\",end=\"client_left\"");
    eventually("it is counted", || gateway.get("/metrics").text.contains(&counted));
    assert_eq!(gateway.metric(&load) as u64, 0);
}

#[test]
fn model_names_of_clients_are_recorded_only_if_they_are_served() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &["--admin", "127.0.0.1:0"]);
    let invented = "x".repeat(100_000);
    for model in [invented.as_str(), "m"] {
        let body = json!({"model": model, "prompt": "a"});
        let expected = if model == "m" { 200 } else { 404 };
        assert_eq!(gateway.post("/v1/completions", &body).status, expected);
    }
    let mut models = Vec::new();
    eventually("both are listed", || {
        let told = gateway.ask("GET", "/decisions", "").json();
        models =
            told["decisions"].as_array().unwrap().iter().map(|it| it["model"].clone()).collect();
        models.len() == 2
    });
    assert_eq!(models, ["m", ""]);
}

#[test]
fn a_client_that_does_not_read_its_answer_is_cut_off_and_frees_its_pod() {
    let engines = Engines::start_at("300", &["--model", "m", "--answer-tokens", "100000"]);
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\ntimeouts: {{between_bytes: 1s}}\n",
        engines.engines[0].http
    );
    let gateway = Gateway::configured("answers_untaken", &text, 1);
    let endless = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    let mut client = gateway.open("/v1/chat/completions", &endless);
    client.read_past("data: ");
    let load = format!("wornpath_pod_requests{{pod=\"{}\"}}", engines.engines[0].http);
    assert_eq!(gateway.metric(&load) as u64, 1);
    eventually("it is given up", || gateway.metric(&load) < 1.0);
    drop(client);
}

#[test]
fn tenants_need_their_key_and_never_share_a_prediction() {
    let engines = Engines::start(&["--engines", "2"]);
    let keys = [
        "--api-key",
        "a=secret-a",
        "--api-key",
        "b=secret-b",
        "--api-key",
        "c=secret-c",
        "--isolate-tenants",
    ];
    let gateway = Gateway::in_front_of(&engines, &keys);
    let ask_by = |scheme: &str, key: &str| {
        let body = prompt(&"the same words ".repeat(200)).to_string();
        let address = &gateway.address;
        let length = body.len();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\nauthorization: {scheme} {key}\r\n\r\n"
        );
        crate::sockets::exchange(address, &[head.as_bytes(), body.as_bytes()].concat())
    };
    let ask = |key: &str| ask_by("Bearer", key);
    for scheme in ["BEARER", "bearer", "bEaReR"] {
        assert!(ask_by(scheme, "unknown").starts_with("HTTP/1.1 401"), "{scheme}");
        assert!(ask_by(scheme, "secret-c").starts_with("HTTP/1.1 200"), "{scheme}");
    }
    assert!(ask_by("Basic", "secret-c").starts_with("HTTP/1.1 401"));
    assert!(ask("unknown").starts_with("HTTP/1.1 401"));
    let says = |answer: &str, cached: bool| {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(answer.contains("nothing cached"), !cached, "{answer}");
        assert_eq!(answer.contains("\"cached_tokens\":0"), !cached, "{answer}");
    };
    says(&ask("secret-a"), false);
    says(&ask("secret-a"), true);
    says(&ask("secret-b"), false);
    says(&ask("secret-b"), true);
}

#[test]
fn fields_between_router_and_engine_are_refused_where_tenants_are_isolated() {
    let engines = Engines::start(&[]);
    let body = json!({"prompt": "hi", "kv_transfer_params": {"remote_host": "elsewhere"}});
    let body = body.to_string();
    let key = ["--api-key", "a=secret-a"];
    for (isolated, status) in [(&["--isolate-tenants"][..], 400), (&[], 200)] {
        let gateway = Gateway::in_front_of(&engines, &[&key, isolated].concat());
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\nauthorization: Bearer secret-a\r\n\r\n",
            body.len()
        );
        let answer = crate::sockets::exchange(&gateway.address, format!("{head}{body}").as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(
            answer.contains("`kv_transfer_params` is reserved for the router"),
            status == 400
        );
    }
}

#[test]
fn where_tenants_are_isolated_no_interface_is_served_that_takes_no_salt() {
    let engines = Engines::start(&["--model", "m"]);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "m", "max_tokens": 3, "messages": messages});
    for (isolated, status) in [(&["--isolate-tenants"][..], 400), (&[], 200)] {
        let gateway =
            Gateway::in_front_of(&engines, &[&["--api-key", "a=secret-a"], isolated].concat());
        let headers = [("x-api-key", "secret-a"), ("authorization", "Bearer secret-a")];
        let ask = |path| Exchange::open_with(&gateway.address, path, &headers, &body).finish();
        let answer = ask("/v1/messages").unwrap();
        assert_eq!(answer.status, status, "{}", answer.text);
        assert_eq!(
            answer.text.contains("engines ignore `cache_salt`"),
            status == 400,
            "{}",
            answer.text
        );
        assert_eq!(ask("/v1/chat/completions").unwrap().status, 200);
    }
}

#[test]
fn a_long_prompt_is_computed_by_one_pod_and_answered_by_another() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let [prefill, decode] = [0, 1].map(|at| format!("http://{}", engines.engines[at].http));
    let arguments = [
        "--prefill",
        &prefill,
        "--decode",
        &decode,
        "--policy",
        "prefill-decode",
        "--tokenizer",
        "bytes",
        "--model",
        "m",
    ];
    let gateway = Gateway::start(&arguments, 2);
    let answer = gateway.post("/v1/completions", &prompt(&"long ".repeat(1000)));
    assert_eq!((answer.status, answer.pod()), (200, &*engines.engines[1].http));
    assert_eq!(engines.metric(0, "vllm:prompt_tokens_total") as u64, 5000);
    let short = gateway.post("/v1/completions", &prompt("short"));
    assert_eq!((short.status, short.pod()), (200, &*engines.engines[1].http));
    assert_eq!(engines.metric(0, "vllm:prompt_tokens_total") as u64, 5000, "too short for two");
}

#[test]
fn sigterm_drains_requests_in_flight_and_refuses_new_ones() {
    let engines = Engines::start_at("1", &["--answer-tokens", "60"]);
    let mut gateway = Gateway::in_front_of(&engines, &["--lame-duck", "1"]);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    let mut stream = gateway.open("/v1/chat/completions", &chat);
    stream.read_past("data: ");
    gateway.signal("-TERM");
    eventually("it is not ready", || gateway.get("/ready").status == 503);
    let whole = stream.read_past("[DONE]");
    assert!(whole.contains("[DONE]"));
    drop(stream);
    eventually("it ended", || gateway.child.try_wait().unwrap().is_some());
    assert!(gateway.child.wait().unwrap().success());
    assert!(std::net::TcpStream::connect(&gateway.address).is_err());
}
