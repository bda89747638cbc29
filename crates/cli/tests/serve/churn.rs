//! Engines that come and go under load.

use crate::support::engines::Exchange;
use crate::support::gateway::Gateway;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Whole,
    /// Broken after the first byte, and said so.
    Told,
    /// Anything else.
    Failed,
}

#[derive(Default)]
struct Fates {
    whole: AtomicUsize,
    told: AtomicUsize,
    failed: AtomicUsize,
    reasons: Mutex<Vec<String>>,
}

const PODS: usize = 8;
const CLIENTS: usize = 64;

/// An engine of its own process, killed without a word and started again at the same port.
pub(crate) struct Engine {
    pub(crate) port: u16,
    child: Child,
    /// Kept open: an engine that cannot say anything more ends.
    _says: Lines<BufReader<ChildStdout>>,
}

impl Engine {
    pub(crate) fn start(port: u16) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wornpath"))
            .args(["engine", "--port", &port.to_string(), "--speed", "2", "--answer-tokens", "32"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(child.stdout.take().unwrap()).lines();
        says.next().expect("the engine says where it listens").unwrap();
        Self { port, child, _says: says }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ports that were free a moment ago, all at once, so that they differ.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let free: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    free.iter().map(|free| free.local_addr().unwrap().port()).collect()
}

/// One pod is killed every two seconds and is back after one, for half a minute (longer by
/// `WORNPATH_CHURN_SECONDS`): no request fails before its first byte, and every stream goes on with
/// another pod.
#[test]
fn pods_that_die_under_load_cost_no_request_and_no_stream() {
    let seconds = std::env::var("WORNPATH_CHURN_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(30));
    let ports = free_ports(PODS);
    let mut engines: Vec<_> = ports.iter().map(|port| Engine::start(*port)).collect();
    let urls: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    let pods: Vec<_> = urls.iter().map(|url| format!("{{url: \"{url}\"}}")).collect();
    let text = format!("pods: [{}]\ncontinuation: {{mode: on}}\n", pods.join(", "));
    let gateway = Gateway::configured("churn", &text, PODS);
    let fates = Fates::default();
    let over = AtomicBool::new(false);
    let mut kills = 0;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let fates = &fates;
            let over = &over;
            let address = &gateway.address;
            scope.spawn(move || {
                let mut turn = 0_usize;
                while !over.load(Relaxed) {
                    turn += 1;
                    let (fate, why) = ask(address, &body(client, turn));
                    fates.count(fate, why);
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
    let [whole, told, failed] =
        [&fates.whole, &fates.told, &fates.failed].map(|fate| fate.load(Relaxed));
    let budget = |fate| gateway.metric(&format!("wornpath_retry_budget_total{{fate=\"{fate}\"}}"));
    let continued = ["lost", "stalled", "engine_error"].map(|reason| {
        let labels = format!("{{outcome=\"continued\",reason=\"{reason}\"}}");
        gateway.metric(&format!("wornpath_continuations_total{labels}"))
    });
    let continued: f64 = continued.iter().sum();
    println!(
        "churn: {} s, {PODS} pods, {CLIENTS} clients, {kills} pods killed: {whole} requests whole, of which {continued} streams \
         were continued, {told} streams broken and told, {failed} failed; {} retries made, {} refused by the budget",
        time.as_secs(),
        budget("spent"),
        budget("refused"),
    );
    assert_eq!(failed, 0, "{:?}", fates.reasons.lock().unwrap());
    assert_eq!(told, 0, "{:?}", fates.reasons.lock().unwrap());
    assert!(whole > 1000 && continued > 0.0, "{whole} whole, {continued} continued: too quiet");
}

impl Fates {
    fn count(&self, fate: Fate, why: String) {
        let counter = match fate {
            Fate::Whole => &self.whole,
            Fate::Told => &self.told,
            Fate::Failed => &self.failed,
        };
        if fate != Fate::Whole {
            self.reasons.lock().unwrap().push(why);
        }
        counter.fetch_add(1, Relaxed);
    }
}

/// Prompts of 1 to 32 KB; every other request streams.
fn body(client: usize, turn: usize) -> Value {
    let words = format!("client {client} says ").repeat(1 << (6 + (client + turn) % 6));
    json!({"prompt": words, "max_tokens": 32, "stream": turn.is_multiple_of(2)})
}

fn ask(address: &str, body: &Value) -> (Fate, String) {
    let is_stream = body["stream"] == json!(true);
    match Exchange::open(address, "POST", "/v1/completions", &body.to_string()).finish() {
        Err(broken) => (Fate::Failed, format!("broken off: {}", broken.text)),
        Ok(answer) if answer.status != 200 => (Fate::Failed, answer.head + &answer.text),
        Ok(answer) if !is_stream => {
            let is_whole = serde_json::from_str::<Value>(&answer.text).is_ok();
            (if is_whole { Fate::Whole } else { Fate::Failed }, answer.text)
        }
        Ok(answer) if answer.text.ends_with("data: [DONE]\n\n") => (Fate::Whole, String::new()),
        Ok(answer) if answer.text.contains("upstream_lost") => (Fate::Told, answer.text),
        Ok(answer) => (Fate::Failed, format!("just stopped: {}", answer.text)),
    }
}
