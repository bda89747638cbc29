//! A router made of the real parts: index, feeds, profile, queue, breakers, retry budget and retry
//! state of each request; with its own clock that runs at its own rate.

use crate::engine::{BLOCK, Prompt};
use crate::link::Kind;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::HashKey;
use wornpath_events::{
    BlockIdScheme, FeedRules, FeedState, PodFeed as Listener, ServedModel, SourceId, SourceQuery,
};
use wornpath_exchange::{Member, Origin};
use wornpath_execution::{
    BreakerRules, BudgetRules, CallOutcome, CircuitBreaker, RequestFingerprint, RetryBudget,
    RetryDecision, RetryState,
};
use wornpath_index::{Depths, Index, IndexLimits, IndexWriter, Moment};
use wornpath_routing::queue::{Dequeued, HeldRequest, HeldRequests, Redecision, Ticket};
use wornpath_routing::{
    BreakerState as Seen, DecisionEnv, DecisionState, EventTrust, Fleet, FleetPod, ModelChoice,
    Models, Outcome, PodFacts, Profile, ProfileEnv, Prompt as Routed, Request, Retry, Rng,
    RoutingContext, RoutingPlan,
};

const MODEL: &str = "stormy";

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The whole response came.
    Whole,
    /// The response was cut, and the client got an error.
    Broken,
    /// The last attempt failed, or the retry budget is spent.
    Exhausted,
    /// It was refused: no pod could take it.
    Rejected,
    /// The client disconnected.
    Left,
}

/// A call to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Send {
    pub(crate) request: u64,
    pub(crate) pod: usize,
    /// The leading blocks that the index has for the pod.
    pub(crate) predicted: usize,
}

/// What follows an event of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    Send(Send),
    End(u64, End),
}

struct Ongoing {
    context: Option<RoutingContext>,
    retries: RetryState,
    plan: Option<RoutingPlan>,
    ticket: Option<Ticket>,
    has_begun: bool,
    /// The pods whose connection was lost.
    lost: Vec<usize>,
}

/// A profile that ships with the router.
#[derive(Clone, Copy)]
pub(crate) struct BuiltInProfile {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// One run of a router's process.
#[derive(Clone, Copy)]
pub(crate) struct Life {
    pub(crate) origin: Origin,
    pub(crate) seed: u64,
    pub(crate) began: Moment,
}

pub(crate) struct Router {
    profile: Arc<Profile>,
    pub(crate) fleet: Fleet,
    /// Its side of the exchange with the other routers.
    pub(crate) member: Member,
    pub(crate) index: Index,
    state: DecisionState,
    pub(crate) writer: IndexWriter,
    rng: Rng,
    queue: HeldRequests<u64>,
    pub(crate) listeners: Vec<(Listener, SourceId)>,
    pub(crate) breakers: Vec<CircuitBreaker>,
    pub(crate) is_probing: Vec<bool>,
    budget: RetryBudget,
    ongoing: BTreeMap<u64, Ongoing>,
    started: Moment,
    ahead: Duration,
    /// The rate of its clock, in thousandths.
    rate: u32,
}

impl Router {
    pub(crate) fn new(profile: BuiltInProfile, kinds: &[Kind], life: Life) -> Self {
        let Life { origin, seed, began } = life;
        let size = NonZeroUsize::new(BLOCK).unwrap();
        let models = Arc::new(Models::new(HashKey::DEFAULT).with(MODEL, size, None));
        let surroundings = ProfileEnv { models, ..ProfileEnv::default() };
        let profile = Arc::new(Profile::check(profile.name, profile.text, &surroundings).unwrap());
        let index = Index::new(IndexLimits::default(), seed);
        let mut pods = Vec::new();
        let mut listeners = Vec::new();
        for (number, kind) in kinds.iter().enumerate() {
            let id = index.add_pod().unwrap();
            pods.push(FleetPod::new(id, PodFacts::serving(&format!("p{number}"), MODEL)));
            let serving = ServedModel {
                key: HashKey::DEFAULT,
                model: MODEL.to_owned(),
                block_size: size,
                id_scheme: BlockIdScheme::Engine,
            };
            let mut listener = Listener::new(&index, id, serving, FeedRules::default()).unwrap();
            let source = listener.add_source(kind.abilities());
            listeners.push((listener, source));
        }
        let mut rng = Rng::new(seed);
        let ahead = Duration::from_millis(rng.below(3_600_000) as u64);
        let rate = 950 + rng.below(101) as u32;
        let fleet = Fleet::new(pods);
        let mut member = Member::new(origin);
        member.follow(&fleet);
        member.sent_log().begin();
        let sent = Arc::clone(member.sent_log());
        Self {
            queue: HeldRequests::new(profile.queue_rules()).unwrap(),
            profile,
            fleet,
            state: DecisionState::with_history(&index, sent),
            member,
            writer: index.writer(),
            index,
            rng,
            listeners,
            breakers: kinds.iter().map(|_| CircuitBreaker::new(BreakerRules::default())).collect(),
            is_probing: vec![false; kinds.len()],
            budget: RetryBudget::new(BudgetRules::default(), Moment::at(ahead)),
            ongoing: BTreeMap::new(),
            started: began,
            ahead,
            rate,
        }
    }

