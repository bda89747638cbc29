//! Answers to clients when engines fail, a test for each promise.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use crate::support::recorder::Recorder;
use serde_json::json;
use std::time::{Duration, Instant};

const ASK: &str = "/v1/completions";

#[test]
fn a_pod_that_refuses_connections_costs_no_request() {
    let engines = Engines::start(&["--engines", "2"]);
    let gateway = Gateway::in_front_of(&engines, &["--policy", "round-robin"]);
    engines.control("POST", "/engines/0/crash", "");
    for _ in 0..10 {
        let answer = gateway.post(ASK, &json!({"prompt": "a"}));
        assert_eq!((answer.status, answer.pod()), (200, &*engines.engines[1].http));
    }
    engines.control("POST", "/engines/0/restart", "");
    eventually("it is used again", || {
        gateway.post(ASK, &json!({"prompt": "a"})).pod() == engines.engines[0].http
    });
}

#[test]
fn a_pod_that_dies_without_requests_is_down_within_seconds_with_and_without_events() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let [with, without] = [0, 1].map(|at| &engines.engines[at]);
    let text = format!(
        "models: [{{name: m, tokenizer: bytes}}]\npods:\n  - {{name: with, url: \"http://{}\", events: [\"zmq://{}\"]}}\n  \
         - {{name: without, url: \"http://{}\"}}\n",
        with.http, with.events, without.http
    );
    let gateway = Gateway::configured("idle_death", &text, 2);
    let is_down =
        |pod: &str| gateway.ask("GET", &format!("/pods/{pod}"), "").json()["breaker"] == "open";
    assert!(!is_down("with") && !is_down("without"));
    let died = Instant::now();
    engines.control("POST", "/engines/0/crash", "");
    engines.control("POST", "/engines/1/crash", "");
    eventually("both are down", || is_down("with") && is_down("without"));
    let took = died.elapsed();
    println!("down after {took:?}");
    // Two seconds, and the time of a busy machine; its models are queried every 30 s.
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn a_pod_killed_while_it_is_idle_is_down_in_the_list_of_pods_within_two_seconds() {
    let engines = [(); 3].map(|()| Engines::start(&["--model", "m"]));
    let [with, without, alive] = engines.each_ref().map(|one| &one.engines[0]);
    let text = format!(
        "models: [{{name: m, tokenizer: bytes}}]\npods:\n  - {{name: with, url: \"http://{}\", events: [\"zmq://{}\"]}}\n  \
         - {{name: without, url: \"http://{}\", events: []}}\n  - {{name: alive, url: \"http://{}\", events: []}}\n",
        with.http, with.events, without.http, alive.http
    );
    let gateway = Gateway::configured("idle_kill", &text, 3);
    let is = |pod: &str, health: &str| {
        let pods = gateway.ask("GET", "/pods", "").json();
        let all = pods["pods"].as_array().unwrap();
        all.iter().any(|shown| shown["name"] == pod && shown["health"] == health)
    };
    assert!(is("with", "up") && is("without", "up") && is("alive", "up"));
    let [with, without, alive] = engines;
    // SIGKILL.
    let killed = Instant::now();
    drop(with);
    drop(without);
    eventually("the pod with events is down", || is("with", "down"));
    let with_events = killed.elapsed();
    eventually("the pod without events is down", || is("without", "down"));
    let without_events = killed.elapsed();
    println!("down after {with_events:?} with events, after {without_events:?} without");
    assert!(with_events < Duration::from_secs(2), "{with_events:?}");
    assert!(without_events < Duration::from_secs(2), "{without_events:?}");
    assert!(is("alive", "up"));
    drop(alive);
}

