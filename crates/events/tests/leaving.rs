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
    Abilities, Ask, Clock, Heading, Heard, PodName, Pods, Rules, Said, State, Transport, Via,
    keep_time, supervise,
};
use wornpath_index::{Index, Limits, Moment, PodId};

const REPLAY: Abilities = Abilities { replay: true, snapshot: false, relayed: false };

/// An engine that can be asked for all it said.
struct Voice {
    name: &'static str,
    engine: Arc<Engine>,
    says: VecDeque<Said>,
    asked: Arc<AtomicUsize>,
}

impl Voice {
    fn of(name: &'static str, engine: &Arc<Engine>, asked: &Arc<AtomicUsize>) -> Self {
        let (engine, asked) = (Arc::clone(engine), Arc::clone(asked));
        Self { name, engine, asked, says: VecDeque::from([Said::Connected]) }
    }
}

/// A batch as it comes from an engine itself, which says nothing of its life.
fn batch(engine: &Engine, sequence: usize, via: Via) -> Said {
    let heading = Heading { epoch: None, ..engine.heading(sequence as u64) };
    Said::Batch { heading, via, batch: Box::new(engine.said[sequence].clone()) }
}

impl Transport for Voice {
    fn name(&self) -> &str {
        self.name
    }

    fn abilities(&self) -> Abilities {
        REPLAY
    }

    async fn next(&mut self) -> Heard {
        match self.says.pop_front() {
            Some(said) => Heard::Of("pod".into(), said),
            None => std::future::pending().await,
        }
    }

    fn ask(&mut self, _pod: &PodName, ask: Ask) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let Ask::Replay { from } = ask {
            let batches = from as usize..self.engine.said.len();
            self.says.extend(batches.map(|at| batch(&self.engine, at, Via::Replay)));
            self.says.push_back(Said::ReplayEnd);
        }
    }
}

fn pods() -> (Arc<Pods>, PodId) {
    let pods = Arc::new(Pods::new(Index::new(Limits::default(), 1), Rules::default()));
    let id = pods.add(&"pod".into(), serving()).unwrap();
    (pods, id)
}

fn engine(life: u64) -> Arc<Engine> {
    let mut engine = Engine::new();
    engine.life = life;
    (0..40).for_each(|_| engine.step(&mut Random(life)));
    Arc::new(engine)
}

async fn until_exact(pods: &Pods, id: PodId, engine: &Engine, clock: Clock) {
    for _ in 0..200 {
        let is_exact = pods.index().digest(id).unwrap().tiers == engine.digest().tiers;
        if is_exact && pods.status(clock.now())[0].status.state == State::Live {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not exact after 10 s: {:?}", pods.status(clock.now()));
}

#[tokio::test(start_paused = true)]
async fn whoever_takes_the_place_of_a_source_that_ended_is_asked_in_its_stead() {
    let ((pods, id), clock, mut tasks) = (pods(), Clock::start(), JoinSet::new());
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
        pods.hear(&mut writer, from, Heard::Of("pod".into(), said), Moment::ZERO);
    };
    say(&former, Said::Connected);
    assert_eq!(pods.status(Moment::ZERO)[0].sources.len(), 1);
    pods.remove("pod");
    let id = pods.add(&"pod".into(), serving()).unwrap();
    say(&former, batch(&engine, 0, Via::Live));
    assert_eq!((pods.strangers(), pods.status(Moment::ZERO)[0].sources.len()), (1, 0));
    assert_eq!(pods.index().pod_stats(id).unwrap().blocks, 0);
    say(&everybodys, batch(&engine, 0, Via::Live));
    assert_eq!((pods.strangers(), pods.status(Moment::ZERO)[0].sources.len()), (1, 1));
}
