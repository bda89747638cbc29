//! A decision: selects a pod for every step of a prepared request, then plans, holds or rejects it.
//!
//! A plan reserves load on its pods, and becomes the speculative insert of the thread that decides.

mod best_cached;
mod survey;

use std::time::Duration;

use wornpath_index::PodId;

pub use survey::PodEstimate;

use crate::decision_state::{DecisionEnv, DecisionScratch};
use crate::explain::Recorder;
use crate::fleet::{Candidate, EventTrust, LoadedTokens, Reservation};
use crate::name::Name;
use crate::plan::{
    AfterFailure, AwaitedPod, CacheHint, CacheRun, Hold, Mark, Mutation, Outcome, PlanStep,
    RoutingPlan, SkippedBecause, Start,
};
use crate::plugins::EngineSpeed;
use crate::profile::Profile;
use crate::selector::NoCandidate;
use crate::slot::{Picked, RoutingContext};
use crate::stage::{ConfiguredFilter, Decision, Rejection};
use crate::wait_queue::{QueueEntry, Tenant};
use crate::workflow::{Bind, WorkflowStep};

/// Prefill time per token, of the order of real engines. Used only for estimates that need no more.
const PER_TOKEN: Duration = Duration::from_micros(50);

/// The part of a plan that is decided again after a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry<'a> {
    /// The step that failed, or none for the whole plan.
    pub step: Option<&'a Name>,
    /// Pods that must not be chosen again.
    pub excluded: &'a [PodId],
}

impl Retry<'_> {
    const FIRST: Self = Self { step: None, excluded: &[] };
}

impl Profile {
    /// Decides a prepared request. Never blocks; may be called again while the request waits.
    ///
    /// # Panics
    /// If another profile made the context.
    pub fn decide(&self, context: &mut RoutingContext, env: &mut DecisionEnv<'_>) -> Outcome {
        self.run(context, env, Retry::FIRST, None)
    }

    /// Like [`Profile::decide`], and records why.
    ///
    /// # Panics
    /// If another profile made the context.
    pub fn decide_explained(
        &self,
        context: &mut RoutingContext,
        env: &mut DecisionEnv<'_>,
        recorder: &mut Recorder<'_>,
    ) -> Outcome {
        self.run(context, env, Retry::FIRST, Some(recorder))
    }

    /// Decides again after a failure: the whole plan, or one step, and then the plan has that step
    /// only. Also binds a late-bound step when it starts. The profile's `hold` does not apply to a
    /// single step, whose request is in flight; a filter with `on_empty: hold` still gives
    /// [`Outcome::Hold`], and the caller decides again later.
    ///
    /// # Panics
    /// If another profile made the context.
    pub fn replan(
        &self,
        context: &mut RoutingContext,
        env: &mut DecisionEnv<'_>,
        retry: Retry<'_>,
    ) -> Outcome {
        self.run(context, env, retry, None)
    }

    fn run(
        &self,
        context: &mut RoutingContext,
        env: &mut DecisionEnv<'_>,
        retry: Retry<'_>,
        recorder: Option<&mut Recorder<'_>>,
    ) -> Outcome {
        self.assert_owns(context);
        let marks = Vec::new();
        let mut run = DecisionRun { profile: self, context, env, retry, recorder, marks };
        run.lookup();
        let mut steps = Vec::with_capacity(self.steps.len());
        let no_plan = match run.bind(&mut steps) {
            Err(NoCandidate::Hold) => Outcome::Hold(run.hold(None, None)),
            Err(NoCandidate::Reject(rejection)) => Outcome::Reject(rejection),
            Ok(()) => match run.must_wait(&steps) {
                Some(hold) => Outcome::Hold(hold),
                None => return Outcome::Plan(run.plan(steps)),
            },
        };
        for step in &steps {
            run.pass_over(step);
        }
        no_plan
    }
}

/// A decision in progress.
struct DecisionRun<'a, 'e, 'r> {
    profile: &'a Profile,
    context: &'a mut RoutingContext,
    env: &'a mut DecisionEnv<'e>,
    retry: Retry<'a>,
    recorder: Option<&'a mut Recorder<'r>>,
    marks: Vec<Mark>,
}

/// A step of the profile, and its pod.
struct BoundStep<'a> {
    step: &'a WorkflowStep,
    /// None for a late-bound step, and if there is no candidate.
    pod: Option<BoundPod>,
    /// Why there is no candidate, as long as the step may still be left out.
    no_candidate: Option<NoCandidate>,
}

