//! Sources that are detached: they get no more queries, and their messages have no effect.

use crate::engine::{Engine, Random};
use crate::stores::served_model;
use crate::wait::until;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use wornpath_events::{
    BatchId, Capabilities, Clock, Delivery, EventPods, FeedRules, FeedState, PodName,
    SourceMessage, SourceQuery, SourceSignal, Transport, run_timers, supervise,
};
use wornpath_index::{Index, IndexLimits, Moment, PodId};

const REPLAY: Capabilities = Capabilities { replay: true, snapshot: false, relayed: false };

/// A source that replays everything that an engine published.
struct Replaying {
    name: &'static str,
    engine: Arc<Engine>,
    messages: VecDeque<SourceMessage>,
    asked: Arc<AtomicUsize>,
}

impl Replaying {
    fn new(name: &'static str, engine: &Arc<Engine>, asked: &Arc<AtomicUsize>) -> Self {
        let engine = Arc::clone(engine);
        let asked = Arc::clone(asked);
        Self { name, engine, asked, messages: VecDeque::from([SourceMessage::Connected]) }
    }
}

/// A batch as an engine sends it, without its epoch.
fn batch(engine: &Engine, sequence: usize, delivery: Delivery) -> SourceMessage {
    let id = BatchId { epoch: None, ..engine.id(sequence as u64) };
    SourceMessage::Batch { id, delivery, batch: Box::new(engine.batches[sequence].clone()) }
}

impl Transport for Replaying {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        REPLAY
    }

    async fn next(&mut self) -> SourceSignal {
        match self.messages.pop_front() {
            Some(message) => SourceSignal::Pod("pod".into(), message),
            None => std::future::pending().await,
        }
    }

    fn query(&mut self, _pod: &PodName, query: SourceQuery) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let SourceQuery::Replay { from } = query {
            let batches = from as usize..self.engine.batches.len();
            self.messages.extend(batches.map(|at| batch(&self.engine, at, Delivery::Replay)));
            self.messages.push_back(SourceMessage::ReplayEnd);
        }
    }
}

fn pods() -> (Arc<EventPods>, PodId) {
    let pods =
        Arc::new(EventPods::new(Index::new(IndexLimits::default(), 1), FeedRules::default()));
    let id = pods.add(&"pod".into(), served_model()).unwrap();
    (pods, id)
}

fn engine(epoch: u64) -> Arc<Engine> {
    let mut engine = Engine::new();
    engine.epoch = epoch;
    (0..40).for_each(|_| engine.step(&mut Random(epoch)));
    Arc::new(engine)
}

async fn until_exact(pods: &EventPods, id: PodId, engine: &Engine, clock: Clock) {
    let is_exact = || {
        let is_same = pods.index().digest(id).unwrap().tiers == engine.digest().tiers;
        is_same && pods.status(clock.now())[0].status.state == FeedState::Live
    };
    until(Duration::from_secs(10), is_exact, || format!("{:?}", pods.status(clock.now()))).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_replaces_a_detached_one_gets_the_queries() {
    let (pods, id) = pods();
    let clock = Clock::start();
    let mut tasks = JoinSet::new();
    let timed = Arc::clone(&pods);
    tasks.spawn(async move {
        run_timers(&timed, clock).await;
    });
    let asked: [Arc<AtomicUsize>; 2] = Default::default();
    for ((name, asked), engine) in
        ["old", "new"].into_iter().zip(&asked).zip([engine(1), engine(2)])
    {
        let make = || Replaying::new(name, &engine, asked);
        tokio::select! {
            never = supervise(make, &pods, clock) => match never {},
            () = until_exact(&pods, id, &engine, clock) => {}
        }
        assert!(pods.status(clock.now())[0].sources.is_empty(), "{name} is detached");
    }
    assert!(asked.iter().all(|asked| asked.load(Ordering::Relaxed) > 0), "{asked:?}");
}

#[test]
fn a_source_does_not_feed_a_pod_that_was_removed_and_added_again() {
    let (pods, _) = pods();
    let engine = engine(1);
    let mut writer = pods.index().writer();
    let former = pods.attach_to_existing("former", REPLAY);
    let of_all = pods.attach("any", REPLAY);
    let mut handle = |from, message| {
        pods.handle(&mut writer, from, SourceSignal::Pod("pod".into(), message), Moment::ZERO);
    };
    handle(&former, SourceMessage::Connected);
    assert_eq!(pods.status(Moment::ZERO)[0].sources.len(), 1);
    pods.remove("pod");
    let id = pods.add(&"pod".into(), served_model()).unwrap();
    handle(&former, batch(&engine, 0, Delivery::Live));
    assert_eq!((pods.unknown_pod_messages(), pods.status(Moment::ZERO)[0].sources.len()), (1, 0));
    assert_eq!(pods.index().pod_stats(id).unwrap().blocks, 0);
    handle(&of_all, batch(&engine, 0, Delivery::Live));
    assert_eq!((pods.unknown_pod_messages(), pods.status(Moment::ZERO)[0].sources.len()), (1, 1));
}
