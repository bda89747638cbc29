//! Plugins as a profile configures them: with a name, a weight, and what an empty result means.

use super::{Filter, Pick, Scale, Score, WhenEmpty};

pub(crate) struct ConfiguredFilter {
    pub(crate) name: &'static str,
    pub(crate) filter: Box<dyn Filter>,
    pub(crate) when_empty: WhenEmpty,
}

pub(crate) struct ConfiguredScorer {
    pub(crate) name: &'static str,
    pub(crate) scorer: Box<dyn Score>,
    pub(crate) weight: f64,
    /// What a whole unit is worth in milliseconds, where units and milliseconds are added.
    pub(crate) scale_ms: Option<f64>,
}

pub(crate) struct ConfiguredPicker {
    pub(crate) name: &'static str,
    pub(crate) picker: Box<dyn Pick>,
}

impl ConfiguredScorer {
    /// A score `s` adds `offset + factor * s` to the total, of which more is always better.
    pub(crate) fn linear(&self) -> (f64, f64) {
        match (self.scorer.scale(), self.scale_ms) {
            (Scale::Unit, None) => (0.0, self.weight),
            (Scale::Unit, Some(ms)) => (-self.weight * ms, self.weight * ms),
            (Scale::Milliseconds, _) => (0.0, -self.weight),
        }
    }

    /// What a score adds to the total. Without weight it adds nothing, even if a cost is infinite:
    /// the product would be NaN.
    pub(crate) fn adds(&self, score: f64) -> f64 {
        let (offset, factor) = self.linear();
        if factor == 0.0 { 0.0 } else { offset + factor * score }
    }
}
