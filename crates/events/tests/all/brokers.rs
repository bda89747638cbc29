//! Events over real brokers: engine, relay, broker, router. A broker may be down at the start, be
//! killed and be wiped; once it is back, the router's index equals the engine's cache.

use crate::engine::{Engine, Random};
use crate::server::Server;
use crate::stores::served_model;
use crate::wait::until;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use wornpath_events::wire::{Envelope, HashForm, WireBatch, WireDialect, WireLayout, encode};
use wornpath_events::{
    BatchId, BrokerLogin, BrokerStream, BrokerTransport, Capabilities, Clock, Delivery, Epoch,
    EventPods, FeedRules, FeedState, PodName, PodStatus, Sink, SourceMessage, SourceQuery,
    SourceSignal, Transport, consume, relay, run_timers,
};
use wornpath_index::{Index, IndexLimits, PodId};

pub(crate) const POD: &str = "http://10.0.0.1:8000";
const DIALECT: WireDialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned };

/// An engine that several tasks use, and that notifies them of changes.
#[derive(Clone)]
struct SharedEngine {
    engine: Arc<Mutex<Engine>>,
    changed: watch::Sender<()>,
}

impl SharedEngine {
    fn new() -> Self {
        Self { engine: Arc::new(Mutex::new(Engine::new())), changed: watch::Sender::new(()) }
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap()
    }

    fn change(&self, make: impl FnOnce(&mut Engine)) {
        make(&mut self.lock());
        self.changed.send_replace(());
    }
}

/// A transport from an engine without a network: live batches, and replay.
struct LocalTransport {
    engine: SharedEngine,
    changed: watch::Receiver<()>,
    epoch: u64,
    next: u64,
    messages: VecDeque<SourceMessage>,
}

impl LocalTransport {
    fn new(engine: &SharedEngine) -> Self {
        Self {
            engine: engine.clone(),
            changed: engine.changed.subscribe(),
            epoch: 0,
            next: 0,
            messages: VecDeque::from([SourceMessage::Connected]),
        }
    }
}

impl Transport for LocalTransport {
    fn name(&self) -> &str {
        "engine"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { replay: true, snapshot: false, relayed: false }
    }

    async fn next(&mut self) -> SourceSignal {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return SourceSignal::Pod(POD.into(), message);
            }
            let message = {
                let engine = self.engine.lock();
                if engine.epoch != self.epoch {
                    self.epoch = engine.epoch;
                    self.next = 0;
                    self.messages.push_back(SourceMessage::Disconnected);
                    self.messages.push_back(SourceMessage::Connected);
                    continue;
                }
                (self.next < engine.batches.len() as u64)
                    .then(|| batch(&engine, self.next, Delivery::Live))
            };
            if let Some(message) = message {
                self.next += 1;
                return SourceSignal::Pod(POD.into(), message);
            }
            self.changed.changed().await.unwrap();
        }
    }

    fn query(&mut self, _pod: &PodName, query: SourceQuery) {
        let SourceQuery::Replay { from } = query else { return };
        let engine = self.engine.lock();
        let numbers = from..engine.batches.len() as u64;
        self.messages.extend(numbers.map(|number| batch(&engine, number, Delivery::Replay)));
        self.messages.push_back(SourceMessage::ReplayEnd);
    }
}

fn batch(engine: &Engine, sequence: u64, delivery: Delivery) -> SourceMessage {
    let id = BatchId { epoch: None, ..engine.id(sequence) };
    SourceMessage::Batch {
        id,
        delivery,
        batch: Box::new(engine.batches[sequence as usize].clone()),
    }
}

fn stream(url: &str) -> BrokerStream {
    BrokerStream { url: url.to_owned(), stream: "kv".to_owned(), login: None, tls: None }
}

fn open<T: BrokerTransport>(url: &str) -> T {
    T::open(&stream(url), &[POD.into()]).unwrap()
}

fn open_sink<T: BrokerTransport>(url: &str) -> T::Sink {
    T::open_sink(&stream(url)).unwrap()
}

