//! Pods that die behind Envoy, under load.

use crate::envoy::{Envoy, Failure, Pods, free_port};
use crate::picks::total;
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
    refused: Mutex<Vec<Refused>>,
}

/// A request without an answer of a pod.
struct Refused {
    id: String,
    why: String,
    at: Instant,
}

impl Fates {
    fn refuse(&self, id: &str, why: String) {
        let refused = Refused { id: id.to_owned(), why, at: Instant::now() };
        self.refused.lock().unwrap().push(refused);
    }

    fn ask(&self, address: &str, id: &str, body: &Value) {
        let headers = [("x-test-id", id)];
        match Exchange::open_with(address, "/v1/completions", &headers, body).finish() {
            Ok(answer) if answer.status == 200 => {
                let is_stream = body["stream"] == json!(true);
                let is_whole = !is_stream || answer.text.ends_with("data: [DONE]\n\n");
                let fate = if is_whole { &self.whole } else { &self.broken };
                fate.fetch_add(1, Relaxed);
            }
            Ok(answer) => self.refuse(id, answer.head + &answer.text),
            // Envoy cannot end a broken response but by closing the connection.
            Err(broken) if broken.text.contains("data: ") || broken.text.contains('{') => {
                self.broken.fetch_add(1, Relaxed);
            }
            Err(_) => self.refuse(id, "no answer".to_owned()),
        }
    }
}

/// Eight pods that may die, and clients that ask all the time.
struct Churn {
    engines: Vec<Engine>,
    picker: Gateway,
    envoy: Envoy,
    fates: Fates,
}

impl Churn {
    /// None without Envoy.
    fn start(
        test: &str,
        pods: fn(Vec<String>) -> Pods,
        picker: fn(epp: &str, urls: &[String]) -> Gateway,
    ) -> Option<Self> {
        if !crate::envoy::is_here() {
            return None;
        }
        let ports: Vec<_> = (0..PODS).map(|_| free_port()).collect();
        let engines: Vec<_> = ports.iter().map(|port| Engine::start(*port)).collect();
        let addresses: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let urls: Vec<_> = addresses.iter().map(|address| format!("http://{address}")).collect();
        let port = free_port();
        let picker = picker(&format!("127.0.0.1:{port}"), &urls);
        let envoy = Envoy::start(test, port, &pods(addresses), Failure::Close);
        Some(Self { engines, picker, envoy, fates: Fates::default() })
    }

    /// Runs a schedule while clients ask; every claim is about the requests meanwhile.
    fn under_load(&mut self, schedule: impl FnOnce(&mut [Engine])) {
        let Self { engines, envoy, fates, .. } = self;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let fates = &*fates;
                let over = &over;
                let address = &envoy.address;
                scope.spawn(move || {
                    let mut turn = 0;
                    while !over.load(Relaxed) {
                        turn += 1;
                        let times = 1 << (5 + (client + turn) % 6);
                        let words = format!("client {client} says ").repeat(times);
                        let is_stream = turn.is_multiple_of(2);
                        let body = json!({
                            "model": "m", "prompt": words, "max_tokens": 32, "stream": is_stream,
                        });
                        fates.ask(address, &format!("{client}-{turn}"), &body);
                    }
                });
            }
            schedule(engines);
            over.store(true, Relaxed);
        });
    }

    /// Kills one of the pods every two seconds under load; each is back after one. Returns for how
    /// many seconds, and how many were killed.
    fn kill_in_turn(&mut self) -> (u64, usize) {
        let seconds = std::env::var("WORNPATH_CHURN_SECONDS").ok();
        let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(20);
        let started = Instant::now();
        let mut kills = 0;
        self.under_load(|engines| {
            while started.elapsed() < Duration::from_secs(seconds) {
                let victim = &mut engines[kills * 3 % PODS];
                victim.kill();
                std::thread::sleep(Duration::from_secs(1));
                *victim = Engine::start(victim.port);
                std::thread::sleep(Duration::from_secs(1));
                kills += 1;
            }
        });
        (seconds, kills)
    }

    fn is_idle(&self) {
        let in_flight = || total(&self.picker, "wornpath_pod_requests{");
        eventually("no load is left", || in_flight() == 0);
    }
}

fn by_flags(epp: &str, urls: &[String], more: &[&str]) -> Gateway {
    let named = urls.iter().flat_map(|url| ["--pod", url.as_str()]);
    let own = ["--epp", epp].into_iter().chain(more.iter().copied());
    Gateway::start(&named.chain(own).collect::<Vec<_>>(), PODS)
}

