//! The event loop: arrivals, engines, cache events and the wait queue, ordered by virtual time.

mod requests;

use super::background::{Background, BackgroundLoad, BackgroundResult, OBSERVE_INTERVAL};
use super::fleet::ReplayFleet;
use super::router::{NumberedTurn, ProfileText, Router, RouterOutcome, RouterSettings};
use super::trace::{Trace, TraceStart, TraceTurn};
use crate::engine::{EngineAdmission, EngineSettings, KvReads, SimEngine};
use crate::request::Output;
use requests::RunningPlan;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use wornpath_routing::{PodFacts, Problems, Rng};

/// How often a live router does its housekeeping.
const TICK: Duration = Duration::from_secs(1);

/// The times of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestRecord {
    /// When it arrived at the router.
    pub arrival: Duration,
    /// When it was sent to the engine that generates its output, and the number of that engine.
    pub sent: Option<(Duration, usize)>,
    /// The same for the engine that computed its prompt, if that was another one.
    pub prefilled: Option<(Duration, usize)>,
    /// Tokens of its prompt that the router took for cached on the engine that computed the rest,
    /// when it sent it there.
    pub predicted_tokens: u64,
    /// Tokens of its prompt that were cached on the engine that computed the rest.
    pub cached_tokens: usize,
    /// When its first token was generated.
    pub first_token: Option<Duration>,
    /// When it finished; `None` if it failed.
    pub end: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DueEvent {
    Arrival(usize),
    Engine(usize),
    Drain(usize),
    Recover(usize),
    Exchange,
    Observe,
    Routers,
    Tick,
}

struct ReplayState<'a> {
    trace: &'a Trace,
    routers: Vec<Router>,
    /// Chooses the router of each request.
    balancer: Rng,
    engines: Vec<SimEngine>,
    /// The valid wake-up of each engine; other entries of `due_events` are stale.
    engine_wakeups: Vec<Option<Duration>>,
    /// The valid wake-up of the routers; other entries of `due_events` are stale.
    router_wakeup: Option<Duration>,
    due_events: BinaryHeap<Reverse<(Duration, DueEvent)>>,
    /// For each turn, the turns that start when it ends, and their delays.
    following: Vec<Vec<(usize, Duration)>>,
    /// For each turn, the blocks that its reply fills.
    replies: Vec<&'a [u64]>,
    plans: Vec<Option<RunningPlan>>,
    records: Vec<RequestRecord>,
    unfinished: usize,
    /// Planned requests beside the trace; their numbers follow those of the trace's turns.
    background: Option<Background<'a>>,
    /// The interval at which routers exchange.
    exchange: Option<Duration>,
    /// Whether an exchange is due.
    is_exchange_due: bool,
    /// Whether cache events arrive without delay, so that they show the progress of a prefill.
    tracks_prefill: bool,
    outputs: Vec<Output>,
    outcomes: Vec<RouterOutcome>,
    watch: &'a mut Watch<'a>,
    is_stopped: bool,
}

/// Called with each request that has ended, finished or failed: its turn and its record. It may
/// stop the replay.
pub type Watch<'a> = dyn FnMut(usize, &RequestRecord) -> ControlFlow<()> + 'a;

/// Replays a trace with a routing profile. Returns a record for each request.
///
/// # Errors
/// If the profile is not valid.
///
/// # Panics
/// If there are no pods, or more than the index has room for.
pub fn replay(
    trace: &Trace,
    profile: ProfileText<'_>,
    fleet: &ReplayFleet,
) -> Result<Vec<RequestRecord>, Problems> {
    replay_with_progress(trace, profile, fleet, &mut |_| {})
}

/// Like [`replay`], and calls `on_progress` with the number of ended requests, after each.
///
/// # Errors
/// If the profile is not valid.
///
/// # Panics
/// If there are no pods, or more than the index has room for.
pub fn replay_with_progress(
    trace: &Trace,
    profile: ProfileText<'_>,
    fleet: &ReplayFleet,
    on_progress: &mut dyn FnMut(usize),
) -> Result<Vec<RequestRecord>, Problems> {
    let mut ended = 0;
    let mut watch = |_: usize, _: &RequestRecord| {
        ended += 1;
        on_progress(ended);
        ControlFlow::Continue(())
    };
    Ok(run_replay(trace, profile, fleet, None, &mut watch)?.records)
}

