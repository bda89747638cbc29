//! Explanation of a decision, as data.
//!
//! Recorded only on request: the pipeline checks once per plugin whether there is a recorder, never
//! per candidate.

mod shown;

use std::time::Duration;

use wornpath_index::{Moment, PodId};

use crate::fleet::{Candidate, Fleet, FleetPod};
use crate::name::{Name, Role};
use crate::stage::{CandidateSet, Choice, ConfiguredScorer, Decision, Scale, WhenEmpty};

/// Everything that went into one decision.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Explanation {
    /// The preparers and how long each took.
    pub prepare: Vec<(&'static str, Duration)>,
    /// How long the index took.
    pub lookup: Option<Duration>,
    /// The selections, in order.
    pub steps: Vec<StepExplanation>,
    /// The filters of `hold` that checked the chosen pod, in order.
    pub hold: Vec<JudgeExplanation>,
}

/// How one step got its pod.
#[derive(Clone, PartialEq, Debug)]
pub struct StepExplanation {
    /// The step.
    pub step: Name,
    /// Its role.
    pub role: Role,
    /// Every pod of the role.
    pub candidates: Vec<CandidateExplanation>,
    /// The filters, in order.
    pub filters: Vec<FilterExplanation>,
    /// The scorers, in order.
    pub scorers: Vec<ScorerExplanation>,
    /// The pick, unless the filters dropped every pod.
    pub pick: Option<PickExplanation>,
}

/// One pod in one selection.
#[derive(Clone, PartialEq, Debug)]
pub struct CandidateExplanation {
    /// The pod.
    pub pod: PodId,
    /// Its name.
    pub name: Name,
    /// Leading blocks of the prompt that it holds.
    pub blocks: u32,
    /// The filter that dropped it, and the reason.
    pub dropped: Option<(&'static str, String)>,
    /// The score of each scorer, unweighted.
    pub scores: Vec<f64>,
    /// What each scorer added to the total.
    pub contributions: Vec<f64>,
    /// The sum; more is better.
    pub total: Option<f64>,
    at: Candidate,
}

/// What a filter did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterExplanation {
    /// The plugin.
    pub name: &'static str,
    /// How many it dropped.
    pub dropped: usize,
    /// What follows, if it dropped every pod.
    pub emptied: Option<WhenEmpty>,
    /// How long it took, reasons included.
    pub took: Duration,
}

/// How a filter of `hold` judged the chosen pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JudgeExplanation {
    /// The plugin.
    pub name: &'static str,
    /// The chosen pod.
    pub pod: Name,
    /// Why the request waits, if the pod does not pass.
    pub objection: Option<String>,
    /// How long it took, reason included.
    pub took: Duration,
}

/// A scorer of the step.
#[derive(Clone, PartialEq, Debug)]
pub struct ScorerExplanation {
    /// The plugin.
    pub name: &'static str,
    /// The unit of its scores.
    pub scale: Scale,
    /// Its weight.
    pub weight: f64,
    /// What a unit is worth in milliseconds, where both are added.
    pub scale_ms: Option<f64>,
    /// How long it took.
    pub took: Duration,
}

/// What the picker did.
#[derive(Clone, PartialEq, Debug)]
pub struct PickExplanation {
    /// The plugin.
    pub name: &'static str,
    /// The picked pod.
    pub pod: PodId,
    /// How many pods had the same total, the picked one included.
    pub ties: usize,
    /// What was unusual about the pick.
    pub mark: Option<&'static str>,
    /// How long it took, ranking of fallbacks included.
    pub took: Duration,
}

/// Records an explanation while a decision is made. `clock` is for the timings only: no decision
/// depends on it.
pub struct Recorder<'a> {
    explanation: Explanation,
    clock: &'a dyn Fn() -> Moment,
}

impl<'a> Recorder<'a> {
    /// An empty record.
    #[must_use]
    pub fn new(clock: &'a dyn Fn() -> Moment) -> Self {
        Self { explanation: Explanation::default(), clock }
    }

