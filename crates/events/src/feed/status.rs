//! The status of a pod's events.

use crate::message::Epoch;
use std::time::Duration;
use wornpath_index::Moment;

/// How well the index knows a pod's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedState {
    /// No message has arrived yet.
    Waiting,
    /// Everything that the engine published is applied.
    Live,
    /// Something is missing, or may be, and is being fetched.
    Unsure,
    /// Something is missing and cannot be fetched. The index holds nothing that the engine does
    /// not, but the engine may hold more.
    Partial,
    /// No message has arrived for too long.
    Stale,
    /// Too many batches were malformed; the pod's events are ignored for a while.
    Quarantined,
}

/// What became of the state that a checkpoint had of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resumed {
    /// Restored, and not used before the pod's source confirms it.
    Waiting,
    /// Confirmed, and used since.
    Confirmed,
    /// Refuted or replaced.
    Dropped,
}

/// Counters since the pod was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FeedCounters {
    /// Batches applied.
    pub batches: u64,
    /// Blocks stored or removed in them.
    pub blocks: u64,
    /// Batches that had been applied before.
    pub repeated: u64,
    /// Batches, snapshots and digests of an earlier epoch.
    pub outdated: u64,
    /// Batches without a number for a pod whose batches are numbered.
    pub unnumbered: u64,
    /// Batches that could not be decoded or translated.
    pub malformed: u64,
    /// Batches that were early or held, and exceeded the bounds.
    pub dropped: u64,
    /// Times that batches were found missing.
    pub gaps: u64,
    /// Replays requested because something was missing.
    pub replays: u64,
    /// Snapshots requested.
    pub snapshots: u64,
    /// Queries that were refused or timed out.
    pub failures: u64,
    /// Times that the pod's state was cleared because missing batches could not be fetched.
    pub rebuilds: u64,
    /// Restarts of the engine.
    pub restarts: u64,
    /// Digests that did not match.
    pub disagreements: u64,
    /// Times that reading was paused because a source sent too many messages that name no blocks.
    pub throttled: u64,
}

/// The status of one pod's events at one moment.
#[derive(Clone, Debug)]
pub struct FeedStatus {
    /// How well the cache is known.
    pub state: FeedState,
    /// The share of its cache score that a pod should get, from 0 to 1.
    pub confidence: f32,
    /// As `confidence`, but only for silence: below 1 when no message has arrived for too long,
    /// down to 0.
    pub freshness: f32,
    /// The engine's epoch, where it is known.
    pub epoch: Option<Epoch>,
    /// The last batch applied.
    pub last_sequence: Option<u64>,
    /// Batches that are known to exist and not applied.
    pub lag: u64,
    /// Event blocks per second, over about the last ten seconds.
    pub rate: f64,
    /// Time since the last message.
    pub age: Option<Duration>,
    /// By the last digest, at least so many blocks of the index are not in the pod's cache.
    pub phantom: u64,
    /// By the last digest, at least so many blocks of the pod's cache are not in the index.
    pub missing: u64,
    /// Hashes that the last snapshot named and whose tokens are unknown: blocks of the pod's cache
    /// that no query finds.
    pub unnamed: u64,
    /// What became of the pod's checkpoint, if there was one.
    pub resumed: Option<Resumed>,
    /// Counters since the pod was added.
    pub counters: FeedCounters,
    /// Why the last malformed batch was refused.
    pub last_malformed: Option<String>,
}

/// An exponentially decaying rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    value: f64,
    at: Moment,
}

impl Rate {
    const DECAY_SECONDS: f64 = 10.0;

    pub(super) fn note(&mut self, count: u64, now: Moment) {
        self.value = self.at(now) + count as f64 / Self::DECAY_SECONDS;
        self.at = now;
    }

    pub(super) fn at(&self, now: Moment) -> f64 {
        let elapsed = now.since(self.at).as_secs_f64();
        self.value * (-elapsed / Self::DECAY_SECONDS).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_converges_and_decays() {
        let mut rate = Rate::default();
        let mut now = Moment::ZERO;
        for _ in 0..6000 {
            now += Duration::from_millis(10);
            rate.note(5, now);
        }
        assert!((rate.at(now) - 500.0).abs() < 5.0, "{}", rate.at(now));
        assert!(rate.at(now + Duration::from_secs(120)) < 0.01);
    }
}
