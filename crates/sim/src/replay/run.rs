//! The event loop: arrivals, engines, cache events and the wait queue, ordered by virtual time.

use super::background::{Background, BackgroundLoad, BackgroundResult, OBSERVE_INTERVAL};
use super::router::{
    NumberedTurn, ProfileText, Router, RouterOutcome, RouterSettings, is_cache_event,
};
use super::trace::{Trace, TraceStart, TraceTurn};
use crate::engine::{EngineAdmission, EngineSettings, SimEngine};
use crate::profile::EngineProfile;
use crate::request::{Output, PromptSource, RequestId, SimOutcome, SimRequest};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::EngineHash;
use wornpath_index::Moment;
use wornpath_routing::{Problems, Rng, RoutingPlan};

/// How often a live router does its housekeeping.
const TICK: Duration = Duration::from_secs(1);

/// A fleet of equal engines, the routers in front of it, and its faults.
#[derive(Clone, Debug)]
pub struct ReplayFleet {
    /// The profile of each engine.
    pub engine: EngineProfile,
    /// Number of engines, 1 to 256.
    pub pods: usize,
    /// KV capacity of each engine in tokens; the profile's capacity if `None`.
    pub kv_tokens: Option<usize>,
    /// Pods that are slower than the profile: pod number and factor.
    pub slow: Vec<(usize, f64)>,
    /// Whether the routers know the engine profile; else they assume their default.
    pub is_engine_known: bool,
    /// The slowdown that the routers know of, in the same form.
    pub known_slow: Vec<(usize, f64)>,
    /// A pod that is drained, and when: it gets no new requests, those without a token are sent
    /// elsewhere, and responses that have begun are finished.
    pub drained: Option<(usize, Duration)>,
    /// Number of routers, each with its share of the requests; none knows what the others send.
    pub routers: usize,
    /// The delay of cache events to the routers.
    pub events_delay: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

impl ReplayFleet {
    /// Engines at their profile's speed behind one router that gets cache events without delay.
    #[must_use]
    pub fn new(engine: EngineProfile, pods: usize, seed: u64) -> Self {
        Self {
            engine,
            pods,
            kv_tokens: None,
            slow: Vec::new(),
            is_engine_known: true,
            known_slow: Vec::new(),
            drained: None,
            routers: 1,
            events_delay: Duration::ZERO,
            seed,
        }
    }
}

/// The times of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestRecord {
    /// When it arrived at the router.
    pub arrival: Duration,
    /// When it was sent to an engine, and the number of that engine.
    pub sent: Option<(Duration, usize)>,
    /// Tokens of its prompt that were cached.
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
    plans: Vec<Option<RoutingPlan>>,
    records: Vec<RequestRecord>,
    unfinished: usize,
    /// Planned requests beside the trace; their numbers follow those of the trace's turns.
    background: Option<Background<'a>>,
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
    Ok(run_replay(trace, profile, fleet, None, &mut watch)?.0)
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
    let records = run_replay(trace, profile, fleet, None, &mut noted)?.0;
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
    run_replay(trace, profile, fleet, Some(background), &mut |_, _| ControlFlow::Continue(()))
}

