//! Picks: prefixes, subsets, refusals, and the account of responses.

use crate::envoy::{Envoy, Failure, Picker, Pods, free_port, listed};
use crate::support::engines::{Engines, Exchange, Response};
use crate::support::gateway::{Gateway, eventually, folder};
use crate::support::recorder::Recorder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// Engines, a picker that follows their events, and Envoy.
struct Setup {
    envoy: Envoy,
    picker: Gateway,
    engines: Engines,
    port: u16,
}

/// None without Envoy.
fn setup(test: &str, engines: &[&str], pods: fn(&Engines) -> Pods, more: &[&str]) -> Option<Setup> {
    if !crate::envoy::is_here() {
        return None;
    }
    let engines = Engines::start(&[&["--model", "m"], engines].concat());
    let port = free_port();
    let picker = picker(&engines, port, more);
    let envoy = Envoy::start(test, port, &pods(&engines), Failure::Close);
    Some(Setup { envoy, picker, engines, port })
}

pub(crate) fn picker(engines: &Engines, port: u16, more: &[&str]) -> Gateway {
    let pods = engines
        .engines
        .iter()
        .map(|at| format!("http://{},events=zmq://{}?replay={}", at.http, at.events, at.replay));
    let pods: Vec<_> = pods.flat_map(|pod| ["--pod".to_owned(), pod]).collect();
    let epp = format!("127.0.0.1:{port}");
    let own = ["--epp", &epp, "--tokenizer", "bytes", "--model", "m", "--admin", "127.0.0.1:0"];
    let all: Vec<_> =
        pods.iter().map(String::as_str).chain(own).chain(more.iter().copied()).collect();
    Gateway::start(&all, engines.engines.len())
}

fn one_destination(engines: &Engines) -> Pods {
    assert!(!engines.engines.is_empty());
    Pods::Named
}

pub(crate) fn prompt(number: usize) -> Value {
    let text = format!("conversation {number} {}", "goes on and on ".repeat(60));
    json!({"model": "m", "prompt": text, "max_tokens": 4})
}

