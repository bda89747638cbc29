//! Timeouts and bounds of a feed.

use std::time::Duration;

/// Timeouts and bounds of a feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeedRules {
    /// How long a missing batch may be late before a replay is requested.
    pub grace: Duration,
    /// The minimum time between two queries to one pod's sources.
    pub min_query_interval: Duration,
    /// The interval doubles with every failure, up to this.
    pub max_query_interval: Duration,
    /// How long a reply, or the next part of it, may take.
    pub reply_timeout: Duration,
    /// After so many unanswered replays in a row of a live source, the pod is rebuilt without them.
    pub max_failures: u32,
    /// A source that can replay is probed for lost batches after so long a silence.
    pub probe_after: Duration,
    /// After so long a silence, a pod's freshness begins to decrease.
    pub stale_after: Duration,
    /// More malformed batches than this...
    pub max_malformed: usize,
    /// ...within this window...
    pub malformed_window: Duration,
    /// ...put the pod into quarantine for so long.
    pub quarantine: Duration,
    /// Batches that arrive before their predecessors, as many as the index keeps for a pod.
    pub max_early: usize,
}

impl Default for FeedRules {
    fn default() -> Self {
        Self {
            grace: Duration::from_millis(100),
            min_query_interval: Duration::from_secs(1),
            max_query_interval: Duration::from_secs(30),
            reply_timeout: Duration::from_millis(1500),
            max_failures: 3,
            probe_after: Duration::from_secs(1),
            stale_after: Duration::from_secs(30),
            max_malformed: 16,
            malformed_window: Duration::from_secs(10),
            quarantine: Duration::from_secs(30),
            max_early: 1 << 10,
        }
    }
}
