//! The event loop: arrivals, engines, cache events and the holding queue in one order of time.

use super::router::{Router, RouterSettings, Verdict, is_cache_event};
use super::trace::{Start, Trace};
use crate::engine::{Admission, Engine, Settings};
use crate::profile::Profile;
use crate::request::{Outcome, Output, PromptSource, Request, RequestId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::EngineHash;
use wornpath_routing::{Problems, RoutingPlan};

/// How often a live router looks after its pods.
const TICK: Duration = Duration::from_secs(1);

/// A fleet of equal engines, and how it is watched.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// How fast each engine is.
    pub engine: Profile,
    /// How many there are, at least one and at most 256.
    pub pods: usize,
    /// Tokens that each engine's cache holds, if not as its profile says.
    pub kv_tokens: Option<usize>,
    /// Pods that take so many times longer than the profile says: number and factor.
    pub slow: Vec<(usize, f64)>,
    /// How late cache events reach the router.
    pub events_delay: Duration,
    /// Where chance comes from.
    pub seed: u64,
}

/// What happened to one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// When it came.
    pub arrival: Duration,
    /// When it was sent to an engine, and to which.
    pub sent: Option<(Duration, usize)>,
    /// Tokens of its prompt that were cached.
    pub cached_tokens: usize,
    /// When its first token came.
    pub first_token: Option<Duration>,
    /// When it ended; never, if it failed.
    pub end: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Arrival(usize),
    Engine(usize),
    Router,
    Tick,
}

struct Replay<'a> {
    trace: &'a Trace,
    router: Router,
    engines: Vec<Engine>,
    /// When each engine is next looked at; other entries of the agenda are stale.
    planned: Vec<Option<Duration>>,
    agenda: BinaryHeap<Reverse<(Duration, Due)>>,
    /// Turns that start when another ends.
    following: Vec<Option<(usize, Duration)>>,
    plans: Vec<Option<RoutingPlan>>,
    records: Vec<Record>,
    unfinished: usize,
    outputs: Vec<Output>,
    verdicts: Vec<Verdict>,
}

/// Replays a trace with a routing profile (its name and YAML), and says what happened to each request.
///
/// # Errors
/// If the profile is not valid.
///
/// # Panics
/// If there are no pods, or more than the index has room for.
pub fn replay(
    trace: &Trace,
    (name, yaml): (&str, &str),
    fleet: &Fleet,
) -> Result<Vec<Record>, Problems> {
    assert!((1..=256).contains(&fleet.pods), "a fleet has 1 to 256 pods, not {}", fleet.pods);
    let settings = Settings {
        block_size: trace.block_size,
        kv_tokens: fleet.kv_tokens,
        admission: Admission::WholeFits,
        ..Settings::default()
    };
    let mut engines = vec![Engine::new(&fleet.engine, &settings); fleet.pods];
    for (pod, factor) in &fleet.slow {
        engines[*pod].set_slowdown(*factor);
    }
    let router = Router::new(
        name,
        yaml,
        RouterSettings {
            pods: fleet.pods,
            block_size: trace.block_size,
            kv_tokens: fleet.kv_tokens.unwrap_or(fleet.engine.kv_tokens()) as u64,
            engine: fleet.engine.name(),
            events_delay: fleet.events_delay,
            seed: fleet.seed,
        },
    )?;
    let turns = trace.turns.len();
    let mut replay = Replay {
        trace,
        router,
        planned: vec![None; engines.len()],
        engines,
        agenda: BinaryHeap::new(),
        following: vec![None; turns],
        plans: std::iter::repeat_with(|| None).take(turns).collect(),
        records: vec![Record::default(); turns],
        unfinished: turns,
        outputs: Vec::new(),
        verdicts: Vec::new(),
    };
    replay.run();
    Ok(replay.records)
}