/// A router that gets its events from a broker.
struct Router {
    pods: Arc<EventPods>,
    id: PodId,
    clock: Clock,
    _tasks: JoinSet<()>,
}

impl Router {
    fn new(transport: impl Transport + 'static) -> Self {
        let pods =
            Arc::new(EventPods::new(Index::new(IndexLimits::default(), 1), FeedRules::default()));
        let id = pods.add(&POD.into(), served_model()).unwrap();
        let clock = Clock::start();
        let mut tasks = JoinSet::new();
        let fed = Arc::clone(&pods);
        tasks.spawn(async move {
            tokio::join!(consume(transport, &fed, clock), run_timers(&fed, clock)).0;
        });
        Self { pods, id, clock, _tasks: tasks }
    }

    fn status(&self) -> PodStatus {
        self.pods.status(self.clock.now()).remove(0)
    }

    fn age(&self) -> Duration {
        self.status().status.age.unwrap()
    }

    async fn until_exact(&self, engine: &SharedEngine, when: &str) {
        let ours = || self.pods.index().digest(self.id).unwrap().tiers;
        let theirs = || engine.lock().digest().tiers;
        until(
            Duration::from_secs(5),
            || ours() == theirs() && self.status().status.state == FeedState::Live,
            || {
                let counts = (ours()[0].count, theirs()[0].count);
                format!("{when}: (index, engine) have {counts:?} blocks; {:?}", self.status())
            },
        )
        .await;
    }

    /// Waits until the router has noticed that its broker is unreachable.
    async fn until_unreachable(&self) {
        let is_noticed = || !self.status().errors.is_empty();
        until(Duration::from_secs(10), is_noticed, || format!("{:?}", self.status())).await;
    }

    /// Waits until nothing has shown for so long that the engine is alive.
    async fn until_silent(&self, silence: Duration) {
        until(silence * 3, || self.age() > silence, || format!("{:?}", self.status())).await;
    }
}

async fn follow<T: BrokerTransport + 'static>(server: Option<Server>) {
    let Some(mut server) = server else { return };
    let engine = SharedEngine::new();
    let mut random = Random(11);
    let mut work = |batches: usize| {
        engine.change(|engine| (0..batches).for_each(|_| engine.step(&mut random)));
    };
    let url = server.url();
    let from = LocalTransport::new(&engine);
    let mut tasks = JoinSet::new();
    let sink = open_sink::<T>(&url);
    tasks.spawn(async move {
        relay(from, sink, POD.into(), Epoch(1), |_| {}).await;
    });
    let first = Router::new(open::<T>(&url));
    work(30);
    first.until_unreachable().await;
    server.start();
    first.until_exact(&engine, "the broker was away at the start").await;

    let second = Router::new(open::<T>(&url));
    second.until_exact(&engine, "a second router came later").await;
    engine.change(Engine::restart);
    work(40);
    for router in [&first, &second] {
        router.until_exact(&engine, "the engine restarted").await;
    }

    server.kill();
    work(40);
    for router in [&first, &second] {
        router.until_unreachable().await;
    }
    server.start();
    for router in [&first, &second] {
        router.until_exact(&engine, "the broker was killed and came back").await;
    }

    server.kill();
    work(10);
    server.wipe();
    server.start();
    work(10);
    let third = Router::new(open::<T>(&url));
    for router in [&first, &second, &third] {
        router.until_exact(&engine, "the broker was wiped").await;
    }

    server.kill();
    server.wipe();
    server.start();
    let fourth = Router::new(open::<T>(&url));
    fourth.until_exact(&engine, "the broker was wiped while the engine was idle").await;
    for router in [&first, &second, &third] {
        router.until_exact(&engine, "nothing of it is forgotten").await;
        let counters = router.status().status.counters;
        assert_eq!(counters.rebuilds, 0);
    }

    server.pause();
    work(10);
    first.until_silent(Duration::from_secs(4)).await;
    server.resume();
    for router in [&first, &second, &third] {
        router.until_exact(&engine, "the broker was paused").await;
    }
}