    /// What was decided is in the index from now on.
    pub(crate) fn commit_pending(&mut self) {
        self.state.commit_pending();
    }

    /// The time by its own clock.
    pub(crate) fn clock(&self, now: Moment) -> Moment {
        Moment::at(self.ahead + (now - self.started) * self.rate / 1000)
    }

    /// A client sends a request.
    pub(crate) fn request(&mut self, request: u64, prompt: &Prompt, now: Moment) -> Option<Then> {
        self.budget.request();
        let tokens = prompt.iter().flat_map(|token| std::iter::repeat_n(*token, BLOCK)).collect();
        let asked = Request {
            model: ModelChoice { base: MODEL.into(), lora: None },
            prompt: Routed::Tokens(tokens),
            arrival: self.clock(now),
            ..Request::default()
        };
        let mut context = self.profile.context(asked);
        self.profile.prepare(&mut context).unwrap();
        let new = Ongoing {
            context: Some(context),
            retries: RetryState::default(),
            plan: None,
            ticket: None,
            has_begun: false,
            lost: Vec::new(),
        };
        self.ongoing.insert(request, new);
        self.decide(request, now)
    }

    /// Decides a request, without the pods where it failed.
    fn decide(&mut self, request: u64, now: Moment) -> Option<Then> {
        let now = self.clock(now);
        let Self { profile, fleet, state, rng, ongoing, .. } = self;
        let one = ongoing.get_mut(&request)?;
        let mut context = one.context.take()?;
        let excluded = one.retries.excluded().to_vec();
        let mut world = DecisionEnv { fleet, state, now, rng };
        let retry = Retry { step: None, excluded: &excluded };
        match profile.replan(&mut context, &mut world, retry) {
            Outcome::Plan(plan) => {
                one.context = Some(context);
                Some(self.send(request, plan))
            }
            Outcome::Reject(_) => {
                self.assert_no_candidate(&excluded);
                Some(self.end(request, End::Rejected))
            }
            Outcome::Hold(hold) => {
                let again = Redecision { step: None, excluded };
                let held =
                    HeldRequest { profile: Arc::clone(profile), context, again, item: request };
                match self.queue.hold(now, hold.class, held) {
                    Ok(pushed) => {
                        one.ticket = Some(pushed.ticket);
                        let displaced = pushed.displaced.map(|held| held.item)?;
                        Some(self.end(displaced, End::Rejected))
                    }
                    Err(_) => Some(self.end(request, End::Rejected)),
                }
            }
        }
    }

    /// A request is rejected only if every pod has failed it or has an open breaker.
    fn assert_no_candidate(&self, excluded: &[wornpath_index::PodId]) {
        for (pod, breaker) in self.fleet.pods().iter().zip(&self.breakers) {
            let is_free = breaker.state() == Seen::Closed && !excluded.contains(&pod.id());
            assert!(
                !is_free,
                "a request was turned away though {:?} could take it",
                pod.facts().name
            );
        }
    }

    fn send(&mut self, request: u64, plan: RoutingPlan) -> Then {
        self.state.commit_pending();
        let step = &plan.steps[0];
        let pod = self.fleet.find(step.pod.unwrap()).unwrap().position();
        let predicted = step.cache.runs.iter().map(|run| run.blocks).sum();
        let one = self.ongoing.get_mut(&request).unwrap();
        (one.plan, one.ticket) = (Some(plan), None);
        Then::Send(Send { request, pod, predicted })
    }

    fn end(&mut self, request: u64, end: End) -> Then {
        self.ongoing.remove(&request);
        Then::End(request, end)
    }

    /// Decides the queued requests.
    pub(crate) fn poll(&mut self, now: Moment) -> Vec<Then> {
        let mut settled = Vec::new();
        let now = self.clock(now);
        let Self { fleet, state, rng, queue, .. } = self;
        queue.poll(&mut DecisionEnv { fleet, state, now, rng }, &mut settled);
        let mut then = Vec::new();
        for (held, how) in settled {
            let Some(one) = self.ongoing.get_mut(&held.item) else { continue };
            one.context = Some(held.context);
            then.push(match how {
                Dequeued::Plan(plan) => self.send(held.item, plan),
                Dequeued::Reject(_) => self.end(held.item, End::Rejected),
            });
        }
        then
    }

    /// The first byte of a response came.
    pub(crate) fn first_byte(&mut self, request: u64, now: Moment) {
        let clock = self.clock(now);
        let Some(one) = self.ongoing.get_mut(&request) else { return };
        one.has_begun = true;
        for pod in std::mem::take(&mut one.lost) {
            let request = Some(RequestFingerprint(request));
            self.breakers[pod].confirm_outcome(CallOutcome::Lost, request, clock);
        }
        let reservation = one.plan.as_mut().and_then(|plan| plan.steps[0].reservation.as_mut());
        if let Some(reservation) = reservation {
            reservation.first_token_at(clock);
        }
    }