struct BoundPod {
    candidate: Candidate,
    fallbacks: Vec<PodId>,
    uncached_tokens: u64,
}

impl<'a> DecisionRun<'a, '_, '_> {
    /// Looks the prompt up in the index, once for all plugins and steps.
    fn lookup(&mut self) {
        self.env.state.commit_pending();
        let scratch = &mut self.env.state.scratch;
        scratch.depths.clear();
        scratch.held.clear();
        let Some(blocks) = &self.profile.blocks else { return };
        let started = self.recorder.as_deref().map(Recorder::now);
        scratch.held.resize(self.env.fleet.slots(), 0);
        if let Some(blocks) = self.context.slots.read(blocks) {
            self.env.state.reader.depths(&blocks.chain, &mut scratch.held);
        }
        scratch.depths.extend_from_slice(&scratch.held);
        self.env.fleet.discount_stale(&mut scratch.depths);
        if let (Some(recorder), Some(started)) = (&mut self.recorder, started) {
            recorder.looked_up(started);
        }
    }

    /// Binds every step that is to be decided to a pod, and leaves out those that are not worth it.
    fn bind(&mut self, steps: &mut Vec<BoundStep<'a>>) -> Result<(), NoCandidate> {
        let profile = self.profile;
        let is_whole_plan = self.retry.step.is_none();
        if is_whole_plan {
            for step in &profile.steps {
                self.context.slots.withdraw(&step.picked);
            }
        }
        for (at, step) in profile.steps.iter().enumerate() {
            if self.retry.step.is_some_and(|only| *only != step.name) {
                continue;
            }
            let is_last = at + 1 == profile.steps.len();
            if self.context.request.has_prompt_list && step.rules.offers_kv() && !is_last {
                self.leave_out(step, SkippedBecause::SeveralPrompts);
                continue;
            }
            if step.rules.bind == Bind::Late && is_whole_plan {
                steps.push(BoundStep { step, pod: None, no_candidate: None });
                continue;
            }
            // A caller that decides one step again leaves it out itself.
            let can_leave_out = is_whole_plan && !is_last;
            match self.select(step) {
                Ok(pod) => {
                    let id = self.env.fleet[pod.candidate].id();
                    *self.context.slots.write(&step.picked) = Picked(Some(id));
                    steps.push(BoundStep { step, pod: Some(pod), no_candidate: None });
                }
                Err(NoCandidate::Reject(_))
                    if can_leave_out && step.rules.failure.then == AfterFailure::Skip =>
                {
                    self.leave_out(step, SkippedBecause::NoPod);
                }
                // Only the next step's pod tells whether this one is needed at all.
                Err(none) if can_leave_out && step.rules.is_conditional() => {
                    steps.push(BoundStep { step, pod: None, no_candidate: Some(none) });
                }
                Err(none) => return Err(none),
            }
        }
        if is_whole_plan {
            self.leave_out_needless(steps);
        }
        if let Some(none) = steps.iter_mut().find_map(|step| step.no_candidate.take()) {
            return Err(none);
        }
        if steps.is_empty() {
            let reason = match self.retry.step {
                Some(step) => format!("the profile has no step `{step}`"),
                None => "no pod can serve any step of the profile".to_owned(),
            };
            return Err(NoCandidate::Reject(Rejection::unavailable(&reason)));
        }
        Ok(())
    }

    /// Selects a pod for one step: filter, score, pick.
    fn select(&mut self, step: &WorkflowStep) -> Result<BoundPod, NoCandidate> {
        let DecisionEnv { fleet, state, now, rng } = &mut *self.env;
        let fleet = *fleet;
        let DecisionScratch { depths, selection, .. } = &mut state.scratch;
        let excluded = self.retry.excluded;
        selection.candidates.clear();
        selection.most_fallbacks = step.rules.fallbacks;
        let with_role = fleet.with_role(&step.rules.role).iter().copied();
        let allowed = self.context.request.allowed.as_ref();
        if excluded.is_empty() && allowed.is_none() {
            selection.candidates.extend(with_role);
        } else {
            let is_allowed = |at: &Candidate| {
                let pod = &fleet[*at];
                !excluded.contains(&pod.id()) && allowed.is_none_or(|allowed| allowed.has(pod))
            };
            selection.candidates.extend(with_role.filter(is_allowed));
        }
        let decision = Decision {
            request: &self.context.request,
            fleet,
            now: *now,
            role: &step.rules.role,
            slots: &self.context.slots,
            depths,
            index: &state.index,
        };
        let mut recorder = self.recorder.as_deref_mut();
        if let Some(recorder) = &mut recorder {
            recorder.begin(&step.name, &decision, &selection.candidates);
        }
        let selector = &step.selector;
        let skipped = selector.filter(&decision, selection, recorder.as_deref_mut())?;
        selector.score(&decision, selection, recorder.as_deref_mut());
        let choice = selector.pick(&decision, selection, rng, recorder);

        let candidate = selection.candidates[choice.at];
        let id = |at: &usize| fleet[selection.candidates[*at]].id();
        let fallbacks = selection.fallbacks.iter().map(id).collect();
        for filter in skipped {
            self.marks.push(Mark::FilterSkipped { step: step.name.clone(), filter });
        }
        if let Some(mark) = choice.mark {
            self.marks.push(Mark::Pick { step: step.name.clone(), mark });
        }
        let uncached_tokens = self.uncached_tokens(candidate);
        Ok(BoundPod { candidate, fallbacks, uncached_tokens })
    }