/// One of eight pods is killed every two seconds and is back after one.
#[test]
fn pods_that_die_behind_envoy_cost_no_request_that_had_not_begun() {
    let picker = |epp: &str, urls: &[String]| by_flags(epp, urls, &[]);
    let Some(mut churn) = Churn::start("churn", Pods::Listed, picker) else { return };
    let (seconds, kills) = churn.kill_in_turn();
    let Churn { envoy, fates, .. } = &churn;
    let mut begun = 0;
    let mut failed = Vec::new();
    for Refused { id, why, .. } in &*fates.refused.lock().unwrap() {
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
        "churn behind Envoy: {seconds} s, {PODS} pods, {CLIENTS} clients, {kills} pods killed: {whole} requests whole, {broken} \
         broken after the first byte, {begun} after the head had come to Envoy, {} failed before",
        failed.len()
    );
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), &failed[..failed.len().min(3)]);
    assert!(
        whole > 200 && broken + begun > 0,
        "{whole} whole, {broken} broken: too quiet to prove anything"
    );
    // Each is in flight at the pod that dies, and most of those get their first byte before.
    assert!(begun <= kills * CLIENTS / PODS, "{begun} of {kills} kills got no byte");
    assert!(total(&churn.picker, "wornpath_retries_total{") > 0, "Envoy names who served");
    churn.is_idle();
}

/// The same, where the head of a response waits for the first byte of its body, and a listener in
/// front repeats a request that was answered with 502.
#[test]
fn pods_that_die_behind_an_envoy_that_retries_after_heads_cost_no_request_without_a_first_byte() {
    let picker = |epp: &str, urls: &[String]| {
        let pods = urls.iter().map(|url| format!("  - {{url: \"{url}\", model: m}}\n"));
        let pods: String = pods.collect();
        let text = format!(
            "listen: {{client: \"127.0.0.1:0\", epp: {{address: \"{epp}\", hold_head: true}}}}\n\
             pods:\n{pods}"
        );
        Gateway::configured("churn-retried-picker", &text, PODS)
    };
    let Some(mut churn) = Churn::start("churn-retried", Pods::Retried, picker) else { return };
    let (seconds, kills) = churn.kill_in_turn();
    let Churn { envoy, fates, .. } = &churn;
    let [whole, broken] = [&fates.whole, &fates.broken].map(|fate| fate.load(Relaxed));
    let refused = fates.refused.lock().unwrap();
    println!(
        "churn behind Envoy that retries 502: {seconds} s, {PODS} pods, {CLIENTS} clients, {kills} pods killed: \
         {whole} requests whole, {broken} broken after the first byte, {} failed before",
        refused.len()
    );
    if let Some(Refused { id, why, .. }) = refused.first() {
        panic!("{} failed, such as {id}: {} {why}", refused.len(), envoy.details(id));
    }
    assert!(
        whole > 200 && broken > 0,
        "{whole} whole, {broken} broken: too quiet to prove anything"
    );
    drop(refused);
    churn.is_idle();
}

/// As many as may be sent to a dead pod before the first of them has failed and a probe too.
const MOST_FAILED: usize = 2 * CLIENTS;
/// A pod without requests is found to be dead within a second, and one with requests earlier.
const FOUND_WITHIN: Duration = Duration::from_secs(1);

/// Nothing retries there: an `ORIGINAL_DST` cluster takes one address.
#[test]
fn a_pod_that_is_dead_for_good_gets_no_request_any_more_though_envoy_answers_in_its_place() {
    let named = |_| Pods::Named;
    let picker = |epp: &str, urls: &[String]| by_flags(epp, urls, &["--one-destination"]);
    let Some(mut churn) = Churn::start("dead", named, picker) else { return };
    let mut killed = Instant::now();
    let whole = |fates: &Fates| fates.whole.load(Relaxed);
    churn.under_load(|engines| {
        std::thread::sleep(Duration::from_secs(1));
        killed = Instant::now();
        engines[3].kill();
        std::thread::sleep(Duration::from_secs(8));
    });
    let refused = churn.fates.refused.lock().unwrap();
    let late: Vec<_> = refused.iter().filter(|it| it.at > killed + FOUND_WITHIN).collect();
    let last = refused.iter().map(|it| it.at.duration_since(killed)).max();
    println!(
        "dead behind ORIGINAL_DST: {} whole, {} broken, {} failed, the last one after {last:?}",
        whole(&churn.fates),
        churn.fates.broken.load(Relaxed),
        refused.len()
    );
    assert!(late.is_empty(), "{} failed late, such as {}", late.len(), late[0].why);
    assert!((1..=MOST_FAILED).contains(&refused.len()), "{} failed", refused.len());
    assert!(refused.iter().all(|it| it.at > killed), "{}", refused[0].why);
    assert!(whole(&churn.fates) > 200, "too quiet to prove anything");
    drop(refused);
    churn.is_idle();
}
