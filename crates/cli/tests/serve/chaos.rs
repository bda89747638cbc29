//! Two routers that exchange, in front of engines that are killed and frozen, while one of the
//! routers is killed and started again.

use crate::churn::{Engine, free_ports};
use crate::support::gateway::Gateway;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PODS: usize = 8;
/// At each router.
const CLIENTS: usize = 24;
const TOKENS: usize = 32;
/// The longest time in which a router notices a frozen engine.
const STALL: Duration = Duration::from_secs(3);

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fate {
    Whole,
    /// Its router did not accept the connection: it is being started again.
    Unreached,
    /// An answer that is not 200, or none.
    FailedBefore,
    /// A stream that ends with an error event, or just ends.
    Broken,
    /// All of it came, with another number of tokens than were asked for.
    Wrong,
}

/// The requests of one router.
#[derive(Default)]
struct Tally {
    fates: Mutex<BTreeMap<Fate, usize>>,
    reasons: Mutex<Vec<String>>,
}

impl Tally {
    fn count(&self, fate: Fate, why: String) {
        *self.fates.lock().unwrap().entry(fate).or_default() += 1;
        if !matches!(fate, Fate::Whole | Fate::Unreached) {
            self.reasons.lock().unwrap().push(why);
        }
    }

    fn of(&self, fate: Fate) -> usize {
        self.fates.lock().unwrap().get(&fate).copied().unwrap_or(0)
    }
}

/// A client API: its path, the body of a request, and the end and the pieces of its streams.
struct Api {
    path: &'static str,
    body: fn(&str) -> Value,
    end: &'static str,
    piece: fn(&Value) -> Option<&str>,
}

