//! Pods that die behind Envoy, under load.

use crate::envoy::{Envoy, Failure, Pods, free_port};
use crate::support::engines::Exchange;
use crate::support::gateway::{Gateway, eventually};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PODS: usize = 8;
const CLIENTS: usize = 32;

/// An engine of its own process, killed without a word and started again at the same port.
struct Engine {
    port: u16,
    child: Child,
    /// Kept open: an engine that cannot say anything more ends.
    _says: Lines<BufReader<ChildStdout>>,
}

impl Engine {
    fn start(port: u16) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wornpath"))
            .args(["engine", "--port", &port.to_string(), "--speed", "2", "--model", "m"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(child.stdout.take().unwrap()).lines();
        says.next().expect("the engine says where it listens").unwrap();
        Self { port, child, _says: says }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Default)]
struct Fates {
    whole: AtomicUsize,
    /// Broken after the first byte.
    broken: AtomicUsize,
    /// Without an answer of a pod, by the request's id: why.
    refused: Mutex<Vec<(String, String)>>,
}

impl Fates {
    fn ask(&self, address: &str, id: &str, body: &Value) {
        let headers = [("x-test-id", id)];
        match Exchange::open_with(address, "/v1/completions", &headers, body).finish() {
            Ok(answer) if answer.status == 200 => {
                let is_stream = body["stream"] == json!(true);
                let is_whole = !is_stream || answer.text.ends_with("data: [DONE]\n\n");
                let fate = if is_whole { &self.whole } else { &self.broken };
                fate.fetch_add(1, Relaxed);
            }
            Ok(answer) => {
                let why = answer.head + &answer.text;
                self.refused.lock().unwrap().push((id.to_owned(), why));
            }
            // Envoy cannot end a broken response but by closing the connection.
            Err(broken) if broken.text.contains("data: ") || broken.text.contains('{') => {
                self.broken.fetch_add(1, Relaxed);
            }
            Err(_) => {
                self.refused.lock().unwrap().push((id.to_owned(), "no answer".to_owned()));
            }
        }
    }
}

/// One of eight pods is killed every two seconds and is back after one.
#[test]
fn pods_that_die_behind_envoy_cost_no_request_that_had_not_begun() {
    if !crate::envoy::is_here() {
        return;
    }
    let seconds = std::env::var("WORNPATH_CHURN_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(20));
    let ports: Vec<_> = (0..PODS).map(|_| free_port()).collect();
    let mut engines: Vec<_> = ports.iter().map(|port| Engine::start(*port)).collect();
    let addresses: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let urls: Vec<_> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let port = free_port();
    let epp = format!("127.0.0.1:{port}");
    let pods = urls.iter().flat_map(|url| ["--pod", url.as_str()]);
    let arguments: Vec<_> = pods.chain(["--epp", &epp]).collect();
    let picker = Gateway::start(&arguments, PODS);
    let envoy = Envoy::start("churn", port, &Pods::Listed(addresses), Failure::Close);
    let fates = Fates::default();
    let over = AtomicBool::new(false);
    let started = Instant::now();
    let mut kills = 0;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let fates = &fates;
            let over = &over;
            let address = &envoy.address;
            scope.spawn(move || {
                let mut turn = 0;
                while !over.load(Relaxed) {
                    turn += 1;
                    let words = format!("client {client} says ").repeat(1 << (5 + (client + turn) % 6));
                    let is_stream = turn.is_multiple_of(2);
                    let body =
                        json!({"model": "m", "prompt": words, "max_tokens": 32, "stream": is_stream});
                    fates.ask(address, &format!("{client}-{turn}"), &body);
                }
            });
        }
        // The schedule of the crashes; every claim is about the requests meanwhile.
        while started.elapsed() < time {
            let victim = &mut engines[kills * 3 % PODS];
            victim.kill();
            std::thread::sleep(Duration::from_secs(1));
            *victim = Engine::start(victim.port);
            std::thread::sleep(Duration::from_secs(1));
            kills += 1;
        }
        over.store(true, Relaxed);
    });
    let mut begun = 0;
    let mut failed = Vec::new();
    for (id, why) in &*fates.refused.lock().unwrap() {
        let details = envoy.details(id);
        // The pod died after the head of its response had come: Envoy retries no more, although it
        // has not sent the head to the client yet.
        if details.contains("upstream_reset_after_response_started") {
            begun += 1;
        } else {
            failed.push(format!("{details}: {why}"));
        }
    }
    let [whole, broken] = [&fates.whole, &fates.broken].map(|fate| fate.load(Relaxed));
    println!(
        "churn behind Envoy: {} s, {PODS} pods, {CLIENTS} clients, {kills} pods killed: {whole} requests whole, {broken} \
         broken after the first byte, {begun} after the head had come to Envoy, {} failed before",
        time.as_secs(),
        failed.len()
    );
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), &failed[..failed.len().min(3)]);
    assert!(
        whole > 200 && broken + begun > 0,
        "{whole} whole, {broken} broken: too quiet to prove anything"
    );
    let in_flight = || {
        let page = picker.get("/metrics").text;
        let lines = page.lines().filter(|line| line.starts_with("wornpath_pod_requests{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    eventually("no load is left", || in_flight() == 0);
}
