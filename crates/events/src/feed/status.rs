//! What can be told about a pod's events.

use crate::message::Epoch;
use std::time::Duration;
use wornpath_index::Moment;

/// How far a pod's state is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedState {
    /// Nothing has been heard yet.
    Waiting,
    /// Everything the engine said is applied.
    Live,
    /// Something is missing, or may be; it is being fetched.
    Unsure,
    /// What was missing cannot be had. Nothing is there that the engine does not hold, but it may hold
    /// more.
    Partial,
    /// Nothing was heard for too long.
    Stale,
    /// Too much could not be understood; the pod's events are passed over for a while.
    Quarantined,
}

/// What became of a pod's state that a checkpoint had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resumed {
    /// It is there and counts for nothing: the pod's source has not confirmed it yet.
    Waiting,
    /// It was confirmed, and has counted since.
    Confirmed,
    /// It was refuted or replaced.
    Dropped,
}

/// Things that happened, counted since the pod came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FeedCounters {
    /// Batches applied.
    pub batches: u64,
    /// Blocks stored or removed in them.
    pub blocks: u64,
    /// Batches that had been applied before.
    pub repeated: u64,
    /// Batches, snapshots and digests of a life that is over.
    pub outdated: u64,
    /// Batches without a number for a pod whose batches are numbered.
    pub unnumbered: u64,
    /// Batches that could not be understood.
    pub malformed: u64,
    /// Batches that came early, or while an answer was awaited, and found no room.
    pub dropped: u64,
    /// Times at which batches were found missing.
    pub gaps: u64,
    /// Replays asked for because something was missing.
    pub replays: u64,
    /// Snapshots asked for.
    pub snapshots: u64,
    /// Questions that were refused or not answered in time.
    pub failures: u64,
    /// Times at which the pod was built anew because what was missing could not be had.
    pub rebuilds: u64,
    /// New lives of the engine.
    pub restarts: u64,
    /// Digests that did not agree.
    pub disagreements: u64,
}

/// Everything about one pod's events at one moment.
#[derive(Clone, Debug)]
pub struct FeedStatus {
    /// How far the state is known.
    pub state: FeedState,
    /// How much of its cache score a pod should get: 1 when all is known, 0 when nothing is.
    pub confidence: f32,
    /// The same but for doubts: less than 1 when nothing was heard for too long, down to 0.
    pub freshness: f32,
    /// The engine's life, where it is known.
    pub epoch: Option<Epoch>,
    /// The last batch applied.
    pub last_sequence: Option<u64>,
    /// How many batches are known to exist that are not applied.
    pub lag: u64,
    /// Event blocks per second, over about the last ten seconds.
    pub rate: f64,
    /// Time since anything was heard.
    pub age: Option<Duration>,
    /// Blocks that the pod was credited with and did not hold, by the last digest: at least so many.
    pub phantom: u64,
    /// Blocks that the pod held and was not credited with, by the last digest: at least so many.
    pub missing: u64,
    /// What became of the state that a checkpoint had, if it had any.
    pub recalled: Option<Resumed>,
    /// What happened so far.
    pub counters: FeedCounters,
    /// What was wrong with the last batch that could not be understood.
    pub last_malformed: Option<String>,
}

/// A rate that forgets: what came counts less the longer ago it was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    value: f64,
    at: Moment,
}

impl Rate {
    const MEMORY: f64 = 10.0;

    pub(super) fn note(&mut self, count: u64, now: Moment) {
        self.value = self.at(now) + count as f64 / Self::MEMORY;
        self.at = now;
    }

    pub(super) fn at(&self, now: Moment) -> f64 {
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        self.value * (-elapsed / Self::MEMORY).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_found_and_forgotten() {
        let mut rate = Rate::default();
        let mut now = Duration::ZERO;
        for _ in 0..6000 {
            now += Duration::from_millis(10);
            rate.note(5, now);
        }
        assert!((rate.at(now) - 500.0).abs() < 5.0, "{}", rate.at(now));
        assert!(rate.at(now + Duration::from_secs(120)) < 0.01);
    }
}