#[test]
fn a_killed_pod_is_down_for_operators_and_a_busy_one_is_not() {
    let engines = Engines::start(&["--engines", "2"]);
    let gateway =
        Gateway::in_front_of(&engines, &["--policy", "round-robin", "--admin", "127.0.0.1:0"]);
    let pod = &engines.engines[0].http;
    let is = |health: &str, breaker: &str| {
        let shown = gateway.ask("GET", &format!("/pods/{pod}"), "").json();
        let metric = |name: &str, state: &str| {
            let line = format!("wornpath_pod_{name}{{pod=\"{pod}\",{name}=\"{state}\"}}");
            gateway.metric(&line) as u64 == 1
        };
        shown["health"] == health
            && shown["breaker"] == breaker
            && metric("health", health)
            && metric("breaker", breaker)
    };
    assert!(is("up", "closed"));
    engines.control("POST", "/engines/0/crash", "");
    for _ in 0..4 {
        assert_eq!(gateway.post(ASK, &json!({"prompt": "a"})).status, 200);
    }
    eventually("it is known to be down", || is("down", "open"));
    engines.control("POST", "/engines/0/restart", "");
    eventually("it is up again", || {
        gateway.post(ASK, &json!({"prompt": "a"}));
        is("up", "closed")
    });
    engines.set_faults(0, r#"{"refuse": 503}"#);
    eventually("it answers, and says that it is busy", || {
        assert_eq!(gateway.post(ASK, &json!({"prompt": "a"})).status, 200);
        is("up", "resting")
    });
}

#[test]
fn a_crash_before_the_first_byte_is_retried_on_another_pod() {
    let engines = Engines::start_at("1", &["--engines", "2", "--answer-tokens", "200"]);
    let gateway = Gateway::in_front_of(&engines, &["--policy", "round-robin"]);
    let asks: Vec<_> =
        (0..8).map(|_| gateway.open(ASK, &json!({"prompt": "a", "max_tokens": 200}))).collect();
    eventually("both work", || engines.metric(0, "vllm:num_requests_running") as u64 == 4);
    engines.control("POST", "/engines/0/crash", "");
    for ask in asks {
        let answer = ask.finish().unwrap();
        assert_eq!((answer.status, answer.pod()), (200, &*engines.engines[1].http));
    }
}

#[test]
fn a_crash_during_a_stream_ends_it_with_an_error() {
    for (fault, arguments) in [
        ("{\"cut_after_tokens\": 3}", &[][..]),
        ("{\"stall_after_tokens\": 3}", &["--between-bytes-timeout", "0.5"]),
    ] {
        let engines = Engines::start(&[]);
        let gateway = Gateway::in_front_of(&engines, arguments);
        engines.set_faults(0, fault);
        let answer = gateway.post(ASK, &json!({"prompt": "a", "max_tokens": 20, "stream": true}));
        assert_eq!(answer.status, 200);
        assert!(answer.text.contains("\"text\":"), "{}", answer.text);
        let last = answer.text.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.starts_with("event: error\ndata: {"), "{fault}: {last}");
        assert!(last.contains("\"upstream_lost\"") && !answer.text.contains("[DONE]"), "{last}");
    }
}