/// Like [`replay`], with what decode steps read.
///
/// # Errors
/// If the profile is not valid.
///
/// # Panics
/// If there are no pods, or more than the index has room for.
pub fn replay_with_reads(
    trace: &Trace,
    profile: ProfileText<'_>,
    fleet: &ReplayFleet,
) -> Result<(Vec<RequestRecord>, KvReads), Problems> {
    let end = run_replay(trace, profile, fleet, None, &mut |_, _| ControlFlow::Continue(()))?;
    Ok((end.records, end.kv_reads))
}

/// Like [`replay`], until `watch` stops it; none if it does.
///
/// # Errors
/// If the profile is not valid.
///
/// # Panics
/// If there are no pods, or more than the index has room for.
pub fn replay_watched(
    trace: &Trace,
    profile: ProfileText<'_>,
    fleet: &ReplayFleet,
    watch: &mut Watch<'_>,
) -> Result<Option<Vec<RequestRecord>>, Problems> {
    let mut is_stopped = false;
    let mut noted = |turn: usize, record: &RequestRecord| {
        let flow = watch(turn, record);
        is_stopped = flow.is_break();
        flow
    };
    let records = run_replay(trace, profile, fleet, None, &mut noted)?.records;
    Ok((!is_stopped).then_some(records))
}

/// Like [`replay`], with a planned queue on the same engines until the trace ends.
///
/// # Errors
/// If a profile is not valid.
///
/// # Panics
/// If there are no pods, or more than the index has room for.
pub fn replay_with_background(
    trace: &Trace,
    profile: ProfileText<'_>,
    fleet: &ReplayFleet,
    background: BackgroundLoad<'_>,
) -> Result<(Vec<RequestRecord>, BackgroundResult), Problems> {
    let background = Some(background);
    let end = run_replay(trace, profile, fleet, background, &mut |_, _| ControlFlow::Continue(()))?;
    Ok((end.records, end.background))
}

/// The end of a replay.
struct ReplayEnd {
    records: Vec<RequestRecord>,
    background: BackgroundResult,
    kv_reads: KvReads,
}

fn run_replay<'a>(
    trace: &'a Trace,
    profile: ProfileText<'_>,
    fleet: &ReplayFleet,
    background: Option<BackgroundLoad<'a>>,
    watch: &'a mut Watch<'a>,
) -> Result<ReplayEnd, Problems> {
    assert!((1..=256).contains(&fleet.pods), "a fleet has 1 to 256 pods, not {}", fleet.pods);
    let settings = EngineSettings {
        block_size: trace.block_size,
        host_tokens: fleet.host_tokens,
        disk_tokens: fleet.disk_tokens,
        admission: EngineAdmission::WholeFits,
        ..EngineSettings::default()
    };
    let facts = fleet.known_facts();
    let engine = |(pod, facts): (usize, &PodFacts)| {
        let kv_tokens = facts.kv_tokens.and_then(|tokens| usize::try_from(tokens).ok());
        SimEngine::new(fleet.engine_of(pod), &EngineSettings { kv_tokens, ..settings.clone() })
    };
    let mut engines: Vec<SimEngine> = facts.iter().enumerate().map(engine).collect();
    for (pod, factor) in &fleet.slow {
        engines[*pod].set_slowdown(*factor);
    }
    let settings = RouterSettings {
        pods: &facts,
        block_size: trace.block_size,
        known_slow: &fleet.known_slow,
        events_delay: fleet.events_delay,
        exchanges_as: None,
        estimated_tokens: fleet.estimated_tokens,
        seed: fleet.seed,
    };
    let router = |number| {
        let exchanges_as = fleet.exchange.map(|_| number);
        let seed = fleet.seed + number as u64;
        Router::new(profile, RouterSettings { exchanges_as, seed, ..settings })
    };
    let routers = (0..fleet.routers.max(1)).map(router).collect::<Result<Vec<_>, _>>()?;
    let mut turns = trace.turns.len();
    let background = match background {
        Some(load) => {
            let profile = routers[0].planned_profile(load.profile)?;
            turns += load.trace.turns.len();
            Some(Background::new(load, profile, fleet.engine.max_step_tokens()))
        }
        None => None,
    };
    let mut replay = ReplayState {
        trace,
        routers,
        balancer: Rng::new(fleet.seed),
        engine_wakeups: vec![None; engines.len()],
        engines,
        router_wakeup: None,
        due_events: BinaryHeap::new(),
        following: vec![Vec::new(); trace.turns.len()],
        replies: trace.replies(),
        plans: std::iter::repeat_with(|| None).take(turns).collect(),
        records: vec![RequestRecord::default(); turns],
        unfinished: trace.turns.len(),
        background,
        exchange: fleet.exchange.filter(|_| fleet.routers > 1),
        is_exchange_due: false,
        tracks_prefill: fleet.events_delay.is_zero() && fleet.estimated_tokens.is_none(),
        outputs: Vec::new(),
        outcomes: Vec::new(),
        watch,
        is_stopped: false,
    };
    replay
        .due_events
        .extend(fleet.drained.map(|(pod, time)| Reverse((time, DueEvent::Drain(pod)))));
    replay
        .due_events
        .extend(fleet.recovers.map(|(pod, time)| Reverse((time, DueEvent::Recover(pod)))));
    replay.run();
    let background =
        replay.background.map_or_else(BackgroundResult::default, |background| background.result);
    replay.records.truncate(trace.turns.len());
    let mut kv_reads = KvReads::default();
    for engine in &replay.engines {
        kv_reads += engine.load().kv_reads;
    }
    Ok(ReplayEnd { records: replay.records, background, kv_reads })
}

