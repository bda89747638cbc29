//! The router of a replay: the decision and index code of the live server, in virtual time.

use super::trace::TraceTurn;
use crate::request::SimOutcome as EngineOutcome;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::{BlockHash, ContentHash, HashKey};
use wornpath_index::Moment;
use wornpath_index::{
    CacheEvent, Content, EngineHash, Index, IndexLimits, IndexWriter, Parent, PodId, StoredBlocks,
    Tier,
};
use wornpath_routing::queue::{Dequeued, HeldRequest, HeldRequests, Priority, Redecision};
use wornpath_routing::{
    DecisionEnv, DecisionState, Fleet, FleetPod, Health, ModelChoice, Models, Name, Outcome,
    PodFacts, Problems, Profile, ProfileEnv, Prompt, Request, Rng, RoutingPlan,
};

/// A routing profile that is not assembled yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileText<'a> {
    /// Its name, for problems.
    pub name: &'a str,
    /// Its YAML.
    pub yaml: &'a str,
}

/// The only model of a replay.
const MODEL: &str = "replayed";

/// The configuration of a router.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouterSettings<'a> {
    pub(super) pods: usize,
    pub(super) block_size: NonZeroUsize,
    /// KV capacity of a pod in tokens.
    pub(super) kv_tokens: u64,
    /// The engine profile that the router knows every pod to have.
    pub(super) engine: Option<&'a str>,
    /// The slowdown that the router knows of: pod number and factor.
    pub(super) known_slow: &'a [(usize, f64)],
    /// The delay of cache events.
    pub(super) events_delay: Duration,
    pub(super) seed: u64,
}

/// A request of a replay: its number and its turn in the trace.
#[derive(Clone, Copy)]
pub(super) struct NumberedTurn<'a> {
    pub(super) number: usize,
    pub(super) turn: &'a TraceTurn,
}

/// The decision about a request.
pub(super) enum RouterOutcome {
    /// It is sent to this pod; the plan holds its reserved load.
    Sent { turn: usize, pod: usize, plan: RoutingPlan },
    /// It waits in the router's queue.
    Held,
    /// It is rejected.
    Refused { turn: usize },
}

/// A cache event that has not arrived yet.
struct Delayed {
    due: Duration,
    pod: usize,
    outcome: EngineOutcome,
}

/// Index, fleet, profile and wait queue.
pub(super) struct Router {
    profile: Arc<Profile>,
    models: Arc<Models>,
    fleet: Fleet,
    state: DecisionState,
    writer: IndexWriter,
    index: Index,
    rng: Rng,
    wait_queue: HeldRequests<usize>,
    delay: Duration,
    delayed: VecDeque<Delayed>,
    block_size: NonZeroUsize,
    root: BlockHash,
    /// A buffer for the tokens of a block: its id, then zeros.
    block: Vec<u32>,
    /// The next batch number of each pod.
    sequences: Vec<u64>,
}

impl Router {
    /// Creates a router in front of `pods` idle engines with empty caches.
    pub(super) fn new(
        ProfileText { name, yaml }: ProfileText<'_>,
        settings: RouterSettings<'_>,
    ) -> Result<Self, Problems> {
        let models = Arc::new(Models::new(HashKey::DEFAULT).with(MODEL, settings.block_size, None));
        let env = ProfileEnv { models: Arc::clone(&models), ..ProfileEnv::default() };
        let profile = Arc::new(Profile::check(name, yaml, &env)?);
        let index = Index::new(IndexLimits::default(), settings.seed);
        let pod = |number: usize| {
            let id = index.add_pod().expect("the index has room for as many pods as were checked");
            let facts = PodFacts {
                kv_tokens: Some(settings.kv_tokens),
                engine: settings.engine.map(Into::into),
                ..PodFacts::serving(&format!("pod-{number}"), MODEL)
            };
            FleetPod::new(id, facts)
        };
        let fleet = Fleet::new((0..settings.pods).map(pod).collect());
        for (pod, factor) in settings.known_slow {
            fleet.pods()[*pod].state().set_slowdown(*factor);
        }
        let choice = ModelChoice { base: MODEL.into(), lora: None };
        Ok(Self {
            wait_queue: HeldRequests::new(profile.queue_rules())
                .expect("a checked profile has valid rules"),
            root: models.root(&choice, None),
            profile,
            models,
            state: DecisionState::new(&index),
            writer: index.writer(),
            index,
            fleet,
            rng: Rng::new(settings.seed),
            delay: settings.events_delay,
            delayed: VecDeque::new(),
            block_size: settings.block_size,
            block: vec![0; settings.block_size.get()],
            sequences: vec![0; settings.pods],
        })
    }