    /// The explanation.
    #[must_use]
    pub fn finish(self) -> Explanation {
        self.explanation
    }

    pub(crate) fn now(&self) -> Moment {
        (self.clock)()
    }

    fn since(&self, started: Moment) -> Duration {
        self.now().since(started)
    }

    pub(crate) fn prepared(&mut self, name: &'static str, started: Moment) {
        self.explanation.prepare.push((name, self.since(started)));
    }

    pub(crate) fn looked_up(&mut self, started: Moment) {
        self.explanation.lookup = Some(self.since(started));
    }

    pub(crate) fn begin(&mut self, step: &Name, decision: &Decision<'_>, candidates: &[Candidate]) {
        let fleet: &Fleet = decision.fleet();
        let candidate = |at: &Candidate| CandidateExplanation {
            pod: fleet[*at].id(),
            name: fleet[*at].facts().name.clone(),
            blocks: decision.depths.get(fleet[*at].slot().position()).copied().unwrap_or(0),
            dropped: None,
            scores: Vec::new(),
            contributions: Vec::new(),
            total: None,
            at: *at,
        };
        self.explanation.steps.push(StepExplanation {
            step: step.clone(),
            role: decision.role().clone(),
            candidates: candidates.iter().map(candidate).collect(),
            filters: Vec::new(),
            scorers: Vec::new(),
            pick: None,
        });
    }

    pub(crate) fn filtered(
        &mut self,
        name: &'static str,
        dropped: impl Iterator<Item = (Candidate, String)>,
        emptied: Option<WhenEmpty>,
        started: Moment,
    ) {
        let Some(step) = self.explanation.steps.last_mut() else { return };
        let mut count = 0;
        for (candidate, why) in dropped {
            count += 1;
            if let Some(pod) = step.candidates.iter_mut().find(|pod| pod.at == candidate) {
                pod.dropped = Some((name, why));
            }
        }
        let took = (self.clock)().since(started);
        step.filters.push(FilterExplanation { name, dropped: count, emptied, took });
    }

    pub(crate) fn judged(
        &mut self,
        name: &'static str,
        pod: &FleetPod,
        objection: Option<String>,
        started: Moment,
    ) {
        let pod = pod.facts().name.clone();
        let took = self.since(started);
        self.explanation.hold.push(JudgeExplanation { name, pod, objection, took });
    }

    pub(crate) fn scored(
        &mut self,
        scorer: &ConfiguredScorer,
        candidates: &[Candidate],
        scores: &[f64],
        started: Moment,
    ) {
        let took = self.since(started);
        let Some(step) = self.explanation.steps.last_mut() else { return };
        for (candidate, score) in candidates.iter().zip(scores) {
            if let Some(pod) = step.candidates.iter_mut().find(|pod| pod.at == *candidate) {
                pod.scores.push(*score);
                pod.contributions.push(scorer.adds(*score));
            }
        }
        step.scorers.push(ScorerExplanation {
            name: scorer.name,
            scale: scorer.scorer.scale(),
            weight: scorer.weight,
            scale_ms: scorer.scale_ms,
            took,
        });
    }

    pub(crate) fn picked(
        &mut self,
        name: &'static str,
        set: CandidateSet<'_>,
        choice: Choice,
        started: Moment,
    ) {
        let took = self.since(started);
        let Some(step) = self.explanation.steps.last_mut() else { return };
        for (candidate, total) in set.candidates.iter().zip(set.totals) {
            if let Some(pod) = step.candidates.iter_mut().find(|pod| pod.at == *candidate) {
                pod.total = Some(*total);
            }
        }
        let best = set.totals[choice.at];
        let ties = set.totals.iter().filter(|total| **total == best).count();
        let picked = set.candidates[choice.at];
        if let Some(pod) = step.candidates.iter().find(|pod| pod.at == picked) {
            let pod = pod.pod;
            step.pick = Some(PickExplanation { name, pod, ties, mark: choice.mark, took });
        }
    }
}