fn run_replay<'a>(
    trace: &'a Trace,
    profile: ProfileText<'_>,
    fleet: &ReplayFleet,
    background: Option<BackgroundLoad<'a>>,
    watch: &'a mut Watch<'a>,
) -> Result<(Vec<RequestRecord>, BackgroundResult), Problems> {
    assert!((1..=256).contains(&fleet.pods), "a fleet has 1 to 256 pods, not {}", fleet.pods);
    let settings = EngineSettings {
        block_size: trace.block_size,
        kv_tokens: fleet.kv_tokens,
        admission: EngineAdmission::WholeFits,
        ..EngineSettings::default()
    };
    let mut engines = vec![SimEngine::new(&fleet.engine, &settings); fleet.pods];
    for (pod, factor) in &fleet.slow {
        engines[*pod].set_slowdown(*factor);
    }
    let settings = RouterSettings {
        pods: fleet.pods,
        block_size: trace.block_size,
        kv_tokens: fleet.kv_tokens.unwrap_or(fleet.engine.kv_tokens()) as u64,
        engine: fleet.is_engine_known.then(|| fleet.engine.name()),
        known_slow: &fleet.known_slow,
        events_delay: fleet.events_delay,
        seed: fleet.seed,
    };
    let router = |number| {
        Router::new(profile, RouterSettings { seed: fleet.seed + number as u64, ..settings })
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
        plans: std::iter::repeat_with(|| None).take(turns).collect(),
        records: vec![RequestRecord::default(); turns],
        unfinished: trace.turns.len(),
        background,
        tracks_prefill: fleet.events_delay.is_zero(),
        outputs: Vec::new(),
        outcomes: Vec::new(),
        watch,
        is_stopped: false,
    };
    replay
        .due_events
        .extend(fleet.drained.map(|(pod, time)| Reverse((time, DueEvent::Drain(pod)))));
    replay.run();
    let result =
        replay.background.map_or_else(BackgroundResult::default, |background| background.result);
    replay.records.truncate(trace.turns.len());
    Ok((replay.records, result))
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
            let record = &self.records[*turn];
            self.plans[*turn].is_some()
                && record.first_token.is_none()
                && record.sent.is_some_and(|(_, at)| at == pod)
        };
        let turns: Vec<usize> = (0..self.plans.len()).filter(has_no_token).collect();
        for turn in turns {
            self.engines[pod].cancel(RequestId(turn as u64));
            self.plans[turn] = None;
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

    fn apply_outcome(&mut self, now: Duration, outcome: RouterOutcome) {
        match outcome {
            RouterOutcome::Held => {}
            RouterOutcome::Refused { turn } => self.end(now, turn),
            RouterOutcome::Sent { turn, pod, plan } => {
                self.records[turn].sent = Some((now, pod));
                if let Some((background, job)) = self.background_job(turn) {
                    background.sent(job, pod);
                }
                let prompt = self.turn(turn);
                let blocks = prompt.full_blocks(self.trace.block_size);
                let request = SimRequest {
                    id: RequestId(turn as u64),
                    prompt_tokens: prompt.prompt_tokens,
                    output_tokens: prompt.output_tokens,
                    chain: blocks.iter().copied().map(EngineHash).collect::<Arc<[_]>>(),
                    source: PromptSource::Computed,
                    lease: None,
                };
                match self.engines[pod].submit(now, request) {
                    Ok(()) => {
                        self.plans[turn] = Some(plan);
                        self.schedule_engine(pod);
                    }
                    Err(_) => self.end(now, turn),
                }
            }
        }
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

    fn record(&mut self, now: Duration, pod: usize, outcome: &SimOutcome) {
        match *outcome {
            SimOutcome::Admitted { request, cached_tokens } => {
                self.records[request.0 as usize].cached_tokens = cached_tokens;
            }
            SimOutcome::Token { request, .. } => {
                let turn = request.0 as usize;
                self.records[turn].first_token = Some(now);
                if let Some((background, job)) = self.background_job(turn) {
                    background.prefilled(job);
                }
                if let Some(reservation) = self.reservation(turn) {
                    reservation.first_token_at(Moment::at(now));
                }
            }
            SimOutcome::Finished { request } => {
                let turn = request.0 as usize;
                self.records[turn].end = Some(now);
                let generated = self.turn(turn).output_tokens.saturating_sub(1) as u64;
                if let Some(reservation) = self.reservation(turn) {
                    reservation.decoded(generated);
                    reservation.ended_at(Moment::at(now));
                }
                self.end(now, turn);
            }
            SimOutcome::Stored { request, ref blocks, .. } => {
                let tokens = (blocks.len() * self.trace.block_size.get()) as u64;
                if self.tracks_prefill
                    && let Some(reservation) = self.reservation(request.0 as usize)
                {
                    reservation.computed_at(tokens, Moment::at(now));
                }
            }
            _ => {}
        }
        if is_cache_event(outcome) {
            for router in &mut self.routers {
                router.receive_event(now, pod, outcome);
            }
        }
    }

    fn reservation(&mut self, turn: usize) -> Option<&mut wornpath_routing::Reservation> {
        self.plans[turn].as_mut()?.steps.first_mut()?.reservation.as_mut()
    }

    /// Ends a request, finished or failed: releases its load and starts the next turn of its
    /// session.
    fn end(&mut self, now: Duration, turn: usize) {
        self.plans[turn] = None;
        if let Some((background, job)) = self.background_job(turn) {
            background.ended(job);
            return;
        }
        self.unfinished -= 1;
        self.is_stopped |= (self.watch)(turn, &self.records[turn]).is_break();
        for (next, delay) in std::mem::take(&mut self.following[turn]) {
            self.due_events.push(Reverse((now + delay, DueEvent::Arrival(next))));
        }
    }
}