    /// Decides a request that has just arrived.
    pub(super) fn arrive(&mut self, now: Duration, turn: NumberedTurn<'_>) -> RouterOutcome {
        self.decide(now, turn, Arc::clone(&self.profile), None)
    }

    /// Decides a request that a plan has assigned to a pod, at the lowest priority.
    pub(super) fn arrive_planned(
        &mut self,
        now: Duration,
        turn: NumberedTurn<'_>,
        profile: Arc<Profile>,
        pod: usize,
    ) -> RouterOutcome {
        let planned = self.fleet.pods()[pod].id();
        self.decide(now, turn, profile, Some(planned))
    }

    /// Checks a profile for planned requests.
    pub(super) fn planned_profile(
        &self,
        ProfileText { name, yaml }: ProfileText<'_>,
    ) -> Result<Arc<Profile>, Problems> {
        let models = Arc::clone(&self.models);
        let env = ProfileEnv { models, ..ProfileEnv::default() };
        Ok(Arc::new(Profile::check(name, yaml, &env)?))
    }

    fn decide(
        &mut self,
        now: Duration,
        NumberedTurn { number, turn }: NumberedTurn<'_>,
        profile: Arc<Profile>,
        planned: Option<PodId>,
    ) -> RouterOutcome {
        let session = turn.session.map(|session| ("x-session-id".to_owned(), session.to_string()));
        let request = Request {
            model: ModelChoice { base: MODEL.into(), lora: None },
            prompt: Prompt::Tokens(tokens_of(turn, self.block_size)),
            headers: session.into_iter().collect(),
            tenant: turn.tenant.map(|tenant| Name::from(tenant.to_string().as_str())),
            arrival: Moment::at(now),
            priority: planned.map_or_else(Priority::default, |_| Priority::LOWEST),
            planned,
            ..Request::default()
        };
        let mut context = profile.context(request);
        if profile.prepare(&mut context).is_err() {
            return RouterOutcome::Refused { turn: number };
        }
        let mut world = DecisionEnv {
            fleet: &self.fleet,
            state: &mut self.state,
            now: Moment::at(now),
            rng: &mut self.rng,
        };
        match profile.decide(&mut context, &mut world) {
            Outcome::Plan(plan) => self.sent(number, plan),
            Outcome::Reject(_) => RouterOutcome::Refused { turn: number },
            Outcome::Hold(hold) => {
                let held =
                    HeldRequest { profile, context, again: Redecision::default(), item: number };
                match self.wait_queue.hold(Moment::at(now), hold.class, held) {
                    Ok(pushed) => match pushed.displaced {
                        Some(displaced) => RouterOutcome::Refused { turn: displaced.item },
                        None => RouterOutcome::Held,
                    },
                    Err(full) => RouterOutcome::Refused { turn: full.item.item },
                }
            }
        }
    }

    /// Decides the requests in the wait queue again.
    pub(super) fn poll(&mut self, now: Duration, outcomes: &mut Vec<RouterOutcome>) {
        if self.wait_queue.is_empty() {
            return;
        }
        let mut dequeued = Vec::new();
        let mut world = DecisionEnv {
            fleet: &self.fleet,
            state: &mut self.state,
            now: Moment::at(now),
            rng: &mut self.rng,
        };
        self.wait_queue.poll(&mut world, &mut dequeued);
        for (held, outcome) in dequeued {
            outcomes.push(match outcome {
                Dequeued::Plan(plan) => self.sent(held.item, plan),
                Dequeued::Reject(_) => RouterOutcome::Refused { turn: held.item },
            });
        }
    }

    /// The next delayed event or timeout in the wait queue.
    pub(super) fn next_wakeup(&self) -> Option<Duration> {
        let event = self.delayed.front().map(|event| event.due);
        [event, self.wait_queue.next_wakeup().map(Moment::since_zero)].into_iter().flatten().min()
    }

    /// Receives a cache event of an engine, which takes effect after the delay.
    pub(super) fn receive_event(&mut self, now: Duration, pod: usize, outcome: &EngineOutcome) {
        if self.delay.is_zero() {
            return self.apply(now, pod, outcome);
        }
        self.delayed.push_back(Delayed { due: now + self.delay, pod, outcome: outcome.clone() });
    }

