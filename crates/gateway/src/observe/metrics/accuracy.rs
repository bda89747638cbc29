//! Prediction accuracy: compares the predicted cached tokens with those that engines report.
//!
//! A single wrong prediction means nothing: blocks are stored and evicted while a request is in
//! flight. Predictions that are nearly always wrong mean that router and engine disagree about
//! tokens, blocks or hashes, or that events do not arrive. Then every cache score is noise without
//! any visible failure, so the verdict is logged as an error.
//!
//! Speculative predictions are excluded and counted separately: a repeat of a request that was just
//! sent to a pod finds its prefix there whatever tokens the router computes, so it proves nothing.

use std::fmt;

/// Responses needed for a verdict.
const MIN_CHECKED: u64 = 20;
/// Error of a correct prediction, as a share of the prompt.
const TOLERANCE: f64 = 0.1;

/// Sums over checked predictions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PredictionTally {
    /// Predictions that were checked.
    pub checked: u64,
    /// Predictions with an error above the tolerance.
    pub wrong: u64,
    /// Predicted cached tokens.
    pub predicted: u64,
    /// Reported cached tokens.
    pub actual: u64,
}

/// The quality of a pod's predictions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccuracyVerdict {
    /// Too few predictions were checked.
    #[default]
    Unknown,
    /// Mostly correct.
    Good,
    /// The pod holds much less than the index says.
    Optimistic,
    /// The pod holds much more than the index says.
    Pessimistic,
}

/// Whether one prediction counts as wrong.
#[must_use]
pub(crate) fn is_wrong(prompt: u64, predicted: u64, actual: u64) -> bool {
    predicted.abs_diff(actual) as f64 > (prompt as f64 * TOLERANCE).max(1.0)
}

impl PredictionTally {
    /// The growth since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            checked: self.checked.saturating_sub(earlier.checked),
            wrong: self.wrong.saturating_sub(earlier.wrong),
            predicted: self.predicted.saturating_sub(earlier.predicted),
            actual: self.actual.saturating_sub(earlier.actual),
        }
    }

    /// The sum of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            checked: self.checked + other.checked,
            wrong: self.wrong + other.wrong,
            predicted: self.predicted + other.predicted,
            actual: self.actual + other.actual,
        }
    }

    /// The verdict: broken if nine in ten predictions are wrong.
    #[must_use]
    pub const fn verdict(self) -> AccuracyVerdict {
        if self.checked < MIN_CHECKED {
            AccuracyVerdict::Unknown
        } else if self.wrong * 10 < self.checked * 9 {
            AccuracyVerdict::Good
        } else if self.predicted > self.actual {
            AccuracyVerdict::Optimistic
        } else {
            AccuracyVerdict::Pessimistic
        }
    }
}

impl AccuracyVerdict {
    /// Its name in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Good => "good",
            Self::Optimistic => "optimistic",
            Self::Pessimistic => "pessimistic",
        }
    }

    /// Whether cache scores of the pod are meaningless.
    #[must_use]
    pub const fn is_broken(self) -> bool {
        matches!(self, Self::Optimistic | Self::Pessimistic)
    }
}

/// The meaning and the cure.
impl fmt::Display for AccuracyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "too few responses reported cached tokens",
            Self::Good => "predictions are accurate",
            Self::Optimistic => {
                "the pod has far fewer tokens cached than predicted; check that prefix caching is on and that model, \
                 tokenizer and block size match the configuration"
            }
            Self::Pessimistic => {
                "the pod has far more tokens cached than predicted; check that its cache events arrive and that \
                 tokenizer, chat template and block size match the engine"
            }
        })
    }
}

/// The verdict on a pod over time, updated whenever enough predictions were checked since the last
/// update.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccuracyMeter {
    judged: PredictionTally,
    verdict: AccuracyVerdict,
}

/// A meter that counts only what follows the tally.
impl From<PredictionTally> for AccuracyMeter {
    fn from(judged: PredictionTally) -> Self {
        Self { judged, verdict: AccuracyVerdict::Unknown }
    }
}

impl AccuracyMeter {
    /// Updates the verdict by the tally so far, and returns it if it changed.
    pub fn update(&mut self, now: PredictionTally) -> Option<AccuracyVerdict> {
        let verdict = now.since(self.judged).verdict();
        if verdict == AccuracyVerdict::Unknown {
            return None;
        }
        self.judged = now;
        let changed = verdict != self.verdict;
        self.verdict = verdict;
        changed.then_some(verdict)
    }

    /// The last verdict.
    #[must_use]
    pub const fn verdict(&self) -> AccuracyVerdict {
        self.verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_may_be_off_by_a_tenth_of_the_prompt() {
        assert!(!is_wrong(1000, 900, 1000) && is_wrong(1000, 899, 1000) && is_wrong(1000, 400, 0));
        assert!(!is_wrong(5, 0, 1), "one token is always within the tolerance");
    }

    #[test]
    fn only_predictions_that_are_nearly_always_wrong_are_broken() {
        let tally =
            |wrong, predicted, actual| PredictionTally { checked: 100, wrong, predicted, actual };
        assert_eq!(tally(89, 9, 0).verdict(), AccuracyVerdict::Good);
        assert_eq!(tally(90, 9, 0).verdict(), AccuracyVerdict::Optimistic);
        assert_eq!(tally(90, 0, 9).verdict(), AccuracyVerdict::Pessimistic);
        assert_eq!(
            PredictionTally { checked: 19, wrong: 19, ..tally(0, 9, 0) }.verdict(),
            AccuracyVerdict::Unknown
        );
    }

    #[test]
    fn a_verdict_is_returned_once_and_revised_by_later_predictions() {
        let mut meter = AccuracyMeter::default();
        let bad = PredictionTally { checked: 50, wrong: 50, predicted: 500, actual: 0 };
        assert_eq!(meter.update(bad), Some(AccuracyVerdict::Optimistic));
        assert_eq!(meter.update(bad), None, "nothing new");
        let healed =
            bad.and(PredictionTally { checked: 30, wrong: 0, predicted: 300, actual: 300 });
        assert_eq!(meter.update(healed), Some(AccuracyVerdict::Good));
        assert_eq!(meter.verdict(), AccuracyVerdict::Good);
    }
}
