//! How many pods a trace needs to meet latency objectives, and how large their caches must be.
//!
//! Every count is tried in virtual time, with the replay of [`crate::replay`]. Whether a count meets
//! the objectives need not grow with the count: with more pods, requests that share a prefix may be
//! spread over more caches. So a bisection finds a count that does, and then every smaller one is
//! tried too: the answer is the smallest that meets them. That is affordable because a replay stops
//! as soon as too many of its requests have missed ([`MissCount`]), which on an overloaded fleet is
//! soon.

mod objective;
mod search;

pub use objective::{LatencyMetric, MissCount, Objective, ObjectiveError};
pub use search::{CountSearch, Found, Tried};

use crate::profile::EngineProfile;
use crate::replay::{
    ProfileText, ReplayFleet, RequestRecord, Summary, Trace, TraceStart, TraceTurn, replay_watched,
};
use std::ops::ControlFlow;
use std::time::Duration;
use wornpath_routing::Problems;

/// The traffic, the engines, the profile and the objectives of a sizing.
#[derive(Clone, Debug)]
pub struct Sizing<'a> {
    /// The runs that must all meet the objectives: the same traffic, each with its own jitter.
    pub runs: Vec<Trace>,
    /// The routing profile.
    pub profile: ProfileText<'a>,
    /// The profile of each engine.
    pub engine: EngineProfile,
    /// What must be met, all of it.
    pub objectives: Vec<Objective>,
}

/// A fleet to try.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FleetSize {
    /// Number of pods.
    pub pods: usize,
    /// KV capacity of each in tokens.
    pub kv_tokens: usize,
}

/// Whether a replay may stop early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// It runs to the end, for its figures.
    Whole,
    /// It stops when the objectives can no longer be met.
    Verdict,
}

/// What a fleet achieved.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The fleet.
    pub size: FleetSize,
    /// Whether all runs met all objectives.
    pub is_met: bool,
    /// The figures, if all runs went to their end.
    pub figures: Option<Figures>,
    /// The share of the requests of the last run that ended before it stopped.
    pub ended: f64,
}

/// The figures of a fleet, over its runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// The value of each objective, in the worst run; none if it is a failed request.
    pub values: Vec<Option<Duration>>,
    /// Requests that failed, over all runs.
    pub failures: usize,
    /// Mean share of prompt tokens that were cached.
    pub hit_rate: f64,
    /// Mean of the busiest pod's requests divided by the mean of all pods.
    pub imbalance: f64,
    /// Mean time from the first arrival to the last end.
    pub span: Duration,
}

impl Sizing<'_> {
    /// The longest prompt with its output, in tokens of whole blocks: no smaller cache serves every
    /// request.
    #[must_use]
    pub fn longest_request(&self) -> usize {
        let tokens = self.runs.iter().flat_map(|run| {
            let block = run.block_size.get();
            let length = move |turn: &TraceTurn| turn.prompt_tokens + turn.output_tokens;
            run.turns.iter().map(move |turn| length(turn).next_multiple_of(block))
        });
        tokens.max().unwrap_or(0)
    }

    /// Tries a fleet. `on_progress` gets the share of the requests that have ended.
    ///
    /// # Errors
    /// If the profile is not valid.
    pub fn measure(
        &self,
        size: FleetSize,
        effort: Effort,
        on_progress: &mut dyn FnMut(f64),
    ) -> Result<Measured, Problems> {
        let mut is_met = true;
        let mut figures = Vec::new();
        let mut ended = 0;
        for (run, seed) in self.runs.iter().zip(1..) {
            let kv_tokens = Some(size.kv_tokens);
            let fleet =
                ReplayFleet { kv_tokens, ..ReplayFleet::new(self.engine.clone(), size.pods, seed) };
            let mut misses = MissCount::of(&self.objectives, run);
            ended = 0;
            let mut watch = |turn: usize, record: &RequestRecord| {
                ended += 1;
                on_progress(ended as f64 / run.turns.len() as f64);
                misses.add(&run.turns[turn], record);
                match effort == Effort::Verdict && !misses.is_met() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let records = replay_watched(run, self.profile, &fleet, &mut watch)?;
            is_met &= misses.is_met();
            match records {
                Some(records) => figures.push(self.figures(run, &records, size.pods)),
                None => break,
            }
        }
        let is_whole = figures.len() == self.runs.len();
        let turns = self.runs.first().map_or(1, |run| run.turns.len());
        Ok(Measured {
            size,
            is_met,
            figures: is_whole.then(|| Figures::over(&figures)),
            ended: ended as f64 / turns as f64,
        })
    }

    fn figures(&self, run: &Trace, records: &[RequestRecord], pods: usize) -> Figures {
        let summary = Summary::of(run, records, pods);
        let value = |objective: &Objective| objective.value(run, records);
        let starts = run.turns.iter().filter_map(|turn| match turn.start {
            TraceStart::At(time) => Some(time),
            TraceStart::After { .. } => None,
        });
        let first = starts.min().unwrap_or_default();
        let last = records.iter().filter_map(|record| record.end).max().unwrap_or_default();
        Figures {
            values: self.objectives.iter().map(value).collect(),
            failures: summary.failures,
            hit_rate: summary.hit_rate,
            imbalance: summary.imbalance,
            span: last.saturating_sub(first),
        }
    }
}

impl Figures {
    fn over(runs: &[Self]) -> Self {
        let count = runs.len().max(1);
        let mean = |of: fn(&Self) -> f64| runs.iter().map(of).sum::<f64>() / count as f64;
        let worst = |at: usize| {
            let values: Option<Vec<_>> = runs.iter().map(|run| run.values[at]).collect();
            values?.into_iter().max()
        };
        let objectives = runs.first().map_or(0, |run| run.values.len());
        Self {
            values: (0..objectives).map(worst).collect(),
            failures: runs.iter().map(|run| run.failures).sum(),
            hit_rate: mean(|run| run.hit_rate),
            imbalance: mean(|run| run.imbalance),
            span: runs.iter().map(|run| run.span).sum::<Duration>() / count as u32,
        }
    }
}

#[cfg(test)]
mod tests;
