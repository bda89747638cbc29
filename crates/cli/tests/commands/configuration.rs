//! `wornpath check` and `wornpath serve -c` with a configuration, through the real binary and real
//! engines.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::support::gateway::eventually_within;
use serde_json::{Value, json};

const MODEL: &str = "8b-h200";

/// A running `wornpath`, ended when dropped.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wornpath"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The `host:port`s in the next line that it prints.
    fn addresses(&mut self) -> Vec<String> {
        let line = self.lines.next().expect("it says where it listens").unwrap();
        let after = line.split("//").skip(1);
        after.map(|rest| rest.split(' ').next().unwrap().to_owned()).collect()
    }

    #[cfg(unix)]
    fn hang_up(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn call(address: &str, method: &str, path: &str, body: &str) -> Option<(u16, String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let length = body.len();
    let kind = if path.ends_with("/check") { "application/yaml" } else { "application/json" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, head.to_owned(), body.to_owned()))
}

fn ask(address: &str, path: &str) -> Value {
    let (_, _, body) = call(address, "GET", path, "").unwrap();
    serde_json::from_str(&body).unwrap()
}

fn until(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(20), what, condition);
}

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A port that was free a moment ago.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_configuration_is_recognised_and_checked_as_a_whole() {
    let check = |arguments: &[&str]| {
        let binary = env!("CARGO_BIN_EXE_wornpath");
        let output = Command::new(binary).arg("check").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wornpath.example.yaml");
    assert_eq!(check(&[example]), (Some(0), format!("{example}: good\n")));
    let path = folder("checked").join("w.yaml");
    fs::write(&path, "pods: [{url: \"http://a:1\", ranks: 0}]\nroutes: [{profile: cache-awar}]\n")
        .unwrap();
    let file = path.to_str().unwrap();
    let (code, told) = check(&[file]);
    assert_eq!(code, Some(78));
    assert!(told.contains("w.yaml:1:35") && told.contains("did you mean `cache-aware`?"), "{told}");
    let (_, json) = check(&["--json", file]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json[0]["good"], json[0]["problems"].as_array().unwrap().len()),
        (&json!(false), 2)
    );
}

#[test]
fn a_bad_configuration_does_not_start() {
    let path = folder("refused").join("w.yaml");
    fs::write(&path, "pods: [{url: \"ftp://a:1\"}]\n").unwrap();
    let binary = env!("CARGO_BIN_EXE_wornpath");
    let output =
        Command::new(binary).args(["serve", "-c", path.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("it does not start with `http://`") && told.contains("w.yaml:1:14"),
        "{told}"
    );
}

#[test]
fn a_failure_that_a_restart_may_cure_is_not_a_configuration_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let shelf = folder("not_there_yet").join("file");
    fs::write(&shelf, "").unwrap();
    for more in [["--admin", &taken], ["--batches", shelf.to_str().unwrap()]] {
        let output = Command::new(env!("CARGO_BIN_EXE_wornpath"))
            .args(["serve", "--pod", "http://127.0.0.1:1", "--port", "0"])
            .args(more)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{more:?}: {output:?}");
    }
}

#[test]
fn a_bad_profile_does_not_start() {
    let profile =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../routing/tests/problems/two_pickers.yaml");
    let output = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .args(["serve", "--pod", "http://127.0.0.1:1", "--port", "0", "--policy", profile])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{told}");
    assert!(told.contains("step `serve` has 2 pickers"), "{told}");
}

/// Engines that publish events, a gateway from a file, and its admin plane.
struct Fleet {
    client: String,
    admin: String,
    path: PathBuf,
    text: String,
    gateway: Process,
    _engines: Process,
}

fn fleet(test: &str, more: &[&str]) -> Fleet {
    fleet_with(test, "", more)
}

/// The same with more lines in the file.
fn fleet_with(test: &str, lines: &str, more: &[&str]) -> Fleet {
    let mut engines =
        Process::start(&["engine", "--port", "0", "--speed", "100", "--engines", "2"]);
    let mut text = format!("models: [{{name: {MODEL}, tokenizer: bytes}}]\npods:\n");
    for name in ["a", "b"] {
        let [http, events, replay] = <[String; 3]>::try_from(engines.addresses()).unwrap();
        text.push_str(&format!(
            "  - {{name: {name}, url: \"http://{http}\", model: {MODEL}, engine: vllm, events: \"zmq://{events}?replay={replay}\"}}\n"
        ));
    }
    let admin = free_address();
    text.push_str(&format!("listen: {{client: \"127.0.0.1:0\", admin: \"{admin}\"}}\n{lines}"));
    let path = folder(test).join("wornpath.yaml");
    fs::write(&path, &text).unwrap();
    let mut gateway = Process::start(&[&["serve", "-c", path.to_str().unwrap()], more].concat());
    let client = gateway.addresses().remove(0);
    until("the gateway is ready", || {
        call(&client, "GET", "/ready", "").is_some_and(|(status, ..)| status == 200)
    });
    until("events are heard", || {
        let pods = ask(&admin, "/pods");
        pods["pods"]
            .as_array()
            .unwrap()
            .iter()
            .all(|pod| pod["health"] == "up" && pod["events"]["trust"] == "exact")
    });
    Fleet { client, admin, path, text, gateway, _engines: engines }
}

fn complete(fleet: &Fleet, prompt: &str) -> (u16, String, String) {
    let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 2}).to_string();
    call(&fleet.client, "POST", "/v1/completions", &body).unwrap()
}

