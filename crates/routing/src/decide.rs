//! From a prepared request to a plan: selects a pod for every step, and decides whether to wait.

mod planning;

use std::time::Duration;

use wornpath_index::PodId;

use crate::context::{DecisionEnv, RoutingContext};
use crate::explain::Recorder;
use crate::fleet::Candidate;
use crate::name::Name;
use crate::plan::{AfterFailure, Hold, Mark, Outcome, SkippedBecause};
use crate::profile::Profile;
use crate::selector::{NoCandidate, SelectedPod};
use crate::stage::{ConfiguredFilter, Decision, Rejection};
use crate::values::Picked;
use crate::wait_queue::{QueueEntry, Tenant};
use crate::workflow::{Bind, WorkflowStep};

/// For each token of a prompt that is to be computed: of the order of real engines, and used only where
/// that is good enough.
const PER_TOKEN: std::time::Duration = std::time::Duration::from_micros(50);

/// What is to be decided again after a failure.
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

/// Who takes a step of the profile.
struct ReservedPod<'a> {
    step: &'a WorkflowStep,
    bound: Option<PinnedPod>,
    /// Why nobody takes it, while it may still turn out not to be needed.
    nobody: Option<NoCandidate>,
}

struct PinnedPod {
    candidate: Candidate,
    fallbacks: Vec<PodId>,
    uncached_tokens: u64,
}

/// A decision under way.
struct DecisionRun<'a, 'w> {
    profile: &'a Profile,
    context: &'a mut RoutingContext,
    world: &'a mut DecisionEnv<'w>,
    marks: Vec<Mark>,
}

impl Profile {
    /// Decides what becomes of a prepared request. Never blocks; may be called again while it waits.
    ///
    /// # Panics
    /// If another profile made the context.
    pub fn decide(&self, context: &mut RoutingContext, world: &mut DecisionEnv<'_>) -> Outcome {
        self.run(context, world, Retry::FIRST, None)
    }

    /// Like [`Profile::decide`], taking down why.
    ///
    /// # Panics
    /// If another profile made the context.
    pub fn decide_explained(
        &self,
        context: &mut RoutingContext,
        world: &mut DecisionEnv<'_>,
        recorder: &mut Recorder<'_>,
    ) -> Outcome {
        self.run(context, world, Retry::FIRST, Some(recorder))
    }

    /// Decides again after a failure: one step, whose plan has that step only, or all of them. Also
    /// binds a step that was left open until it starts. The profile's `hold` does not concern a single
    /// step, whose request is under way; a filter with `on_empty: hold` still answers
    /// [`Outcome::Hold`], and whoever asked asks again.
    ///
    /// # Panics
    /// If another profile made the context.
    pub fn replan(
        &self,
        context: &mut RoutingContext,
        world: &mut DecisionEnv<'_>,
        retry: Retry<'_>,
    ) -> Outcome {
        self.run(context, world, retry, None)
    }

    fn run(
        &self,
        context: &mut RoutingContext,
        world: &mut DecisionEnv<'_>,
        retry: Retry<'_>,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Outcome {
        self.own(context);
        let mut deciding = DecisionRun { profile: self, context, world, marks: Vec::new() };
        deciding.lookup(recorder.as_deref_mut());
        let mut taken = Vec::with_capacity(self.steps.len());
        let no_plan = match deciding.steps(&mut taken, retry, recorder.as_deref_mut()) {
            Ok(()) => match deciding.must_wait(&taken, retry, recorder) {
                Some(hold) => Outcome::Hold(hold),
                None => return Outcome::Plan(deciding.plan(taken)),
            },
            Err(NoCandidate::Hold) => Outcome::Hold(deciding.hold(None)),
            Err(NoCandidate::Reject(rejection)) => Outcome::Reject(rejection),
        };
        taken.iter().for_each(|taken| deciding.pass_over(taken));
        no_plan
    }
}

