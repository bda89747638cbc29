//! What requests counted, summed up by pod: for people who watch, where the page is for Prometheus.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::histogram::BOUNDS;
use super::{Line, Metrics, word};
use crate::record::Ended;

/// How many times fell below each bound, and how many in all.
type Times = [u64; BOUNDS.len() + 1];

/// What was counted, by the pod that answered; under the empty name where none did.
pub(crate) type Totals = BTreeMap<String, Figures>;

/// What was counted for a pod since the router started, or between two looks at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    /// Of those: answered with an error of the gateway's or a pod's, or broken off.
    pub(crate) failed: u64,
    pub(crate) retries: u64,
    pub(crate) first_byte: Times,
    pub(crate) prompt_tokens: u64,
    pub(crate) output_tokens: u64,
    /// Prompt tokens of the answers that told how many were cached.
    pub(crate) told_tokens: u64,
    /// Of those, the cached ones.
    pub(crate) cached_tokens: u64,
    /// Cached tokens that were predicted where the truth was told, and that truth.
    pub(crate) predicted: u64,
    pub(crate) actual: u64,
    pub(crate) checked: u64,
}

impl Figures {
    /// Each figure of both, put together.
    fn with(mut self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        for (own, other) in self.first_byte.iter_mut().zip(other.first_byte) {
            *own = join(*own, other);
        }
        let figures: [(&mut u64, u64); 10] = [
            (&mut self.requests, other.requests),
            (&mut self.failed, other.failed),
            (&mut self.retries, other.retries),
            (&mut self.prompt_tokens, other.prompt_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.told_tokens, other.told_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.predicted, other.predicted),
            (&mut self.actual, other.actual),
            (&mut self.checked, other.checked),
        ];
        for (own, other) in figures {
            *own = join(*own, other);
        }
        self
    }

    /// Both together.
    pub(crate) fn and(self, other: &Self) -> Self {
        self.with(other, |one, other| one.saturating_add(other))
    }

    /// What came since `earlier`. A pod that went and came again begins anew.
    pub(crate) fn since(self, earlier: &Self) -> Self {
        self.with(earlier, |now, before| now.saturating_sub(before))
    }

    /// The share of prompt tokens that engines had cached, where they told it.
    pub(crate) fn hit_rate(&self) -> Option<f64> {
        (self.told_tokens > 0).then(|| self.cached_tokens as f64 / self.told_tokens as f64)
    }

    /// The seconds to the first byte that `share` of all requests kept to: within a bucket as if all times in it
    /// were equally far apart, which is what Prometheus does.
    pub(crate) fn first_byte_within(&self, share: f64) -> Option<f64> {
        let all = *self.first_byte.last()?;
        if all == 0 {
            return None;
        }
        let wanted = share * all as f64;
        let bucket = self.first_byte.iter().position(|count| *count as f64 >= wanted)?;
        let Some(upper) = BOUNDS.get(bucket) else { return BOUNDS.last().copied() };
        let (lower, below) = match bucket.checked_sub(1) {
            Some(before) => (BOUNDS[before], self.first_byte[before]),
            None => (0.0, 0),
        };
        let within = (self.first_byte[bucket] - below).max(1) as f64;
        Some(lower + (upper - lower) * (wanted - below as f64) / within)
    }
}

impl Metrics {
    /// What requests counted so far.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::new();
        for (key, count) in self.ends.all() {
            let figures = totals.entry(word(key.pod.as_ref())).or_default();
            let count = count.load(Relaxed);
            figures.requests += count;
            if key.status >= 500 || key.ended == Ended::Broken {
                figures.failed += count;
            }
        }
        for (key, line) in self.lines.all() {
            let figures = totals.entry(word(key.pod.as_ref())).or_default();
            *figures = figures.and(&line.figures());
        }
        totals
    }
}

impl Line {
    fn figures(&self) -> Figures {
        Figures {
            requests: 0,
            failed: 0,
            retries: self.retries.load(Relaxed),
            first_byte: self.first_byte.cumulative(),
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            output_tokens: self.output_tokens.load(Relaxed),
            told_tokens: self.told.load(Relaxed),
            cached_tokens: self.cached.load(Relaxed),
            predicted: self.predicted.load(Relaxed),
            actual: self.actual.load(Relaxed),
            checked: self.checked.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(counts: &[(usize, u64)]) -> Figures {
        let mut figures = Figures::default();
        for (bucket, count) in counts {
            figures.first_byte[*bucket..].iter_mut().for_each(|total| *total += count);
        }
        figures
    }

    #[test]
    fn a_quantile_lies_within_its_bucket_and_never_beyond_the_last_bound() {
        // A hundred times between 25 and 50 ms.
        let figures = times(&[(5, 100)]);
        assert_eq!(figures.first_byte_within(1.0), Some(0.05));
        let half = figures.first_byte_within(0.5).unwrap();
        assert!((half - 0.0375).abs() < 1e-9, "{half}");
        let two = times(&[(0, 90), (9, 10)]);
        assert!(two.first_byte_within(0.5).unwrap() < 0.001);
        assert!((0.5..=1.0).contains(&two.first_byte_within(0.99).unwrap()));
        assert_eq!(times(&[(16, 3)]).first_byte_within(0.5), Some(300.0));
        assert_eq!(Figures::default().first_byte_within(0.5), None);
    }

    #[test]
    fn a_pod_that_begins_anew_gives_no_negative_figures() {
        let before =
            Figures { requests: 10, cached_tokens: 5, told_tokens: 9, ..times(&[(3, 10)]) };
        let after = Figures { requests: 4, ..times(&[(3, 4)]) };
        assert_eq!(after.since(&before), Figures::default());
        assert_eq!(before.and(&after).since(&after), before);
        assert_eq!((before.hit_rate(), after.hit_rate()), (Some(5.0 / 9.0), None));
    }
}