/// A relay that is idle because its engine is, and one that is gone.
async fn heartbeat<T: BrokerTransport + 'static>(server: Option<Server>) {
    let Some(mut server) = server else { return };
    let engine = SharedEngine::new();
    engine.change(|engine| (0..10).for_each(|_| engine.step(&mut Random(11))));
    let url = server.url();
    server.start();
    let mut tasks = JoinSet::new();
    let from = LocalTransport::new(&engine);
    let sink = open_sink::<T>(&url);
    tasks.spawn(async move {
        relay(from, sink, POD.into(), Epoch(1), |_| {}).await;
    });
    let router = Router::new(open::<T>(&url));
    router.until_exact(&engine, "the relay has started").await;
    // Every heartbeat resets the age of the last message.
    for heartbeat in 0..3 {
        let before = Cell::new(router.age());
        let is_reset = || router.age() < before.replace(router.age());
        let describe = || format!("heartbeat {heartbeat}: {:?}", router.status());
        until(Duration::from_secs(4), is_reset, describe).await;
    }
    tasks.abort_all();
    router.until_silent(Duration::from_secs(4)).await;

    let from = LocalTransport::new(&engine);
    let sink = open_sink::<T>(&url);
    tasks.spawn(async move {
        relay(from, sink, POD.into(), Epoch(2), |_| {}).await;
    });
    engine.change(|engine| engine.step(&mut Random(12)));
    router.until_exact(&engine, "the relay was started again").await;
    let status = router.status().status;
    assert_eq!((status.epoch, status.counters.restarts), (Some(Epoch(1)), 0));
}

/// The numbers of the next batches that a transport delivers.
pub(crate) async fn receive(transport: &mut impl Transport, batches: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.len() < batches {
        let signal = tokio::time::timeout(Duration::from_secs(5), transport.next()).await;
        if let SourceSignal::Pod(_, SourceMessage::Batch { id, .. }) =
            signal.expect("the transport delivers more batches")
        {
            numbers.extend(id.sequence);
        }
    }
    numbers
}

pub(crate) fn is_connected(signal: &SourceSignal) -> bool {
    matches!(signal, SourceSignal::Pod(_, SourceMessage::Connected))
}

/// Publishes so many batches of an epoch.
pub(crate) async fn fill(sink: &mut impl Sink, epoch: u64, batches: u64) {
    let mut payload = Vec::new();
    encode(&WireBatch::default(), DIALECT, &mut payload);
    let is_ready = async {
        let mut retries = tokio::time::interval(Duration::from_millis(50));
        while sink.last(POD).await.is_err() {
            retries.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), is_ready).await.expect("the broker starts");
    for sequence in 0..batches {
        let one = Envelope { pod: POD, epoch: Some(epoch), sequence, payload: &payload };
        sink.publish(&[one]).await.unwrap();
    }
}

