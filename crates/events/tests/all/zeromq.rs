//! The whole way from an engine's sockets to the index, with libzmq at the engine's end.

use crate::engine::{Engine, Random};
use crate::peer::{self, Peer};
use crate::stores::served_model;
use crate::wait::until;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use wornpath_events::wire::{HashForm, WireBatch, WireDialect, WireEvent, WireLayout, encode};
use wornpath_events::zmtp::{SocketKind, ZmtpListener, ZmtpPublisher};
use wornpath_events::{
    Capabilities, Clock, DialPolicy, EventPods, FeedRules, FeedState, FeedStatus, PodName,
    SourceMessage, SourceQuery, SourceSignal, Transport, ZeroMq, consume, run_timers, supervise,
};
use wornpath_index::{Index, IndexLimits, PodId};

const DIALECT: WireDialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Digest };

/// A router's side: pods in an index, and tasks that feed them.
struct Router {
    pods: Arc<EventPods>,
    id: PodId,
    clock: Clock,
    tasks: JoinSet<()>,
}

impl Router {
    fn new(name: &PodName) -> Self {
        let pods =
            Arc::new(EventPods::new(Index::new(IndexLimits::default(), 1), FeedRules::default()));
        let id = pods.add(name, served_model()).unwrap();
        let clock = Clock::start();
        let mut tasks = JoinSet::new();
        let timed = Arc::clone(&pods);
        tasks.spawn(async move {
            run_timers(&timed, clock).await;
        });
        Self { pods, id, clock, tasks }
    }

    fn listen_to(name: &PodName, address: &str) -> Self {
        let mut router = Self::new(name);
        let transport = ZeroMq::new(Arc::clone(name), address.parse().unwrap());
        let pods = Arc::clone(&router.pods);
        let clock = router.clock;
        router.tasks.spawn(async move {
            consume(transport, &pods, clock).await;
        });
        router
    }

    fn status(&self) -> FeedStatus {
        self.pods.status(self.clock.now()).remove(0).status
    }

    /// Waits until the index holds what the engine holds.
    async fn until_exact(&self, engine: &Engine, limit: Duration) {
        let exact = || self.pods.index().digest(self.id).unwrap().tiers == engine.digest().tiers;
        let is_done = || exact() && self.status().state == FeedState::Live;
        until(limit, is_done, || format!("{:?}", self.status())).await;
    }
}

