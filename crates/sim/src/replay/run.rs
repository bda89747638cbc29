//! The event loop: arrivals, engines, cache events and the holding queue in one order of time.

use super::background::{Background, BackgroundLoad, BackgroundResult, LOOK};
use super::router::{Router, RouterOutcome, RouterSettings, is_cache_event};
use super::trace::{Trace, TraceStart, TraceTurn};
use crate::engine::{EngineAdmission, EngineSettings, SimEngine};
use crate::profile::EngineProfile;
use crate::request::{Output, PromptSource, RequestId, SimOutcome, SimRequest};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::EngineHash;
use wornpath_routing::{Problems, Rng, RoutingPlan};

/// How often a live router looks after its pods.
const TICK: Duration = Duration::from_secs(1);

/// A fleet of equal engines, how it is watched, and what befalls it.
#[derive(Clone, Debug)]
pub struct ReplayFleet {
    /// How fast each engine is.
    pub engine: EngineProfile,
    /// How many there are, at least one and at most 256.
    pub pods: usize,
    /// Tokens that each engine's cache holds, if not as its profile says.
    pub kv_tokens: Option<usize>,
    /// Pods that take so many times longer than the profile says: number and factor.
    pub slow: Vec<(usize, f64)>,
    /// What routers are told of that, in the same form.
    pub told_slow: Vec<(usize, f64)>,
    /// A pod that is taken out, and when: nothing new is sent to it, what has no token yet is sent elsewhere, and
    /// answers that have begun are finished.
    pub leaves: Option<(usize, Duration)>,
    /// Routers, each with its share of the requests; none knows what the others have sent.
    pub routers: usize,
    /// How late cache events reach the routers.
    pub events_delay: Duration,
    /// Where chance comes from.
    pub seed: u64,
}

impl ReplayFleet {
    /// Engines as their profile says, in front of them one router that hears of everything at once.
    #[must_use]
    pub fn new(engine: EngineProfile, pods: usize, seed: u64) -> Self {
        Self {
            engine,
            pods,
            kv_tokens: None,
            slow: Vec::new(),
            told_slow: Vec::new(),
            leaves: None,
            routers: 1,
            events_delay: Duration::ZERO,
            seed,
        }
    }
}

/// What happened to one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestRecord {
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
enum DueEvent {
    Arrival(usize),
    Engine(usize),
    Leave(usize),
    Look,
    Routers,
    Tick,
}

struct ReplayState<'a> {
    trace: &'a Trace,
    routers: Vec<Router>,
    /// Which of them gets the next request.
    balancer: Rng,
    engines: Vec<SimEngine>,
    /// When each engine is next looked at; other entries of the agenda are stale.
    planned: Vec<Option<Duration>>,
    /// When the routers are next asked though no engine has anything to say; other entries are stale.
    wakeup: Option<Duration>,
    agenda: BinaryHeap<Reverse<(Duration, DueEvent)>>,
    /// Turns that start when another ends.
    following: Vec<Option<(usize, Duration)>>,
    plans: Vec<Option<RoutingPlan>>,
    records: Vec<RequestRecord>,
    unfinished: usize,
    /// What is computed besides; its requests have the numbers after the trace's own.
    background: Option<Background<'a>>,
    /// Whether cache events come soon enough to tell how far a prompt is computed.
    tells_progress: bool,
    outputs: Vec<Output>,
    verdicts: Vec<RouterOutcome>,
    /// Told how many requests have ended, after each.
    watch: &'a mut dyn FnMut(usize),
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
    profile: (&str, &str),
    fleet: &ReplayFleet,
) -> Result<Vec<RequestRecord>, Problems> {
    replay_watched(trace, profile, fleet, &mut |_| {})
}

/// Like [`replay`], and tells `watch` how many requests have ended, after each of them.
///
/// # Errors
/// If the profile is not valid.
///
/// # Panics
/// If there are no pods, or more than the index has room for.
pub fn replay_watched(
    trace: &Trace,
    profile: (&str, &str),
    fleet: &ReplayFleet,
    watch: &mut dyn FnMut(usize),
) -> Result<Vec<RequestRecord>, Problems> {
    Ok(carried_out(trace, profile, fleet, (None, watch))?.0)
}

/// Like [`replay`], while a planned queue is computed on the same engines, until the trace is over.
///
/// # Errors
/// If a profile is not valid.
///
/// # Panics
/// If there are no pods, or more than the index has room for.
pub fn replay_beside(
    trace: &Trace,
    profile: (&str, &str),
    fleet: &ReplayFleet,
    beside: BackgroundLoad<'_>,
) -> Result<(Vec<RequestRecord>, BackgroundResult), Problems> {
    carried_out(trace, profile, fleet, (Some(beside), &mut |_| {}))
}

