//! A request that has ended, as the admin plane keeps it.

use wornpath_gateway::observe::summary::{RequestEnd, RequestSummary};

/// A request that has ended.
pub(crate) struct RecentRequest {
    /// Its place in the order of requests.
    pub(crate) number: usize,
    /// When it ended, in seconds since 1970.
    pub(crate) ended_at: f64,
    pub(crate) summary: RequestSummary,
}

/// What a failure is about, as a word.
pub(crate) fn cause(summary: &RequestSummary) -> &'static str {
    match (&summary.refusal, summary.pod.is_some()) {
        (Some(refusal), _) => refusal.cause.word(),
        (None, true) if summary.status >= 400 => "engine",
        (None, _) => summary.ended.word(),
    }
}

/// Whether a request failed. A client that disconnects is none of the router's failures.
pub(crate) fn is_failure(summary: &RequestSummary) -> bool {
    summary.ended != RequestEnd::ClientLeft
        && (summary.status >= 400 || summary.ended == RequestEnd::Broken)
}
