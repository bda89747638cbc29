//! Engines that require a key: they get the router's own, and no other host ever does.

use crate::support::engines::Exchange;
use crate::support::gateway::{Gateway, eventually, folder};
use crate::support::recorder::Recorder;
use serde_json::json;
use std::fs;

const ASK: &str = "/v1/completions";
const REFUSED: &str = "model discovery failed";

/// Asks as a client that has a key of its own.
fn ask(gateway: &Gateway) -> u16 {
    let headers = [("authorization", "Bearer client-private"), ("x-api-key", "client-private")];
    let body = json!({"prompt": "hello", "max_tokens": 1});
    Exchange::open_with(&gateway.address, ASK, &headers, &body).finish().unwrap().status
}

#[test]
fn probes_scrapes_and_requests_send_the_pods_key_and_a_reload_changes_it() {
    let pod = Recorder::start();
    pod.want(Some("Bearer first-private"));
    let key = folder("keys_own").join("key");
    fs::write(&key, "first-private\n").unwrap();
    let text = format!(
        "pods: [{{url: \"http://{}\", key_file: \"{}\"}}]\ncredentials: forwarded\n",
        pod.address,
        key.display()
    );
    let gateway = Gateway::configured("keys", &text, 1);
    assert_eq!(gateway.ask("PUT", "/log-level", r#"{"level": "trace"}"#).status, 200);
    assert_eq!(ask(&gateway), 200);
    let sent = pod.posted().remove(0);
    assert_eq!(sent.header("authorization"), Some("Bearer first-private"));
    assert_eq!(sent.header("x-api-key"), None);
    eventually("its metrics are read", || !pod.asked("/metrics").is_empty());
    assert_eq!(pod.asked("/metrics")[0].header("authorization"), Some("Bearer first-private"));

    let reloads = |result: &str| {
        gateway.metric(&format!("wornpath_config_reloads_total{{result=\"{result}\"}}")) as u64
    };
    pod.want(Some("Bearer second-private"));
    assert_eq!(ask(&gateway), 401, "what an engine refuses is the client's to see");
    fs::write(&key, "second-private").unwrap();
    eventually("the file is read again", || reloads("applied") == 1);
    assert_eq!(ask(&gateway), 200);
    fs::write(&key, "two lines\nof nothing").unwrap();
    eventually("a file without a key is refused", || reloads("refused") == 1);
    assert_eq!(ask(&gateway), 200, "and the old key stays");
    let log = gateway.log();
    assert_eq!(log.matches("pod up").count(), 1, "the pod has never left: {log}");
    let told = [log, gateway.get("/metrics").text, gateway.ask("GET", "/pods", "").text].concat();
    assert!(!told.contains("private") && !told.contains("two lines"), "{told}");
}

#[test]
fn an_engine_that_requires_a_key_is_reported_once_and_comes_up_with_the_key() {
    let pod = Recorder::start();
    pod.want(Some("Bearer private"));
    let url = format!("http://{}", pod.address);
    let gateway = Gateway::start(&["--pod", &url], 0);
    eventually("it is asked again", || pod.asked("/v1/models").len() > 3);
    let log = gateway.log();
    assert_eq!(log.matches(REFUSED).count(), 1, "{log}");
    assert!(log.contains("status 401 Unauthorized") && log.contains("key_file"), "{log}");
    pod.want(None);
    eventually("it is up", || gateway.log().contains("pod up"));

    let pod = Recorder::start();
    pod.want(Some("Bearer private"));
    let url = format!("http://{}", pod.address);
    let key = folder("keys_flag").join("key");
    fs::write(&key, "private").unwrap();
    let flag = Gateway::start(&["--pod", &url, "--pod-key-file", key.to_str().unwrap()], 1);
    assert_eq!(ask(&flag), 200);
}

#[test]
fn an_engine_that_refuses_all_requests_is_down_even_if_its_model_is_configured() {
    let pod = Recorder::start();
    pod.want(Some("Bearer private"));
    let text = |more| format!("pods: [{{url: \"http://{}\", model: m}}]\n{more}", pod.address);
    let gateway = Gateway::configured("keys_down", &text(""), 0);
    eventually("it is asked again", || pod.asked("/v1/models").len() > 3);
    assert_eq!(gateway.get("/ready").status, 503);
    assert_eq!(gateway.log().matches(REFUSED).count(), 1);
    pod.want(None);
    eventually("it is up", || gateway.get("/ready").status == 200);

    pod.want(Some("Bearer client-private"));
    let forwarding = Gateway::configured("keys_forwarded", &text("credentials: forwarded\n"), 1);
    assert_eq!(ask(&forwarding), 200, "clients bring what it wants");
}

#[test]
fn an_operator_who_adds_pods_cannot_make_the_router_send_files_to_them() {
    let pod = Recorder::start();
    let url = format!("http://{}", pod.address);
    let gateway = Gateway::start(&["--pod", &url, "--admin", "127.0.0.1:0"], 1);
    let other = Recorder::start();
    let body = json!({"url": format!("http://{}", other.address), "key_file": "/etc/hostname"});
    let answer = gateway.ask("POST", "/pods", &body.to_string());
    assert_eq!(answer.status, 422, "{}", answer.text);
    assert!(answer.text.contains("key_file") && other.asked("/v1/models").is_empty());
}

#[test]
fn a_base64_key_and_a_password_of_a_pod_are_never_shown() {
    let pod = Recorder::start();
    let url = format!("http://{}", pod.address);
    let key = "cHJpdmF0ZQ==";
    let gateway = Gateway::start(&["--pod", &url, "--api-key", key, "--admin", "127.0.0.1:0"], 1);
    let body = json!({"prompt": "hello", "max_tokens": 1});
    let asked = |shown: &str| {
        let shown = format!("Bearer {shown}");
        let headers = [("authorization", shown.as_str())];
        Exchange::open_with(&gateway.address, ASK, &headers, &body).finish().unwrap().status
    };
    assert_eq!((asked(key), asked("=")), (200, 401));
    let told = [gateway.get("/metrics").text, gateway.ask("GET", "/decisions", "").text].concat();
    assert!(!told.contains("cHJpdmF0ZQ"), "{told}");

    for option in ["--pod", "--prefill", "--decode"] {
        let url = "http://user:priv,ate@127.0.0.1:1,events=auto";
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_wornpath"));
        let output = command.args(["serve", "--port", "0", option, url]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains("a user or a password") && !said.contains("priv"), "{said}");
    }
}