impl Replay<'_> {
    fn run(&mut self) {
        for (number, turn) in self.trace.turns.iter().enumerate() {
            match turn.start {
                Start::At(time) => self.agenda.push(Reverse((time, Due::Arrival(number)))),
                Start::After { turn, delay } => self.following[turn] = Some((number, delay)),
            }
        }
        self.agenda.push(Reverse((Duration::ZERO, Due::Tick)));
        while self.unfinished > 0 {
            let Some(Reverse((now, due))) = self.agenda.pop() else { break };
            self.router.catch_up(now);
            match due {
                Due::Arrival(number) => self.arrive(now, number),
                Due::Engine(pod) if self.planned[pod] == Some(now) => self.advance(now, pod),
                Due::Engine(_) => continue,
                Due::Router => self.poll(now),
                Due::Tick => {
                    self.router.tick(now);
                    self.agenda.push(Reverse((now + TICK, Due::Tick)));
                }
            }
            if let Some(wakeup) = self.router.next_wakeup().filter(|_| due != Due::Tick) {
                self.wake_router(wakeup.max(now));
            }
        }
    }

    /// Plans the router's next wake-up, unless that is already the next thing planned.
    fn wake_router(&mut self, time: Duration) {
        let entry = Reverse((time, Due::Router));
        if self.agenda.peek() != Some(&entry) {
            self.agenda.push(entry);
        }
    }

    fn arrive(&mut self, now: Duration, number: usize) {
        self.records[number].arrival = now;
        let verdict = self.router.arrive(now, number, &self.trace.turns[number]);
        self.carry_out(now, verdict);
    }

    fn poll(&mut self, now: Duration) {
        let mut verdicts = std::mem::take(&mut self.verdicts);
        self.router.poll(now, &mut verdicts);
        for verdict in verdicts.drain(..) {
            self.carry_out(now, verdict);
        }
        self.verdicts = verdicts;
    }

    fn carry_out(&mut self, now: Duration, verdict: Verdict) {
        match verdict {
            Verdict::Held => {}
            Verdict::Refused { turn } => self.end(now, turn),
            Verdict::Sent { turn, pod, plan } => {
                self.records[turn].sent = Some((now, pod));
                let asked = &self.trace.turns[turn];
                let names = asked.full_blocks(self.trace.block_size);
                let request = Request {
                    id: RequestId(turn as u64),
                    prompt_tokens: asked.prompt_tokens,
                    output_tokens: asked.output_tokens,
                    chain: names.iter().copied().map(EngineHash).collect::<Arc<[_]>>(),
                    source: PromptSource::Computed,
                    lease: None,
                };
                match self.engines[pod].submit(now, request) {
                    Ok(()) => {
                        self.plans[turn] = Some(plan);
                        self.plan_engine(pod);
                    }
                    Err(_) => self.end(now, turn),
                }
            }
        }
    }

    fn plan_engine(&mut self, pod: usize) {
        let next = self.engines[pod].next_event_time();
        if next != self.planned[pod] {
            self.planned[pod] = next;
            self.agenda.extend(next.map(|time| Reverse((time, Due::Engine(pod)))));
        }
    }

    fn advance(&mut self, now: Duration, pod: usize) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engines[pod].advance(now, &mut outputs);
        for output in outputs.drain(..) {
            self.take_in(now, pod, output.outcome);
        }
        self.outputs = outputs;
        let load = self.engines[pod].load();
        let usage = load.used_blocks as f64 / load.total_blocks as f64;
        self.router.report(now, pod, load.waiting, usage);
        self.planned[pod] = None;
        self.plan_engine(pod);
        self.poll(now);
    }

    fn take_in(&mut self, now: Duration, pod: usize, outcome: Outcome) {
        match outcome {
            Outcome::Admitted { request, cached_tokens } => {
                self.records[request.0 as usize].cached_tokens = cached_tokens;
            }
            Outcome::Token { request, .. } => {
                let turn = request.0 as usize;
                self.records[turn].first_token = Some(now);
                if let Some(reservation) = self.reservation(turn) {
                    reservation.first_token();
                }
            }
            Outcome::Finished { request } => {
                let turn = request.0 as usize;
                self.records[turn].end = Some(now);
                let generated = self.trace.turns[turn].output_tokens.saturating_sub(1) as u64;
                if let Some(reservation) = self.reservation(turn) {
                    reservation.decoded(generated);
                }
                self.end(now, turn);
            }
            Outcome::Stored { request, ref blocks, .. } => {
                let tokens = (blocks.len() * self.trace.block_size.get()) as u64;
                if let Some(reservation) = self.reservation(request.0 as usize) {
                    reservation.computed(tokens);
                }
            }
            _ => {}
        }
        if is_cache_event(&outcome) {
            self.router.hear(now, pod, outcome);
        }
    }

    fn reservation(&mut self, turn: usize) -> Option<&mut wornpath_routing::Reservation> {
        self.plans[turn].as_mut()?.steps.first_mut()?.reservation.as_mut()
    }

    /// A request has ended, well or not: its load is given back and its session goes on.
    fn end(&mut self, now: Duration, turn: usize) {
        self.plans[turn] = None;
        self.unfinished -= 1;
        if let Some((next, delay)) = self.following[turn] {
            self.agenda.push(Reverse((now + delay, Due::Arrival(next))));
        }
    }
}