    /// Leaves out steps whose successor has too little to compute for them to be worth it.
    fn leave_out_needless(&mut self, steps: &mut Vec<BoundStep<'a>>) {
        let mut at = 0;
        while at + 1 < steps.len() {
            let least = steps[at].step.rules.min_uncached_tokens;
            let next = steps[at + 1].pod.as_ref().map(|pod| pod.uncached_tokens);
            match (least, next) {
                (Some(least), Some(tokens)) if tokens < least => {
                    let needless = steps.remove(at);
                    self.pass_over(&needless);
                    self.leave_out(needless.step, SkippedBecause::FewUncachedTokens(tokens));
                }
                _ => at += 1,
            }
        }
    }

    fn leave_out(&mut self, step: &WorkflowStep, why: SkippedBecause) {
        self.context.slots.withdraw(&step.picked);
        self.marks.push(Mark::StepSkipped { step: step.name.clone(), why });
    }

    /// Tells the picker of a step that no plan uses its choice.
    fn pass_over(&self, bound: &BoundStep<'_>) {
        if let BoundStep { step, pod: Some(pod), .. } = bound {
            let decision = decision(self.context, self.env, step);
            step.selector.picker.picker.not_used(&decision, pod.candidate);
        }
    }

    /// Whether the first step's pod does not pass the filters of `hold`.
    fn must_wait(&mut self, steps: &[BoundStep<'_>]) -> Option<Hold> {
        let filters = &self.profile.holding.unless;
        if self.retry.step.is_some() || filters.is_empty() {
            return None;
        }
        let (step, pod) = steps.iter().find_map(|bound| Some((bound.step, bound.pod.as_ref()?)))?;
        let decision = decision(self.context, self.env, step);
        for ConfiguredFilter { name, filter, .. } in filters {
            let started = self.recorder.as_deref().map(Recorder::now);
            let mut keep = [true];
            filter.keep(&decision, &[pod.candidate], &mut keep);
            let [passes] = keep;
            if let (Some(recorder), Some(started)) = (&mut self.recorder, started) {
                let objection = (!passes).then(|| filter.why(&decision, pod.candidate));
                recorder.judged(name, decision.pod(pod.candidate), objection, started);
            }
            if !passes {
                let prefill_time = filters
                    .iter()
                    .find_map(|filter| filter.filter.prefill_time(&decision, pod.candidate));
                let awaited = AwaitedPod {
                    pod: decision.pod(pod.candidate).id(),
                    prompt_tokens: self.prompt_tokens(),
                    uncached_tokens: pod.uncached_tokens,
                };
                return Some(Hold {
                    awaited: Some(awaited),
                    ..self.hold(Some(pod.uncached_tokens), prefill_time)
                });
            }
        }
        None
    }

    /// The tokens that the pod would have to compute, as far as the profile knows the prompt.
    fn uncached_tokens(&self, candidate: Candidate) -> u64 {
        let slots = &self.context.slots;
        if let Some(blocks) = self.profile.blocks.as_ref().and_then(|blocks| slots.read(blocks)) {
            return blocks.uncached_tokens(self.depth(candidate));
        }
        self.prompt_tokens()
    }

    fn prompt_tokens(&self) -> u64 {
        let slots = &self.context.slots;
        if let Some(blocks) = self.profile.blocks.as_ref().and_then(|blocks| slots.read(blocks)) {
            return blocks.prompt_tokens as u64;
        }
        match self.profile.tokens.as_ref().and_then(|tokens| slots.read(tokens)) {
            Some(tokens) => tokens.0.len() as u64,
            None => self.context.request.estimated_tokens(),
        }
    }

    fn depth(&self, candidate: Candidate) -> u32 {
        let slot = self.env.fleet[candidate].slot().position();
        self.env.state.scratch.depths.get(slot).copied().unwrap_or(0)
    }

    /// How long the request may wait: the profile's limit, or its own `deadline_ms` if that is
    /// less.
    fn max_wait(&self) -> Duration {
        let most = self.profile.holding.max_wait;
        let Some(attributes) = &self.profile.attributes else { return most };
        let all = self.context.slots.read(attributes).map_or(&[][..], |all| &all.0);
        let own = all.iter().find(|(name, _)| *name == *"deadline_ms");
        let millis = own.and_then(|(_, millis)| millis.as_str().parse().ok());
        millis.map_or(most, |millis| Duration::from_millis(millis).min(most))
    }

    fn hold(&self, uncached_tokens: Option<u64>, prefill_time: Option<Duration>) -> Hold {
        let request = &self.context.request;
        let tokens = uncached_tokens.unwrap_or_else(|| self.prompt_tokens());
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let tenant = request.tenant.as_ref().or(request.fairness.as_ref());
        let tenant = Tenant(tenant.map_or(0, Name::key));
        let shares = &self.profile.holding.shares;
        let share = shares.iter().find(|(known, _)| *known == tenant);
        Hold {
            class: QueueEntry {
                tenant,
                // The profile's share of a tenant overrides the request's weight.
                weight: share.map_or(request.weight.max(1), |(_, share)| *share),
                priority: request.priority,
                cost: prefill_time.unwrap_or_else(|| PER_TOKEN.saturating_mul(tokens)),
                deadline: request.arrival.saturating_add(self.max_wait()),
            },
            awaited: None,
        }
    }

    /// The plan of the bound steps.
    fn plan(mut self, bound: Vec<BoundStep<'a>>) -> RoutingPlan {
        let profile = self.profile;
        let prompt_tokens = self.prompt_tokens();
        let mut steps = Vec::with_capacity(bound.len());
        for (at, BoundStep { step, pod: bound, .. }) in bound.into_iter().enumerate() {
            let rules = &step.rules;
            let mut mutations = rules.mutations.clone();
            let before = profile.steps.iter().take_while(|other| other.name != step.name);
            let is_first = at == 0
                && !before
                    .map(|step| &step.picked)
                    .any(|picked| self.context.slots.is_filled(picked));
            if is_first {
                // No step came before, so there is no KV to load.
                mutations.retain(|mutation| !matches!(mutation, Mutation::TakeKv(_)));
            }
            let mut planned = PlanStep {
                name: step.name.clone(),
                role: rules.role.clone(),
                pod: None,
                fallbacks: Vec::new(),
                start: if is_first { Start::After } else { rules.start },
                failure: rules.failure,
                deadline: rules.deadline,
                lease: rules.lease,
                cache: CacheHint::default(),
                mutations,
                computed_after: None,
                reservation: None,
                is_expected: false,
            };
            if let Some(bound) = bound {
                let pod = &self.env.fleet[bound.candidate];
                planned.pod = Some(pod.id());
                planned.fallbacks = bound.fallbacks;
                planned.cache = self.cache_hint(step, bound.candidate);
                if let Some(field) = rules.cache_hint.clone() {
                    let value = planned.cache.to_json();
                    planned.mutations.push(Mutation::Set { field, value });
                }
                if self.env.state.has_effects() {
                    let published = EngineSpeed::published(pod);
                    let load = Reservation::new(pod.state(), prompt_tokens, bound.uncached_tokens)
                        .sent_at(self.env.now)
                        .compared_with(published, self.env.now);
                    let loads = self.expected_loads(step, bound.candidate, &planned.cache);
                    planned.reservation = Some(match loads {
                        Some((expected, loaded)) => load.expected(expected, loaded),
                        None => load,
                    });
                }
                if !self.context.request.is_streamed() {
                    let pending = u32::try_from(pod.state().prefill_tokens()).unwrap_or(u32::MAX);
                    planned.computed_after = Some(PER_TOKEN.saturating_mul(pending));
                }
                planned.is_expected = self.speculate(step, bound.candidate);
                self.notify(step, bound.candidate);
            }
            steps.push(planned);
        }
        RoutingPlan { steps, marks: self.marks }
    }

    /// The predicted time to the first token but for loads, and the tokens to load from each tier.
    fn expected_loads(
        &self,
        step: &WorkflowStep,
        candidate: Candidate,
        cache: &CacheHint,
    ) -> Option<(Duration, LoadedTokens)> {
        let decision = decision(self.context, self.env, step);
        let mut scorers = step.selector.scorers.iter();
        let expected = scorers
            .find_map(|scorer| scorer.scorer.first_token_without_loads(&decision, candidate))?;
        let blocks = self.context.slots.read(self.profile.blocks.as_ref()?)?;
        let mut loaded = LoadedTokens::default();
        for run in &cache.runs {
            loaded[run.tier as usize] += (run.blocks * blocks.block_tokens) as u64;
        }
        Some((expected, loaded))
    }

    /// Tells the scorers and the picker of a step that the plan uses their choice.
    fn notify(&self, step: &WorkflowStep, candidate: Candidate) {
        let decision = decision(self.context, self.env, step);
        for scorer in &step.selector.scorers {
            scorer.scorer.chosen(&decision, candidate);
        }
        step.selector.picker.picker.chosen(&decision, candidate);
    }

    /// Adds the chosen pod to the plan's speculative insert, unless the pod holds the whole prompt,
    /// so that the next request with the same prefix follows this one. Returns whether it was
    /// added.
    fn speculate(&mut self, step: &WorkflowStep, candidate: Candidate) -> bool {
        let (Some(lifetime), Some(blocks)) = (self.profile.speculate, &self.profile.blocks) else {
            return false;
        };
        let depth = self.depth(candidate) as usize;
        let Some(blocks) = self.context.slots.read(blocks) else { return false };
        let pod = &self.env.fleet[candidate];
        // An approximated cache is renewed with every request.
        let is_known = depth >= blocks.chain.len() && pod.state().trust() != EventTrust::Guessed;
        if !step.rules.speculates || is_known || !self.env.state.has_effects() {
            return false;
        }
        let pod = pod.id();
        self.env.state.expect(pod, blocks, self.env.now + lifetime);
        true
    }

    /// What the pod holds of the prompt, with the tiers that its engine reported.
    fn cache_hint(&mut self, step: &WorkflowStep, candidate: Candidate) -> CacheHint {
        let elsewhere = self.depth_elsewhere(candidate);
        let best = self.best_cached(step, candidate, elsewhere);
        let nothing = CacheHint { best, ..CacheHint::default() };
        let depth = self.depth(candidate) as usize;
        let blocks =
            self.profile.blocks.as_ref().and_then(|blocks| self.context.slots.read(blocks));
        let Some(blocks) = blocks.filter(|_| depth > 0) else { return nothing };
        let counted = depth.min(blocks.countable_blocks());
        let tokens = (counted * blocks.block_tokens) as u64;
        let unique_tokens = ((counted - elsewhere.min(counted)) * blocks.block_tokens) as u64;
        let state = &mut *self.env.state;
        let holdings = &mut state.scratch.holdings;
        let held = &blocks.chain[..depth.min(blocks.chain.len())];
        let pod = &self.env.fleet[candidate];
        let Ok(confirmed) = state.index.block_locations(pod.id(), held, holdings) else {
            return nothing;
        };
        let is_speculative = confirmed < counted && pod.state().trust() != EventTrust::Guessed;
        let speculative = is_speculative.then(|| held[counted - 1]);
        let mut runs: Vec<CacheRun> = Vec::new();
        for holding in holdings.iter() {
            match runs.last_mut() {
                Some(run) if run.tier == holding.tier => run.blocks += 1,
                _ => runs.push(CacheRun {
                    blocks: 1,
                    tier: holding.tier,
                    location: holding.location,
                }),
            }
        }
        CacheHint { tokens, unique_tokens, runs, speculative, best }
    }

    /// Leading blocks of the prompt that a pod other than `candidate` holds.
    fn depth_elsewhere(&self, candidate: Candidate) -> usize {
        let slot = self.env.fleet[candidate].slot().position();
        let depths = &self.env.state.scratch.depths;
        let (before, after) = depths.split_at(slot.min(depths.len()));
        let most = before.iter().chain(after.get(1..).unwrap_or_default()).max();
        most.map_or(0, |depth| *depth as usize)
    }
}

/// What the plugins of a step see.
fn decision<'s>(
    context: &'s RoutingContext,
    env: &'s DecisionEnv<'_>,
    step: &'s WorkflowStep,
) -> Decision<'s> {
    Decision {
        request: &context.request,
        fleet: env.fleet,
        now: env.now,
        role: &step.rules.role,
        slots: &context.slots,
        depths: &env.state.scratch.depths,
        index: &env.state.index,
    }
}

#[cfg(test)]
mod tests;