/// A router that is disconnected while its broker is wiped and filled again, past the router's
/// cursor.
async fn notice<T: BrokerTransport + 'static>(server: Option<Server>) {
    let Some(mut server) = server else { return };
    let url = server.url();
    let mut transport = open::<T>(&url);
    let mut sink = open_sink::<T>(&url);
    server.start();
    fill(&mut sink, 1, 1).await;
    while !is_connected(&transport.next().await) {}
    fill(&mut sink, 1, 5).await;
    assert_eq!(receive(&mut transport, 5).await, [0, 1, 2, 3, 4]);
    server.kill();
    server.wipe();
    server.start();
    fill(&mut sink, 2, 20).await;
    let received = receive(&mut transport, 20).await;
    assert!(received.into_iter().eq(0..20), "it is read from its beginning");
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_redis_that_was_wiped_and_filled_past_our_cursor_is_read_from_its_beginning() {
    notice::<wornpath_events::RedisStreams>(Server::redis()).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_nats_that_was_wiped_and_filled_past_our_cursor_is_read_from_its_beginning() {
    notice::<wornpath_events::Nats>(Server::nats()).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn credentials_go_to_the_nats_server_and_not_into_the_name() {
    let Some(mut server) = Server::guarded_nats() else { return };
    server.start();
    let login = BrokerLogin { user: Some("me".to_owned()), password: "p@ss".to_owned() };
    let address = BrokerStream { login: Some(login), ..stream(&server.url()) };
    let mut sink = wornpath_events::Nats::open_sink(&address).unwrap();
    let mut transport = wornpath_events::Nats::open(&address, &[POD.into()]).unwrap();
    assert_eq!(transport.name(), format!("{}/kv", server.url()));
    fill(&mut sink, 1, 1).await;
    while !is_connected(&transport.next().await) {}
    fill(&mut sink, 1, 3).await;
    assert_eq!(receive(&mut transport, 3).await, [0, 1, 2]);
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_password_without_a_user_is_the_token_of_nats() {
    let Some(mut server) = Server::nats_with_token() else { return };
    server.start();
    let login = BrokerLogin { user: None, password: "t0ken".to_owned() };
    let address = BrokerStream { login: Some(login), ..stream(&server.url()) };
    fill(&mut wornpath_events::Nats::open_sink(&address).unwrap(), 1, 1).await;
    assert!(
        open_sink::<wornpath_events::Nats>(&server.url()).last(POD).await.is_err(),
        "the server wants a token"
    );
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_password_goes_to_the_redis_server_with_and_without_a_user() {
    let Some(mut server) = Server::guarded_redis() else { return };
    server.start();
    for user in [None, Some("default".to_owned())] {
        let login = BrokerLogin { user, password: "p@ss:w/rd".to_owned() };
        let address = BrokerStream { login: Some(login), ..stream(&server.url()) };
        fill(&mut wornpath_events::RedisStreams::open_sink(&address).unwrap(), 1, 1).await;
    }
    assert!(
        open_sink::<wornpath_events::RedisStreams>(&server.url()).last(POD).await.is_err(),
        "the server wants one"
    );
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_kafka_that_was_wiped_and_filled_past_our_cursor_is_read_from_its_beginning() {
    notice::<wornpath_events::Kafka>(Server::kafka()).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_redis_does_not_keep_a_pod_fresh_whose_relay_is_gone() {
    heartbeat::<wornpath_events::RedisStreams>(Server::redis()).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_redis_transport_without_pods_delivers_nothing() {
    let Some(mut server) = Server::redis() else { return };
    server.start();
    let url = server.url();
    let mut transport = wornpath_events::RedisStreams::open(&stream(&url), &[]).unwrap();
    let mut with_pod = open::<wornpath_events::RedisStreams>(&url);
    let mut sink = open_sink::<wornpath_events::RedisStreams>(&url);
    let others_get_all = async {
        fill(&mut sink, 1, 1).await;
        while !is_connected(&with_pod.next().await) {}
        fill(&mut sink, 1, 20).await;
        assert!(receive(&mut with_pod, 20).await.into_iter().eq(0..20));
    };
    tokio::select! {
        heard = transport.next() => panic!("{heard:?}"),
        () = others_get_all => {}
    }
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_nats_does_not_keep_a_pod_fresh_whose_relay_is_gone() {
    heartbeat::<wornpath_events::Nats>(Server::nats()).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_batch_that_exceeds_the_limit_of_nats_is_an_error_and_those_before_it_are_stored() {
    use wornpath_events::SinkError;
    let Some(mut server) = Server::nats() else { return };
    server.start();
    let mut sink = open_sink::<wornpath_events::Nats>(&server.url());
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
async fn a_kafka_does_not_keep_a_pod_fresh_whose_relay_is_gone() {
    heartbeat::<wornpath_events::Kafka>(Server::kafka()).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn events_over_redis_survive_kills_wipes_and_pauses() {
    follow::<wornpath_events::RedisStreams>(Server::redis()).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn events_over_nats_survive_kills_wipes_and_pauses() {
    follow::<wornpath_events::Nats>(Server::nats()).await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn events_over_kafka_survive_kills_wipes_and_pauses() {
    follow::<wornpath_events::Kafka>(Server::kafka()).await;
}
