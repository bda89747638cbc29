//! The way of events over real brokers: engine, relay, broker, router. A broker may be away at the start, be
//! killed and be wiped; once it is back, the router's index is what the engine holds.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![cfg(any(feature = "redis", feature = "nats", feature = "kafka"))]

#[path = "chaos/engine.rs"]
#[allow(dead_code, reason = "faults are not simulated here")]
mod engine;
mod saying;
mod server;

use engine::{Engine, Random};
use saying::serving;
use server::Server;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use wornpath_events::wire::{Envelope, HashForm, WireBatch, WireDialect, WireLayout, encode};
use wornpath_events::{
    BatchId, Capabilities, Delivery, Epoch, EventClock, EventPods, FeedRules, FeedState, PodName,
    Sink, SourceMessage, SourceQuery, SourceSignal, Transport, consume, keep_time, relay,
};
use wornpath_index::{Index, IndexLimits, PodId};

const POD: &str = "http://10.0.0.1:8000";
const DIALECT: WireDialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned };

/// An engine that can be listened to without a network: live batches, and replay.
#[derive(Clone)]
struct Listening {
    engine: Arc<Mutex<Engine>>,
    life: u64,
    heard: u64,
    answers: VecDeque<SourceMessage>,
}

impl Listening {
    fn to(engine: &Arc<Mutex<Engine>>) -> Self {
        let connected = VecDeque::from([SourceMessage::Connected]);
        Self { engine: Arc::clone(engine), life: 0, heard: 0, answers: connected }
    }
}

impl Transport for Listening {
    fn name(&self) -> &str {
        "engine"
    }

    fn abilities(&self) -> Capabilities {
        Capabilities { replay: true, snapshot: false, relayed: false }
    }

