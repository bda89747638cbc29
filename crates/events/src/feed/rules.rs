//! The times and bounds that a feed keeps to.

use std::time::Duration;

/// When a feed does what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeedRules {
    /// How long a missing batch may be merely late.
    pub grace: Duration,
    /// The least time between two questions to one pod's sources.
    pub pause: Duration,
    /// The pause doubles with every failure, up to this.
    pub longest_pause: Duration,
    /// How long an answer may take.
    pub answer_within: Duration,
    /// How many replays in a row a source that speaks may leave unanswered before the pod is built anew without them.
    pub most_failures: u32,
    /// A source that can replay is asked after so long a silence whether there was more.
    pub probe_after: Duration,
    /// After so long without a word, what is known of a pod begins to fade.
    pub stale_after: Duration,
    /// So many batches in a row of time that cannot be understood...
    pub malformed_most: usize,
    /// ...within so long...
    pub malformed_within: Duration,
    /// ...and the pod's events are passed over for so long.
    pub quarantine: Duration,
    /// Batches that came before their turn, as many as the index keeps for a pod.
    pub early_most: usize,
}

impl Default for FeedRules {
    fn default() -> Self {
        Self {
            grace: Duration::from_millis(100),
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
            answer_within: Duration::from_millis(1500),
            most_failures: 3,
            probe_after: Duration::from_secs(1),
            stale_after: Duration::from_secs(30),
            malformed_most: 16,
            malformed_within: Duration::from_secs(10),
            quarantine: Duration::from_secs(30),
            early_most: 1 << 10,
        }
    }
}
