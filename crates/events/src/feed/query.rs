//! The one query that a feed may have in flight, and what has come of its reply.

use super::SourceId;
use wornpath_index::Moment;

/// A query that waits for its reply.
#[derive(Debug)]
pub(super) struct PendingQuery {
    pub(super) source: SourceId,
    /// When it was sent, or the last part of its reply arrived.
    pub(super) at: Moment,
    pub(super) is_probe: bool,
    /// The progress of a replay; `None` for a snapshot.
    pub(super) reply: Option<Reply>,
}

/// The progress of a replay.
#[derive(Debug)]
pub(super) struct Reply {
    /// The first number that was requested.
    pub(super) from: u64,
    /// The number that was due next when the query was sent.
    pub(super) next: u64,
    /// The highest number received.
    pub(super) highest: Option<u64>,
    /// The highest number of a batch that could not be decoded.
    pub(super) unreadable: Option<u64>,
}

impl PendingQuery {
    pub(super) fn is_snapshot(&self) -> bool {
        self.reply.is_none()
    }

    /// The progress of a replay, of which another part has just arrived.
    pub(super) fn reply_mut(&mut self, now: Moment) -> Option<&mut Reply> {
        self.at = now;
        self.reply.as_mut()
    }
}

/// Why a query has no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReplyFailure {
    /// The source refused it.
    Refused,
    /// The source did not reply in time.
    Timeout,
}
