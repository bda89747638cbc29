//! Edge cases of the client API and of signals: model names, restricted paths and methods,
//! truncated streams.

use crate::sockets::exchange;
use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually, folder, refused};
use crate::support::recorder::Recorder;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const ASK: &str = "/v1/completions";

#[test]
fn sighup_without_a_configuration_file_is_logged_and_changes_nothing() {
    let engines = Engines::start(&["--model", "m"]);
    let mut gateway = Gateway::in_front_of(&engines, &[]);
    gateway.signal("-HUP");
    eventually("it says that there is no file", || gateway.log().contains("no configuration file"));
    assert_eq!(gateway.child.try_wait().unwrap(), None);
    assert_eq!(gateway.post(ASK, &json!({"prompt": "a"})).status, 200);
}

#[test]
fn a_model_whose_pods_are_down_is_503_and_an_unknown_model_404() {
    let one = Engines::start(&["--model", "m"]);
    let other = Engines::start(&["--model", "other"]);
    let urls = [&one, &other].map(|served| format!("http://{}", served.engines[0].http));
    let gateway = Gateway::start(&["--pod", &urls[0], "--pod", &urls[1]], 2);
    let ask = |model: &str| gateway.post(ASK, &json!({"model": model, "prompt": "a"}));
    assert_eq!([ask("m").status, ask("other").status, ask("mm").status], [200, 200, 404]);
    other.control("POST", "/engines/0/crash", "");
    eventually("its breaker is open", || ask("other").status == 503);
    let answer = ask("other");
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text);
    assert!(answer.text.contains("`other`"), "{}", answer.text);
    assert!(ask("mm").text.contains("`mm`"));
    eventually("the log tells of it", || gateway.log().contains("pod down"));
}

/// Its engine does not say how it tokenizes: the default profile goes by text, others refuse it.
#[test]
fn a_pod_that_serves_what_is_not_listed_is_named_with_the_cure() {
    let listed = Engines::start(&["--model", "m"]);
    let other = Engines::start(&["--model", "other", "--fault", "no-discovery"]);
    let pods = [&listed, &other].map(|it| format!("{{url: \"http://{}\"}}", it.engines[0].http));
    let models = "models: [{name: m, tokenizer: bytes}]";
    for (routes, status, effect) in [
        ("", 200, "prompts are compared by their text"),
        ("routes: [{profile: cache-aware}]", 404, "profiles that tokenize refuse its prompts"),
    ] {
        let text = format!("{models}\npods: [{}]\n{routes}\n", pods.join(", "));
        let gateway = Gateway::configured("edges_unlisted", &text, 2);
        const WARNING: &str = "tokenizer not found";
        let said = || gateway.log().lines().filter(|it| it.contains(WARNING)).collect::<String>();
        eventually("it is said", || !said().is_empty());
        let said = said();
        assert_eq!(said.matches(WARNING).count(), 1, "{said}");
        assert!(said.contains("model=other") && said.contains(effect), "{said}");
        assert!(said.contains("--tokenizer FOLDER --model other"), "{said}");
        let ask = |model: &str| gateway.post(ASK, &json!({"model": model, "prompt": "a"})).status;
        assert_eq!((ask("m"), ask("other")), (200, status), "as it says");
    }
}