#[test]
fn a_pod_that_hangs_is_abandoned_after_the_first_byte_timeout() {
    let engines = Engines::start(&["--engines", "2"]);
    let gateway =
        Gateway::in_front_of(&engines, &["--policy", "round-robin", "--first-byte-timeout", "0.3"]);
    engines.set_faults(0, "{\"hang\": true}");
    let started = Instant::now();
    for _ in 0..2 {
        let answer = gateway.post(ASK, &json!({"prompt": "a"}));
        assert_eq!((answer.status, answer.pod()), (200, &*engines.engines[1].http));
    }
    assert!(started.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_busy_pod_is_skipped_and_if_all_are_busy_the_client_gets_retry_after() {
    let engines = Engines::start(&["--engines", "2"]);
    let gateway = Gateway::in_front_of(&engines, &["--policy", "round-robin"]);
    engines.set_faults(0, "{\"refuse\": 503}");
    for _ in 0..4 {
        assert_eq!(gateway.post(ASK, &json!({"prompt": "a"})).status, 200);
    }
    for status in [429, 503] {
        let gateway = Gateway::in_front_of(&engines, &["--policy", "round-robin"]);
        let faults = format!("{{\"refuse\": {status}}}");
        (0..2).for_each(|engine| engines.set_faults(engine, &faults));
        let answer = gateway.post(ASK, &json!({"prompt": "a"}));
        assert_eq!((answer.status, answer.header("retry-after")), (status, Some("1")));
        (0..2).for_each(|engine| engines.set_faults(engine, "{}"));
    }
}

#[test]
fn a_busy_pod_without_retry_after_does_not_attract_all_requests() {
    let busy = Recorder::start();
    let good = Recorder::start();
    let pod = |it: &Recorder| format!("{{url: \"http://{}\", model: m}}", it.address);
    let text = format!(
        "pods: [{}, {}]\nretries: {{share: 0, per_second: 1}}\nprofiles:\n  idle: {{filter: [healthy, model], score: [least_load], pick: max_score}}\n",
        pod(&busy),
        pod(&good)
    );
    let gateway = Gateway::configured("faults_busy", &text, 2);
    busy.refuse("503 Service Unavailable");
    good.answer_after(Duration::from_millis(30));
    let is_refused =
        |prompt: String| gateway.post(ASK, &json!({"model": "m", "prompt": prompt})).status != 200;
    let is_refused = &is_refused;
    let refused = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let prompts = (0..25).map(move |number| format!("{number} of {client}"));
                scope.spawn(move || prompts.filter(|prompt| is_refused(prompt.clone())).count())
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    // Requests that arrive together after a rest each get one 503 from it.
    assert!(refused <= 40, "{refused} of 100 were refused, with an idle pod beside");
    assert!(busy.posted().len() <= 50, "{} went there", busy.posted().len());
}

#[test]
fn without_any_pod_the_answer_is_503_at_once_and_service_returns_with_the_pod() {
    let engines = Engines::start(&[]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    engines.control("POST", "/engines/0/crash", "");
    eventually("no pod is left", || gateway.post(ASK, &json!({"prompt": "a"})).status == 503);
    let started = Instant::now();
    let answer = gateway.post(ASK, &json!({"prompt": "a"}));
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert!(started.elapsed() < Duration::from_millis(500));
    engines.control("POST", "/engines/0/restart", "");
    eventually("it is back", || gateway.post(ASK, &json!({"prompt": "a"})).status == 200);
}

#[test]
fn a_prefill_that_fails_twice_is_done_by_the_decode_pod_and_reported() {
    let engines = Engines::start(&["--engines", "3", "--model", "m"]);
    let urls: Vec<_> = engines.engines.iter().map(|at| format!("http://{}", at.http)).collect();
    let arguments = [
        "--prefill",
        &urls[0],
        "--prefill",
        &urls[1],
        "--decode",
        &urls[2],
        "--policy",
        "prefill-decode",
        "--tokenizer",
        "bytes",
        "--model",
        "m",
    ];
    let gateway = Gateway::start(&arguments, 3);
    let long = json!({"prompt": "long ".repeat(1000), "max_tokens": 3});
    engines.set_faults(0, "{\"refuse\": 500}");
    for _ in 0..3 {
        let answer = gateway.post(ASK, &long);
        assert_eq!(answer.status, 200, "the other prefill pod works: {}", answer.text);
    }
    engines.set_faults(1, "{\"refuse\": 500}");
    let answer = gateway.post(ASK, &json!({"prompt": "other ".repeat(1000), "max_tokens": 3}));
    assert_eq!((answer.status, answer.pod()), (200, &*engines.engines[2].http), "{}", answer.text);
    let reason = answer.header("x-wornpath-reason").unwrap();
    assert!(reason.contains("an earlier step failed"), "{reason}");
    assert_eq!(answer.header("x-wornpath-degraded"), Some("true"));
    for engine in 0..2 {
        engines.control("POST", &format!("/engines/{engine}/crash"), "");
    }
    // Also reported when no pod is left to try.
    let mut number = 0;
    eventually("no pod is left for prefill", || {
        number += 1;
        let body = json!({"prompt": format!("{number} ").repeat(2000), "max_tokens": 3});
        let answer = gateway.post(ASK, &body);
        assert_eq!((answer.status, answer.header("x-wornpath-degraded")), (200, Some("true")));
        answer.header("x-wornpath-reason").is_some_and(|reason| !reason.contains("elsewhere"))
            && number > 4
    });
    let decode = &engines.engines[2].http;
    let line = format!("wornpath_degraded_total{{profile=\"prefill-decode\",pod=\"{decode}\"}}");
    let counted = gateway.metric(&line);
    assert!(counted >= 5.0, "{counted}");
}
