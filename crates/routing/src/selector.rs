//! Selection of a pod for one step: filter, score, pick.

use crate::explain::Recorder;
use crate::fleet::Candidate;
use crate::request::AllowedPods;
use crate::rng::Rng;
use crate::stage::{
    CandidateSet, Choice, ConfiguredFilter, ConfiguredPicker, ConfiguredScorer, Decision,
    Fallbacks, Rejection, WhenEmpty,
};

/// The plugins of one step.
pub(crate) struct Selector {
    pub(crate) filters: Vec<ConfiguredFilter>,
    pub(crate) scorers: Vec<ConfiguredScorer>,
    pub(crate) picker: ConfiguredPicker,
}

/// The buffers of a selection, which the next one reuses.
#[derive(Debug, Default)]
pub(crate) struct SelectionBuffers {
    pub(crate) candidates: Vec<Candidate>,
    /// Positions among the candidates, best first.
    pub(crate) fallbacks: Vec<usize>,
    /// The limit of fallbacks, of the step that is being bound.
    pub(crate) most_fallbacks: usize,
    keep: Vec<bool>,
    scores: Vec<f64>,
    totals: Vec<f64>,
}

/// No candidate is left, and this is what follows.
pub(crate) enum NoCandidate {
    Hold,
    Reject(Rejection),
}

impl Selector {
    /// Drops candidates. Returns the filters that would have dropped all of them and were skipped.
    pub(crate) fn filter(
        &self,
        decision: &Decision<'_>,
        buffers: &mut SelectionBuffers,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Result<Vec<&'static str>, NoCandidate> {
        let mut skipped = Vec::new();
        if buffers.candidates.is_empty() {
            let among = match &decision.request().allowed {
                Some(AllowedPods::At(_) | AllowedPods::These(_)) => {
                    " among those that the data plane allows"
                }
                Some(AllowedPods::Addressed) => " and an IP address",
                None => "",
            };
            let reason = format!("no pod has the role `{}`{among}", decision.role());
            return Err(NoCandidate::Reject(Rejection::unavailable(&reason)));
        }
        for ConfiguredFilter { name, filter, when_empty } in &self.filters {
            let started = recorder.as_deref().map(Recorder::now);
            buffers.keep.clear();
            buffers.keep.resize(buffers.candidates.len(), true);
            filter.keep(decision, &buffers.candidates, &mut buffers.keep);
            let kept = buffers.keep.iter().filter(|keep| **keep).count();
            let emptied = kept == 0;
            if let (Some(recorder), Some(started)) = (recorder.as_deref_mut(), started) {
                let counts = !emptied || *when_empty != WhenEmpty::Skip;
                let dropped = buffers.candidates.iter().zip(&buffers.keep);
                let dropped = dropped
                    .filter(|(_, keep)| counts && !**keep)
                    .map(|(candidate, _)| (*candidate, filter.why(decision, *candidate)));
                recorder.filtered(name, dropped, emptied.then_some(*when_empty), started);
            }
            match when_empty {
                _ if kept == buffers.candidates.len() => {}
                _ if !emptied => {
                    let mut keep = buffers.keep.iter();
                    buffers.candidates.retain(|_| *keep.next().unwrap_or(&true));
                }
                WhenEmpty::Skip => skipped.push(*name),
                WhenEmpty::Hold => return Err(NoCandidate::Hold),
                WhenEmpty::Reject => return Err(NoCandidate::Reject(filter.rejection(decision))),
            }
        }
        Ok(skipped)
    }

    /// Adds up the weighted scores of the candidates.
    pub(crate) fn score(
        &self,
        decision: &Decision<'_>,
        buffers: &mut SelectionBuffers,
        mut recorder: Option<&mut Recorder<'_>>,
    ) {
        buffers.totals.clear();
        buffers.totals.resize(buffers.candidates.len(), 0.0);
        for scorer in &self.scorers {
            let started = recorder.as_deref().map(Recorder::now);
            buffers.scores.clear();
            buffers.scores.resize(buffers.candidates.len(), 0.0);
            scorer.scorer.score(decision, &buffers.candidates, &mut buffers.scores);
            let (offset, factor) = scorer.linear();
            // Without weight it adds nothing, not even for an infinite cost: that would be NaN.
            if factor != 0.0 {
                for (total, score) in buffers.totals.iter_mut().zip(&buffers.scores) {
                    *total += offset + factor * score;
                }
            }
            if let (Some(recorder), Some(started)) = (recorder.as_deref_mut(), started) {
                recorder.scored(scorer, &buffers.candidates, &buffers.scores, started);
            }
        }
        // A candidate for which a scorer divides by zero comes last.
        for total in &mut buffers.totals {
            if total.is_nan() {
                *total = f64::NEG_INFINITY;
            }
        }
    }

    /// Chooses a candidate, and ranks at most `most_fallbacks` others behind it.
    pub(crate) fn pick(
        &self,
        decision: &Decision<'_>,
        buffers: &mut SelectionBuffers,
        rng: &mut Rng,
        recorder: Option<&mut Recorder<'_>>,
    ) -> Choice {
        let set = CandidateSet { candidates: &buffers.candidates, totals: &buffers.totals };
        let started = recorder.as_deref().map(Recorder::now);
        let mut choice = self.picker.picker.pick(decision, set, rng);
        choice.at = choice.at.min(set.candidates.len() - 1);
        buffers.fallbacks.clear();
        if buffers.most_fallbacks > 0 {
            let positions = &mut buffers.fallbacks;
            let mut ranked = Fallbacks { positions, most: buffers.most_fallbacks };
            self.picker.picker.fallbacks(decision, set, choice.at, &mut ranked);
        }
        if let (Some(recorder), Some(started)) = (recorder, started) {
            recorder.picked(self.picker.name, set, choice, started);
        }
        choice
    }
}