#[test]
fn a_client_that_keeps_its_connection_is_asked_to_leave_before_it_is_closed() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &["--lame-duck", "5"]);
    let mut kept = TcpStream::connect(&gateway.address).unwrap();
    let mut ask = || {
        kept.write_all(b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
        let mut answer = String::new();
        let mut buffer = [0; 4096];
        while !answer.contains("\"data\"") {
            let count = kept.read(&mut buffer).unwrap();
            assert!(count > 0, "closed after {answer}");
            answer.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        answer
    };
    assert!(!ask().contains("connection: close"));
    gateway.signal("-TERM");
    eventually("it is not ready", || gateway.get("/ready").status == 503);
    assert!(ask().contains("connection: close"));
    assert!(gateway.get("/health").header("x-request-id").is_some());
}

/// An engine that answers every post with these pieces and closes the connection: that is how its
/// answer ends, unless it comes in chunks.
fn closing(kind: &'static str, is_chunked: bool, pieces: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let _listening = std::thread::Builder::new().spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 65_536];
            let count = stream.read(&mut buffer).unwrap_or(0);
            let asked = String::from_utf8_lossy(&buffer[..count]).into_owned();
            if asked.starts_with("GET /v1/models") {
                let body = json!({"data": [{"id": "m"}]}).to_string();
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
                continue;
            }
            let framing = if is_chunked {
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"
            } else {
                "HTTP/1.0 200 OK"
            };
            let _ = write!(
                stream,
                "{framing}\r\ncontent-type: {kind}\r\nx-wornpath-pod: forged\r\n\r\n"
            );
            for piece in pieces {
                let piece = if is_chunked {
                    format!("{:x}\r\n{piece}\r\n", piece.len())
                } else {
                    (*piece).to_owned()
                };
                let _ = stream.write_all(piece.as_bytes());
                // An engine that writes slowly, so that the gateway reads every piece by itself.
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    address
}

#[test]
fn a_stream_that_ends_by_closing_is_whole_only_after_its_last_word() {
    const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    const COMPLETED: &str = "event: response.completed\ndata: {}\n\n";
    type Case = (&'static str, bool, &'static [&'static str], bool);
    let cases: [Case; 9] = [
        (ASK, false, &[], false),
        (ASK, false, &["data: {\"a\":1}\n\n", "data: {\"a\":2}\n\n"], false),
        (ASK, false, &["data: {\"a\":1}\n\n", "data: [DO", "NE]\n\n"], true),
        (ASK, false, &["data: {\"a\":1}\n\ndata: {\"a\":"], false),
        (ASK, false, &["data: {\"a\":\"data: [DONE]\"}\n\n"], false),
        (ASK, true, &["data: {\"a\":1}\n\n", "data: [DONE]\n\n"], true),
        ("/v1/messages", true, &["data: {\"a\":1}\n\n", STOP], true),
        ("/v1/responses", true, &["data: {\"a\":1}\n\n", COMPLETED], true),
        ("/v1/responses", true, &["data: {\"a\":\"event: response.completed\"}\n\n"], false),
    ];
    for (path, is_chunked, pieces, is_whole) in cases {
        let url = format!("http://{}", closing("Text/Event-Stream", is_chunked, pieces));
        let gateway = Gateway::start(&["--pod", &url], 1);
        let body = json!({"prompt": "a", "stream": true}).to_string();
        let bytes = format!(
            "POST {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(&gateway.address, bytes.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(answer.contains("upstream_lost"), !is_whole, "{pieces:?} gave {answer}");
        assert!(answer.ends_with("0\r\n\r\n"), "the answer itself is in good order: {answer}");
        assert!(!answer.contains("forged"), "{answer}");
        let end = if is_whole { "whole" } else { "broken" };
        let page = gateway.get("/metrics").text;
        assert!(page.contains(&format!("status=\"200\",end=\"{end}\"}} 1")), "{page}");
    }
}

#[test]
fn a_text_that_is_no_stream_and_breaks_off_is_broken_whatever_it_says() {
    let url = format!("http://{}", closing("text/plain", true, &["a\n\n", "data: [DONE]\n\n"]));
    let gateway = Gateway::start(&["--pod", &url], 1);
    let bytes = format!("POST {ASK} HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{{}}");
    let answer = exchange(&gateway.address, bytes.as_bytes());
    assert!(answer.contains("[DONE]") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    let page = gateway.get("/metrics").text;
    assert!(page.contains("status=\"200\",end=\"broken\"} 1"), "{page}");
}

#[test]
fn a_configuration_that_passes_check_starts() {
    let folder = folder("edges_check");
    let alone = "pods: [{url: \"http://127.0.0.1:9\", role: prefill}]\n";
    let cases = [
        (alone, "no-pod-for-role"),
        ("discovery: [{dns: \"\", port: 1}]\n", "`dns` is empty"),
        ("pods: [\n", "the configuration is not usable"),
        ("pods: [{url: \"http://127.0.0.1:9\", name: \"\"}]\n", "a name must not be blank"),
        ("pods: [{url: \"http://127.0.0.1:0\"}]\n", "its port is not between 1"),
        (
            "pods:\n  - {url: \"http://127.0.0.1:9\", name: r, ranks: 2}\n  - {url: \"http://127.0.0.1:8\", name: r/0}\n",
            "duplicate pod `r/0`",
        ),
    ];
    for (text, says) in cases {
        let path = folder.join("wornpath.yaml");
        std::fs::write(&path, text).unwrap();
        let checked = Command::new(env!("CARGO_BIN_EXE_wornpath")).arg("check").arg(&path).output();
        let checked = checked.unwrap();
        let shown = String::from_utf8(checked.stdout).unwrap();
        assert_eq!(checked.status.code(), Some(78), "{text}: {shown}");
        assert!(shown.contains(says), "{shown}");
        assert_eq!(refused(&["-c", path.to_str().unwrap()]).0, Some(78), "{text}");
    }
    let (code, says) =
        refused(&["--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:8"]);
    assert!(code == Some(78) && says.contains("--policy prefill-decode"), "{says}");
    let (code, says) = refused(&["--pod", "http://127.0.0.1:9", "--max-body", "0"]);
    assert!(code == Some(78) && says.contains("--max-body"), "{says}");
}

#[test]
fn every_address_of_a_name_is_a_pod_of_either_kind() {
    let folder = folder("edges_dns");
    let hosts = folder.join("hosts");
    let path = folder.join("wornpath.yaml");
    std::fs::write(&hosts, "127.0.0.1 engines.test\n127.0.0.2 engines.test\n::1 engines.test\n")
        .unwrap();
    std::fs::write(&path, "discovery: [{dns: engines.test, port: 7, every: 100ms}]\n").unwrap();
    let mount = format!("mount --bind {}", hosts.display());
    let arguments = ["-c", path.to_str().unwrap(), "--admin", "127.0.0.1:0"];
    let gateway = Gateway::mounting(&mount, Path::new("/etc/hosts"), &arguments, 0);
    let Some(gateway) = gateway else { return };
    eventually("all three are there", || {
        let pods = gateway.ask("GET", "/pods", "").json();
        let names =
            pods["pods"].as_array().unwrap().iter().map(|pod| pod["name"].as_str().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names == ["127.0.0.1:7", "127.0.0.2:7", "[::1]:7"]
    });
}

#[test]
fn the_gateways_own_answers_have_no_body_for_head() {
    let engines = Engines::start(&["--model", "org/m"]);
    let gateway = Gateway::in_front_of(&engines, &["--api-key", "k"]);
    for path in ["/health", "/ready", "/metrics", "/v1/models", "/v1/models/org%2f%6d"] {
        let request = format!("HEAD {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let answer = exchange(&gateway.address, request.as_bytes());
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"),
            "{path}: {answer}"
        );
    }
}

#[test]
fn a_cookie_that_pods_do_not_get_names_a_session() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let folder = folder("edges_cookie");
    let profile = folder.join("sticky.yaml");
    let text = "prepare: [{session_key: {cookie: sid}}]\nfilter: [healthy]\nscore: [session_affinity]\npick: max_score\n";
    std::fs::write(&profile, text).unwrap();
    let gateway = Gateway::in_front_of(&engines, &["--policy", profile.to_str().unwrap()]);
    let pod = |session: usize| {
        let cookie = format!("other=1; sid=s{session}");
        let body = json!({"prompt": "a"});
        let exchange =
            Exchange::open_with(&gateway.address, ASK, &[("cookie", cookie.as_str())], &body);
        exchange.finish().unwrap().pod().to_owned()
    };
    for session in 0..4 {
        let first = pod(session);
        assert!((0..6).all(|_| pod(session) == first), "session {session}");
    }
}

#[test]
fn a_policy_that_works_with_tokens_does_not_start_without_a_tokenizer() {
    for policy in ["cache-affinity", "llm-d"] {
        let (status, told) = refused(&["--pod", "http://127.0.0.1:1", "--policy", policy]);
        assert_ne!(status, Some(0));
        assert!(told.contains("give --tokenizer FOLDER and --model NAME"), "{told}");
    }
    let (_, told) = refused(&["--pod", "http://127.0.0.1:1", "--policy", "nosuch"]);
    assert!(told.contains("available: ") && told.contains("round-robin"), "{told}");
}

#[test]
fn operators_take_pods_out_and_in_again() {
    let engines = Engines::start(&["--engines", "2", "--model", "m"]);
    let [a, b] = [0, 1].map(|at| format!("http://{}", engines.engines[at].http));
    let text =
        format!("pods: [{{name: a, url: \"{a}\"}}, {{name: b, url: \"{b}\"}}]\nreveal: pod\n");
    let gateway = Gateway::configured("edges_operators", &text, 2);
    let health =
        |pod: &str| gateway.ask("GET", &format!("/pods/{pod}"), "").json()["health"].clone();
    assert_eq!(gateway.ask("POST", "/pods/a/drain", "").status, 200);
    assert_eq!(health("a"), "draining");
    assert_eq!(gateway.ask("POST", "/pods/a/resume", "").status, 200);
    eventually("it is up again", || health("a") == "up");
    assert_eq!(gateway.ask("POST", "/pods/unknown/resume", "").status, 404);

    assert_eq!(gateway.ask("DELETE", "/pods/a", "").status, 200);
    assert_eq!(gateway.ask("GET", "/pods/a", "").status, 404);
    let pod = json!({"name": "again", "url": a}).to_string();
    let added = gateway.ask("POST", "/pods", &pod);
    assert_eq!(added.status, 200, "{}", added.text);
    assert_eq!(gateway.ask("POST", "/pods", &pod).status, 409);
    eventually("it is up", || health("again") == "up");
}

#[test]
fn another_name_of_a_model_reaches_engines_as_their_own() {
    let pod = Recorder::start();
    let text = format!(
        "pods: [{{url: \"http://{}\"}}]\nmodels: [{{name: m, tokenizer: bytes, aliases: [default]}}]\n",
        pod.address
    );
    let gateway = Gateway::configured("edges_alias", &text, 1);
    let cards = gateway.get("/v1/models").json();
    let names: Vec<_> = cards["data"].as_array().unwrap().iter().map(|card| &card["id"]).collect();
    assert_eq!(names, ["m", "default"]);
    assert_eq!(gateway.get("/v1/models/default").json()["id"], "default");
    assert_eq!(gateway.get("/v1/models/none").status, 404);
    let answer = gateway.post(ASK, &json!({"model": "default", "prompt": "a", "x": 1}));
    assert_eq!(answer.status, 200, "{}", answer.text);
    let sent: Value = pod.posted().remove(0).body;
    assert_eq!(sent, json!({"model": "m", "prompt": "a", "x": 1}));
}

#[test]
fn a_form_goes_to_the_pods_of_the_model_that_it_names() {
    let talks = Recorder::start();
    let hears = Recorder::start();
    let text = format!(
        "models: [{{name: m, tokenizer: bytes}}, {{name: w, tokenizer: bytes, aliases: [ears]}}]\n\
         pods:\n- {{url: \"http://{}\", model: [m]}}\n- {{url: \"http://{}\", model: [w]}}\n",
        talks.address, hears.address
    );
    let gateway = Gateway::configured("edges_form", &text, 2);
    let post = |model: &str, audio: usize| {
        let head = "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\n\
                    content-type: multipart/form-data; boundary=edge\r\n";
        let part = "--edge\r\ncontent-disposition: form-data; name";
        let audio = "la".repeat(audio / 2);
        let body = format!(
            "{part}=\"file\"; filename=\"model\"\r\n\r\n{audio}\r\n{part}=\"model\"\r\n\r\n{model}\r\n--edge--\r\n"
        );
        Exchange::send(&gateway.address, head, &body).finish().unwrap()
    };
    // Short, and so long that it is read apart.
    for (times, audio) in [10, 200_000].into_iter().enumerate() {
        assert_eq!(post("w", audio).status, 200);
        assert_eq!((talks.posted().len(), hears.posted().len()), (times, times + 1));
        assert_eq!(post("m", audio).status, 200);
        assert_eq!((talks.posted().len(), hears.posted().len()), (times + 1, times + 1));
    }
    let refused = post("ears", 10);
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("send `w`"), "{}", refused.text);
}

#[test]
fn paths_that_operate_an_engine_are_refused_unless_a_route_names_them() {
    let pod = Recorder::start();
    let text = |more: &str| format!("pods: [{{url: \"http://{}\"}}]\n{more}", pod.address);
    let gateway = Gateway::configured("edges_paths", &text(""), 1);
    for path in ["/reset_prefix_cache", "/sleep", "/v1/load_lora_adapter", "/collective_rpc"] {
        let answer = gateway.post(path, &json!({"model": "m"}));
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text.contains("route"), "{}", answer.text);
    }
    for path in ["/v1/%6coad_lora_adapter", "/v1/x/../load_lora_adapter", "/v1//load_lora_adapter"]
    {
        let answer = gateway.post(path, &json!({"model": "m"}));
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.text.contains("; write "), "{}", answer.text);
    }
    assert_eq!(gateway.post("/v1/score", &json!({"model": "m"})).status, 200);
    assert_eq!(pod.posted().len(), 1);
    let routes =
        "routes: [{match: {path: /sleep}, profile: round-robin}, {profile: round-robin}]\n";
    let gateway = Gateway::configured("edges_paths_routed", &text(routes), 1);
    assert_eq!(gateway.post("/sleep", &json!({"model": "m"})).status, 200);
}

#[test]
fn no_tenants_own_salt_reaches_an_engine_in_what_only_engines_can_read() {
    let pod = Recorder::start();
    let url = format!("http://{}", pod.address);
    let gateway = Gateway::start(&["--pod", &url, "--isolate-tenants", "--api-key", "a=key"], 1);
    for (body, status) in [
        (r#"{"model": "m", "cache_salt": "theirs", "x": NaN}"#, "400"),
        (r#"{"model": "m", "cache_salt": "theirs"}"#, "200"),
    ] {
        let head =
            "POST /pooling HTTP/1.1\r\nhost: h\r\nauthorization: Bearer key\r\nconnection: close";
        let asked = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let answer = crate::sockets::exchange(&gateway.address, asked.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    let [sent] = &pod.posted()[..] else { panic!("one went on") };
    assert_ne!(sent.body["cache_salt"], "theirs");
}

#[test]
fn a_head_beyond_the_limit_is_refused_though_it_came_whole() {
    let pod = Recorder::start();
    let url = format!("http://{}", pod.address);
    let gateway = Gateway::start(&["--pod", &url], 1);
    let ask = |bytes: usize| {
        let body = json!({"prompt": "a"});
        let padding = "x".repeat(bytes);
        let headers = [("x-padding", padding.as_str())];
        Exchange::open_with(&gateway.address, ASK, &headers, &body).finish().unwrap().status
    };
    assert_eq!((ask(65_000), ask(66_000), ask(80_000)), (200, 431, 431));
}

#[test]
fn neither_an_encoded_body_nor_a_method_of_proxies_reaches_an_engine() {
    let pod = Recorder::start();
    let url = format!("http://{}", pod.address);
    let gateway = Gateway::start(&["--pod", &url], 1);
    let headers = [("content-encoding", "identity"), ("content-encoding", "gzip")];
    let answer = Exchange::open_with(&gateway.address, ASK, &headers, &json!({"prompt": "a"}));
    assert_eq!(answer.finish().unwrap().status, 415);
    for method in ["TRACE", "CONNECT"] {
        let target = if method == "CONNECT" { "h:80" } else { ASK };
        let bytes = format!("{method} {target} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
        let answer = exchange(&gateway.address, bytes.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 4"), "{method} gave {answer}");
    }
    assert!(pod.posted().is_empty());
}

#[test]
fn a_prompt_that_was_only_tokenized_does_not_count_as_cached() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &[]);
    let prompt = "counted but never computed ".repeat(200);
    assert_eq!(gateway.post("/tokenize", &json!({"prompt": prompt})).status, 200);
    let answer = gateway.post(ASK, &json!({"prompt": prompt, "max_tokens": 1}));
    let reason = answer.header("x-wornpath-reason").unwrap().to_owned();
    assert_eq!(answer.cached_tokens(), 0);
    assert!(!reason.contains("tokens cached") || reason.contains(" 0 "), "{reason}");
}

#[test]
fn a_proxy_in_front_of_a_missing_engine_does_not_count_as_a_pod() {
    let engine = Recorder::start();
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", front.local_addr().unwrap());
    let is_there = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicUsize::new(0));
    let to = engine.address;
    let seen = Arc::clone(&is_there);
    let refusals = Arc::clone(&refused);
    let _detached = std::thread::spawn(move || {
        for stream in front.incoming().map_while(Result::ok) {
            let mut stream = stream;
            if !seen.load(Relaxed) {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head);
                let _ = stream.write_all(
                    b"HTTP/1.1 503 No Upstream\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                );
                refusals.fetch_add(1, Relaxed);
                continue;
            }
            let mut there = TcpStream::connect(to).unwrap();
            let mut back = there.try_clone().unwrap();
            let mut out = stream.try_clone().unwrap();
            let _detached = std::thread::spawn(move || std::io::copy(&mut back, &mut out));
            let _detached = std::thread::spawn(move || std::io::copy(&mut stream, &mut there));
        }
    });
    let text = format!("pods: [{{url: \"{url}\", model: m}}]\n");
    let gateway = Gateway::configured("edges_front", &text, 0);
    eventually("the gateway has been refused twice", || refused.load(Relaxed) >= 2);
    let pods = gateway.ask("GET", "/pods", "").json();
    assert_eq!(pods["pods"][0]["health"], "down", "{pods}");
    is_there.store(true, Relaxed);
    eventually("the engine is there", || {
        gateway.post(ASK, &json!({"model": "m", "prompt": "a"})).status == 200
    });
}

#[test]
fn a_chunked_answer_is_complete_whatever_its_content_length() {
    let kind = "application/json\r\ncontent-length: 5";
    let url = format!("http://{}", closing(kind, true, &["{\"a\":1,", "\"b\":true}", ""]));
    let gateway = Gateway::start(&["--pod", &url], 1);
    let answer = gateway.post(ASK, &json!({"model": "m", "prompt": "a"}));
    assert_eq!((answer.status, answer.header("content-length")), (200, None));
    assert_eq!(answer.json(), json!({"a": 1, "b": true}));
}
