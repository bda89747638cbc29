//! What requests counted, summed up by pod: for people who watch, where the page is for Prometheus.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use wornpath_routing::Name;

use crate::observe::metrics::histogram::{Cumulative, FINE};
use crate::observe::metrics::{LineCounters, Metrics, word};
use crate::observe::summary::RequestEnd;
use wornpath_config::OFFLINE;

/// What was counted, by the pod that answered; under the empty name where none did.
pub type Totals = BTreeMap<String, Figures>;

/// What was counted for a pod since the router started, or between two looks at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    pub requests: u64,
    /// Of those: answered with an error of the gateway's or a pod's, or broken off.
    pub failed: u64,
    pub retries: u64,
    /// Of what clients wait for: nobody waits for the first byte of an answer in a batch.
    pub first_byte: Cumulative,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Prompt tokens of the answers that told how many were cached.
    pub told_tokens: u64,
    /// Of those, the cached ones.
    pub cached_tokens: u64,
    /// Cached tokens that were predicted where that was checked, and those that there were.
    pub predicted: u64,
    pub actual: u64,
    pub checked: u64,
    /// Answers that were not compared, because the prediction was speculative.
    pub speculative: u64,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            requests: 0,
            failed: 0,
            retries: 0,
            first_byte: [0; FINE.len() + 1],
            prompt_tokens: 0,
            output_tokens: 0,
            told_tokens: 0,
            cached_tokens: 0,
            predicted: 0,
            actual: 0,
            checked: 0,
            speculative: 0,
        }
    }
}

impl Figures {
    /// Each figure of both, put together.
    fn with(mut self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        for (own, other) in self.first_byte.iter_mut().zip(other.first_byte) {
            *own = join(*own, other);
        }
        let figures: [(&mut u64, u64); 11] = [
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
            (&mut self.speculative, other.speculative),
        ];
        for (own, other) in figures {
            *own = join(*own, other);
        }
        self
    }

    /// Both together.
    pub fn and(self, other: &Self) -> Self {
        self.with(other, |one, other| one.saturating_add(other))
    }

    /// What came since `earlier`. A pod that went and came again begins anew.
    pub fn since(self, earlier: &Self) -> Self {
        self.with(earlier, |now, before| now.saturating_sub(before))
    }

    /// The share of prompt tokens that engines had cached, where they told it.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.told_tokens > 0).then(|| self.cached_tokens as f64 / self.told_tokens as f64)
    }

    /// The seconds to the first byte that `share` of all requests kept to: within a bucket as if all times in it
    /// were equally far apart, which is what Prometheus does too, in wider ones.
    pub fn first_byte_within(&self, share: f64) -> Option<f64> {
        let all = *self.first_byte.last()?;
        if all == 0 {
            return None;
        }
        let wanted = share * all as f64;
        let bucket = self.first_byte.iter().position(|count| *count as f64 >= wanted)?;
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let upper = seconds(FINE[bucket.min(FINE.len() - 1)]);
        if bucket == FINE.len() {
            return Some(upper);
        }
        let (lower, below) = match bucket.checked_sub(1) {
            Some(before) => (seconds(FINE[before]), self.first_byte[before]),
            None => (0.0, 0),
        };
        let within = (self.first_byte[bucket] - below).max(1) as f64;
        Some(lower + (upper - lower) * (wanted - below as f64) / within)
    }
}

impl Metrics {
    /// What requests counted since the start, also for pods that have gone.
    pub fn total(&self) -> Figures {
        let gone = *self.gone();
        self.totals().values().fold(gone, |sum, figures| sum.and(figures))
    }

    /// Adds to the sum what was counted for pods that are not there any more.
    pub fn add_gone(&self, sum: &mut Figures, is_there: impl Fn(&Name) -> bool) {
        let has_gone = |pod: &str| !pod.is_empty() && !is_there(&pod.into());
        for (_, figures) in self.totals().iter().filter(|(pod, _)| has_gone(pod)) {
            *sum = sum.and(figures);
        }
    }

    pub fn gone(&self) -> MutexGuard<'_, Figures> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What requests counted so far, by pods that are there or have gone not long ago.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::new();
        for (key, count) in self.ends.all() {
            let figures = totals.entry(word(key.pod.as_ref())).or_default();
            let count = count.load(Relaxed);
            figures.requests += count;
            if key.status >= 500 || key.ended == RequestEnd::Broken {
                figures.failed += count;
            }
        }
        for (key, line) in self.lines.all() {
            let figures = totals.entry(word(key.pod.as_ref())).or_default();
            let mut counted = line.figures();
            if key.profile.as_str() == OFFLINE {
                counted.first_byte = Figures::default().first_byte;
            }
            *figures = figures.and(&counted);
        }
        totals
    }
}

impl LineCounters {
    fn figures(&self) -> Figures {
        Figures {
            retries: self.retries.load(Relaxed),
            first_byte: self.first_byte.fine(),
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            output_tokens: self.output_tokens.load(Relaxed),
            told_tokens: self.told.load(Relaxed),
            cached_tokens: self.cached.load(Relaxed),
            predicted: self.predicted.load(Relaxed),
            actual: self.actual.load(Relaxed),
            checked: self.checked.load(Relaxed),
            speculative: self.speculative.load(Relaxed),
            ..Figures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::histogram::Histogram;

    fn times(all: &[(u64, u64)]) -> Figures {
        let histogram = Histogram::default();
        for (millis, count) in all {
            (0..*count).for_each(|_| histogram.record(Duration::from_millis(*millis)));
        }
        Figures { first_byte: histogram.fine(), ..Figures::default() }
    }

    #[test]
    fn a_quantile_lies_within_its_bucket_and_never_beyond_the_last_bound() {
        // A hundred times between 45 and 50 ms.
        let figures = times(&[(47, 100)]);
        assert_eq!(figures.first_byte_within(1.0), Some(0.05));
        let half = figures.first_byte_within(0.5).unwrap();
        assert!((half - 0.0475).abs() < 1e-9, "{half}");
        assert!(times(&[(1, 90), (900, 10)]).first_byte_within(0.5).unwrap() < 0.001);
        assert_eq!(times(&[(400_000, 3)]).first_byte_within(0.5), Some(300.0));
        assert_eq!(Figures::default().first_byte_within(0.5), None);
    }

    #[test]
    fn percentiles_are_off_by_an_eighth_at_most() {
        let close = [(62, 126), (63, 50), (64, 50), (65, 22), (66, 3)];
        let wide = [(3, 500), (40, 400), (900, 90), (7_000, 10)];
        for (all, truth) in [(&close[..], [62.0, 64.0, 65.0]), (&wide[..], [3.0, 40.0, 900.0])] {
            let figures = times(all);
            for (share, truth) in [0.5, 0.9, 0.99].into_iter().zip(truth) {
                let told = figures.first_byte_within(share).unwrap() * 1e3;
                let off: f64 = told / truth - 1.0;
                assert!(off.abs() <= 0.125, "p{share} of {all:?}: {told}, not {truth}");
            }
        }
    }

    #[test]
    fn a_pod_that_begins_anew_gives_no_negative_figures() {
        let before =
            Figures { requests: 10, cached_tokens: 5, told_tokens: 9, ..times(&[(8, 10)]) };
        let after = Figures { requests: 4, ..times(&[(8, 4)]) };
        assert_eq!(after.since(&before), Figures::default());
        assert_eq!(before.and(&after).since(&after), before);
        assert_eq!((before.hit_rate(), after.hit_rate()), (Some(5.0 / 9.0), None));
    }
}