impl<'a> DecisionRun<'a, '_> {
    /// Asks the index once, for all plugins and steps.
    fn lookup(&mut self, recorder: Option<&mut Recorder<'_>>) {
        self.world.desk.commit_pending();
        let scratch = &mut self.world.desk.scratch;
        scratch.depths.clear();
        let Some(blocks) = &self.profile.blocks else { return };
        let started = recorder.as_deref().map(Recorder::now);
        scratch.depths.resize(self.world.fleet.slots(), 0);
        if let Some(blocks) = self.context.slots.read(blocks) {
            self.world.desk.reader.lookup(&blocks.chain, &mut scratch.answer);
            scratch.answer.depths_into(&mut scratch.depths);
            self.world.fleet.fade(&mut scratch.depths);
        }
        if let (Some(recorder), Some(started)) = (recorder, started) {
            recorder.looked_up(started);
        }
    }

    /// Selects a pod for every step that is wanted, and leaves out those that are not worth it.
    fn steps(
        &mut self,
        taken: &mut Vec<ReservedPod<'a>>,
        retry: Retry<'_>,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Result<(), NoCandidate> {
        let profile = self.profile;
        if retry.step.is_none() {
            for step in &profile.steps {
                self.context.slots.withdraw(&step.picked);
            }
        }
        for (at, step) in profile.steps.iter().enumerate() {
            if retry.step.is_some_and(|only| *only != step.name) {
                continue;
            }
            let is_last = at + 1 == profile.steps.len();
            if self.context.request.is_several && step.rules.offers_kv() && !is_last {
                self.leave_out(step, SkippedBecause::SeveralPrompts);
                continue;
            }
            if step.rules.bind == Bind::Late && retry.step.is_none() {
                taken.push(ReservedPod { step, bound: None, nobody: None });
                continue;
            }
            match self.select(step, retry.excluded, recorder.as_deref_mut()) {
                Ok(bound) => {
                    let pod = self.world.fleet[bound.candidate].id();
                    *self.context.slots.write(&step.picked) = Picked(Some(pod));
                    taken.push(ReservedPod { step, bound: Some(bound), nobody: None });
                }
                // Who decides one step again is told why nobody takes it, and leaves it out.
                Err(NoCandidate::Reject(_))
                    if retry.step.is_none()
                        && step.rules.failure.then == AfterFailure::Skip
                        && !is_last =>
                {
                    self.leave_out(step, SkippedBecause::NoPod);
                }
                // Only the next step's pod tells whether this one is needed at all.
                Err(nobody) if retry.step.is_none() && step.rules.is_conditional() && !is_last => {
                    taken.push(ReservedPod { step, bound: None, nobody: Some(nobody) });
                }
                Err(nobody) => return Err(nobody),
            }
        }
        if retry.step.is_none() {
            self.drop_needless(taken);
        }
        if let Some(nobody) = taken.iter_mut().find_map(|taken| taken.nobody.take()) {
            return Err(nobody);
        }
        if taken.is_empty() {
            let reason = match retry.step {
                Some(step) => format!("the profile has no step `{step}`"),
                None => "the profile has no step that anybody can take".to_owned(),
            };
            return Err(NoCandidate::Reject(Rejection::unavailable(&reason)));
        }
        Ok(())
    }

    /// Tells the picker of a step that nothing comes of its pick.
    fn pass_over(&self, taken: &ReservedPod<'_>) {
        if let ReservedPod { step, bound: Some(bound), .. } = taken {
            step.selector.picker.picker.passed_over(&self.scene(step), bound.candidate);
        }
    }

    /// Leaves out steps whose successor has too little to compute for them to be worth it.
    fn drop_needless(&mut self, taken: &mut Vec<ReservedPod<'a>>) {
        let mut at = 0;
        while at + 1 < taken.len() {
            let least = taken[at].step.rules.min_uncached_tokens;
            let next = taken[at + 1].bound.as_ref().map(|bound| bound.uncached_tokens);
            match (least, next) {
                (Some(least), Some(tokens)) if tokens < least => {
                    let dropped = taken.remove(at);
                    self.pass_over(&dropped);
                    self.leave_out(dropped.step, SkippedBecause::FewUncachedTokens(tokens));
                }
                _ => at += 1,
            }
        }
    }

    fn leave_out(&mut self, step: &WorkflowStep, why: SkippedBecause) {
        self.context.slots.withdraw(&step.picked);
        self.marks.push(Mark::StepSkipped { step: step.name.clone(), why });
    }

    fn select(
        &mut self,
        step: &WorkflowStep,
        excluded: &[PodId],
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Result<PinnedPod, NoCandidate> {
        let DecisionEnv { fleet, desk, now, rng } = &mut *self.world;
        let (fleet, scratch) = (*fleet, &mut desk.scratch);
        scratch.candidates.clear();
        let all = fleet.with_role(&step.rules.role).iter().copied();
        if excluded.is_empty() {
            scratch.candidates.extend(all);
        } else {
            scratch.candidates.extend(all.filter(|at| !excluded.contains(&fleet[*at].id())));
        }
        let (depths, mut buffers) = scratch.split(step.rules.fallbacks);
        let scene = Decision {
            request: &self.context.request,
            fleet,
            now: *now,
            role: &step.rules.role,
            slots: &self.context.slots,
            depths,
            index: &desk.index,
        };
        if let Some(recorder) = recorder.as_deref_mut() {
            recorder.begin(&step.name, &scene, buffers.candidates);
        }
        let SelectedPod { candidate, mark, skipped } =
            step.selector.select(&scene, &mut buffers, rng, recorder)?;
        let named = |at: &usize| fleet[buffers.candidates[*at]].id();
        let fallbacks = buffers.fallbacks.iter().map(named).collect();
        let marked = skipped.into_iter();
        let name = &step.name;
        self.marks.extend(marked.map(|filter| Mark::FilterSkipped { step: name.clone(), filter }));
        self.marks.extend(mark.map(|mark| Mark::Pick { step: name.clone(), mark }));
        let uncached_tokens = self.uncached_tokens(candidate);
        Ok(PinnedPod { candidate, fallbacks, uncached_tokens })
    }

    /// What the pod would have to compute, as far as the profile knows the prompt.
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
        let slot = self.world.fleet[candidate].slot().position();
        self.world.desk.scratch.depths.get(slot).copied().unwrap_or(0)
    }

    /// Whether the first step's pod has no room yet.
    fn must_wait(
        &self,
        taken: &[ReservedPod<'_>],
        retry: Retry<'_>,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Option<Hold> {
        if retry.step.is_some() || self.profile.holding.unless.is_empty() {
            return None;
        }
        let first = taken.iter().find_map(|taken| Some((taken.step, taken.bound.as_ref()?)));
        let (step, bound) = first?;
        let scene = self.scene(step);
        let passes =
            self.profile.holding.unless.iter().all(|ConfiguredFilter { name, filter, .. }| {
                let started = recorder.as_deref().map(Recorder::now);
                let mut keep = [true];
                filter.keep(&scene, &[bound.candidate], &mut keep);
                if let (Some(recorder), Some(started)) = (recorder.as_deref_mut(), started) {
                    let objection = (!keep[0]).then(|| filter.why(&scene, bound.candidate));
                    recorder.judged(name, scene.pod(bound.candidate), objection, started);
                }
                keep[0]
            });
        (!passes).then(|| self.hold(Some(bound.uncached_tokens)))
    }

    fn scene<'s>(&'s self, step: &'s WorkflowStep) -> Decision<'s> {
        Decision {
            request: &self.context.request,
            fleet: self.world.fleet,
            now: self.world.now,
            role: &step.rules.role,
            slots: &self.context.slots,
            depths: &self.world.desk.scratch.depths,
            index: &self.world.desk.index,
        }
    }

    /// How long the request may wait: as long as the profile says, or less if it says so itself.
    fn may_wait(&self) -> Duration {
        let most = self.profile.holding.patience;
        let Some(attributes) = &self.profile.attributes else { return most };
        let all = self.context.slots.read(attributes).map_or(&[][..], |all| &all.0);
        let own = all.iter().find(|(name, _)| *name == *"deadline_ms");
        let millis = own.and_then(|(_, millis)| millis.as_str().parse().ok());
        millis.map_or(most, |millis| Duration::from_millis(millis).min(most))
    }

    fn hold(&self, uncached_tokens: Option<u64>) -> Hold {
        let request = &self.context.request;
        let tokens = uncached_tokens.unwrap_or_else(|| self.prompt_tokens());
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let tenant = Tenant(request.tenant.as_ref().map_or(0, Name::key));
        let shares = &self.profile.holding.shares;
        let share = shares.iter().find(|(known, _)| *known == tenant);
        Hold {
            class: QueueEntry {
                tenant,
                // What the profile says of a tenant counts more than what is said of it elsewhere.
                weight: share.map_or(request.weight.max(1), |(_, share)| *share),
                priority: request.priority,
                cost: PER_TOKEN.saturating_mul(tokens),
                deadline: request.arrival.saturating_add(self.may_wait()),
            },
        }
    }
}

#[cfg(test)]
mod tests;