fn carried_out<'a>(
    trace: &'a Trace,
    (name, yaml): (&str, &str),
    fleet: &ReplayFleet,
    (beside, watch): (Option<BackgroundLoad<'a>>, &'a mut dyn FnMut(usize)),
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
        engine: fleet.engine.name(),
        slow: &fleet.told_slow,
        events_delay: fleet.events_delay,
        seed: fleet.seed,
    };
    let router = |number| {
        Router::new(name, yaml, RouterSettings { seed: fleet.seed + number as u64, ..settings })
    };
    let routers = (0..fleet.routers.max(1)).map(router).collect::<Result<Vec<_>, _>>()?;
    let mut turns = trace.turns.len();
    let mut background = None;
    if let Some(beside) = beside {
        let profile = routers[0].second_profile(beside.profile.0, beside.profile.1)?;
        turns += beside.trace.turns.len();
        background = Some(Background::new(beside, profile, fleet.engine.max_step_tokens()));
    }
    let mut replay = ReplayState {
        trace,
        routers,
        balancer: Rng::new(fleet.seed),
        planned: vec![None; engines.len()],
        engines,
        wakeup: None,
        agenda: BinaryHeap::new(),
        following: vec![None; trace.turns.len()],
        plans: std::iter::repeat_with(|| None).take(turns).collect(),
        records: vec![RequestRecord::default(); turns],
        unfinished: trace.turns.len(),
        background,
        tells_progress: fleet.events_delay.is_zero(),
        outputs: Vec::new(),
        verdicts: Vec::new(),
        watch,
    };
    replay.agenda.extend(fleet.leaves.map(|(pod, time)| Reverse((time, DueEvent::Leave(pod)))));
    replay.run();
    let done =
        replay.background.map_or_else(BackgroundResult::default, |background| background.done);
    replay.records.truncate(trace.turns.len());
    Ok((replay.records, done))
}

impl<'a> ReplayState<'a> {
    fn run(&mut self) {
        for (number, turn) in self.trace.turns.iter().enumerate() {
            match turn.start {
                TraceStart::At(time) => {
                    self.agenda.push(Reverse((time, DueEvent::Arrival(number))))
                }
                TraceStart::After { turn, delay } => self.following[turn] = Some((number, delay)),
            }
        }
        self.agenda.push(Reverse((Duration::ZERO, DueEvent::Tick)));
        if self.background.is_some() {
            self.agenda.push(Reverse((Duration::ZERO, DueEvent::Look)));
        }
        while self.unfinished > 0 {
            let Some(Reverse((now, due))) = self.agenda.pop() else { break };
            for router in &mut self.routers {
                router.catch_up(now);
            }
            match due {
                DueEvent::Arrival(number) => {
                    self.records[number].arrival = now;
                    self.decide(now, number);
                }
                DueEvent::Engine(pod) if self.planned[pod] == Some(now) => self.advance(now, pod),
                DueEvent::Engine(_) => continue,
                DueEvent::Leave(pod) => self.leave(now, pod),
                DueEvent::Look => {
                    self.look(now);
                    self.agenda.push(Reverse((now + LOOK, DueEvent::Look)));
                }
                DueEvent::Routers if self.wakeup == Some(now) => {
                    self.wakeup = None;
                    self.poll(now);
                }
                DueEvent::Routers => continue,
                DueEvent::Tick => {
                    self.routers.iter_mut().for_each(|router| router.tick(now));
                    self.agenda.push(Reverse((now + self.until_tick(now), DueEvent::Tick)));
                }
            }
            if due != DueEvent::Tick {
                self.plan_routers(now);
            }
        }
    }

    /// How long until the next tick that matters: the last one before something else happens.
    fn until_tick(&self, now: Duration) -> Duration {
        let Some(Reverse((next, _))) = self.agenda.peek() else { return TICK };
        let before = next.saturating_sub(now).saturating_sub(Duration::from_nanos(1));
        let ticks = before.as_secs() / TICK.as_secs();
        Duration::from_secs(ticks * TICK.as_secs()).max(TICK)
    }

    /// Plans the next wake-up of the routers, unless it is planned already.
    fn plan_routers(&mut self, now: Duration) {
        let next = self.routers.iter().filter_map(Router::next_wakeup).min();
        let next = next.map(|time| time.max(now));
        if next.is_some() && next != self.wakeup {
            self.wakeup = next;
            self.agenda.extend(next.map(|time| Reverse((time, DueEvent::Routers))));
        }
    }

