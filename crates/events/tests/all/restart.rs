//! A router that starts has an empty index, and engines that have been busy for long. It gets all
//! that they hold by replay, over real sockets, and two routers come to the same. With a checkpoint
//! of what the first knew, a third gets nothing but the confirmation.
//!
//! By default the engines hold little, so that this is quick; with `WORNPATH_RESTART=full` there
//! are 64 pods with 20,000 blocks each, and they must all be exact within five seconds.
#![allow(clippy::disallowed_methods, reason = "the promise is about the clock")]

use crate::stores::{BLOCK, served_model, stored};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use wornpath_events::checkpoint;
use wornpath_events::wire::{HashForm, WireBatch, WireDialect, WireLayout, WireMessage, encode};
use wornpath_events::zmtp::{SocketKind, ZmtpConnection, ZmtpListener, ZmtpPublisher};
use wornpath_events::{
    Clock, EventPods, FeedRules, FeedState, Resumed, ZeroMq, ZmqAddress, consume, run_timers,
};
use wornpath_index::{BlockDigest, Capacity, EngineHash, Index, IndexLimits, PodId};

const PODS: usize = 64;
/// Blocks in a batch, about what an engine stores in a step.
const BLOCKS: usize = 10;
const WITHIN: Duration = Duration::from_secs(5);

/// An engine that has published `batches` batches and is idle.
struct Engine {
    address: ZmqAddress,
    _publisher: ZmtpPublisher,
}

impl Engine {
    async fn start(pod: usize, batches: usize, tasks: &mut JoinSet<()>) -> Self {
        let said: Arc<[Vec<u8>]> = (0..batches).map(|number| payload(pod, number)).collect();
        let publisher = ZmtpPublisher::bind("127.0.0.1:0").await.unwrap();
        let mut replay = ZmtpListener::bind("127.0.0.1:0", SocketKind::Router).await.unwrap();
        let events = publisher.address();
        let port = replay.address().port();
        tasks.spawn(async move {
            let mut asked = JoinSet::new();
            while let Ok(connection) = replay.accept().await {
                asked.spawn(answer(connection, Arc::clone(&said)));
            }
        });
        let address = format!("zmq://{events}?replay={port}").parse().unwrap();
        Self { address, _publisher: publisher }
    }
}

async fn answer(mut connection: ZmtpConnection<tokio::net::TcpStream>, said: Arc<[Vec<u8>]>) {
    while let Ok(frames) = connection.receive().await {
        let from = u64::from_be_bytes(frames.last().unwrap()[..].try_into().unwrap());
        for (number, payload) in said.iter().enumerate().skip(from as usize) {
            let number = (number as u64).to_be_bytes();
            let frames: [&[u8]; 4] = [b"", b"kv", &number, payload];
            if connection.send(&frames).await.is_err() {
                return;
            }
        }
        let end = WireMessage::REPLAY_END.to_be_bytes();
        if connection.send(&[&b""[..], b"", &end, b""]).await.is_err() {
            return;
        }
    }
}

