//! `wornpath trace record` on a running gateway, and `wornpath replay` of what it wrote.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, folder};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SECRET: &str = "the vault opens at noon";

fn wornpath(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Begun, and heard of by the gateway.
fn recording(gateway: &Gateway, file: &Path, arguments: &[&str]) -> Child {
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let start = ["trace", "record", file.to_str().unwrap(), "--admin", &admin];
    let mut child = wornpath(&[&start, arguments].concat()).spawn().unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    let mut out = BufReader::with_capacity(1, out);
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("recording to"), "{line}");
    child.stdout = Some(out.into_inner());
    child
}

fn ended(mut child: Child) -> (bool, String) {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap().success(), text)
}

#[test]
fn recorded_traffic_has_no_text_and_finds_as_much_cached_when_it_is_replayed() {
    let engines = Engines::start(&["--model", "m"]);
    let model = ["--tokenizer", "bytes", "--model", "m", "--admin", "127.0.0.1:0"];
    let gateway = Gateway::in_front_of(&engines, &model);
    let file = folder("recording").join("trace.jsonl");
    let ask = |prompt: &str, stream: bool| {
        let body = json!({"prompt": prompt, "max_tokens": 3, "stream": stream});
        gateway.post("/v1/completions", &body)
    };
    assert_eq!(ask("before anybody recorded", false).status, 200);
    let recorder = recording(&gateway, &file, &["--requests", "13"]);
    let mut cached = 0;
    for number in 0..12 {
        let document = format!("{SECRET}: document {} ", number % 3).repeat(20);
        let answer = ask(&format!("{document} question {number}"), false);
        assert_eq!(answer.status, 200, "{}", answer.text);
        cached += answer.cached_tokens();
    }
    assert!(cached > 0);
    assert_eq!(ask("no other prompt has this prefix", true).status, 200);
    let (is_well, said) = ended(recorder);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "only its owner can read it");
    assert!(is_well, "{said}");
    assert!(
        said.contains("13 requests recorded; skipped: 0 without a complete answer, 0 missed"),
        "{said}"
    );

    let text = std::fs::read_to_string(&file).unwrap();
    let words = SECRET.split(' ').chain(["document", "question"]);
    assert!(words.into_iter().all(|word| !text.contains(word)), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids = |line: usize| lines[line]["hash_ids"].as_array().unwrap();
    assert_eq!(ids(0)[..10], ids(3)[..10], "the same document");
    assert_ne!(ids(0)[0], ids(12)[0]);
    let output = |line: &Value| line["output_length"].as_u64().unwrap();
    assert!(lines[..12].iter().all(|line| output(line) == 3), "{text}");
    assert!(output(&lines[12]) > 0, "a stream without `usage` is counted by its pieces");

    // As slowly as the engines here are fast, so that no request comes before the last one has
    // ended.
    let json = file.with_extension("json");
    let block_size = said.split("--block-size ").nth(1).unwrap().split(' ').next().unwrap();
    let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/cache-aware.yaml");
    let replay = [
        "replay",
        file.to_str().unwrap(),
        "--block-size",
        block_size,
        "--profile",
        profile,
        "--pods",
        "1",
        "--speed",
        "0.01",
        "--jitter",
        "0ms",
        "--json",
        json.to_str().unwrap(),
    ];
    let output = wornpath(&replay).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let hit_rate = report["profiles"][0]["runs"][0]["hit_rate"].as_f64().unwrap();
    let asked: u64 = lines.iter().map(|line| line["input_length"].as_u64().unwrap()).sum();
    assert!(
        (hit_rate * asked as f64 - cached as f64).abs() < 1e-6,
        "{hit_rate} of {asked}, live {cached}"
    );
}

#[test]
fn a_recording_without_requests_or_without_a_new_file_fails() {
    let engines = Engines::start(&["--model", "m"]);
    let gateway = Gateway::in_front_of(&engines, &["--admin", "127.0.0.1:0"]);
    let file = folder("recording_nothing").join("trace.jsonl");
    let (is_well, said) = ended(recording(&gateway, &file, &["--for", "10ms"]));
    assert!(!is_well && said.contains("nothing was recorded"), "{said}");
    assert!(!file.exists(), "nothing stands in the way of the next try");
    std::fs::write(&file, "{}").unwrap();
    let path = file.to_str().unwrap();
    let admin = format!("http://{}", gateway.admin.as_ref().unwrap());
    let output = wornpath(&["trace", "record", path, "--admin", &admin]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("name a new file"), "{said}");
    let nowhere = ["trace", "record", "never.jsonl", "--admin", "http://127.0.0.1:9"];
    let output = wornpath(&nowhere).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("127.0.0.1:9"), "{said}");
    assert!(!Path::new("never.jsonl").exists());
}