    async fn next(&mut self) -> SourceSignal {
        loop {
            if let Some(said) = self.answers.pop_front() {
                return SourceSignal::Of(POD.into(), said);
            }
            let said = {
                let engine = self.engine.lock().unwrap();
                if engine.life != self.life {
                    (self.life, self.heard) = (engine.life, 0);
                    self.answers.push_back(SourceMessage::Disconnected);
                    self.answers.push_back(SourceMessage::Connected);
                    continue;
                }
                (self.heard < engine.said.len() as u64)
                    .then(|| batch(&engine, self.heard, Delivery::Live))
            };
            if let Some(said) = said {
                self.heard += 1;
                return SourceSignal::Of(POD.into(), said);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn ask(&mut self, _pod: &PodName, ask: SourceQuery) {
        let SourceQuery::Replay { from } = ask else { return };
        let engine = self.engine.lock().unwrap();
        let numbers = from..engine.said.len() as u64;
        self.answers.extend(numbers.map(|number| batch(&engine, number, Delivery::Replay)));
        self.answers.push_back(SourceMessage::ReplayEnd);
    }
}

fn batch(engine: &Engine, sequence: u64, via: Delivery) -> SourceMessage {
    let heading = BatchId { epoch: None, ..engine.heading(sequence) };
    SourceMessage::Batch { heading, via, batch: Box::new(engine.said[sequence as usize].clone()) }
}

/// A router that gets its events from a broker.
struct Router {
    pods: Arc<EventPods>,
    id: PodId,
    clock: EventClock,
    _tasks: JoinSet<()>,
}

impl Router {
    fn new(transport: impl Transport + 'static) -> Self {
        let pods =
            Arc::new(EventPods::new(Index::new(IndexLimits::default(), 1), FeedRules::default()));
        let id = pods.add(&POD.into(), serving()).unwrap();
        let (clock, mut tasks) = (EventClock::start(), JoinSet::new());
        let fed = Arc::clone(&pods);
        tasks.spawn(async move {
            tokio::join!(consume(transport, &fed, clock), keep_time(&fed, clock)).0;
        });
        Self { pods, id, clock, _tasks: tasks }
    }

    async fn until_exact(&self, engine: &Arc<Mutex<Engine>>, when: &str) {
        let limit = Duration::from_secs(5);
        let end = self.clock.now() + limit;
        loop {
            let ours = self.pods.index().digest(self.id).unwrap().tiers;
            let theirs = engine.lock().unwrap().digest().tiers;
            let status = self.pods.status(self.clock.now()).remove(0).status;
            if ours == theirs && status.state == FeedState::Live {
                return;
            }
            assert!(
                self.clock.now() < end,
                "{when}: {} blocks in the index, {} in the engine; {status:?}",
                ours[0].count,
                theirs[0].count
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn follow<T: Transport + 'static, S: Sink + 'static>(
    mut server: Server,
    transport: impl Fn(&str) -> T,
    sink: impl Fn(&str) -> S,
) {
    let engine = Arc::new(Mutex::new(Engine::new()));
    let mut random = Random(11);
    let mut work = |batches: usize| {
        let mut engine = engine.lock().unwrap();
        (0..batches).for_each(|_| engine.step(&mut random));
    };
    let url = server.url();
    let listening = Listening::to(&engine);
    let mut tasks = JoinSet::new();
    let sink = sink(&url);
    tasks.spawn(async move {
        relay(listening, sink, POD.into(), Epoch(1), |_| {}).await;
    });
    let first = Router::new(transport(&url));
    work(30);
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.start();
    first.until_exact(&engine, "the broker was away at the start").await;

    let second = Router::new(transport(&url));
    second.until_exact(&engine, "a second router came later").await;
    engine.lock().unwrap().restart();
    work(40);
    for router in [&first, &second] {
        router.until_exact(&engine, "the engine restarted").await;
    }

    server.kill();
    work(40);
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.start();
    for router in [&first, &second] {
        router.until_exact(&engine, "the broker was killed and came back").await;
    }

    server.kill();
    work(10);
    server.wipe();
    server.start();
    work(10);
    let third = Router::new(transport(&url));
    for router in [&first, &second, &third] {
        router.until_exact(&engine, "the broker was wiped").await;
    }

    server.kill();
    server.wipe();
    server.start();
    let fourth = Router::new(transport(&url));
    fourth.until_exact(&engine, "the broker was wiped while the engine was idle").await;
    for router in [&first, &second, &third] {
        router.until_exact(&engine, "nothing of it is forgotten").await;
        let counters = router.pods.status(router.clock.now()).remove(0).status.counters;
        assert_eq!(counters.rebuilds, 0);
    }

    server.pause();
    work(10);
    tokio::time::sleep(Duration::from_secs(4)).await;
    server.resume();
    for router in [&first, &second, &third] {
        router.until_exact(&engine, "the broker was paused").await;
    }
}

/// A relay that is silent because its engine is, and one that is gone.
async fn beat<T: Transport + 'static, S: Sink + 'static>(
    mut server: Server,
    transport: impl Fn(&str) -> T,
    sink: impl Fn(&str) -> S,
) {
    let engine = Arc::new(Mutex::new(Engine::new()));
    (0..10).for_each(|_| engine.lock().unwrap().step(&mut Random(11)));
    let url = server.url();
    server.start();
    let mut tasks = JoinSet::new();
    let (listening, sink, again) = (Listening::to(&engine), sink(&url), sink(&url));
    tasks.spawn(async move {
        relay(listening, sink, POD.into(), Epoch(1), |_| {}).await;
    });
    let router = Router::new(transport(&url));
    router.until_exact(&engine, "the relay has started").await;
    let age = || router.pods.status(router.clock.now()).remove(0).status.age.unwrap();
    let end = router.clock.now() + Duration::from_secs(8);
    while router.clock.now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(age() < Duration::from_secs(4), "an idle engine is spoken for: {:?}", age());
    }
    tasks.abort_all();
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(age() > Duration::from_secs(4), "nobody speaks for it any more: {:?}", age());

    let (listening, sink) = (Listening::to(&engine), again);
    tasks.spawn(async move {
        relay(listening, sink, POD.into(), Epoch(2), |_| {}).await;
    });
    engine.lock().unwrap().step(&mut Random(12));
    router.until_exact(&engine, "the relay was started again").await;
    let status = router.pods.status(router.clock.now()).remove(0).status;
    assert_eq!((status.epoch, status.counters.restarts), (Some(Epoch(1)), 0));
}

/// The numbers of the next batches that a router hears.
async fn hear(transport: &mut impl Transport, batches: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.len() < batches {
        let heard = tokio::time::timeout(Duration::from_secs(5), transport.next()).await;
        if let SourceSignal::Of(_, SourceMessage::Batch { heading, .. }) =
            heard.expect("more is to be heard")
        {
            numbers.extend(heading.sequence);
        }
    }
    numbers
}

/// Publishes so many batches of a life.
async fn fill(sink: &mut impl Sink, epoch: u64, batches: u64) {
    let mut payload = Vec::new();
    encode(&WireBatch::default(), DIALECT, &mut payload);
    while sink.last(POD).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for sequence in 0..batches {
        let one = Envelope { pod: POD, epoch: Some(epoch), sequence, payload: &payload };
        sink.publish(&[one]).await.unwrap();
    }
}

/// A router that was away while its broker was wiped and filled again, beyond where the router was.
async fn notice<T: Transport, S: Sink>(
    mut server: Server,
    transport: impl Fn(&str) -> T,
    sink: impl Fn(&str) -> S,
) {
    let url = server.url();
    let (mut transport, mut sink) = (transport(&url), sink(&url));
    server.start();
    fill(&mut sink, 1, 1).await;
    while !matches!(transport.next().await, SourceSignal::Of(_, SourceMessage::Connected)) {}
    fill(&mut sink, 1, 5).await;
    assert_eq!(hear(&mut transport, 5).await, [0, 1, 2, 3, 4]);
    server.kill();
    server.wipe();
    server.start();
    fill(&mut sink, 2, 20).await;
    let heard = hear(&mut transport, 20).await;
    assert!(heard.into_iter().eq(0..20), "it is read from its beginning");
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_redis_that_was_wiped_and_filled_beyond_our_place_is_noticed() {
    use wornpath_events::{RedisSink, RedisStreams};
    let Some(server) = Server::redis() else { return };
    notice(
        server,
        |url| RedisStreams::new(url, "kv", &[POD.into()]).unwrap(),
        |url| RedisSink::new(url, "kv").unwrap(),
    )
    .await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_nats_that_was_wiped_and_filled_beyond_our_place_is_noticed() {
    use wornpath_events::{Nats, NatsSink};
    let Some(server) = Server::nats() else { return };
    notice(server, |url| Nats::new(url, "kv", &[POD.into()]), |url| NatsSink::new(url, "kv")).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_nats_that_wants_a_password_is_shown_it_and_nobody_else_is() {
    use wornpath_events::{Nats, NatsSink};
    let Some(mut server) = Server::guarded_nats() else { return };
    server.start();
    let url = server.url().replace("nats://", "nats://me:p%40ss@");
    let (mut sink, mut transport) =
        (NatsSink::new(&url, "kv"), Nats::new(&url, "kv", &[POD.into()]));
    assert_eq!(transport.name(), format!("{}/kv", server.url()));
    fill(&mut sink, 1, 1).await;
    while !matches!(transport.next().await, SourceSignal::Of(_, SourceMessage::Connected)) {}
    fill(&mut sink, 1, 3).await;
    assert_eq!(hear(&mut transport, 3).await, [0, 1, 2]);
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_kafka_that_was_wiped_and_filled_beyond_our_place_is_noticed() {
    use wornpath_events::{Kafka, KafkaSink};
    let Some(server) = Server::kafka() else { return };
    let brokers = |url: &str| url.trim_start_matches("kafka://").to_owned();
    notice(
        server,
        |url| Kafka::new(&brokers(url), "kv", &[POD.into()]),
        |url| KafkaSink::new(&brokers(url), "kv"),
    )
    .await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_redis_does_not_vouch_for_a_relay_that_is_gone() {
    use wornpath_events::{RedisSink, RedisStreams};
    let Some(server) = Server::redis() else { return };
    beat(
        server,
        |url| RedisStreams::new(url, "kv", &[POD.into()]).unwrap(),
        |url| RedisSink::new(url, "kv").unwrap(),
    )
    .await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_redis_that_no_pod_is_read_from_is_left_alone() {
    use wornpath_events::RedisStreams;
    let Some(mut server) = Server::redis() else { return };
    server.start();
    let mut transport = RedisStreams::new(&server.url(), "kv", &[]).unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(1), transport.next()).await;
    assert!(heard.is_err(), "{heard:?}");
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_nats_does_not_vouch_for_a_relay_that_is_gone() {
    use wornpath_events::{Nats, NatsSink};
    let Some(server) = Server::nats() else { return };
    beat(server, |url| Nats::new(url, "kv", &[POD.into()]), |url| NatsSink::new(url, "kv")).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_batch_that_nats_does_not_take_is_told_and_those_before_it_are_there() {
    use wornpath_events::{NatsSink, SinkError};
    let Some(mut server) = Server::nats() else { return };
    server.start();
    let mut sink = NatsSink::new(&server.url(), "kv");
    fill(&mut sink, 1, 1).await;
    let entry = |sequence, payload| Envelope { pod: POD, epoch: Some(1), sequence, payload };
    let large = vec![0; 1 << 20];
    let refused = sink.publish(&[entry(1, b"1"), entry(2, &large), entry(3, b"3")]).await;
    let Err(SinkError::TooLarge { at: 1, sequence: 2, bytes, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(bytes > 1 << 20);
    let last = sink.last(POD).await.unwrap().unwrap();
    assert_eq!(Envelope::parse(&last).unwrap().sequence, 1);
    sink.publish(&[entry(2, b""), entry(3, b"3")]).await.unwrap();
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_kafka_does_not_vouch_for_a_relay_that_is_gone() {
    use wornpath_events::{Kafka, KafkaSink};
    let Some(server) = Server::kafka() else { return };
    let brokers = |url: &str| url.trim_start_matches("kafka://").to_owned();
    beat(
        server,
        |url| Kafka::new(&brokers(url), "kv", &[POD.into()]),
        |url| KafkaSink::new(&brokers(url), "kv"),
    )
    .await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn events_come_over_redis_whatever_becomes_of_it() {
    use wornpath_events::{RedisSink, RedisStreams};
    let Some(server) = Server::redis() else { return };
    follow(
        server,
        |url| RedisStreams::new(url, "kv", &[POD.into()]).unwrap(),
        |url| RedisSink::new(url, "kv").unwrap(),
    )
    .await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn events_come_over_nats_whatever_becomes_of_it() {
    use wornpath_events::{Nats, NatsSink};
    let Some(server) = Server::nats() else { return };
    follow(server, |url| Nats::new(url, "kv", &[POD.into()]), |url| NatsSink::new(url, "kv")).await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn events_come_over_kafka_whatever_becomes_of_it() {
    use wornpath_events::{Kafka, KafkaSink};
    let Some(server) = Server::kafka() else { return };
    let brokers = |url: &str| url.trim_start_matches("kafka://").to_owned();
    follow(
        server,
        |url| Kafka::new(&brokers(url), "kv", &[POD.into()]),
        |url| KafkaSink::new(&brokers(url), "kv"),
    )
    .await;
}