fn payload(pod: usize, number: usize) -> Vec<u8> {
    let name = |number: usize, block: usize| {
        let place = (pod << 40) + number * BLOCKS + block + 1;
        EngineHash((place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    };
    let names: Vec<_> = (0..BLOCKS).map(|block| name(number, block)).collect();
    // Every tenth batch begins a prompt, and the pods of a pair hold the same prompts.
    let parent = (!number.is_multiple_of(10)).then(|| name(number - 1, BLOCKS - 1));
    let first = (pod / 2 * 1_000_003 + number * BLOCKS * BLOCK) as u32;
    let tokens: Vec<u32> = (0..(BLOCKS * BLOCK) as u32).map(|at| (first + at) % 150_000).collect();
    let mut batch = WireBatch::default();
    batch.push(stored(&names, parent, &tokens));
    let mut bytes = Vec::new();
    encode(
        &batch,
        WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned },
        &mut bytes,
    );
    bytes
}

/// A router as `wornpath serve` runs it: all events on one thread.
struct Router {
    runtime: Runtime,
    pods: Arc<EventPods>,
    ids: Vec<PodId>,
    clock: Clock,
}

impl Router {
    fn start(engines: &[Engine], checkpoint: Option<&Path>) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let limits =
            IndexLimits { capacity: Capacity::for_pods(256).unwrap(), ..IndexLimits::default() };
        let pods = Arc::new(EventPods::new(Index::new(limits, 1), FeedRules::default()));
        if let Some(file) = checkpoint {
            pods.load_checkpoint(checkpoint::read(file).unwrap());
        }
        let clock = Clock::start();
        let timed = Arc::clone(&pods);
        runtime.spawn(async move {
            run_timers(&timed, clock).await;
        });
        let mut ids = Vec::new();
        for (number, engine) in engines.iter().enumerate() {
            let name: Arc<str> = format!("pod {number}").into();
            ids.push(pods.add(&name, served_model()).unwrap());
            let fed = Arc::clone(&pods);
            let address = engine.address.clone();
            runtime.spawn(async move {
                consume(ZeroMq::new(name, address), &fed, clock).await;
            });
        }
        Self { runtime, pods, ids, clock }
    }

    /// How long it takes until every pod is known exactly.
    fn exact_after(&self, blocks: usize, start: Instant) -> Duration {
        loop {
            let status = self.pods.status(self.clock.now());
            let live = status.iter().filter(|pod| pod.status.state == FeedState::Live).count();
            let exact = self.digests().iter().filter(|one| one.count == blocks as u64).count();
            if live == PODS && exact == PODS {
                return start.elapsed();
            }
            let waited = start.elapsed();
            assert!(waited < WITHIN * 6, "{live} live and {exact} exact after {waited:?}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    fn digests(&self) -> Vec<BlockDigest> {
        self.ids.iter().map(|id| self.pods.index().digest(*id).unwrap().blocks).collect()
    }
}

#[test]
fn a_restarted_router_is_exact_after_replays_and_with_a_checkpoint_after_none() {
    let is_full = std::env::var("WORNPATH_RESTART").is_ok_and(|value| value == "full");
    let batches = if is_full { 2000 } else { 60 };
    let world = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut tasks = JoinSet::new();
    let engines: Vec<_> = world.block_on(async {
        let mut engines = Vec::new();
        let _inside = world.enter();
        for pod in 0..PODS {
            engines.push(Engine::start(pod, batches, &mut tasks).await);
        }
        engines
    });
    let blocks = batches * BLOCKS;
    let start = Instant::now();
    let first = Router::start(&engines, None);
    let took = first.exact_after(blocks, start);
    println!("{PODS} pods of {blocks} blocks exact after {took:?}");
    assert!(!is_full || took < WITHIN, "{took:?}");
    let second = Router::start(&engines, None);
    second.exact_after(blocks, Instant::now());
    assert_eq!(first.digests(), second.digests());
    let distinct: HashSet<_> = first.digests().iter().map(|one| one.xor).collect();
    assert_eq!(distinct.len(), PODS / 2, "a digest tells different prompts apart, and only those");

    let file = std::env::temp_dir().join(format!("wornpath-restart-{}", std::process::id()));
    let start = Instant::now();
    let written = first.pods.write_checkpoint(&file).unwrap();
    println!("checkpoint of {} bytes written in {:?}", written.bytes, start.elapsed());
    assert_eq!((written.pods, written.left_out), (PODS, 0));
    let start = Instant::now();
    let third = Router::start(&engines, Some(&file));
    let warm = third.exact_after(blocks, start);
    println!("with it, all pods exact after {warm:?}");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(first.digests(), third.digests());
    for pod in third.pods.status(third.clock.now()) {
        assert_eq!(pod.status.resumed, Some(Resumed::Confirmed), "{pod:?}");
        assert_eq!(pod.status.counters.batches, 0, "nothing was published since: {pod:?}");
    }
    for router in [first, second, third] {
        router.runtime.shutdown_background();
    }
}