    /// The last byte came.
    pub(crate) fn answered(&mut self, request: u64, pod: usize, now: Moment) -> Then {
        self.record_outcome(request, pod, CallOutcome::Good, now);
        self.end(request, End::Whole)
    }

    /// A call failed.
    pub(crate) fn failed(
        &mut self,
        request: u64,
        pod: usize,
        outcome: CallOutcome,
        now: Moment,
    ) -> Option<Then> {
        self.record_outcome(request, pod, outcome, now);
        let clock = self.clock(now);
        let Self { ongoing, budget, fleet, .. } = self;
        let one = ongoing.get_mut(&request)?;
        if one.has_begun {
            return Some(self.end(request, End::Broken));
        }
        if outcome == CallOutcome::Lost {
            one.lost.push(pod);
        }
        let policy = one.plan.take().map(|plan| plan.steps[0].failure)?;
        let pod = Some(fleet.pods()[pod].id());
        match one.retries.failed(pod, policy, || budget.spend(clock)) {
            RetryDecision::OtherPod | RetryDecision::Restart => self.decide(request, now),
            RetryDecision::Skip | RetryDecision::GiveUp => Some(self.end(request, End::Exhausted)),
        }
    }

    /// The client disconnected.
    pub(crate) fn disconnected(&mut self, request: u64) -> Option<Then> {
        let one = self.ongoing.get(&request)?;
        if let Some(ticket) = one.ticket {
            self.queue.cancel(ticket);
        }
        Some(self.end(request, End::Left))
    }

    pub(crate) fn is_ongoing(&self, request: u64) -> bool {
        self.ongoing.contains_key(&request)
    }

    fn record_outcome(&mut self, request: u64, pod: usize, outcome: CallOutcome, now: Moment) {
        let clock = self.clock(now);
        let request = Some(RequestFingerprint(request));
        self.breakers[pod].record_outcome(outcome, request, clock);
        self.update_pod_states(pod);
    }

    pub(crate) fn probed(&mut self, pod: usize, outcome: CallOutcome, now: Moment) {
        let clock = self.clock(now);
        self.is_probing[pod] = false;
        self.breakers[pod].probed(outcome, clock);
        self.update_pod_states(pod);
    }

    fn update_pod_states(&self, pod: usize) {
        self.fleet.pods()[pod].state().set_breaker(self.breakers[pod].state());
    }

    /// The periodic work. Returns the pods to probe.
    pub(crate) fn tick(&mut self, now: Moment) -> Vec<usize> {
        let clock = self.clock(now);
        self.state.commit_pending();
        self.writer.expire(clock);
        let mut probes = Vec::new();
        for number in 0..self.breakers.len() {
            if self.breakers[number].tick(clock) && !self.is_probing[number] {
                self.is_probing[number] = true;
                probes.push(number);
            }
            self.update_pod_states(number);
            let status = self.listeners[number].0.status(clock);
            let pod_state = self.fleet.pods()[number].state();
            pod_state.set_trust(match status.state {
                FeedState::Live => EventTrust::Exact,
                FeedState::Partial => EventTrust::Partial,
                _ => EventTrust::Unsure,
            });
            if let Some(age) = status.age {
                pod_state.heard_at(clock.saturating_sub(age));
            }
        }
        probes
    }

    /// The query that a pod's feed wants to send now.
    pub(crate) fn question(
        &mut self,
        pod: usize,
        clock: Moment,
    ) -> Option<(SourceId, SourceQuery)> {
        let listener = &mut self.listeners[pod].0;
        if listener.next_tick().is_none_or(|due| due > clock) {
            return None;
        }
        listener.tick(&mut self.writer, clock).unwrap()
    }

    /// The leading blocks of a prompt that the index has for each pod.
    pub(crate) fn predicted(&self, prompt: &Prompt) -> Vec<usize> {
        let size = NonZeroUsize::new(BLOCK).unwrap();
        let models = Models::new(HashKey::DEFAULT).with(MODEL, size, None);
        let root = models.root(&ModelChoice { base: MODEL.into(), lora: None }, None);
        let hasher = models.all()[0].hasher();
        let tokens: Vec<u32> =
            prompt.iter().flat_map(|token| std::iter::repeat_n(*token, BLOCK)).collect();
        let mut chain = Vec::new();
        hasher.hash_tokens(&tokens, root, &mut chain);
        let mut answer = Depths::default();
        self.index.reader().lookup(&chain, &mut answer);
        self.fleet.pods().iter().map(|pod| answer.depth(pod.slot())).collect()
    }

    /// Asserts that nothing is left of requests that have ended.
    pub(crate) fn assert_idle(&self, seed: u64) {
        assert!(self.ongoing.is_empty() && self.queue.is_empty(), "seed {seed}: requests left");
        for pod in self.fleet.pods() {
            let pod_state = pod.state();
            let load =
                (pod_state.requests(), pod_state.prefill_tokens(), pod_state.decode_tokens());
            assert_eq!(load, (0, 0, 0), "seed {seed}: {:?}", pod.facts().name);
        }
    }
}