/// Requests in flight at all pods, as the picker counts them.
fn in_flight(picker: &Gateway) -> u64 {
    let page = picker.get("/metrics").text;
    let lines = page.lines().filter(|line| line.starts_with("wornpath_pod_requests{"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

pub(crate) fn is_idle(picker: &Gateway) {
    eventually("no load is left", || in_flight(picker) == 0);
}

pub(crate) fn total(picker: &Gateway, metric: &str) -> u64 {
    let page = picker.get("/metrics").text;
    let lines = page.lines().filter(|line| line.starts_with(metric) && !line.starts_with('#'));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

pub(crate) fn cached(answer: &Response) -> u64 {
    assert_eq!(answer.status, 200, "{} {}", answer.head, answer.text);
    answer.cached_tokens()
}

#[test]
fn a_request_goes_to_the_pod_that_holds_its_prefix_and_its_load_is_released() {
    let Some(it) = setup("prefix", &["--engines", "8"], listed, &[]) else { return };
    for number in 0..6 {
        let first = it.envoy.post(COMPLETIONS, &prompt(number));
        assert_eq!(cached(&first), 0);
        let again = it.envoy.post(COMPLETIONS, &prompt(number));
        assert!(cached(&again) > 500, "{}", again.text);
        assert_eq!(first.pod(), again.pod(), "the response names the pod where that is allowed");
    }
    is_idle(&it.picker);
    eventually("predictions are checked", || {
        total(&it.picker, "wornpath_predictions_checked_total") > 0
    });
    assert_eq!(total(&it.picker, "wornpath_predictions_wrong_total"), 0);
    assert!(total(&it.picker, "wornpath_cached_tokens_total") > 3000);
}

#[test]
fn an_original_dst_cluster_gets_one_address() {
    let more = ["--one-destination"];
    let Some(it) = setup("original-dst", &["--engines", "8"], one_destination, &more) else {
        return;
    };
    let first = it.envoy.post(COMPLETIONS, &prompt(1));
    assert_eq!(cached(&first), 0);
    let again = it.envoy.post(COMPLETIONS, &prompt(1));
    assert!(cached(&again) > 500, "{}", again.text);
    assert_eq!(
        Exchange::open(&it.envoy.address, "GET", "/v1/models", "").finish().unwrap().status,
        200
    );
    is_idle(&it.picker);
}

#[test]
fn a_stream_passes_unchanged_and_its_tokens_are_counted() {
    let Some(it) = setup("stream", &[], listed, &[]) else { return };
    let mut body = prompt(1);
    body["stream"] = true.into();
    body["max_tokens"] = 20.into();
    let by_envoy = it.envoy.post(COMPLETIONS, &body);
    let events = by_envoy.events();
    assert_eq!(events.last(), Some(&"[DONE]"), "{}", by_envoy.text);
    assert_eq!(events.len(), 21, "no event with token counts that were not asked for");
    eventually("tokens are counted", || total(&it.picker, "wornpath_output_tokens_total") == 20);
    body["stream_options"] = json!({"include_usage": true});
    let asked = it.envoy.post(COMPLETIONS, &body);
    assert!(asked.text.contains("\"completion_tokens\":20"), "{}", asked.text);
    is_idle(&it.picker);
}

#[test]
fn a_subset_limits_the_pods_and_an_empty_one_is_refused() {
    let Some(it) = setup("subset", &["--engines", "4"], listed, &[]) else { return };
    let only = &it.engines.engines[2].http;
    for number in 0..8 {
        let answer = it.envoy.post_with(&[("x-test-subset", only)], &prompt(number));
        assert_eq!((answer.status, answer.pod()), (200, only.as_str()));
    }
    let none = it.envoy.post_with(&[("x-test-subset", "10.9.9.9:1")], &prompt(0));
    assert_eq!(none.status, 503, "{}", none.text);
    assert_eq!(none.header("x-llm-d-request-dropped-reason"), Some("rejected-no-endpoints"));
    assert!(none.text.contains("data plane allows"), "{}", none.text);
    is_idle(&it.picker);
}

#[test]
fn bad_requests_are_refused_in_the_words_of_the_gateway() {
    let Some(it) = setup("refused", &[], listed, &["--max-body", "100000"]) else { return };
    for (body, says) in [
        (json!({"prompt": "no model"}).to_string(), "`model` is missing"),
        ("{\"model\": \"m\",".to_owned(), "not JSON"),
        (json!({"model": "other", "prompt": "x"}).to_string(), "does not exist"),
    ] {
        let answer =
            Exchange::open(&it.envoy.address, "POST", COMPLETIONS, &body).finish().unwrap();
        assert!((400..500).contains(&answer.status), "{} {}", answer.head, answer.text);
        assert!(
            answer.text.contains(says) && answer.json()["error"].is_object(),
            "{}",
            answer.text
        );
    }
    let large = Exchange::open(&it.envoy.address, "POST", COMPLETIONS, &"x".repeat(200_000));
    assert_eq!(large.finish().unwrap().status, 413);
    let only_cached = it.envoy.post_with(&[("prefer", "if-available")], &prompt(1));
    assert_eq!(only_cached.status, 412, "{}", only_cached.text);
    assert_eq!(it.envoy.post(COMPLETIONS, &prompt(1)).status, 200);
    eventually("its prompt is cached", || {
        it.envoy.post_with(&[("prefer", "if-available")], &prompt(1)).status == 200
    });
    is_idle(&it.picker);
}

/// The client announces its length, or sends chunks without end.
#[test]
fn a_body_of_100_mb_is_refused_before_it_is_read() {
    let Some(it) = setup("large", &[], listed, &["--max-body", "1000000"]) else { return };
    for framing in ["content-length: 104857600", "transfer-encoding: chunked"] {
        let mut stream = TcpStream::connect(&it.envoy.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: h\r\n{framing}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // Read meanwhile: what has arrived is lost when a connection is reset.
        let mut reader = stream.try_clone().unwrap();
        let answer = std::thread::spawn(move || {
            let mut line = [0; 12];
            reader.read_exact(&mut line).map(|()| String::from_utf8_lossy(&line).into_owned())
        });
        let piece = vec![b'a'; 64 << 10];
        let mut sent = 0;
        for _ in 0..1600 {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat();
            let bytes = if framing.starts_with('t') { &chunk } else { &piece };
            if stream.write_all(bytes).is_err() {
                break;
            }
            sent += piece.len();
        }
        assert_eq!(answer.join().unwrap().unwrap(), "HTTP/1.1 413", "{framing}");
        assert!(sent < 100 << 20, "all {sent} bytes were read: {framing}");
    }
    assert!(it.picker.memory("VmHWM") < 200.0, "{} MiB", it.picker.memory("VmHWM"));
    assert_eq!(it.envoy.post(COMPLETIONS, &prompt(1)).status, 200);
}

#[test]
fn a_client_that_disconnects_releases_its_load_while_it_waits_and_in_a_stream() {
    let Some(it) = setup("disconnect", &["--engines", "2"], listed, &[]) else { return };
    it.engines.set_faults(0, r#"{"stall_after_tokens": 3}"#);
    it.engines.set_faults(1, r#"{"hang": true}"#);
    let body = json!({"model": "m", "prompt": "never ends", "max_tokens": 50, "stream": true});
    let open: Vec<_> = (0..8)
        .map(|_| Exchange::open(&it.envoy.address, "POST", COMPLETIONS, &body.to_string()))
        .collect();
    eventually("all are in flight", || in_flight(&it.picker) == 8);
    drop(open);
    is_idle(&it.picker);
    eventually("each is counted once", || ended(&it.picker) == [(CLIENT_LEFT.to_owned(), 8)]);
}

const CLIENT_LEFT: &str = "client_left";

/// How many requests ended in each way.
fn ended(picker: &Gateway) -> Vec<(String, u64)> {
    let page = picker.get("/metrics").text;
    let mut ends = BTreeMap::<String, u64>::new();
    for line in page.lines().filter(|line| line.starts_with("wornpath_requests_total{")) {
        let label = line.split("end=\"").nth(1).unwrap_or(line);
        let count: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        if count > 0 {
            *ends.entry(label.split('"').next().unwrap().to_owned()).or_default() += count;
        }
    }
    ends.into_iter().collect()
}

#[test]
fn an_envoy_that_is_killed_releases_the_load_of_its_streams_and_each_is_counted_once() {
    let Some(it) = setup("killed", &["--engines", "2"], listed, &[]) else { return };
    (0..2).for_each(|engine| it.engines.set_faults(engine, r#"{"stall_after_tokens": 3}"#));
    let Setup { mut envoy, picker, engines: _engines, .. } = it;
    let body = json!({"model": "m", "prompt": "never ends", "max_tokens": 50, "stream": true});
    let mut open: Vec<_> = (0..8)
        .map(|_| Exchange::open(&envoy.address, "POST", COMPLETIONS, &body.to_string()))
        .collect();
    open.iter_mut().for_each(|stream| drop(stream.read_past("data: ")));
    assert_eq!(in_flight(&picker), 8);
    envoy.restart();
    is_idle(&picker);
    eventually("each is counted once", || ended(&picker) == [(CLIENT_LEFT.to_owned(), 8)]);
    let mut again = Exchange::open(&envoy.address, "POST", COMPLETIONS, &body.to_string());
    again.read_past("data: ");
    assert_eq!(in_flight(&picker), 1, "the new Envoy is served");
}

/// Envoy sends a body on to the picker before it knows that there is none, and then has it no more.
/// If health checks have told it before, it does not ask.
#[test]
fn the_data_planes_failure_mode_decides_while_no_picker_answers() {
    let Some(it) = setup("failure", &["--engines", "2"], listed, &[]) else { return };
    let pods = listed(&it.engines);
    let open = Envoy::start("failure-open", it.port, &pods, Failure::Open);
    let picker = Picker { is_checked: true, ..Picker::from(it.port) };
    let checked = Envoy::start("failure-open-checked", picker, &pods, Failure::Open);
    eventually("the picker serves", || checked.healthy_pickers() == 1);
    for envoy in [&open, &checked] {
        assert_eq!(envoy.post(COMPLETIONS, &prompt(1)).status, 200);
    }
    let Setup { envoy, picker, engines, port } = it;
    drop(picker);
    let closed = envoy.post(COMPLETIONS, &prompt(1));
    assert!(closed.status >= 500, "{} {}", closed.head, closed.text);
    eventually("it is noticed", || checked.healthy_pickers() == 0);
    for envoy in [&open, &checked] {
        let answer = Exchange::open(&envoy.address, "GET", "/v1/models", "").finish().unwrap();
        assert_eq!(answer.status, 200, "{} {}", answer.head, answer.text);
    }
    for bytes in [1 << 10, 200 << 10] {
        let mut body = prompt(3);
        body["prompt"] = "x".repeat(bytes).into();
        let id = bytes.to_string();
        let lost = open.post_with(&[("x-test-id", &id)], &body);
        assert_eq!(lost.status, 500, "{} {}", lost.head, lost.text);
        let details = open.details(&id);
        assert!(details.contains("ext_proc_error_gRPC_error"), "{bytes} bytes: {details}");
        let answer = checked.post(COMPLETIONS, &body);
        assert_eq!(answer.status, 200, "{bytes} bytes: {} {}", answer.head, answer.text);
        let tokens = answer.json()["usage"]["prompt_tokens"].as_u64().unwrap();
        assert_eq!(tokens, bytes as u64, "the pod got all of it");
    }
    let picker = self::picker(&engines, port, &[]);
    for envoy in [&envoy, &open, &checked] {
        eventually("the restarted picker is asked", || {
            envoy.post(COMPLETIONS, &prompt(2)).status == 200
        });
    }
    is_idle(&picker);
}

#[test]
fn a_restarted_picker_serves_at_once_and_knows_the_caches_soon() {
    let Some(it) = setup("restart", &["--engines", "4"], listed, &[]) else { return };
    let mut pods = Vec::new();
    for number in 0..8 {
        let answer = it.envoy.post(COMPLETIONS, &prompt(number));
        assert_eq!(answer.status, 200);
        pods.push(answer.pod().to_owned());
    }
    let Setup { mut envoy, picker, engines, port } = it;
    drop(picker);
    let restarted = Instant::now();
    let picker = self::picker(&engines, port, &[]);
    assert_eq!(envoy.post(COMPLETIONS, &json!({"model": "m", "prompt": "at once"})).status, 200);
    let blocks = || {
        total(&picker, "wornpath_index_entries{") > 0 || total(&picker, "wornpath_pod_blocks") > 0
    };
    eventually("the caches are known again", blocks);
    assert!(restarted.elapsed() < Duration::from_secs(10), "{:?}", restarted.elapsed());
    envoy.restart();
    for (number, pod) in pods.iter().enumerate() {
        let answer = envoy.post(COMPLETIONS, &prompt(number));
        assert!(cached(&answer) > 500, "{}", answer.text);
        assert_eq!(answer.pod(), pod);
    }
    is_idle(&picker);
}

#[test]
fn a_drained_pod_finishes_its_streams_and_gets_nothing_new() {
    let Some(it) = setup("drain", &["--engines", "2"], listed, &[]) else { return };
    let mut body = prompt(1);
    body["stream"] = true.into();
    body["max_tokens"] = 300.into();
    let first = it.envoy.post(COMPLETIONS, &prompt(1));
    let drained = first.pod().to_owned();
    let mut open = Exchange::open(&it.envoy.address, "POST", COMPLETIONS, &body.to_string());
    open.read_past("data: ");
    assert_eq!(it.picker.ask("POST", &format!("/pods/{drained}/drain"), "").status, 200);
    for number in 0..6 {
        let answer = it.envoy.post(COMPLETIONS, &prompt(number));
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_ne!(answer.pod(), drained);
    }
    assert!(open.read_past("[DONE]").contains("[DONE]"));
    is_idle(&it.picker);
}

/// A service level objective becomes the deadline of a wait, by the profile.
#[test]
fn a_request_waits_no_longer_than_the_objective_in_its_header_says() {
    if !crate::envoy::is_here() {
        return;
    }
    let engines = Engines::start(&["--model", "m"]);
    let port = free_port();
    let text = format!(
        "listen: {{client: \"127.0.0.1:0\", epp: \"127.0.0.1:{port}\"}}\n\
         pods: [{{url: \"http://{}\", model: m}}]\n\
         profiles:\n  p:\n    prepare: [attributes: {{headers: [deadline_ms=x-llm-d-slo-ttft-ms]}}]\n    \
         filter: [healthy, model, concurrency: {{requests: 1, on_empty: hold}}]\n    pick: max_score\n    \
         hold: {{deadline: 60s}}\n",
        engines.engines[0].http
    );
    let path = folder("slo").join("wornpath.yaml");
    std::fs::write(&path, text).unwrap();
    let picker = Gateway::start(&["-c", path.to_str().unwrap()], 1);
    let envoy = Envoy::start("slo-envoy", port, &listed(&engines), Failure::Close);
    engines.set_faults(0, r#"{"hang": true}"#);
    let body = prompt(1);
    let hangs = Exchange::open(&envoy.address, "POST", COMPLETIONS, &body.to_string());
    eventually("the pod is busy", || in_flight(&picker) == 1);
    for name in ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"] {
        let late = envoy.post_with(&[(name, "300")], &body);
        assert_eq!(late.status, 429, "{} {}", late.head, late.text);
        assert_eq!(late.header("x-llm-d-request-dropped-reason"), Some("rejected-ttl-expired"));
    }
    drop(hangs);
    is_idle(&picker);
}

#[test]
fn a_pod_that_has_the_adapter_of_a_request_loaded_gets_the_next_one_with_it() {
    if !crate::envoy::is_here() {
        return;
    }
    let adapters = ["--model", "m", "--engines", "4", "--adapter", "sql", "--adapter", "legal"];
    let engines = Engines::start(&adapters);
    let port = free_port();
    let pods = engines.engines.iter().map(|at| format!("  - {{url: \"http://{}\"}}\n", at.http));
    let text = format!(
        "listen: {{client: \"127.0.0.1:0\", epp: \"127.0.0.1:{port}\"}}\npods:\n{}profiles:\n  p:\n    \
         filter: [healthy, model]\n    score: [lora_affinity, {{expression: {{score: \"-1.0 * pod.requests\", weight: 0.01}}}}]\n    \
         pick: max_score\n",
        pods.collect::<String>()
    );
    let picker = Gateway::configured("epp-lora", &text, 4);
    let envoy = Envoy::start("epp-lora-envoy", port, &listed(&engines), Failure::Close);
    let ask = |model: &str, number: usize| {
        let text = format!("{model} {number}");
        let answer =
            envoy.post(COMPLETIONS, &json!({"model": model, "prompt": text, "max_tokens": 2}));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.pod().to_owned()
    };
    let home = ask("sql", 0);
    let busy = engines.engines.iter().position(|at| at.http == home).unwrap();
    engines.set_faults(busy, r#"{"slow": 20}"#);
    for number in 1..6 {
        assert_eq!(ask("sql", number), home, "it has the adapter");
    }
    is_idle(&picker);
}

/// The sidecar of the decode pod asks the prefill pod; the picker names it.
#[test]
fn the_decode_pod_gets_the_request_and_the_address_of_the_prefill_pod() {
    if !crate::envoy::is_here() {
        return;
    }
    let [prefill, decode] = [Recorder::start(), Recorder::start()];
    let port = free_port();
    let text = format!(
        "listen: {{client: \"127.0.0.1:0\", epp: \"127.0.0.1:{port}\"}}\npods:\n  - {{url: \"http://{}\", model: m, \
         role: prefill}}\n  - {{url: \"http://{}\", model: m, role: decode}}\nmodels: [{{name: m, tokenizer: bytes}}]\n\
         profiles:\n  pd:\n    prepare: [tokenize, block_hash]\n    selectors:\n      prefill: {{filter: [healthy, model], pick: \
         max_score}}\n      decode: {{filter: [healthy, model], pick: max_score}}\n    workflow: {{prefill_decode: \
         {{min_uncached_tokens: 64}}}}\n",
        prefill.address, decode.address
    );
    let picker = Gateway::configured("epp-pd", &text, 2);
    let pods = Pods::Listed(vec![prefill.address.to_string(), decode.address.to_string()]);
    let envoy = Envoy::start("epp-pd-envoy", port, &pods, Failure::Close);
    let long = envoy.post(COMPLETIONS, &prompt(1));
    assert_eq!(long.status, 200, "{}", long.text);
    let forged = [("x-prefiller-host-port", "10.0.0.1:22")];
    let short = json!({"model": "m", "prompt": "short", "max_tokens": 1});
    assert_eq!(envoy.post_with(&forged, &short).status, 200);
    let sent = decode.posted();
    let prefillers: Vec<_> = sent.iter().map(|sent| sent.header("x-prefiller-host-port")).collect();
    assert_eq!(prefillers, [Some(&*prefill.address.to_string()), None]);
    assert!(prefill.posted().is_empty(), "the data plane sends one request");
    is_idle(&picker);
}

const CACHED: &str = "wornpath_cached_tokens_total{";

/// What removing a pod would cost: tokens that another pod holds too are not lost with it.
#[test]
fn cached_tokens_count_as_unique_until_a_second_pod_holds_them() {
    let Some(it) = setup("unique", &["--engines", "2"], listed, &[]) else { return };
    let unique = || total(&it.picker, "wornpath_cached_tokens_unique_total{");
    let body = prompt(1);
    assert_eq!(cached(&it.envoy.post(COMPLETIONS, &body)), 0);
    let asked = || cached(&it.envoy.post(COMPLETIONS, &body));
    let alone = asked();
    eventually("one pod holds them", || unique() == alone && alone > 500);
    (0..2).for_each(|engine| assert_eq!(it.engines.complete(engine, &body).status, 200));
    // Until the second pod's events have come, each answer counts.
    eventually("both pods hold them", || {
        let before = unique();
        let hits = total(&it.picker, CACHED);
        let hit = asked();
        assert!(hit > 500, "it is cached somewhere");
        eventually("the answer is counted", || total(&it.picker, CACHED) == hits + hit);
        unique() == before
    });
}
