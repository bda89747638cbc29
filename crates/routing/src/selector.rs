//! One pass Filter → Score → Pick over the pods that can play a role.

use crate::context::DecisionScratch;
use crate::explain::Recorder;
use crate::fleet::Candidate;
use crate::rng::Rng;
use crate::stage::{
    CandidateSet, ConfiguredFilter, ConfiguredPicker, ConfiguredScorer, Decision, Fallbacks,
    Rejection, WhenEmpty,
};

/// The plugins of one step, made and weighed.
pub(crate) struct Selector {
    pub(crate) filters: Vec<ConfiguredFilter>,
    pub(crate) scorers: Vec<ConfiguredScorer>,
    pub(crate) picker: ConfiguredPicker,
}

/// Who was selected. Fallbacks are in the scratch, as positions among its candidates.
pub(crate) struct SelectedPod {
    pub(crate) candidate: Candidate,
    pub(crate) mark: Option<&'static str>,
    /// Filters that would have left nobody.
    pub(crate) skipped: Vec<&'static str>,
}

/// Nobody can be selected.
pub(crate) enum NoCandidate {
    Hold,
    Reject(Rejection),
}

impl Selector {
    /// Selects among the candidates in `scratch`. At most `fallbacks` others are ranked behind.
    pub(crate) fn select(
        &self,
        scene: &Decision<'_>,
        scratch: &mut Buffers<'_>,
        rng: &mut Rng,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Result<SelectedPod, NoCandidate> {
        let skipped = self.filter(scene, scratch, recorder.as_deref_mut())?;
        self.score(scene, scratch, recorder.as_deref_mut());
        let slate = CandidateSet { candidates: scratch.candidates, totals: scratch.totals };
        let started = recorder.as_deref().map(Recorder::now);
        let mut choice = self.picker.picker.pick(scene, slate, rng);
        choice.at = choice.at.min(slate.candidates.len() - 1);
        let at = choice.at;
        scratch.fallbacks.clear();
        if scratch.most_fallbacks > 0 {
            let mut fallbacks =
                Fallbacks { positions: scratch.fallbacks, most: scratch.most_fallbacks };
            self.picker.picker.fallbacks(scene, slate, at, &mut fallbacks);
        }
        if let (Some(recorder), Some(started)) = (recorder, started) {
            recorder.picked(self.picker.name, slate, choice, started);
        }
        Ok(SelectedPod { candidate: slate.candidates[at], mark: choice.mark, skipped })
    }

    fn filter(
        &self,
        scene: &Decision<'_>,
        scratch: &mut Buffers<'_>,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Result<Vec<&'static str>, NoCandidate> {
        let mut skipped = Vec::new();
        if scratch.candidates.is_empty() {
            let role = scene.role();
            return Err(NoCandidate::Reject(Rejection::unavailable(&format!(
                "no pod can play the role `{role}`"
            ))));
        }
        for ConfiguredFilter { name, filter, when_empty } in &self.filters {
            let started = recorder.as_deref().map(Recorder::now);
            scratch.keep.clear();
            scratch.keep.resize(scratch.candidates.len(), true);
            filter.keep(scene, scratch.candidates, scratch.keep);
            let kept = scratch.keep.iter().filter(|keep| **keep).count();
            let emptied = kept == 0;
            if let (Some(recorder), Some(started)) = (recorder.as_deref_mut(), started) {
                let counts = !emptied || *when_empty != WhenEmpty::Skip;
                let dropped = scratch.candidates.iter().zip(&*scratch.keep);
                let dropped = dropped
                    .filter(|(_, keep)| counts && !**keep)
                    .map(|(candidate, _)| (*candidate, filter.why(scene, *candidate)));
                recorder.filtered(name, dropped, emptied.then_some(*when_empty), started);
            }
            match when_empty {
                _ if kept == scratch.candidates.len() => {}
                _ if !emptied => {
                    let mut keep = scratch.keep.iter();
                    scratch.candidates.retain(|_| *keep.next().unwrap_or(&true));
                }
                WhenEmpty::Skip => skipped.push(*name),
                WhenEmpty::Hold => return Err(NoCandidate::Hold),
                WhenEmpty::Reject => return Err(NoCandidate::Reject(filter.rejection(scene))),
            }
        }
        Ok(skipped)
    }

    fn score(
        &self,
        scene: &Decision<'_>,
        scratch: &mut Buffers<'_>,
        mut recorder: Option<&mut Recorder<'_>>,
    ) {
        scratch.totals.clear();
        scratch.totals.resize(scratch.candidates.len(), 0.0);
        for scoring in &self.scorers {
            let started = recorder.as_deref().map(Recorder::now);
            scratch.scores.clear();
            scratch.scores.resize(scratch.candidates.len(), 0.0);
            scoring.scorer.score(scene, scratch.candidates, scratch.scores);
            let (offset, factor) = scoring.linear();
            // Without weight it says nothing, not even of an infinite cost: that would be NaN.
            if factor != 0.0 {
                for (total, score) in scratch.totals.iter_mut().zip(&*scratch.scores) {
                    *total += offset + factor * score;
                }
            }
            if let (Some(recorder), Some(started)) = (recorder.as_deref_mut(), started) {
                recorder.scored(scoring, scratch.candidates, scratch.scores, started);
            }
        }
        // A scorer that divides by zero must not decide: such a candidate comes last.
        for total in scratch.totals.iter_mut() {
            if total.is_nan() {
                *total = f64::NEG_INFINITY;
            }
        }
    }
}

/// The buffers of one selection.
pub(crate) struct Buffers<'a> {
    pub(crate) candidates: &'a mut Vec<Candidate>,
    pub(crate) keep: &'a mut Vec<bool>,
    pub(crate) scores: &'a mut Vec<f64>,
    pub(crate) totals: &'a mut Vec<f64>,
    pub(crate) fallbacks: &'a mut Vec<usize>,
    pub(crate) most_fallbacks: usize,
}

impl DecisionScratch {
    /// The depths that plugins read, and the buffers that the selection fills.
    pub(crate) fn split(&mut self, most_fallbacks: usize) -> (&[u32], Buffers<'_>) {
        let Self { depths, candidates, keep, scores, totals, fallbacks, .. } = self;
        (depths, Buffers { candidates, keep, scores, totals, fallbacks, most_fallbacks })
    }
}
