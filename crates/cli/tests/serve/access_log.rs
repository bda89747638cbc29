//! The access log and the log in JSON, as an operator reads them.

use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, command, eventually, folder, refused};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

const PROMPT: &str = "the words of a prompt that is never logged ";

/// The lines of a file as objects.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Asks with a request id and the key of a tenant, whatever the answer.
fn ask(gateway: &Gateway, id: &str, key: &str, body: &Value) {
    let key = format!("Bearer {key}");
    let headers = [("x-request-id", id), ("authorization", key.as_str())];
    let _ = Exchange::open_with(&gateway.address, "/v1/completions", &headers, body).finish();
}

/// A gateway that logs to a file, with two tenants: the digests are of `a` and `b`.
fn logging(test: &str, engines: &Engines, access_log: &str) -> Gateway {
    let url = &engines.engines[0].http;
    let text = format!(
        "access_log: {{to: access.log, {access_log}}}\nlog_format: json\n\
         models: [{{name: m, tokenizer: bytes}}]\n\
         pods: [{{name: p, url: \"http://{url}\", model: m, kv_tokens: 9000}}]\n\
         tenants:\n  \
         - {{name: gold, key_digest: \"sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\"}}\n  \
         - {{name: tin, quota: 1, key_digest: \"sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d\"}}\n"
    );
    Gateway::configured(test, &text, 1)
}

#[test]
fn every_request_has_a_line_also_one_that_was_refused_before_it_was_routed() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = logging("access_log_all", &engines, "share: 1");
    let file = folder_of("access_log_all").join("access.log");
    let prompt = PROMPT.repeat(20);
    for id in ["one", "two"] {
        ask(&gateway, id, "a", &json!({"model": "m", "prompt": prompt, "max_tokens": 4}));
    }
    let streamed = json!({"model": "m", "prompt": prompt, "max_tokens": 8, "stream": true});
    ask(&gateway, "streamed", "a", &streamed);
    ask(&gateway, "stranger", "wrong", &json!({"model": "m", "prompt": "x"}));
    ask(&gateway, "unknown", "a", &json!({"model": "nothing", "prompt": "x"}));
    engines.set_faults(0, r#"{"hang": true}"#);
    let headers = [("x-request-id", "held"), ("authorization", "Bearer b")];
    let held = json!({"model": "m", "prompt": "x"});
    let held = Exchange::open_with(&gateway.address, "/v1/completions", &headers, &held);
    let in_flight = || gateway.metric("wornpath_pod_requests{pod=\"p\"}");
    eventually("the quota is used up", || in_flight() == 1.0);
    ask(&gateway, "quota", "b", &json!({"model": "m", "prompt": "x"}));
    eventually("six lines are written", || lines(&file).len() == 6);
    drop(held);
    eventually("the client that left has a line", || lines(&file).len() == 7);
    let all = lines(&file);
    let of = |id: &str| all.iter().find(|line| line["id"] == id).unwrap_or_else(|| panic!("{id}"));
    let two = of("two");
    for (field, value) in [
        ("tenant", json!("gold")),
        ("model", json!("m")),
        ("pod", json!("p")),
        ("api", json!("completions")),
        ("status", json!(200)),
        ("end", json!("whole")),
        ("reason", Value::Null),
        ("output_tokens", json!(4)),
        ("retries", json!(0)),
        ("trace", Value::Null),
    ] {
        assert_eq!(two[field], value, "{field} of {two}");
    }
    assert_eq!(two["prompt_tokens"], of("one")["prompt_tokens"]);
    assert!(two["cached_tokens"].as_u64().unwrap() > 500, "{two}");
    let streamed = of("streamed");
    let first = streamed["ttft_ms"].as_f64();
    let total = streamed["total_ms"].as_f64();
    assert!(first.unwrap() > 0.0 && first < total, "{streamed}");
    assert_eq!(streamed["output_tokens"], 8);
    for (id, tenant, status, words) in [
        ("quota", json!("tin"), 429, "quota"),
        ("stranger", Value::Null, 401, "key"),
        ("unknown", json!("gold"), 404, "does not exist"),
    ] {
        let line = of(id);
        assert_eq!((&line["tenant"], &line["status"]), (&tenant, &json!(status)), "{line}");
        assert_eq!((&line["end"], &line["pod"]), (&json!("refused"), &Value::Null), "{line}");
        assert!(line["reason"].as_str().unwrap().contains(words), "{line}");
    }
    assert!(!fs::read_to_string(&file).unwrap().contains("never logged"), "no prompt is logged");
    let written = || gateway.metric("wornpath_access_log_lines_total{fate=\"written\"}");
    eventually("they are counted", || written() == 7.0);
}