impl<'a> ReplayState<'a> {
    fn run(&mut self) {
        for (number, turn) in self.trace.turns.iter().enumerate() {
            match turn.start {
                TraceStart::At(time) => {
                    self.due_events.push(Reverse((time, DueEvent::Arrival(number))));
                }
                TraceStart::After { turn, delay } => self.following[turn].push((number, delay)),
            }
        }
        self.due_events.push(Reverse((Duration::ZERO, DueEvent::Tick)));
        if self.background.is_some() {
            self.due_events.push(Reverse((Duration::ZERO, DueEvent::Observe)));
        }
        while self.unfinished > 0 && !self.is_stopped {
            let Some(Reverse((now, due))) = self.due_events.pop() else { break };
            for router in &mut self.routers {
                router.apply_due_events(now);
            }
            match due {
                DueEvent::Arrival(number) => {
                    self.records[number].arrival = now;
                    self.decide(now, number);
                }
                DueEvent::Engine(pod) if self.engine_wakeups[pod] == Some(now) => {
                    self.advance(now, pod);
                }
                DueEvent::Engine(_) => continue,
                DueEvent::Drain(pod) => self.drain(now, pod),
                DueEvent::Recover(pod) => self.engines[pod].set_slowdown(1.0),
                DueEvent::Exchange => self.exchange(now),
                DueEvent::Observe => {
                    self.observe(now);
                    self.due_events.push(Reverse((now + OBSERVE_INTERVAL, DueEvent::Observe)));
                }
                DueEvent::Routers if self.router_wakeup == Some(now) => {
                    self.router_wakeup = None;
                    self.poll(now);
                }
                DueEvent::Routers => continue,
                DueEvent::Tick => {
                    self.routers.iter_mut().for_each(|router| router.tick(now));
                    self.due_events.push(Reverse((now + self.until_tick(now), DueEvent::Tick)));
                }
            }
            if due != DueEvent::Tick {
                self.schedule_routers(now);
            }
            if matches!(due, DueEvent::Arrival(_) | DueEvent::Engine(_) | DueEvent::Routers) {
                self.schedule_exchange(now);
            }
        }
    }

    /// The time until the next tick that matters: the last one before another event.
    fn until_tick(&self, now: Duration) -> Duration {
        let Some(Reverse((next, _))) = self.due_events.peek() else { return TICK };
        let before = next.saturating_sub(now).saturating_sub(Duration::from_nanos(1));
        let ticks = before.as_secs() / TICK.as_secs();
        Duration::from_secs(ticks * TICK.as_secs()).max(TICK)
    }

    /// Schedules the next wake-up of the routers, unless it is scheduled already.
    fn schedule_routers(&mut self, now: Duration) {
        let next = self.routers.iter().filter_map(Router::next_wakeup).min();
        let next = next.map(|time| time.max(now));
        if next.is_some() && next != self.router_wakeup {
            self.router_wakeup = next;
            self.due_events.extend(next.map(|time| Reverse((time, DueEvent::Routers))));
        }
    }