fn payload(engine: &Engine) -> Vec<u8> {
    let mut payload = Vec::new();
    encode(engine.batches.last().unwrap(), DIALECT, &mut payload);
    payload
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn libzmq_is_followed_through_loss_and_restart_with_and_without_topics() {
    if !peer::zmq_is_here() {
        return;
    }
    for form in ["topic", "bare"] {
        let mut engine = Engine::new();
        let mut random = Random(3);
        let mut publisher = Peer::start("publisher.py", &["0", "0", "kv@pod@model", form]);
        let ports = publisher.line();
        let (publish, replay) = ports.split_once(' ').unwrap();
        let address = format!("zmq://127.0.0.1:{publish}?replay={replay}&topic=kv@");
        let mut say = |publisher: &mut Peer, engine: &mut Engine, command, times| {
            for _ in 0..times {
                engine.step(&mut random);
                publisher.say(command, &payload(engine));
            }
        };
        // Batches from before the connection come by replay.
        say(&mut publisher, &mut engine, "send", 50);
        let router = Router::listen_to(&"pod".into(), &address);
        router.until_exact(&engine, SECOND * 3).await;
        say(&mut publisher, &mut engine, "lose", 2);
        say(&mut publisher, &mut engine, "send", 20);
        router.until_exact(&engine, SECOND * 3).await;
        // A lost tail: nothing comes after it.
        say(&mut publisher, &mut engine, "lose", 2);
        router.until_exact(&engine, SECOND * 3).await;

        drop(publisher);
        engine.restart();
        let mut publisher = Peer::start("publisher.py", &[publish, replay, "kv@pod@model", form]);
        publisher.line();
        say(&mut publisher, &mut engine, "send", 30);
        router.until_exact(&engine, SECOND * 5).await;
        let counters = router.status().counters;
        assert_eq!((counters.restarts, counters.rebuilds), (1, 0), "{counters:?}");
    }
}

#[tokio::test]
async fn an_engine_without_replay_is_followed_from_its_first_batch() {
    let publisher = ZmtpPublisher::bind("127.0.0.1:0").await.unwrap();
    let router = Router::listen_to(&"pod".into(), &format!("zmq://{}", publisher.address()));
    publisher.subscribed(1).await;
    let mut engine = Engine::new();
    let mut random = Random(5);
    for sequence in 0..100_u64 {
        engine.step(&mut random);
        publisher.send(&[&b"any"[..], &sequence.to_be_bytes(), &payload(&engine)]);
    }
    router.until_exact(&engine, SECOND * 3).await;
}

#[tokio::test]
async fn a_busy_stream_does_not_keep_a_replay_from_coming() {
    let publisher = ZmtpPublisher::bind("127.0.0.1:0").await.unwrap();
    let mut replay = ZmtpListener::bind("127.0.0.1:0", SocketKind::Router).await.unwrap();
    let ports = (publisher.address(), replay.address().port());
    let router = Router::listen_to(&"pod".into(), &format!("zmq://{}?replay={}", ports.0, ports.1));
    publisher.subscribed(1).await;
    let mut engine = Engine::new();
    let mut random = Random(7);
    let mut tasks = JoinSet::new();
    let (ring, mut asked) = tokio::sync::mpsc::channel::<(u64, Vec<u8>)>(10_000);
    tasks.spawn(async move {
        // Replays the first batches, which were not published.
        let mut connection = replay.accept().await.unwrap();
        connection.receive().await.unwrap();
        while let Ok((sequence, payload)) = asked.try_recv() {
            connection.send(&[&b""[..], &sequence.to_be_bytes(), &payload]).await.unwrap();
        }
        connection.send(&[&b""[..], &[0xFF; 8], b""]).await.unwrap();
        std::future::pending::<()>().await;
    });
    // A batch every millisecond, so that the replay comes in the middle of the stream.
    let mut pace = tokio::time::interval(Duration::from_millis(1));
    for sequence in 0..600_u64 {
        engine.step(&mut random);
        let _ = ring.try_send((sequence, payload(&engine)));
        if sequence >= 100 {
            publisher.send(&[&b""[..], &sequence.to_be_bytes(), &payload(&engine)]);
            pace.tick().await;
        }
    }
    assert_eq!(router.status().counters.failures, 0, "{:?}", router.status());
    router.until_exact(&engine, SECOND * 3).await;
}

/// Connects, and panics at the first query.
struct Fragile {
    engine: Arc<Engine>,
    runs: Arc<AtomicUsize>,
    said: usize,
    asked: bool,
}

impl Transport for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { replay: false, snapshot: true, relayed: false }
    }

    async fn next(&mut self) -> SourceSignal {
        self.said += 1;
        match self.said {
            1 => SourceSignal::Pod("pod".into(), SourceMessage::Connected),
            _ if self.asked && self.runs.fetch_add(1, Ordering::Relaxed) == 0 => {
                panic!("a consumer that fails, as the test wants it")
            }
            _ if self.asked => {
                self.asked = false;
                let (id, batch) = self.engine.snapshot();
                SourceSignal::Pod(
                    "pod".into(),
                    SourceMessage::Snapshot { id, batch: Box::new(batch) },
                )
            }
            _ => std::future::pending().await,
        }
    }

    fn query(&mut self, _pod: &PodName, _query: SourceQuery) {
        self.asked = true;
    }
}

