//! Answers to clients while no engine fails.

use crate::support::engines::{Engines, Exchange, Response};
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
fn a_key_that_is_replaced_works_until_its_time() {
    let engines = Engines::start(&["--model", "m"]);
    // The digests of `a`, `b` and `c`.
    let text = |at: &str| {
        format!(
            "pods: [{{url: \"http://{at}\", model: m}}]\ntenants:\n  - name: t\n    \
             key_digest: \"sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\"\n    \
             further_digests:\n      \
             - \"sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d until 2100-01-01T00:00:00Z\"\n      \
             - \"sha256:2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6 until 2020-01-01T00:00:00+01:00\"\n"
        )
    };
    let gateway = Gateway::configured("answers_keys", &text(&engines.engines[0].http), 1);
    let body = json!({"model": "m", "prompt": "hi", "max_tokens": 2});
    let ask = |key: &str| {
        let key = format!("Bearer {key}");
        let headers = [("authorization", key.as_str())];
        Exchange::open_with(&gateway.address, "/v1/completions", &headers, &body).finish().unwrap()
    };
    assert_eq!([ask("a").status, ask("b").status], [200, 200]);
    let expired = ask("c");
    assert_eq!(expired.status, 401);
    assert!(expired.text.contains("expired API key"), "{}", expired.text);
    assert!(ask("d").text.contains("invalid API key"));
}

#[test]
fn a_tenant_over_its_rate_is_told_when_to_come_back() {
    let engines = Engines::start(&["--model", "m"]);
    // The digests of `a` and `b`.
    let text = format!(
        "pods: [{{url: \"http://{}\", model: m}}]\ntenants:\n  \
         - {{name: a, requests_per_minute: 3, key_digest: \"sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\"}}\n  \
         - {{name: b, tokens_per_minute: 600, key_digest: \"sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d\"}}\n",
        engines.engines[0].http
    );
    let gateway = Gateway::configured("answers_rates", &text, 1);
    let ask = |key: &str, words: usize| {
        let body = json!({"model": "m", "prompt": "hi ".repeat(words), "max_tokens": 2});
        let key = format!("Bearer {key}");
        let headers = [("authorization", key.as_str())];
        Exchange::open_with(&gateway.address, "/v1/completions", &headers, &body).finish().unwrap()
    };
    let after = |answer: &Response| answer.header("retry-after").unwrap().parse::<u64>().unwrap();
    for _ in 0..3 {
        assert_eq!(ask("a", 1).status, 200);
    }
    let refused = ask("a", 1);
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.text.contains("3 requests a minute"), "{}", refused.text);
    assert!((1..=20).contains(&after(&refused)), "{}", refused.head);
    // The engine counts a token a byte: 3,000 of 600.
    assert_eq!(ask("b", 1000).status, 200);
    let refused = ask("b", 1);
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!((200..=241).contains(&after(&refused)), "{}", refused.head);
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

#[test]
fn a_stream_that_takes_longer_than_the_drain_ends_with_an_error_event() {
    let engines = Engines::start_at("1", &["--answer-tokens", "2000"]);
    let mut gateway = Gateway::in_front_of(&engines, &["--lame-duck", "0", "--grace", "0.5"]);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    let mut stream = gateway.open("/v1/chat/completions", &chat);
    stream.read_past("data: ");
    let not_streamed = json!({"messages": [{"role": "user", "content": "hello"}]});
    let waiting = gateway.open("/v1/chat/completions", &not_streamed);
    gateway.signal("-TERM");
    let rest = stream.read_past("before the stream was complete");
    let last = &rest[rest.find("event: error\ndata: {").expect("an error event")..];
    assert!(last.contains("\"shutting_down\""), "{last}");
    assert!(!rest.contains("[DONE]"));
    let refused = waiting.finish().unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("shutting down"), "{}", refused.text);
    assert!(gateway.child.wait().unwrap().success());
}

/// Each client opens a connection for each request, all the time.
#[test]
fn sigterm_resets_no_connection() {
    use std::io::{ErrorKind, Read, Write};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    const REQUEST: &[u8] = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    // None if the listener is closed.
    let ask = |address: &str| -> Option<std::io::Result<String>> {
        let mut stream = match std::net::TcpStream::connect(address) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return None,
            connected => connected.unwrap(),
        };
        let mut answer = String::new();
        let read = stream.write_all(REQUEST).and_then(|()| stream.read_to_string(&mut answer));
        Some(read.map(|_| answer))
    };
    let engines = Engines::start(&[]);
    let answered = AtomicUsize::new(0);
    for _ in 0..3 {
        let mut gateway = Gateway::in_front_of(&engines, &["--lame-duck", "0"]);
        let address = gateway.address.clone();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while let Some(answer) = ask(&address) {
                        let answer = answer.unwrap_or_else(|error| panic!("{error}"));
                        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
                        answered.fetch_add(1, Relaxed);
                    }
                });
            }
            let before = answered.load(Relaxed);
            eventually("clients are answered", || answered.load(Relaxed) > before + 200);
            gateway.signal("-TERM");
        });
        assert!(gateway.child.wait().unwrap().success());
    }
}