    /// Something has changed, which routers say at the end of the interval.
    fn schedule_exchange(&mut self, now: Duration) {
        let Some(interval) = self.exchange.filter(|_| !self.is_exchange_due) else { return };
        let interval = interval.max(Duration::from_micros(1)).as_nanos();
        let due = (now.as_nanos() / interval + 1) * interval;
        self.is_exchange_due = true;
        let due = Duration::from_nanos(u64::try_from(due).unwrap_or(u64::MAX));
        self.due_events.push(Reverse((due, DueEvent::Exchange)));
    }

    /// All routers say what has changed, and hear the others.
    fn exchange(&mut self, now: Duration) {
        self.is_exchange_due = false;
        let said: Vec<_> = self.routers.iter_mut().map(|router| router.say(now)).collect();
        for (from, update) in said.into_iter().enumerate() {
            let Some(update) = update else { continue };
            for (to, router) in self.routers.iter_mut().enumerate() {
                if to != from {
                    router.hear(now, update.clone());
                }
            }
        }
        self.poll(now);
    }

    /// The turn with this number, of the trace or of the background.
    fn turn(&self, number: usize) -> &'a TraceTurn {
        match number.checked_sub(self.trace.turns.len()) {
            None => &self.trace.turns[number],
            Some(job) => {
                let background = self.background.as_ref();
                background.expect("numbers beyond the trace are the background's").turn(job)
            }
        }
    }

    /// The background and the job of a request, if it belongs to the background.
    fn background_job(&mut self, number: usize) -> Option<(&mut Background<'a>, usize)> {
        let job = number.checked_sub(self.trace.turns.len())?;
        Some((self.background.as_mut()?, job))
    }

    fn observe(&mut self, now: Duration) {
        for pod in 0..self.engines.len() {
            if let Some(background) = &mut self.background {
                background.observe(now, pod, &self.engines[pod]);
            }
            self.fill(now, pod);
        }
    }

    /// Sends a pod the planned requests that it may have.
    fn fill(&mut self, now: Duration, pod: usize) {
        while let Some(background) = &mut self.background
            && let Some(job) = background.claim(pod)
        {
            let number = self.trace.turns.len() + job;
            let turn = NumberedTurn { number, turn: background.turn(job) };
            let profile = Arc::clone(&background.profile);
            // One gateway runs the whole queue.
            let outcome = self.routers[0].arrive_planned(now, turn, profile, pod);
            let is_refused = matches!(outcome, RouterOutcome::Refused { .. });
            self.apply_outcome(now, outcome);
            if is_refused {
                break;
            }
        }
    }

    fn decide(&mut self, now: Duration, number: usize) {
        let router = self.balancer.below(self.routers.len());
        let turn = NumberedTurn { number, turn: self.turn(number) };
        let outcome = self.routers[router].arrive(now, turn);
        self.apply_outcome(now, outcome);
    }

    /// Drains a pod: its requests without a token are decided again.
    fn drain(&mut self, now: Duration, pod: usize) {
        for router in &mut self.routers {
            router.remove_pod(pod);
        }
        let has_no_token = |turn: &usize| {
            let at = self.plans[*turn].as_ref().map(RunningPlan::pod);
            at == Some(pod) && self.records[*turn].first_token.is_none()
        };
        let turns: Vec<usize> = (0..self.plans.len()).filter(has_no_token).collect();
        for turn in turns {
            self.withdraw(now, turn);
            self.decide(now, turn);
        }
        self.schedule_engine(pod);
    }

    fn poll(&mut self, now: Duration) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for router in &mut self.routers {
            router.poll(now, &mut outcomes);
        }
        for outcome in outcomes.drain(..) {
            self.apply_outcome(now, outcome);
        }
        self.outcomes = outcomes;
    }

    fn schedule_engine(&mut self, pod: usize) {
        let next = self.engines[pod].next_event_time();
        if next != self.engine_wakeups[pod] {
            self.engine_wakeups[pod] = next;
            self.due_events.extend(next.map(|time| Reverse((time, DueEvent::Engine(pod)))));
        }
    }

    fn advance(&mut self, now: Duration, pod: usize) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engines[pod].advance(now, &mut outputs);
        for output in outputs.drain(..) {
            self.record(now, pod, &output.outcome);
        }
        self.outputs = outputs;
        let load = self.engines[pod].load();
        let usage = load.used_blocks as f64 / load.total_blocks as f64;
        for router in &self.routers {
            router.report(now, pod, load.waiting, usage);
        }
        self.engine_wakeups[pod] = None;
        self.schedule_engine(pod);
        // Requests in the wait queue go before the background.
        self.poll(now);
        self.fill(now, pod);
    }
}
