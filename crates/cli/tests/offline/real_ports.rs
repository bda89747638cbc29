//! What a batch costs clients, through the real binary: a gateway in front of four engines with the
//! timing of real ones.

use crate::online_priority::Dice;
use crate::support::engines::{Engines, Exchange};
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Requests of clients in a second.
const RATES: [f64; 2] = [3.0, 12.0];
/// How long clients are watched at a time, alone and beside a batch in turns.
const PHASE: Duration = Duration::from_secs(30);
const ROUNDS: usize = 2;

fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("online_priority");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn gateway(engines: &Engines, folder: &Path) -> Gateway {
    let pods = engines.engines.iter().map(|at| {
        let events = format!("zmq://{}?replay={}", at.events, at.replay);
        json!({"url": format!("http://{}", at.http), "engine": "vllm", "speed": "8b-h200", "events": events})
    });
    let config = json!({
        "models": [{"name": "m", "tokenizer": "bytes"}],
        "pods": pods.collect::<Vec<_>>(),
        "batch": {"folder": "kept"},
        "listen": {"client": "127.0.0.1:0"},
    });
    let path = folder.join("wornpath.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    Gateway::start(&["-c", path.to_str().unwrap()], engines.engines.len())
}

/// Questions about documents, far more than can be answered meanwhile.
fn documents(folder: &Path) -> String {
    let line = |number: usize| {
        let document = format!("Document {:05}. ", number / 30).repeat(256);
        let body = json!({"model": "m", "max_tokens": 64 + number % 192, "ignore_eos": true,
            "prompt": format!("{document}Question {number}, and why is that so?")});
        json!({"custom_id": number.to_string(), "method": "POST", "url": "/v1/completions", "body": body})
    };
    let lines: Vec<_> = (0..6_000).map(|number| line(number).to_string()).collect();
    let path = folder.join("documents.jsonl");
    std::fs::write(&path, lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Clients that come at random for one phase: how long each waited for its first token.
fn clients(gateway: &Gateway, per_second: f64, seed: u64) -> Vec<Duration> {
    let mut dice = Dice(seed);
    let mut at = 0.0;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let mut waits = Vec::new();
        loop {
            at -= dice.unit().ln() / per_second;
            if at > PHASE.as_secs_f64() {
                break;
            }
            let house = format!("House rules {:02}. ", dice.between(0, 20)).repeat(64);
            let own: String = (0..dice.between(200, 3_000))
                .map(|_| (b'a' + dice.between(0, 26) as u8) as char)
                .collect();
            let body = json!({"model": "m", "prompt": house + &own, "stream": true,
                "max_tokens": dice.between(50, 250), "ignore_eos": true});
            std::thread::sleep(Duration::from_secs_f64(at).saturating_sub(began.elapsed()));
            waits.push(scope.spawn(move || first_token(gateway, &body)));
        }
        waits.into_iter().map(|wait| wait.join().unwrap()).collect()
    })
}

fn first_token(gateway: &Gateway, body: &Value) -> Duration {
    let asked = Instant::now();
    let mut exchange =
        Exchange::open(&gateway.address, "POST", "/v1/completions", &body.to_string());
    exchange.read_past("data: ");
    let waited = asked.elapsed();
    exchange.read_past("[DONE]");
    waited
}

fn batch(gateway: &Gateway, arguments: &[&str]) -> String {
    let url = format!("http://{}", gateway.address);
    let output = Command::new(env!("CARGO_BIN_EXE_wornpath"))
        .arg("batch")
        .args(arguments)
        .args(["--gateway", &url])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn p95(mut waits: Vec<Duration>) -> Duration {
    waits.sort_unstable();
    waits[waits.len() * 95 / 100]
}

#[test]
#[ignore = "takes minutes and a quiet machine; ./test long runs it"]
fn over_real_ports_a_batch_costs_clients_at_most_a_tenth_of_their_time_to_first_token() {
    let engines = Engines::start_at("1", &["--engines", "4", "--model", "m"]);
    let folder = folder();
    let gateway = gateway(&engines, &folder);
    let input = documents(&folder);
    // What clients share is in caches before anything is measured.
    clients(&gateway, RATES[0], 1);
    let mut worst: f64 = 0.0;
    for per_second in RATES {
        let mut alone = Vec::new();
        let mut beside = Vec::new();
        let mut answered = 0;
        for round in 0..ROUNDS as u64 {
            alone.extend(clients(&gateway, per_second, 42 + 2 * round));
            let said = batch(&gateway, &["submit", &input, "--endpoint", "/v1/completions"]);
            let id = said.split_whitespace().next().unwrap().to_owned();
            let look = || gateway.get(&format!("/v1/batches/{id}")).json();
            eventually("the batch runs", || look()["request_counts"]["completed"] != 0);
            beside.extend(clients(&gateway, per_second, 43 + 2 * round));
            let counts = look()["request_counts"].clone();
            assert!(counts["completed"].as_u64() < counts["total"].as_u64(), "it ran all the time");
            answered += counts["completed"].as_u64().unwrap();
            batch(&gateway, &["cancel", &id]);
            eventually("the batch is cancelled", || look()["status"] == "cancelled");
        }
        let count = beside.len();
        let alone = p95(alone);
        let beside = p95(beside);
        let ratio = beside.as_secs_f64() / alone.as_secs_f64();
        println!(
            "priority: over ports, {per_second} requests/s ({count}): p95 TTFT {alone:.1?} alone, {beside:.1?} with a batch ({ratio:.3}x); {answered} offline requests meanwhile"
        );
        worst = worst.max(ratio);
    }
    assert!(worst <= 1.1, "p95 TTFT with a batch is {worst:.3}x of that without; at most 1.1x");
}