#[tokio::test]
async fn a_transport_that_panics_is_replaced_and_its_pods_recover() {
    let mut engine = Engine::new();
    (0..50).for_each(|_| engine.step(&mut Random(9)));
    let engine = Arc::new(engine);
    let mut router = Router::new(&"pod".into());
    let runs = Arc::new(AtomicUsize::new(0));
    let pods = Arc::clone(&router.pods);
    let clock = router.clock;
    let told = Arc::clone(&engine);
    let counted = Arc::clone(&runs);
    router.tasks.spawn(async move {
        let make = move || Fragile {
            engine: Arc::clone(&told),
            runs: Arc::clone(&counted),
            said: 0,
            asked: false,
        };
        supervise(make, &pods, clock).await;
    });
    router.until_exact(&engine, SECOND * 3).await;
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

/// The name is allowed or not by what it stands for, at each attempt.
#[tokio::test]
async fn a_name_that_resolves_to_a_forbidden_address_is_not_dialed() {
    let mut publisher = ZmtpListener::bind("127.0.0.1:0", SocketKind::Pub).await.unwrap();
    let port = publisher.address().port();
    let tokens = Arc::new(AtomicUsize::new(0));
    let met = Arc::clone(&tokens);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut kept = Vec::new();
        loop {
            kept.push(publisher.accept().await);
            met.fetch_add(1, Ordering::Relaxed);
        }
    });
    let is_forbidden = Arc::new(AtomicUsize::new(1));
    let attempts = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&is_forbidden);
    let counted = Arc::clone(&attempts);
    let policy: DialPolicy = Arc::new(move |address| {
        counted.fetch_add(1, Ordering::Relaxed);
        match asked.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(format!("{address} is no pod")),
        }
    });
    let address = format!("zmq://localhost:{port}").parse().unwrap();
    let mut transport = ZeroMq::new("pod".into(), address).with_dial_policy(policy);
    let heard = transport.next().await;
    let SourceSignal::Pod(_, SourceMessage::Unreachable(told)) = heard else { panic!("{heard:?}") };
    let before = attempts.load(Ordering::Relaxed);
    let are_more = || attempts.load(Ordering::Relaxed) >= before + 4;
    tokio::select! {
        again = transport.next() => panic!("said once: {again:?}"),
        () = until(SECOND * 10, are_more, || "four more attempts".to_owned()) => {}
    }
    assert_eq!(transport.last_error(), Some(told.as_str()));
    assert!(told.starts_with("localhost:") && told.ends_with("is no pod"), "{told}");
    assert_eq!(tokens.load(Ordering::Relaxed), 0);
    is_forbidden.store(0, Ordering::Relaxed);
    let heard = tokio::time::timeout(SECOND * 5, transport.next()).await.unwrap();
    assert!(matches!(heard, SourceSignal::Pod(_, SourceMessage::Connected)), "{heard:?}");
}

/// Publishes batches that store nothing and one that stores a block, as fast as they are read.
/// Returns the status once the block is in the index.
async fn flood(batch: &WireBatch, batches: u64) -> FeedStatus {
    let mut listener = ZmtpListener::bind("127.0.0.1:0", SocketKind::Pub).await.unwrap();
    let router = Router::listen_to(&"pod".into(), &format!("zmq://{}", listener.address()));
    let mut publisher = listener.accept().await.unwrap();
    let mut flooding = Vec::new();
    encode(batch, DIALECT, &mut flooding);
    let mut engine = Engine::new();
    engine.step(&mut Random(11));
    for sequence in 0..batches {
        publisher.send(&[&b""[..], &sequence.to_be_bytes(), &flooding]).await.unwrap();
    }
    publisher.send(&[&b""[..], &batches.to_be_bytes(), &payload(&engine)]).await.unwrap();
    let is_applied = || router.status().last_sequence == Some(batches);
    until(SECOND * 20, is_applied, || format!("{:?}", router.status())).await;
    router.status()
}

#[tokio::test]
async fn a_flood_of_batches_that_name_no_block_is_throttled_and_a_flood_of_stores_is_not() {
    let mut clear = WireBatch::default();
    clear.push(WireEvent::Cleared);
    let cleared = flood(&clear, 25_000).await.counters;
    assert!(cleared.throttled > 0, "{cleared:?}");
    assert_eq!((cleared.batches, cleared.gaps), (25_001, 0), "and nothing is lost: {cleared:?}");
    let mut engine = Engine::new();
    engine.step(&mut Random(12));
    let stored = flood(engine.batches.last().unwrap(), 25_000).await.counters;
    assert_eq!((stored.throttled, stored.batches), (0, 25_001), "{stored:?}");
}
