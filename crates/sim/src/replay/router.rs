//! The router of a replay: the decision and index code of the live server, in virtual time.

mod estimate;

use super::trace::TraceTurn;
use crate::request::SimOutcome as EngineOutcome;
use estimate::Estimates;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::{BlockHash, ContentHash, HashKey};
use wornpath_exchange::{Expected, Heard, Member, Origin, RouterId, Update};
use wornpath_index::Moment;
use wornpath_index::{
    CacheEvent, Content, EngineHash, Index, IndexLimits, IndexWriter, Parent, PodId, StoredBlocks,
};
use wornpath_routing::queue::{Dequeued, HeldRequest, HeldRequests, Priority, Redecision};
use wornpath_routing::{
    DecisionEnv, DecisionState, Fleet, FleetPod, Health, ModelChoice, Models, Mutation, Name,
    Outcome, PlanStep, PodFacts, Problems, Profile, ProfileEnv, Prompt, Request, Rng, RoutingPlan,
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
    /// What it knows of each pod, but for its model.
    pub(super) pods: &'a [PodFacts],
    pub(super) block_size: NonZeroUsize,
    /// The slowdown that the router knows of: pod number and factor.
    pub(super) known_slow: &'a [(usize, f64)],
    /// The delay of cache events.
    pub(super) events_delay: Duration,
    /// Its number, if it exchanges with others.
    pub(super) exchanges_as: Option<usize>,
    /// The capacity of estimated caches; none if the router gets cache events.
    pub(super) estimated_tokens: Option<u64>,
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
    /// It is sent to these pods, one for each step; the plan holds its reserved load.
    Sent { turn: usize, pods: Vec<usize>, plan: RoutingPlan },
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
    /// The caches of the pods, if there are no events about them.
    estimates: Option<Arc<Estimates>>,
    block_size: NonZeroUsize,
    root: BlockHash,
    /// A buffer for the tokens of a block: its id, then zeros.
    block: Vec<u32>,
    /// The next batch number of each pod.
    sequences: Vec<u64>,
    exchange: Option<Member>,
}

impl Router {
    /// Creates a router in front of idle engines with empty caches.
    pub(super) fn new(
        ProfileText { name, yaml }: ProfileText<'_>,
        settings: RouterSettings<'_>,
    ) -> Result<Self, Problems> {
        let models = Arc::new(Models::new(HashKey::DEFAULT).with(MODEL, settings.block_size, None));
        let env = ProfileEnv { models: Arc::clone(&models), ..ProfileEnv::default() };
        let profile = Arc::new(Profile::check(name, yaml, &env)?);
        let index = Index::new(IndexLimits::default(), settings.seed);
        let pod = |facts: &PodFacts| {
            let id = index.add_pod().expect("the index has room for as many pods as were checked");
            FleetPod::new(id, PodFacts { models: vec![MODEL.into()], ..facts.clone() })
        };
        let fleet = Fleet::new(settings.pods.iter().map(pod).collect());
        for (pod, factor) in settings.known_slow {
            fleet.pods()[*pod].state().set_slowdown(*factor);
        }
        let estimates = settings.estimated_tokens.map(|tokens| Estimates::of(&fleet, tokens));
        let choice = ModelChoice { base: MODEL.into(), lora: None };
        let exchange = settings.exchanges_as.map(|number| {
            let router = RouterId(number as u64);
            let mut member = Member::new(Origin { router, started: 0 });
            member.follow(&fleet);
            member.sent_log().begin();
            member
        });
        let state = match (&exchange, &estimates) {
            (Some(member), _) => {
                let log = Arc::clone(member.sent_log());
                DecisionState::with_history(&index, log)
            }
            (None, Some(all)) => DecisionState::with_history(&index, Arc::<Estimates>::clone(all)),
            (None, None) => DecisionState::new(&index),
        };
        Ok(Self {
            wait_queue: HeldRequests::new(profile.queue_rules())
                .expect("a checked profile has valid rules"),
            root: models.root(&choice, None),
            profile,
            models,
            state,
            estimates,
            writer: index.writer(),
            index,
            fleet,
            rng: Rng::new(settings.seed),
            delay: settings.events_delay,
            delayed: VecDeque::new(),
            block_size: settings.block_size,
            block: vec![0; settings.block_size.get()],
            sequences: vec![0; settings.pods.len()],
            exchange,
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

    /// What the other routers are told; none if nothing has changed.
    pub(super) fn say(&mut self, now: Duration) -> Option<Update> {
        self.state.commit_pending();
        let tenants = std::iter::empty();
        self.exchange.as_mut()?.changes(&self.fleet, tenants, Moment::at(now))
    }

    /// Another router says something.
    pub(super) fn hear(&mut self, now: Duration, update: Update) {
        let Some(member) = &mut self.exchange else { return };
        let now = Moment::at(now);
        if let Heard::Joined(sent) | Heard::Known(sent) = member.hear(update, now) {
            for sent in &sent {
                let writer = &mut self.writer;
                member.expect(&self.fleet, sent, Expected { writer, history: None, now });
            }
            member.apply(&self.fleet, now);
        }
    }

    /// The next delayed event or timeout in the wait queue.
    pub(super) fn next_wakeup(&self) -> Option<Duration> {
        let event = self.delayed.front().map(|event| event.due);
        [event, self.wait_queue.next_wakeup().map(Moment::since_zero)].into_iter().flatten().min()
    }

    /// Receives a cache event of an engine, which takes effect after the delay, or never if caches
    /// are estimated.
    pub(super) fn receive_event(&mut self, now: Duration, pod: usize, outcome: &EngineOutcome) {
        if self.estimates.is_some() {
            return;
        }
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
        if let Some(estimates) = &self.estimates {
            estimates.remove(pod.id());
        }
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

    /// A plan of one step, or of a prefill whose KV the second step takes.
    fn sent(&self, turn: usize, plan: RoutingPlan) -> RouterOutcome {
        let offers_kv = |step: &PlanStep| {
            step.mutations.iter().any(|mutation| matches!(mutation, Mutation::OfferKv(_)))
        };
        let is_simulated = match &plan.steps[..] {
            [_] => true,
            [prefill, _] => offers_kv(prefill),
            _ => false,
        };
        let position = |step: &PlanStep| Some(self.fleet.find(step.pod?)?.position());
        match plan.steps.iter().map(position).collect::<Option<Vec<_>>>() {
            Some(pods) if is_simulated => RouterOutcome::Sent { turn, pods, plan },
            _ => RouterOutcome::Refused { turn },
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
        EngineOutcome::Stored { .. } | EngineOutcome::Removed { .. } | EngineOutcome::Cleared
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