const APIS: [Api; 4] = [
    Api {
        path: "/v1/completions",
        body: |text| json!({"prompt": text, "max_tokens": TOKENS}),
        end: "data: [DONE]\n\n",
        piece: |event| event["choices"][0]["text"].as_str(),
    },
    Api {
        path: "/v1/chat/completions",
        body: |text| json!({"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS}),
        end: "data: [DONE]\n\n",
        piece: |event| event["choices"][0]["delta"]["content"].as_str(),
    },
    Api {
        path: "/v1/messages",
        body: |text| json!({"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS}),
        end: "data: {\"type\":\"message_stop\"}\n\n",
        piece: |event| event["delta"]["text"].as_str(),
    },
    Api {
        path: "/v1/responses",
        body: |text| json!({"input": text, "max_output_tokens": TOKENS}),
        end: "\n\n",
        piece: |event| event["delta"].as_str(),
    },
];

/// For half a minute (longer by `WORNPATH_CHAOS_SECONDS`) an engine is killed or frozen every two
/// seconds, and one router is killed every nine: the requests of the other router all succeed, and
/// no stream breaks there.
#[test]
fn engines_and_a_router_that_die_or_freeze_cost_the_other_router_nothing() {
    let seconds = std::env::var("WORNPATH_CHAOS_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(30));
    let ports = free_ports(PODS + 2);
    let (exchange, ports) = ports.split_at(2);
    let mut engines: Vec<_> = ports.iter().map(|port| Engine::start(*port)).collect();
    let start = |own: usize| router(own, exchange, ports);
    let living = start(0);
    let mut killed = start(1);
    let addresses = [living.address.clone(), killed.address.clone()].map(Mutex::new);
    let tallies = [Tally::default(), Tally::default()];
    let over = AtomicBool::new(false);
    let mut counts = Counts::default();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..2 * CLIENTS {
            let address = &addresses[client % 2];
            let tally = &tallies[client % 2];
            let over = &over;
            scope.spawn(move || {
                let mut turn = 0;
                while !over.load(Relaxed) {
                    turn += 1;
                    let address = address.lock().unwrap().clone();
                    let (fate, why) = ask(&address, client, turn);
                    tally.count(fate, why);
                    if fate == Fate::Unreached {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            });
        }
        // The schedule of the faults; every claim is about the requests meanwhile.
        let mut turn = 0;
        while started.elapsed() < time {
            let victim = &mut engines[turn * 3 % PODS];
            if turn % 2 == 0 {
                victim.kill();
                std::thread::sleep(Duration::from_secs(1));
                *victim = Engine::start(victim.port);
                std::thread::sleep(Duration::from_secs(1));
                counts.killed += 1;
            } else {
                victim.signal("-STOP");
                std::thread::sleep(STALL * 2);
                victim.signal("-CONT");
                counts.frozen += 1;
            }
            if turn % 3 == 2 {
                drop(killed);
                std::thread::sleep(Duration::from_millis(500));
                killed = start(1);
                addresses[1].lock().unwrap().clone_from(&killed.address);
                counts.restarts += 1;
            }
            turn += 1;
        }
        over.store(true, Relaxed);
    });
    let continued = streams_continued(&living);
    println!("{}", summary(&counts, time, continued, &tallies));
    assert_only_the_second_router_failed(continued, &tallies);
}

/// The faults.
#[derive(Default)]
struct Counts {
    killed: usize,
    frozen: usize,
    restarts: usize,
}

fn router(own: usize, exchange: &[u16], ports: &[u16]) -> Gateway {
    let pods: Vec<_> =
        ports.iter().map(|port| format!("{{url: \"http://127.0.0.1:{port}\"}}")).collect();
    let text = format!(
        "pods: [{}]\ncontinuation: {{mode: on, most: 4}}\ntimeouts: {{first_byte: {stall}s, between_bytes: {stall}s, unstreamed: 8s}}\n\
         exchange:\n  listen: 127.0.0.1:{}\n  peers: [\"127.0.0.1:{}\"]\n",
        pods.join(", "),
        exchange[own],
        exchange[1 - own],
        stall = STALL.as_secs(),
    );
    Gateway::configured(&format!("chaos_{own}"), &text, 1)
}

fn streams_continued(living: &Gateway) -> f64 {
    ["lost", "stalled", "engine_error"]
        .iter()
        .map(|reason| {
            let labels = format!("{{outcome=\"continued\",reason=\"{reason}\"}}");
            living.metric(&format!("wornpath_continuations_total{labels}"))
        })
        .sum()
}

fn summary(counts: &Counts, time: Duration, continued: f64, tallies: &[Tally; 2]) -> String {
    let [lives, dies] = tallies;
    let of = |tally: &Tally| {
        let [before, broken, wrong] =
            [Fate::FailedBefore, Fate::Broken, Fate::Wrong].map(|fate| tally.of(fate));
        let whole = tally.of(Fate::Whole);
        format!(
            "{whole} whole, {before} failed before the first byte, {broken} streams broken, {wrong} wrong"
        )
    };
    format!(
        "chaos: {} s, 2 routers, {PODS} pods, {} clients, {} engines killed, {} frozen, {} restarts of the second router; \
         the first: {}, {continued} streams continued; the second: {}, {} not accepted",
        time.as_secs(),
        2 * CLIENTS,
        counts.killed,
        counts.frozen,
        counts.restarts,
        of(lives),
        of(dies),
        dies.of(Fate::Unreached),
    )
}

fn assert_only_the_second_router_failed(continued: f64, tallies: &[Tally; 2]) {
    let [lives, dies] = tallies;
    let reasons = lives.reasons.lock().unwrap();
    for fate in [Fate::Unreached, Fate::FailedBefore, Fate::Broken, Fate::Wrong] {
        assert_eq!(lives.of(fate), 0, "{fate:?}: {reasons:#?}");
    }
    assert_eq!(dies.of(Fate::Wrong), 0, "{:#?}", dies.reasons.lock().unwrap());
    let whole = lives.of(Fate::Whole);
    assert!(whole > 300 && continued > 0.0, "{whole} whole, {continued} continued: too quiet");
}

/// Sends one request; two of three stream.
fn ask(address: &str, client: usize, turn: usize) -> (Fate, String) {
    let api = &APIS[(client / 2 + turn) % APIS.len()];
    let is_stream = !turn.is_multiple_of(3);
    let mut body = (api.body)(&format!("{client} says ").repeat(1 << (2 + (client + turn) % 6)));
    body["stream"] = json!(is_stream);
    let Ok((status, text)) = exchange(address, api.path, &body.to_string()) else {
        return (Fate::Unreached, String::new());
    };
    let why = || format!("{} {status}: {text}", api.path);
    if status != 200 {
        return (Fate::FailedBefore, why());
    }
    if !is_stream {
        let is_whole = serde_json::from_str::<Value>(&text).is_ok();
        return (if is_whole { Fate::Whole } else { Fate::FailedBefore }, why());
    }
    let ends = text.ends_with(api.end)
        && (api.path != "/v1/responses" || text.contains("event: response.completed\n"));
    if !ends || text.contains("event: error") {
        return (Fate::Broken, why());
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    // Each token of the engine is a letter.
    let letters: usize = events.filter_map(|event| (api.piece)(&event).map(str::len)).sum();
    if letters != TOKENS {
        return (Fate::Wrong, format!("{letters} tokens, {}", why()));
    }
    (Fate::Whole, String::new())
}

/// The status and the text of a response, as far as it came; status 0 if none did. An error if the
/// connection was refused.
fn exchange(address: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let stream = TcpStream::connect(address)?;
    Ok(answer(stream, path, body).unwrap_or_default())
}

fn answer(mut stream: TcpStream, path: &str, body: &str) -> Option<(u16, String)> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let mut text = Vec::new();
    // What came before the connection broke counts.
    let _ = reader.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    Some((status, if is_chunked { dechunked(&text) } else { text }))
}

fn dechunked(mut chunks: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = chunks.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        let Some(chunk) = rest.get(..size).filter(|_| size > 0) else { break };
        text.push_str(chunk);
        chunks = rest.get(size + 2..).unwrap_or_default();
    }
    text
}