#[test]
fn a_rotated_file_is_opened_anew_on_sighup_and_failures_are_logged_beside_the_share() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = logging("access_log_rotated", &engines, "share: 0");
    let folder = folder_of("access_log_rotated");
    let file = folder.join("access.log");
    let good = json!({"model": "m", "prompt": "x", "max_tokens": 1});
    let bad = json!({"model": "nothing", "prompt": "x"});
    ask(&gateway, "good", "a", &good);
    ask(&gateway, "bad", "a", &bad);
    eventually("the failure is written", || lines(&file).len() == 1);
    fs::rename(&file, folder.join("access.log.1")).unwrap();
    gateway.signal("-HUP");
    eventually("the file is made anew", || file.exists());
    ask(&gateway, "later", "a", &bad);
    eventually("it is written to", || lines(&file).len() == 1);
    assert_eq!(lines(&file)[0]["id"], "later");
    assert_eq!(lines(&folder.join("access.log.1"))[0]["id"], "bad");
}

#[test]
fn a_log_in_json_has_the_subject_of_each_line_under_its_own_name() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = logging("access_log_json", &engines, "share: 0");
    gateway.signal("-HUP");
    eventually("it is reloaded", || gateway.log().contains("configuration reloaded"));
    let log = gateway.log();
    let all: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let up = all.iter().find(|line| line["message"] == "pod up").unwrap();
    assert_eq!((&up["pod"], &up["level"]), (&json!("p"), &json!("INFO")), "{up}");
    assert!(up["time"].as_str().unwrap().ends_with('Z'), "{up}");
}

#[test]
fn a_log_whose_reader_stopped_costs_lines_and_no_request() {
    let engines = Engines::start(&["--model", "m"]);
    let url = &engines.engines[0].http;
    let file = folder("access_log_blocked").join("wornpath.yaml");
    let text = format!("access_log: {{}}\npods: [{{name: p, url: \"http://{url}\", model: m}}]\n");
    fs::write(&file, text).unwrap();
    let mut child = command(&["-c", file.to_str().unwrap()]);
    let mut child = Ended(child.stderr(Stdio::null()).spawn().unwrap());
    // Kept open, and read no more after the first line.
    let mut output = BufReader::new(child.0.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let address = line.trim().split_once("://").unwrap().1;
    let get = |path: &str| Exchange::open(address, "GET", path, "").finish().unwrap();
    eventually("it is ready", || get("/ready").status == 200);
    let id = "i".repeat(4000);
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 1});
    // A pipe holds 64 KiB; these are more, and all are answered.
    for _ in 0..100 {
        let headers = [("x-request-id", id.as_str())];
        let asked = Exchange::open_with(address, "/v1/completions", &headers, &body);
        assert_eq!(asked.finish().unwrap().status, 200);
    }
    assert_eq!(get("/health").status, 200, "no thread counts as stuck");
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The folder that a gateway of this test was configured in.
fn folder_of(test: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve").join(test)
}

#[test]
fn a_log_in_a_folder_that_does_not_exist_is_refused_with_the_cure() {
    let file = folder("access_log_refused").join("wornpath.yaml");
    let text = "access_log: {to: nowhere/access.log}\npods: [{url: \"http://127.0.0.1:1\"}]\n";
    fs::write(&file, text).unwrap();
    let (status, said) = refused(&["-c", file.to_str().unwrap()]);
    assert_eq!(status, Some(78), "{said}");
    assert!(said.contains("whose folder does not exist") && said.contains("stdout"), "{said}");
}
