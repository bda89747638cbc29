//! The whole way from an engine's sockets to the index, with libzmq at the engine's end.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

#[path = "chaos/engine.rs"]
#[allow(dead_code, reason = "faults are not simulated here")]
mod engine;
mod peer;
mod saying;

use engine::{Engine, Random};
use peer::Peer;
use saying::serving;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use wornpath_events::wire::{HashForm, WireDialect, WireLayout, encode};
use wornpath_events::zmtp::{SocketKind, ZmtpListener, ZmtpPublisher};
use wornpath_events::{
    Capabilities, DialPolicy, EventClock, EventPods, FeedRules, FeedState, FeedStatus, PodName,
    SourceMessage, SourceQuery, SourceSignal, Transport, ZeroMq, consume, keep_time, supervise,
};
use wornpath_index::{Index, IndexLimits, PodId};

const DIALECT: WireDialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Digest };

/// A router's side: pods in an index, and tasks that feed them.
struct Router {
    pods: Arc<EventPods>,
    id: PodId,
    clock: EventClock,
    tasks: JoinSet<()>,
}

impl Router {
    fn new(name: &PodName) -> Self {
        let pods =
            Arc::new(EventPods::new(Index::new(IndexLimits::default(), 1), FeedRules::default()));
        let id = pods.add(name, serving()).unwrap();
        let (clock, mut tasks) = (EventClock::start(), JoinSet::new());
        let timed = Arc::clone(&pods);
        tasks.spawn(async move {
            keep_time(&timed, clock).await;
        });
        Self { pods, id, clock, tasks }
    }

    fn listen_to(name: &PodName, address: &str) -> Self {
        let mut router = Self::new(name);
        let transport = ZeroMq::new(Arc::clone(name), address.parse().unwrap());
        let (pods, clock) = (Arc::clone(&router.pods), router.clock);
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
        let end = self.clock.now() + limit;
        while !(exact() && self.status().state == FeedState::Live) {
            assert!(self.clock.now() < end, "not exact after {limit:?}: {:?}", self.status());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn payload(engine: &Engine) -> Vec<u8> {
    let mut payload = Vec::new();
    encode(engine.said.last().unwrap(), DIALECT, &mut payload);
    payload
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn libzmq_is_followed_through_loss_and_restart_with_and_without_topics() {
    if !peer::zmq_is_here() {
        return;
    }
    for form in ["topic", "bare"] {
        let (mut engine, mut random) = (Engine::new(), Random(3));
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
        // What was said before the router came, and what its first moments lost, comes by replay.
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
    let (mut engine, mut random) = (Engine::new(), Random(5));
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
    let (mut engine, mut random) = (Engine::new(), Random(7));
    let mut tasks = JoinSet::new();
    let (ring, mut asked) = tokio::sync::mpsc::channel::<(u64, Vec<u8>)>(10_000);
    tasks.spawn(async move {
        // The replay of a run of batches that nobody published.
        let mut connection = replay.accept().await.unwrap();
        connection.receive().await.unwrap();
        while let Ok((sequence, payload)) = asked.try_recv() {
            connection.send(&[&b""[..], &sequence.to_be_bytes(), &payload]).await.unwrap();
        }
        connection.send(&[&b""[..], &[0xFF; 8], b""]).await.unwrap();
        std::future::pending::<()>().await;
    });
    for sequence in 0..1500_u64 {
        engine.step(&mut random);
        let _ = ring.try_send((sequence, payload(&engine)));
        if sequence >= 100 {
            publisher.send(&[&b""[..], &sequence.to_be_bytes(), &payload(&engine)]);
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
    assert_eq!(router.status().counters.failures, 0, "{:?}", router.status());
    router.until_exact(&engine, SECOND * 3).await;
}

/// Says that it is there, and panics when asked, the first time.
struct Fragile {
    engine: Arc<Engine>,
    lives: Arc<AtomicUsize>,
    said: usize,
    asked: bool,
}

impl Transport for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }

    fn abilities(&self) -> Capabilities {
        Capabilities { replay: false, snapshot: true, relayed: false }
    }

    async fn next(&mut self) -> SourceSignal {
        self.said += 1;
        match self.said {
            1 => SourceSignal::Of("pod".into(), SourceMessage::Connected),
            _ if self.asked && self.lives.fetch_add(1, Ordering::Relaxed) == 0 => {
                panic!("a consumer that fails, as the test wants it")
            }
            _ if self.asked => {
                self.asked = false;
                let (heading, batch) = self.engine.snapshot();
                SourceSignal::Of(
                    "pod".into(),
                    SourceMessage::Snapshot { heading, batch: Box::new(batch) },
                )
            }
            _ => std::future::pending().await,
        }
    }

    fn ask(&mut self, _pod: &PodName, _ask: SourceQuery) {
        self.asked = true;
    }
}

#[tokio::test]
async fn a_consumer_that_panics_is_replaced_and_its_pods_are_put_right() {
    let mut engine = Engine::new();
    (0..50).for_each(|_| engine.step(&mut Random(9)));
    let engine = Arc::new(engine);
    let mut router = Router::new(&"pod".into());
    let lives = Arc::new(AtomicUsize::new(0));
    let (pods, clock) = (Arc::clone(&router.pods), router.clock);
    let (told, counted) = (Arc::clone(&engine), Arc::clone(&lives));
    router.tasks.spawn(async move {
        let make = move || Fragile {
            engine: Arc::clone(&told),
            lives: Arc::clone(&counted),
            said: 0,
            asked: false,
        };
        supervise(make, &pods, clock).await;
    });
    router.until_exact(&engine, SECOND * 3).await;
    assert_eq!(lives.load(Ordering::Relaxed), 2);
}

/// The name is allowed or not by what it stands for, at each attempt.
#[tokio::test]
async fn a_name_that_stands_for_a_forbidden_address_is_not_connected_to() {
    let mut publisher = ZmtpListener::bind("127.0.0.1:0", SocketKind::Pub).await.unwrap();
    let port = publisher.address().port();
    let guests = Arc::new(AtomicUsize::new(0));
    let (met, mut tasks) = (Arc::clone(&guests), JoinSet::new());
    tasks.spawn(async move {
        let mut kept = Vec::new();
        loop {
            kept.push(publisher.accept().await);
            met.fetch_add(1, Ordering::Relaxed);
        }
    });
    let is_forbidden = Arc::new(AtomicUsize::new(1));
    let asked = Arc::clone(&is_forbidden);
    let judge: DialPolicy = Arc::new(move |address| match asked.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(format!("{address} is no pod")),
    });
    let address = format!("zmq://localhost:{port}").parse().unwrap();
    let mut transport = ZeroMq::new("pod".into(), address).judged_by(judge);
    let heard = transport.next().await;
    let SourceSignal::Of(_, SourceMessage::Unreachable(told)) = heard else { panic!("{heard:?}") };
    assert!(tokio::time::timeout(SECOND / 2, transport.next()).await.is_err(), "said once");
    assert_eq!(transport.last_error(), Some(told.as_str()));
    assert!(told.starts_with("localhost:") && told.ends_with("is no pod"), "{told}");
    assert_eq!(guests.load(Ordering::Relaxed), 0);
    is_forbidden.store(0, Ordering::Relaxed);
    let heard = tokio::time::timeout(SECOND * 5, transport.next()).await.unwrap();
    assert!(matches!(heard, SourceSignal::Of(_, SourceMessage::Connected)), "{heard:?}");
}