#[test]
fn predictions_come_true_and_operators_can_see_them() {
    let fleet = fleet("predicted", &[]);
    let prompt = "The quick brown fox jumps over the lazy dog. ".repeat(40);
    let last = || ask(&fleet.admin, "/decisions?last=1")["decisions"][0].clone();
    assert_eq!(complete(&fleet, &prompt).0, 200);
    until("the first is remembered", || last()["status"] == 200);
    let first = last();
    assert_eq!(first["cached_tokens"]["actual"], 0, "{first}");
    until("its blocks are known", || {
        ask(&fleet.admin, "/index")["blocks"].as_u64().unwrap() >= 100
    });
    for _ in 0..5 {
        assert_eq!(complete(&fleet, &prompt).0, 200);
    }
    until("all are remembered", || {
        let all = ask(&fleet.admin, "/decisions");
        all["decisions"].as_array().unwrap().len() == 6
    });
    let again = last();
    assert_eq!(again["pod"], first["pod"], "it goes where its prefix is");
    let cached = &again["cached_tokens"];
    assert!(cached["actual"].as_u64().unwrap() > 1700, "{again}");
    assert_eq!(cached["predicted"], cached["actual"], "{again}");
    let (_, _, page) = call(&fleet.admin, "GET", "/metrics", "").unwrap();
    let pod = first["pod"].as_str().unwrap();
    let wrong =
        format!("wornpath_predictions_wrong_total{{profile=\"cache-aware\",pod=\"{pod}\"}} 0");
    assert!(page.lines().any(|line| line == wrong), "{page}");
    let requests =
        format!("profile=\"cache-aware\",pod=\"{pod}\",status=\"200\",end=\"whole\"}} 6");
    assert!(page.contains(&requests), "{page}");
    let body = json!({"path": "/v1/completions", "body": {"model": MODEL, "prompt": prompt}});
    let (status, _, explained) = call(&fleet.admin, "POST", "/explain", &body.to_string()).unwrap();
    let explained: Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(status, 200, "{explained}");
    assert_eq!(explained["explanation"]["steps"][0]["pick"]["pod"], pod, "{explained}");
}

#[cfg(unix)]
#[test]
fn sighup_reloads_the_configuration_and_an_invalid_one_changes_nothing() {
    let fleet = fleet("hung_up", &[]);
    let reveals = || complete(&fleet, "hello").1.to_lowercase().contains("x-wornpath-pod: ");
    assert!(!reveals());
    fs::write(&fleet.path, format!("{}reveal: pods\n", fleet.text)).unwrap();
    fleet.gateway.hang_up();
    until("the file is refused", || {
        ask(&fleet.admin, "/config")["refused"][0]["cure"] == "give one of `nothing`, `pod`"
    });
    assert!(!reveals());
    fs::write(&fleet.path, format!("{}reveal: pod\n", fleet.text)).unwrap();
    fleet.gateway.hang_up();
    until("the file runs", reveals);
    let reloads = ask(&fleet.admin, "/config");
    assert_eq!(reloads["refused"], Value::Null, "{reloads}");
}

#[cfg(unix)]
#[test]
fn keys_of_the_command_line_are_still_required_after_a_reload() {
    let fleet = fleet("keys", &["--api-key", "team=secret"]);
    assert_eq!(complete(&fleet, "hello").0, 401);
    fleet.gateway.hang_up();
    until("the file was read again", || ask(&fleet.admin, "/config")["reloads"] == 1);
    assert_eq!(complete(&fleet, "hello").0, 401);
}

#[cfg(unix)]
#[test]
fn the_command_line_overrides_the_file_also_after_a_reload() {
    let lines = "limits: {body: 1KiB}\nroutes: [{match: {path: /v1/embeddings}, profile: least-load}, {profile: cache-aware}]\n";
    let more = ["--policy", "round-robin", "--max-body", "65536"];
    let fleet = fleet_with("command_line", lines, &more);
    let prompt = "The quick brown fox jumps over the lazy dog. ".repeat(40);
    for reloads in 0..2 {
        let found = ask(&fleet.admin, "/profiles");
        let profiles: Vec<_> = found["profiles"].as_array().unwrap().iter().collect();
        assert_eq!(profiles.len(), 1, "{found}");
        assert_eq!(profiles[0]["name"], "round-robin", "{found}");
        let routes = found["routes"].as_array().unwrap();
        assert_eq!(routes.len(), 2, "{found}");
        assert!(routes.iter().all(|route| route["profile"] == "round-robin"), "{found}");
        for _ in 0..2 {
            assert_eq!(complete(&fleet, &prompt).0, 200, "a body of more than 1KiB is taken");
        }
        let decisions = || ask(&fleet.admin, "/decisions?last=2")["decisions"].clone();
        let all = || ask(&fleet.admin, "/decisions")["decisions"].as_array().unwrap().len();
        until("both are remembered", || all() == 2 * (reloads + 1));
        let [one, other] = [0, 1].map(|at| decisions()[at].clone());
        assert_eq!([&one["profile"], &other["profile"]], ["round-robin"; 2], "{one} {other}");
        assert_ne!(one["pod"], other["pod"], "one prompt, each pod in turn");
        fleet.gateway.hang_up();
        until("the file was read again", || ask(&fleet.admin, "/config")["reloads"] == reloads + 1);
    }
}
