//! Shadow: a second profile decides beside the first on a part of the traffic, without effect, so
//! that operators can compare the two before they switch.
//!
//! It decides first, so that it sees the fleet as the first profile sees it: without the load and
//! the speculative insert of this request. Both choices are valued by one judge, the profile that
//! looks prompts up. The cost is bounded: so many decisions a second, one at a time, short prompts
//! only.

use crate::fleet::registry::PodRegistry;
use crate::fleet::snapshot::FleetSnapshot;
use crate::observe::request_trace::takes_turn;
use crate::observe::summary::ShadowChoice;
use crate::routes::RouteTable;
use crate::watchdog::TaskName;
use crate::watchdog::heartbeat::running;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wornpath_config::BodyLength;
use wornpath_index::PodId;
use wornpath_routing::{
    DecisionEnv, DecisionState, Name, Outcome, PodEstimate, Profile, Rng, RoutingContext,
    RoutingPlan,
};

static SHADOW: TaskName = TaskName::new("decide by the shadow profile");

/// Pairs of profiles that are kept; reloads may add others.
const MOST_PAIRS: usize = 16;

/// The shadow of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    /// Made with the first decision.
    state: Mutex<Option<DecisionState>>,
    /// When the next decision is due, in microseconds.
    next: AtomicU64,
    /// By the first profile and the shadow.
    compared: Mutex<BTreeMap<(String, String), Comparison>>,
}

/// What became of the requests that both profiles decided.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Comparison {
    /// Both chose the same pods.
    pub agreed: u64,
    /// They chose different pods.
    pub differed: u64,
    /// The shadow would have made the request wait.
    pub held: u64,
    /// The shadow would have refused it.
    pub refused: u64,
    /// Requests of which the cached tokens on both pods are known.
    pub valued: u64,
    /// Their cached tokens on the chosen pods.
    pub chosen_tokens: u64,
    /// The same on the shadow's.
    pub shadow_tokens: u64,
    /// Requests of which the time to first token on both pods is predicted.
    pub timed: u64,
    /// The sum of these on the chosen pods.
    pub chosen_first_token: Duration,
    /// The same on the shadow's.
    pub shadow_first_token: Duration,
}

/// What the shadow made of a request, before the first profile has decided.
#[derive(Debug)]
pub(crate) struct Rehearsal {
    profile: Name,
    choice: Choice,
    /// What every pod would make of the request.
    estimates: Vec<PodEstimate>,
}

#[derive(Debug)]
enum Choice {
    /// The pods of the plan; the first one computes the prompt.
    Pods(Vec<PodId>),
    Held,
    Refused,
}

/// A request that the first profile is about to decide.
pub(crate) struct LiveRequest<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) context: &'a mut RoutingContext,
    pub(crate) length: BodyLength,
}

impl Shadow {
    /// Lets the shadow decide, if there is one and it is its turn.
    pub(crate) fn rehearse(
        &self,
        routes: &RouteTable,
        pods: &PodRegistry,
        live: &mut LiveRequest<'_>,
    ) -> Option<Rehearsal> {
        let shadow = routes.shadow()?;
        let is_readable = !live.length.is_long && live.context.untokenized().is_none();
        let now = pods.now();
        if !is_readable || !takes_turn(&self.next, shadow.per_second, now) {
            return None;
        }
        let mut state = self.state.try_lock().ok()?;
        let _running = running(&SHADOW);
        let state = state.get_or_insert_with(|| DecisionState::rehearsing(pods.index()));
        let snapshot = pods.snapshot();
        let mut rng = Rng::new(now.since_zero().as_nanos() as u64);
        let mut env = DecisionEnv { fleet: snapshot.fleet(), state, now, rng: &mut rng };
        let mut context = shadow.profile.context(live.context.request().clone());
        shadow.profile.prepare(&mut context).ok()?;
        let estimates = if live.profile.looks_up() {
            live.profile.survey(live.context, &mut env)
        } else {
            shadow.profile.survey(&mut context, &mut env)
        };
        let choice = match shadow.profile.decide(&mut context, &mut env) {
            Outcome::Plan(plan) => Choice::Pods(pods_of(&plan)),
            Outcome::Hold(_) => Choice::Held,
            Outcome::Reject(_) => Choice::Refused,
        };
        Some(Rehearsal { profile: shadow.name.clone(), choice, estimates })
    }

    /// Compares what the shadow made of a request with its plan.
    pub(crate) fn compare(
        &self,
        rehearsal: &Rehearsal,
        live: &Name,
        plan: &RoutingPlan,
        snapshot: &FleetSnapshot,
    ) -> ShadowChoice {
        let chosen = pods_of(plan);
        let pair = (live.to_string(), rehearsal.profile.to_string());
        let mut compared = self.compared();
        let has_room = compared.len() < MOST_PAIRS || compared.contains_key(&pair);
        let mut unkept = Comparison::default();
        let counts = if has_room { compared.entry(pair).or_default() } else { &mut unkept };
        let (result, pod) = match &rehearsal.choice {
            Choice::Held => ("held", None),
            Choice::Refused => ("refused", None),
            Choice::Pods(pods) if *pods == chosen => ("agreed", pods.first().copied()),
            Choice::Pods(pods) => ("differed", pods.first().copied()),
        };
        match result {
            "held" => counts.held += 1,
            "refused" => counts.refused += 1,
            "agreed" => counts.agreed += 1,
            _ => counts.differed += 1,
        }
        let own = pod.and_then(|pod| rehearsal.estimate(pod));
        let others = chosen.first().and_then(|pod| rehearsal.estimate(*pod));
        if let (Some(own), Some(chosen)) = (own, others) {
            counts.value(own, chosen);
        }
        let name = |pod| Some(snapshot.entry(pod)?.pod.facts().name.clone());
        ShadowChoice {
            profile: rehearsal.profile.clone(),
            pod: pod.and_then(name),
            result,
            cached_tokens: own.and_then(|own| own.cached_tokens),
            first_token: own.and_then(|own| own.first_token),
        }
    }

    /// All comparisons, with the names of the first profile and the shadow.
    pub(crate) fn comparisons(&self) -> Vec<((String, String), Comparison)> {
        self.compared().iter().map(|(pair, counts)| (pair.clone(), *counts)).collect()
    }

    fn compared(&self) -> MutexGuard<'_, BTreeMap<(String, String), Comparison>> {
        self.compared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Comparison {
    fn value(&mut self, own: &PodEstimate, chosen: &PodEstimate) {
        if let (Some(shadow), Some(chosen)) = (own.cached_tokens, chosen.cached_tokens) {
            self.valued += 1;
            self.shadow_tokens += shadow;
            self.chosen_tokens += chosen;
        }
        if let (Some(shadow), Some(chosen)) = (own.first_token, chosen.first_token) {
            self.timed += 1;
            self.shadow_first_token = self.shadow_first_token.saturating_add(shadow);
            self.chosen_first_token = self.chosen_first_token.saturating_add(chosen);
        }
    }
}

impl Rehearsal {
    fn estimate(&self, pod: PodId) -> Option<&PodEstimate> {
        self.estimates.iter().find(|estimate| estimate.pod == pod)
    }
}

fn pods_of(plan: &RoutingPlan) -> Vec<PodId> {
    plan.steps.iter().filter_map(|step| step.pod).collect()
}
