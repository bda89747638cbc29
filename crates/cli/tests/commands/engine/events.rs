//! The cache events of `wornpath engine`: the same as a real engine's, and their faults.

use crate::support::engines::{Engines, Ports};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use wornpath_events::wire::{WireBatch, WireEvent, WireLimits, WireMessage, decode, records};
use wornpath_events::zmtp::{SocketKind, ZmtpConnection};

/// A subscriber to one engine's events.
struct Subscriber {
    runtime: Runtime,
    stream: ZmtpConnection<TcpStream>,
}

/// A numbered batch: the names that came and those that went, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Told {
    sequence: u64,
    stored: Vec<u64>,
    removed: Vec<u64>,
    cleared: usize,
}

impl Told {
    fn read<F: AsRef<[u8]>>(frames: &[F]) -> Option<Self> {
        let WireMessage::Batch { sequence, payload, .. } = WireMessage::parse(frames).unwrap()
        else {
            return None;
        };
        let mut batch = WireBatch::default();
        decode(payload, &WireLimits::default(), &mut batch).unwrap();
        let mut told = Self { sequence, ..Self::default() };
        for event in batch.events() {
            match event {
                WireEvent::Stored(stored) => {
                    told.stored.extend(stored.blocks.iter().map(|name| name.0));
                }
                WireEvent::Removed(removed) => {
                    told.removed.extend(removed.blocks.iter().map(|name| name.0));
                }
                WireEvent::Cleared => told.cleared += 1,
            }
        }
        Some(told)
    }
}

impl Subscriber {
    /// Subscribes, and waits until the engine's events arrive: a subscription takes its time to get
    /// there.
    fn start(served: &Engines) -> Self {
        let runtime = Runtime::new().unwrap();
        let events = served.engines[0].events.clone();
        let stream = runtime.block_on(async {
            let mut stream = ZmtpConnection::connect(events, SocketKind::Sub).await.unwrap();
            stream.subscribe(b"kv@").await.unwrap();
            stream
        });
        let mut this = Self { runtime, stream };
        for attempt in 0.. {
            let prompt: Vec<u32> = (0..33).map(|token| 1_000 + 40 * attempt + token).collect();
            served.complete(0, &json!({"prompt": prompt, "max_tokens": 1}));
            if this.next_within(Duration::from_millis(50)).is_some() {
                break;
            }
        }
        this
    }

    fn next_within(&mut self, time: Duration) -> Option<Told> {
        let stream = &mut self.stream;
        let frames =
            self.runtime.block_on(async { tokio::time::timeout(time, stream.receive()).await });
        frames.ok().map(|frames| Told::read(&frames.unwrap()).expect("a batch"))
    }

    fn next(&mut self) -> Told {
        self.next_within(Duration::from_secs(20)).expect("an event")
    }
}

/// What replay gives from `start` on, or nothing if it does not answer.
fn replay(runtime: &Runtime, ports: &Ports, start: u64) -> Option<Vec<Told>> {
    runtime.block_on(async {
        let mut asked = ZmtpConnection::connect(&ports.replay, SocketKind::Dealer).await.unwrap();
        asked.send(&[&b""[..], &start.to_be_bytes()]).await.unwrap();
        let mut batches = Vec::new();
        loop {
            let answer = tokio::time::timeout(Duration::from_millis(300), asked.receive()).await;
            match Told::read(&answer.ok()?.unwrap()) {
                Some(told) => batches.push(told),
                None => return Some(batches),
            }
        }
    })
}

/// A prompt that fills two blocks of 16 and shares nothing with others.
fn prompt(number: u32) -> Value {
    let tokens: Vec<u32> = (0..33).map(|token| 10_000 * number + token).collect();
    json!({"prompt": tokens, "max_tokens": 1})
}

#[test]
fn the_same_requests_store_and_evict_the_same_blocks_as_in_a_real_engine() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../events/tests/fixtures/vllm-0.32");
    let script = std::fs::read_to_string(format!("{fixtures}/serve_sha256_cbor.json")).unwrap();
    let script: Value = serde_json::from_str(&script).unwrap();
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../blocks/tests/models/tiny-llama");
    // vLLM keeps one of its 64 blocks for itself.
    let served = Engines::start(&[
        "--model",
        "tiny",
        "--tokenizer",
        tokenizer,
        "--hash-algorithm",
        "sha256_cbor",
        "--block-size",
        "32",
        "--kv-tokens",
        "2016",
    ]);
    for step in script["steps"].as_array().unwrap() {
        let path = step["path"].as_str().unwrap();
        let request = &step["request"];
        let mut requests = vec![request.clone()];
        if step["name"] == "batch_2_prompts" {
            let prompts = request["prompt"].as_array().unwrap().iter();
            requests = prompts
                .map(|tokens| {
                    let mut one = request.clone();
                    one["prompt"] = tokens.clone();
                    one
                })
                .collect();
        }
        let answers: Vec<_> =
            requests.iter().map(|request| served.post(0, path, request)).collect();
        assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
        if path == "/tokenize" {
            assert_eq!(answers[0].json()["tokens"], step["response"]["tokens"], "{path}");
        }
        if let Some(usage) = step["response"].get("usage") {
            let cached: u64 = answers.iter().map(|answer| answer.cached_tokens()).sum();
            let prompt: u64 = answers
                .iter()
                .map(|answer| answer.json()["usage"]["prompt_tokens"].as_u64().unwrap())
                .sum();
            assert_eq!(prompt, usage["prompt_tokens"], "{}", step["name"]);
            assert_eq!(cached, usage["prompt_tokens_details"]["cached_tokens"], "{}", step["name"]);
        }
    }
    let ours = replay(&Runtime::new().unwrap(), &served.engines[0], 0).unwrap();
    let real = std::fs::read(format!("{fixtures}/serve_sha256_cbor.bin")).unwrap();
    let real: Vec<Told> =
        records(&real).filter_map(|frames| Told::read(&frames.unwrap())).collect();
    compare(&real, &ours);
}

