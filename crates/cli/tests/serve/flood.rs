//! An engine that reports several times more than a router keeps of a pod, as fast as the router
//! reads: its memory stays below 512 MiB at every moment, and clients are answered meanwhile.

use crate::support::engines::Engines;
use crate::support::gateway::{Gateway, eventually};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use wornpath_events::wire::{
    HashForm, WireBatch, WireDialect, WireEvent, WireLayout, WireStored, encode,
};
use wornpath_events::zmtp::{SocketKind, ZmtpListener};
use wornpath_index::{EngineHash, IndexLimits};

/// Blocks in a batch, of one token each.
const RUN: usize = 8192;
const MOST_MEMORY: f64 = 512.0;
/// What half of the requests meanwhile take at most: far more than they need, and less than they
/// took when the thread that listens to engines also opened the door.
const MOST_WAITED: Duration = Duration::from_millis(100);

/// A batch of blocks that no other batch has.
fn batch(number: u64) -> Vec<u8> {
    let name = |at: u64| EngineHash((number << 16 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let blocks: Vec<_> = (0..RUN as u64).map(name).collect();
    // The first token is this batch's own, and so is every hash behind it.
    let tokens: Vec<u32> = (0..RUN as u32).map(|at| number as u32 * 31 + at).collect();
    let mut batch = WireBatch::default();
    batch.push(WireEvent::Stored(WireStored::plain(&blocks, None, &tokens)));
    let mut payload = Vec::new();
    encode(
        &batch,
        WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned },
        &mut payload,
    );
    payload
}

/// Publishes so many batches to the first subscriber, and keeps the connection open.
async fn publish(mut listener: ZmtpListener, batches: u64) -> ZmtpListener {
    let mut subscriber = listener.accept().await.unwrap();
    subscriber.receive().await.expect("it subscribes");
    for number in 0..batches {
        let sequence = number.to_be_bytes();
        subscriber.send(&[&b"kv@flood"[..], &sequence, &batch(number)]).await.unwrap();
    }
    // Heard to the last, before the connection closes.
    let _ = tokio::time::timeout(Duration::from_secs(60), subscriber.receive()).await;
    listener
}

#[test]
fn a_flood_of_several_times_the_cap_stays_in_512_mib_and_delays_no_client() {
    let cap = IndexLimits::default().blocks_per_pod;
    // Ten times in the long run.
    let times = if std::env::var_os("WORNPATH_THOROUGH").is_some() { 10 } else { 3 };
    let batches = (times * cap / RUN) as u64;
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(ZmtpListener::bind("127.0.0.1:0", SocketKind::Pub)).unwrap();
    let engines = Engines::start(&["--model", "m"]);
    let text = format!(
        "models: [{{name: m, tokenizer: bytes, block_size: 1}}]\npods: [{{name: a, url: \"http://{}\", events: [\"zmq://{}\"]}}]\n",
        engines.engines[0].http,
        listener.address()
    );
    let gateway = Gateway::configured("flood", &text, 1);
    let is_over = AtomicBool::new(false);
    let started = Instant::now();
    let mut last = 0.0;
    let flood = runtime.spawn(publish(listener, batches));
    let mut waited = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut waited = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let sent = Instant::now();
                let answer =
                    gateway.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
                assert_eq!(answer.status, 200, "{}", answer.text);
                waited.push(sent.elapsed());
            }
            waited
        });
        while last + 1.0 < batches as f64 && !flood.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
            let page = gateway.get("/metrics").text;
            let line = "wornpath_pod_event_last_sequence{pod=\"a\"} ";
            let told = page.lines().find_map(|known| known.strip_prefix(line));
            last = told.map_or(0.0, |told| told.parse().unwrap());
        }
        is_over.store(true, Ordering::Relaxed);
        client.join().unwrap()
    });
    let took = started.elapsed();
    let most = gateway.memory("VmHWM");
    waited.sort_unstable();
    let middle = waited[waited.len() / 2];
    let slowest = waited[waited.len() - 1];
    println!(
        "flood: {} blocks of a cap of {cap} in {:.1} s, {most:.0} MiB at most; {} requests meanwhile, half within {:.1} ms, the slowest took {} ms",
        batches * RUN as u64,
        took.as_secs_f64(),
        waited.len(),
        middle.as_secs_f64() * 1e3,
        slowest.as_millis(),
    );
    assert_eq!(last as u64 + 1, batches, "all of it was heard");
    eventually("what fits is kept, and no more", || {
        gateway.metric("wornpath_pod_blocks{pod=\"a\"}") as usize == cap
    });
    assert!(most < MOST_MEMORY, "{most} MiB");
    assert!(middle < MOST_WAITED && slowest < Duration::from_secs(3), "{middle:?}, {slowest:?}");
    flood.abort();
}
