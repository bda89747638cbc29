//! Whether predictions of cached tokens come true.
//!
//! An engine says in its answers how much of the prompt it had cached. One wrong prediction means nothing:
//! blocks come and go while a request travels. Predictions that are nearly always wrong mean that router and
//! engine disagree about tokens, blocks or hashes, or that events do not arrive; then every cache score is
//! noise, and nobody would notice. So it is said loudly.
//!
//! A speculative prediction is left out and counted apart: a repeat of a request that was sent to a pod a moment ago finds its
//! prefix there whatever tokens the router believes it has, so it comes true although both disagree.

use std::fmt;

/// Answers that are needed for a verdict.
const ENOUGH: u64 = 20;
/// Of the prompt: what a prediction may be off by and still count as right.
const TOLERANCE: f64 = 0.1;

/// What a number of answers said, summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PredictionTally {
    /// Answers that were compared.
    pub checked: u64,
    /// Those that were off by more than the tolerance.
    pub wrong: u64,
    /// Tokens that were predicted.
    pub predicted: u64,
    /// Tokens that were cached.
    pub actual: u64,
}

/// What to think of a pod's predictions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccuracyVerdict {
    /// Too few answers could be compared.
    #[default]
    Unknown,
    /// They mostly come true.
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
    /// What came since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            checked: self.checked.saturating_sub(earlier.checked),
            wrong: self.wrong.saturating_sub(earlier.wrong),
            predicted: self.predicted.saturating_sub(earlier.predicted),
            actual: self.actual.saturating_sub(earlier.actual),
        }
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            checked: self.checked + other.checked,
            wrong: self.wrong + other.wrong,
            predicted: self.predicted + other.predicted,
            actual: self.actual + other.actual,
        }
    }

    /// What to think of it: nine in ten wrong is broken.
    #[must_use]
    pub const fn verdict(self) -> AccuracyVerdict {
        if self.checked < ENOUGH {
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
    /// Its word in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Good => "good",
            Self::Optimistic => "optimistic",
            Self::Pessimistic => "pessimistic",
        }
    }

    /// Whether cache scores of the pod mean nothing.
    #[must_use]
    pub const fn is_broken(self) -> bool {
        matches!(self, Self::Optimistic | Self::Pessimistic)
    }
}

/// What it means and what to do.
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

/// A pod's verdict over time: judged anew whenever enough answers came since the last time.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccuracyMeter {
    seen: PredictionTally,
    verdict: AccuracyVerdict,
}

/// One who judges by what comes after that.
impl From<PredictionTally> for AccuracyMeter {
    fn from(seen: PredictionTally) -> Self {
        Self { seen, verdict: AccuracyVerdict::Unknown }
    }
}

impl AccuracyMeter {
    /// Looks at what was counted so far. The new verdict, if it changed.
    pub fn look(&mut self, now: PredictionTally) -> Option<AccuracyVerdict> {
        let verdict = now.since(self.seen).verdict();
        if verdict == AccuracyVerdict::Unknown {
            return None;
        }
        self.seen = now;
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
        assert!(!is_wrong(5, 0, 1), "a token more or less is never wrong");
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
    fn a_verdict_is_told_once_and_revised_by_what_came_since() {
        let mut judge = AccuracyMeter::default();
        let bad = PredictionTally { checked: 50, wrong: 50, predicted: 500, actual: 0 };
        assert_eq!(judge.look(bad), Some(AccuracyVerdict::Optimistic));
        assert_eq!(judge.look(bad), None, "nothing new");
        let healed =
            bad.and(PredictionTally { checked: 30, wrong: 0, predicted: 300, actual: 300 });
        assert_eq!(judge.look(healed), Some(AccuracyVerdict::Good));
        assert_eq!(judge.verdict(), AccuracyVerdict::Good);
    }
}