/// Blocks with generated tokens have other names, because the model is another; everything else is
/// equal.
fn compare(real: &[Told], ours: &[Told]) {
    let stored =
        |all: &[Told]| -> Vec<u64> { all.iter().flat_map(|told| told.stored.clone()).collect() };
    let removed =
        |all: &[Told]| -> Vec<u64> { all.iter().flat_map(|told| told.removed.clone()).collect() };
    let real_stored = stored(real);
    let ours_stored = stored(ours);
    let names: HashMap<u64, u64> =
        real_stored.iter().copied().zip(ours_stored.iter().copied()).collect();
    let renamed = names.iter().filter(|(real, ours)| real != ours).count();
    assert_eq!(renamed, 3, "three blocks were filled by decoding");
    let expected: Vec<u64> = removed(real).iter().map(|name| names[name]).collect();
    assert!(!expected.is_empty());
    assert_eq!(real_stored.len(), ours_stored.len());
    assert_eq!(removed(ours), expected);
    assert_eq!(ours.iter().map(|told| told.cleared).sum::<usize>(), 1);
}

#[test]
fn events_are_numbered_and_replay_repeats_them_until_a_restart_begins_at_0() {
    let served = Engines::start(&[]);
    let mut subscriber = Subscriber::start(&served);
    served.complete(0, &prompt(1));
    served.complete(0, &prompt(2));
    let first = subscriber.next();
    let second = subscriber.next();
    assert_eq!((first.stored.len(), second.stored.len()), (2, 2));
    assert_eq!(second.sequence, first.sequence + 1);
    let replayed = replay(&subscriber.runtime, &served.engines[0], first.sequence).unwrap();
    assert_eq!(replayed, [first.clone(), second]);
    assert_eq!(replay(&subscriber.runtime, &served.engines[0], 1_000), Some(vec![]));

    served.control("POST", "/engines/0/restart", "");
    let stream = &mut subscriber.stream;
    subscriber.runtime.block_on(stream.receive()).expect_err("the connection is closed");
    served.complete(0, &prompt(1));
    let replayed = replay(&subscriber.runtime, &served.engines[0], 0).unwrap();
    assert_eq!(replayed[0], Told { sequence: 0, ..first });
}

#[test]
fn each_fault_of_the_events_does_what_its_name_says() {
    let served = Engines::start(&[]);
    let ports = served.engines[0].clone();
    let mut subscriber = Subscriber::start(&served);
    let mut prompts = (1..).map(prompt);
    let mut store = || served.complete(0, &prompts.next().unwrap());
    store();
    let mut expected = subscriber.next().sequence + 1;

    served.set_faults(0, r#"{"duplicate_events": true}"#);
    store();
    let first = subscriber.next();
    let second = subscriber.next();
    assert_eq!((first.sequence, &first), (expected, &second));
    expected += 1;

    served.set_faults(0, r#"{"reorder_events": true}"#);
    store();
    store();
    assert_eq!(
        [subscriber.next(), subscriber.next()].map(|told| told.sequence),
        [expected + 1, expected]
    );
    expected += 2;

    served.set_faults(0, r#"{"drop_events_every": 2}"#);
    for _ in 0..4 {
        store();
    }
    let seen = [subscriber.next(), subscriber.next()].map(|told| told.sequence);
    assert!(seen.iter().all(|sequence| sequence % 2 == 0), "{seen:?}");
    let replayed = replay(&subscriber.runtime, &ports, expected).unwrap();
    assert_eq!(replayed.len(), 4, "replay has what was dropped");
    expected += 4;

    served.set_faults(0, r#"{"lose_tail": true}"#);
    store();
    assert_eq!(replay(&subscriber.runtime, &ports, expected).unwrap().len(), 1);
    served.set_faults(0, "{}");
    store();
    assert_eq!(subscriber.next().sequence, expected + 1, "the one before was not published");

    served.set_faults(0, r#"{"no_replay": true}"#);
    assert_eq!(replay(&subscriber.runtime, &ports, 0), None);
}