    /// The turn of a number, the trace's own or one of the background.
    fn turn(&self, number: usize) -> &'a TraceTurn {
        match number.checked_sub(self.trace.turns.len()) {
            None => &self.trace.turns[number],
            Some(job) => {
                let background = self.background.as_ref();
                background.expect("only a background has numbers beyond the trace").turn(job)
            }
        }
    }

    /// The background and a request's number in it, if it is one of its own.
    fn behind(&mut self, number: usize) -> Option<(&mut Background<'a>, usize)> {
        let job = number.checked_sub(self.trace.turns.len())?;
        Some((self.background.as_mut()?, job))
    }

    fn look(&mut self, now: Duration) {
        for pod in 0..self.engines.len() {
            if let Some(background) = &mut self.background {
                background.look(now, pod, &self.engines[pod]);
            }
            self.fill(now, pod);
        }
    }

    /// Decides what the background may send to a pod.
    fn fill(&mut self, now: Duration, pod: usize) {
        while let Some(background) = &mut self.background
            && let Some(job) = background.claim(pod)
        {
            let number = self.trace.turns.len() + job;
            let (turn, profile) = (background.turn(job), Arc::clone(&background.profile));
            // All of it comes from the gateway that runs it.
            let verdict = self.routers[0].arrive_planned(now, (number, turn), (&profile, pod));
            let is_refused = matches!(verdict, RouterOutcome::Refused { .. });
            self.carry_out(now, verdict);
            if is_refused {
                break;
            }
        }
    }

    fn decide(&mut self, now: Duration, number: usize) {
        let router = self.balancer.below(self.routers.len());
        let verdict = self.routers[router].arrive(now, number, &self.trace.turns[number]);
        self.carry_out(now, verdict);
    }

    /// A pod is taken out: what it has not begun to answer is decided again.
    fn leave(&mut self, now: Duration, pod: usize) {
        for router in &mut self.routers {
            router.remove(pod);
        }
        let is_unanswered = |turn: &usize| {
            let record = &self.records[*turn];
            self.plans[*turn].is_some()
                && record.first_token.is_none()
                && record.sent.is_some_and(|(_, at)| at == pod)
        };
        let turns: Vec<usize> = (0..self.plans.len()).filter(is_unanswered).collect();
        for turn in turns {
            self.engines[pod].cancel(RequestId(turn as u64));
            self.plans[turn] = None;
            self.decide(now, turn);
        }
        self.plan_engine(pod);
    }

    fn poll(&mut self, now: Duration) {
        let mut verdicts = std::mem::take(&mut self.verdicts);
        for router in &mut self.routers {
            router.poll(now, &mut verdicts);
        }
        for verdict in verdicts.drain(..) {
            self.carry_out(now, verdict);
        }
        self.verdicts = verdicts;
    }

    fn carry_out(&mut self, now: Duration, verdict: RouterOutcome) {
        match verdict {
            RouterOutcome::Held => {}
            RouterOutcome::Refused { turn } => self.end(now, turn),
            RouterOutcome::Sent { turn, pod, plan } => {
                self.records[turn].sent = Some((now, pod));
                if let Some((background, job)) = self.behind(turn) {
                    background.sent(job, pod);
                }
                let asked = self.turn(turn);
                let names = asked.full_blocks(self.trace.block_size);
                let request = SimRequest {
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
            self.agenda.extend(next.map(|time| Reverse((time, DueEvent::Engine(pod)))));
        }
    }

    fn advance(&mut self, now: Duration, pod: usize) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engines[pod].advance(now, &mut outputs);
        for output in outputs.drain(..) {
            self.take_in(now, pod, &output.outcome);
        }
        self.outputs = outputs;
        let load = self.engines[pod].load();
        let usage = load.used_blocks as f64 / load.total_blocks as f64;
        for router in &self.routers {
            router.report(now, pod, load.waiting, usage);
        }
        self.planned[pod] = None;
        self.plan_engine(pod);
        // Whoever waits goes before the background.
        self.poll(now);
        self.fill(now, pod);
    }

    fn take_in(&mut self, now: Duration, pod: usize, outcome: &SimOutcome) {
        match *outcome {
            SimOutcome::Admitted { request, cached_tokens } => {
                self.records[request.0 as usize].cached_tokens = cached_tokens;
            }
            SimOutcome::Token { request, .. } => {
                let turn = request.0 as usize;
                self.records[turn].first_token = Some(now);
                if let Some((background, job)) = self.behind(turn) {
                    background.prefilled(job);
                }
                if let Some(reservation) = self.reservation(turn) {
                    reservation.first_token_at(now);
                }
            }
            SimOutcome::Finished { request } => {
                let turn = request.0 as usize;
                self.records[turn].end = Some(now);
                let generated = self.turn(turn).output_tokens.saturating_sub(1) as u64;
                if let Some(reservation) = self.reservation(turn) {
                    reservation.decoded(generated);
                    reservation.ended_at(now);
                }
                self.end(now, turn);
            }
            SimOutcome::Stored { request, ref blocks, .. } => {
                let tokens = (blocks.len() * self.trace.block_size.get()) as u64;
                // Late events say too late how far a prompt has come.
                if self.tells_progress
                    && let Some(reservation) = self.reservation(request.0 as usize)
                {
                    reservation.computed_at(tokens, now);
                }
            }
            _ => {}
        }
        if is_cache_event(outcome) {
            for router in &mut self.routers {
                router.hear(now, pod, outcome);
            }
        }
    }

    fn reservation(&mut self, turn: usize) -> Option<&mut wornpath_routing::Reservation> {
        self.plans[turn].as_mut()?.steps.first_mut()?.reservation.as_mut()
    }

    /// A request has ended, well or not: its load is given back and its session goes on.
    fn end(&mut self, now: Duration, turn: usize) {
        self.plans[turn] = None;
        if let Some((background, job)) = self.behind(turn) {
            background.ended(job);
            return;
        }
        self.unfinished -= 1;
        (self.watch)(self.trace.turns.len() - self.unfinished);
        if let Some((next, delay)) = self.following[turn] {
            self.agenda.push(Reverse((now + delay, DueEvent::Arrival(next))));
        }
    }
}