    /// Marks a pod as down and removes it from the index.
    pub(super) fn remove_pod(&mut self, pod: usize) {
        let pod = &self.fleet.pods()[pod];
        pod.state().set_health(Health::Down);
        self.index.remove_pod(pod.id());
    }

    /// Applies the delayed events that are due.
    pub(super) fn apply_due_events(&mut self, now: Duration) {
        while let Some(event) = self.delayed.pop_front_if(|event| event.due <= now) {
            self.apply(now, event.pod, &event.outcome);
        }
    }

    /// Records an engine's metrics and that its event stream is alive.
    pub(super) fn report(&self, now: Duration, pod: usize, waiting: usize, kv_usage: f64) {
        let pod_state = self.fleet.pods()[pod].state();
        pod_state.report(u32::try_from(waiting).unwrap_or(u32::MAX), kv_usage);
        pod_state.heard_at(Moment::at(now));
    }

    /// Does what a live router does every second: idle engines stay alive, speculative inserts
    /// expire.
    pub(super) fn tick(&mut self, now: Duration) {
        for pod in self.fleet.pods() {
            pod.state().heard_at(Moment::at(now));
            if let Ok(stats) = self.index.pod_stats(pod.id()) {
                pod.state().set_cached_tokens((stats.blocks * self.block_size.get()) as u64);
            }
        }
        self.writer.expire(Moment::at(now));
    }

    fn sent(&self, turn: usize, plan: RoutingPlan) -> RouterOutcome {
        let pod = plan.steps.first().and_then(|step| step.pod);
        match pod.and_then(|pod| self.fleet.find(pod)) {
            Some(candidate) => RouterOutcome::Sent { turn, pod: candidate.position(), plan },
            None => RouterOutcome::Refused { turn },
        }
    }

    fn apply(&mut self, now: Duration, number: usize, outcome: &EngineOutcome) {
        let pod = &self.fleet.pods()[number];
        let contents: Vec<ContentHash>;
        let event = match outcome {
            EngineOutcome::Stored { chain, blocks, tier, .. } => {
                let hasher = self.models.all()[0].hasher();
                let block = &mut self.block;
                let content = |hash: &EngineHash| {
                    write_id(hash.0, block);
                    hasher.content(block)
                };
                contents = chain[blocks.clone()].iter().map(content).collect();
                let parent = match blocks.start.checked_sub(1) {
                    Some(parent) => Parent::Block(chain[parent]),
                    None => Parent::Root(self.root),
                };
                CacheEvent::Stored(StoredBlocks {
                    tier: *tier,
                    blocks: &chain[blocks.clone()],
                    content: Content::Chained { parent, contents: &contents },
                    locations: &[],
                })
            }
            EngineOutcome::Removed { blocks, tier } => CacheEvent::Removed { tier: *tier, blocks },
            EngineOutcome::Cleared => CacheEvent::Cleared,
            _ => return,
        };
        let sequence = self.sequences[number];
        self.sequences[number] += 1;
        // The index refuses events of a removed pod.
        let applied = self.writer.apply(pod.id(), Some(sequence), &[event]);
        debug_assert!(applied.is_ok() || pod.state().health() == Health::Down, "{applied:?}");
        pod.state().heard_at(Moment::at(now));
    }
}

/// Whether an outcome is a cache event.
pub(super) fn is_cache_event(outcome: &EngineOutcome) -> bool {
    matches!(
        outcome,
        EngineOutcome::Stored { tier: Tier::Gpu | Tier::Host, .. }
            | EngineOutcome::Removed { .. }
            | EngineOutcome::Cleared
    )
}

/// Tokens that encode the ids of a prompt's blocks, as traces have no text.
fn tokens_of(turn: &TraceTurn, block_size: NonZeroUsize) -> Vec<u32> {
    let mut tokens = vec![0; turn.prompt_tokens];
    for (block, id) in tokens.chunks_mut(block_size.get()).zip(turn.blocks.iter()) {
        write_id(*id, block);
    }
    tokens
}

fn write_id(id: u64, block: &mut [u32]) {
    for (token, half) in block.iter_mut().zip([id as u32, (id >> 32) as u32]) {
        *token = half;
    }
}
