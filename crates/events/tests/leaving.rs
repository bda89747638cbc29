//! Sources that end: nothing is asked of them any more, and what they still say counts for nothing.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

#[path = "chaos/engine.rs"]
#[allow(dead_code, reason = "faults are not simulated here")]
mod engine;
mod saying;

use engine::{Engine, Random};
use saying::serving;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use wornpath_events::{
    BatchId, Capabilities, Delivery, EventClock, EventPods, FeedRules, FeedState, PodName,
    SourceMessage, SourceQuery, SourceSignal, Transport, keep_time, supervise,
};
use wornpath_index::{Index, IndexLimits, Moment, PodId};

const REPLAY: Capabilities = Capabilities { replay: true, snapshot: false, relayed: false };

/// An engine that can be asked for all it said.
struct Voice {
    name: &'static str,
    engine: Arc<Engine>,
    says: VecDeque<SourceMessage>,
    asked: Arc<AtomicUsize>,
}

impl Voice {
    fn of(name: &'static str, engine: &Arc<Engine>, asked: &Arc<AtomicUsize>) -> Self {
        let (engine, asked) = (Arc::clone(engine), Arc::clone(asked));
        Self { name, engine, asked, says: VecDeque::from([SourceMessage::Connected]) }
    }
}

/// A batch as it comes from an engine itself, which says nothing of its life.
fn batch(engine: &Engine, sequence: usize, via: Delivery) -> SourceMessage {
    let heading = BatchId { epoch: None, ..engine.heading(sequence as u64) };
    SourceMessage::Batch { heading, via, batch: Box::new(engine.said[sequence].clone()) }
}

impl Transport for Voice {
    fn name(&self) -> &str {
        self.name
    }

    fn abilities(&self) -> Capabilities {
        REPLAY
    }

    async fn next(&mut self) -> SourceSignal {
        match self.says.pop_front() {
            Some(said) => SourceSignal::Of("pod".into(), said),
            None => std::future::pending().await,
        }
    }

    fn ask(&mut self, _pod: &PodName, ask: SourceQuery) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let SourceQuery::Replay { from } = ask {
            let batches = from as usize..self.engine.said.len();
            self.says.extend(batches.map(|at| batch(&self.engine, at, Delivery::Replay)));
            self.says.push_back(SourceMessage::ReplayEnd);
        }
    }
}

fn pods() -> (Arc<EventPods>, PodId) {
    let pods =
        Arc::new(EventPods::new(Index::new(IndexLimits::default(), 1), FeedRules::default()));
    let id = pods.add(&"pod".into(), serving()).unwrap();
    (pods, id)
}

fn engine(life: u64) -> Arc<Engine> {
    let mut engine = Engine::new();
    engine.life = life;
    (0..40).for_each(|_| engine.step(&mut Random(life)));
    Arc::new(engine)
}

async fn until_exact(pods: &EventPods, id: PodId, engine: &Engine, clock: EventClock) {
    for _ in 0..200 {
        let is_exact = pods.index().digest(id).unwrap().tiers == engine.digest().tiers;
        if is_exact && pods.status(clock.now())[0].status.state == FeedState::Live {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not exact after 10 s: {:?}", pods.status(clock.now()));
}

#[tokio::test(start_paused = true)]
async fn whoever_takes_the_place_of_a_source_that_ended_is_asked_in_its_stead() {
    let ((pods, id), clock, mut tasks) = (pods(), EventClock::start(), JoinSet::new());
    let timed = Arc::clone(&pods);
    tasks.spawn(async move {
        keep_time(&timed, clock).await;
    });
    let asked: [Arc<AtomicUsize>; 2] = Default::default();
    for ((name, asked), engine) in
        ["old", "new"].into_iter().zip(&asked).zip([engine(1), engine(2)])
    {
        let make = || Voice::of(name, &engine, asked);
        tokio::select! {
            never = supervise(make, &pods, clock) => match never {},
            () = until_exact(&pods, id, &engine, clock) => {}
        }
        assert!(pods.status(clock.now())[0].sources.is_empty(), "{name} has left");
    }
    assert!(asked.iter().all(|asked| asked.load(Ordering::Relaxed) > 0), "{asked:?}");
}

#[test]
fn what_a_source_still_says_of_a_pod_that_came_anew_is_a_strangers() {
    let (pods, _) = pods();
    let (engine, mut writer) = (engine(1), pods.index().writer());
    let (former, everybodys) =
        (pods.attach_to_present("former", REPLAY), pods.attach("any", REPLAY));
    let mut say = |from, said| {
        pods.hear(&mut writer, from, SourceSignal::Of("pod".into(), said), Moment::ZERO);
    };
    say(&former, SourceMessage::Connected);
    assert_eq!(pods.status(Moment::ZERO)[0].sources.len(), 1);
    pods.remove("pod");
    let id = pods.add(&"pod".into(), serving()).unwrap();
    say(&former, batch(&engine, 0, Delivery::Live));
    assert_eq!((pods.strangers(), pods.status(Moment::ZERO)[0].sources.len()), (1, 0));
    assert_eq!(pods.index().pod_stats(id).unwrap().blocks, 0);
    say(&everybodys, batch(&engine, 0, Delivery::Live));
    assert_eq!((pods.strangers(), pods.status(Moment::ZERO)[0].sources.len()), (1, 1));
}
