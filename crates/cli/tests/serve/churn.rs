//! Engines that come and go under load.

use crate::gateway::Gateway;
use crate::served::{Exchange, Served};
use serde_json::{Value, json};
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
}

const PODS: usize = 8;
const CLIENTS: usize = 64;

/// One pod is killed every two seconds and is back after one, for half a minute (longer by
/// `WORNPATH_CHURN_SECONDS`): no request fails before its first byte, and no stream just stops.
#[test]
fn pods_that_die_under_load_cost_no_request_that_had_not_begun() {
    let seconds = std::env::var("WORNPATH_CHURN_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(30));
    let engines = Served::start_at("2", &["--engines", "8", "--answer-tokens", "32"]);
    let gateway = Gateway::before(&engines, &[]);
    let (fates, over) = (Fates::default(), AtomicBool::new(false));
    let reasons = std::sync::Mutex::new(Vec::new());
    let started = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (fates, over, address, reasons) = (&fates, &over, &gateway.address, &reasons);
            scope.spawn(move || {
                let mut turn = 0_usize;
                while !over.load(Relaxed) {
                    turn += 1;
                    let (fate, why) = ask(address, &body(client, turn));
                    match fate {
                        Fate::Whole => &fates.whole,
                        Fate::Told => &fates.told,
                        Fate::Failed => {
                            reasons.lock().unwrap().push(why);
                            &fates.failed
                        }
                    }
                    .fetch_add(1, Relaxed);
                }
            });
        }
        let mut victim = 0;
        while started.elapsed() < time {
            engines.control("POST", &format!("/engines/{}/crash", victim % PODS), "");
            std::thread::sleep(Duration::from_secs(1));
            engines.control("POST", &format!("/engines/{}/restart", victim % PODS), "");
            std::thread::sleep(Duration::from_secs(1));
            victim += 3;
        }
        over.store(true, Relaxed);
    });
    let [whole, told, failed] =
        [&fates.whole, &fates.told, &fates.failed].map(|fate| fate.load(Relaxed));
    println!("{whole} whole, {told} broken and told, {failed} failed in {time:?}");
    assert_eq!(failed, 0, "{:?}", reasons.lock().unwrap());
    assert!(whole > 1000 && told > 0, "{whole} whole, {told} told: too quiet to prove anything");
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
        Ok(answer) if answer.text.contains("upstream_lost") => (Fate::Told, String::new()),
        Ok(answer) => (Fate::Failed, format!("just stopped: {}", answer.text)),
    }
}
