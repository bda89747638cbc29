//! Recovery: which query a feed sends next, and when.

use super::Feed;
use super::Rebuild;
use super::SourceId;
use crate::message::{Capabilities, SourceQuery};
use wornpath_index::Moment;

/// An action that a timer triggers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedStep {
    /// Send a query to a source.
    Query(SourceId, SourceQuery),
    /// Rebuild the pod's state.
    Rebuild(Rebuild),
}

/// A broker reads for one pod after another, so its replies may take so many times longer.
const RELAYED_TIMEOUT_FACTOR: u32 = 20;

/// Why a query is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recovery {
    /// There is no state that events can be applied to.
    Base,
    /// Batches are missing, or their epoch has to be verified.
    Batches,
    /// The digest does not match.
    State,
    /// What is known is right, and a source may have more.
    Rest,
    /// Nothing is known to be wrong; a silent source may have lost the last batches.
    Probe,
}

impl Feed {
    /// The action that is due at `now`, if any. Call it again until it returns `None`.
    pub fn tick(&mut self, now: Moment) -> Option<FeedStep> {
        if self.quarantined_until.is_some_and(|until| now >= until) {
            self.quarantined_until = None;
        }
        if let Some(rebuild) = self.expire_resumed(now) {
            return Some(FeedStep::Rebuild(rebuild));
        }
        if self.reply_deadline().is_some_and(|until| now >= until)
            && let Some(query) = self.pending.take()
        {
            self.fail(&query, ReplyFailure::Timeout);
        }
        let next = self.next_recovery()?;
        (now >= next.due).then(|| self.recover(next, now))
    }

    /// When [`Feed::tick`] has something to do, if no message arrives before.
    #[must_use]
    pub fn next_tick(&self) -> Option<Moment> {
        let timeout = self.reply_deadline();
        let recovery = self.next_recovery().map(|next| next.due);
        let expiry =
            self.awaits_confirmation().then(|| self.resume_deadline.unwrap_or(Moment::ZERO));
        [timeout, recovery, self.quarantined_until, expiry].into_iter().flatten().min()
    }

    /// When the query in flight times out.
    fn reply_deadline(&self) -> Option<Moment> {
        let query = self.pending.as_ref()?;
        let source = self.sources.get(query.source.0);
        let is_relayed = source.is_some_and(|source| source.capabilities.relayed);
        let factor = if is_relayed { RELAYED_TIMEOUT_FACTOR } else { 1 };
        Some(query.at + self.rules.reply_timeout * factor)
    }

    /// The most urgent recovery that is possible now, and when it is due.
    fn next_recovery(&self) -> Option<NextRecovery> {
        let is_connected = self.sources.iter().any(|source| source.connected);
        if self.pending.is_some() || self.quarantined_until.is_some() || !is_connected {
            return None;
        }
        let ready = self.last_query.map_or(Moment::ZERO, |last| last + self.backoff.next_delay());
        let (reason, due) = if self.digest_differs {
            (Recovery::State, ready)
        } else if !self.has_base {
            (Recovery::Base, ready)
        } else if self.verifying {
            (Recovery::Batches, ready)
        } else if let Some(since) = self.gap {
            (Recovery::Batches, ready.max(since + self.rules.grace))
        } else if self.wants_rest {
            let last = self.last_query.unwrap_or(Moment::ZERO);
            (Recovery::Rest, last + self.rest_backoff.next_delay())
        } else {
            (Recovery::Probe, ready.max(self.last_activity? + self.rules.probe_after))
        };
        self.method(reason).map(|method| NextRecovery { reason, method, due })
    }

    /// How to recover now.
    fn method(&self, reason: Recovery) -> Option<RecoveryMethod> {
        let replay = self
            .find_source(|one| one.replay && !self.replay_exhausted)
            .map(RecoveryMethod::Replay);
        let snapshot = self.find_source(|one| one.snapshot).map(RecoveryMethod::Snapshot);
        let is_possible_later =
            self.can(|one| one.snapshot || (one.replay && !self.replay_exhausted));
        match reason {
            Recovery::Base if !self.can_query() => None,
            Recovery::Base => {
                snapshot.or(replay).or((!is_possible_later).then_some(RecoveryMethod::Skip))
            }
            Recovery::Batches => {
                replay.or(snapshot).or((!is_possible_later).then_some(RecoveryMethod::Skip))
            }
            Recovery::State if self.can(|one| one.snapshot) => snapshot,
            Recovery::State => Some(RecoveryMethod::Rebuild),
            Recovery::Rest => snapshot,
            Recovery::Probe => replay,
        }
    }

    fn recover(&mut self, next: NextRecovery, now: Moment) -> FeedStep {
        self.last_query = Some(now);
        let reason = next.reason;
        match next.method {
            RecoveryMethod::Replay(source) => {
                self.counters.replays += u64::from(reason != Recovery::Probe);
                // Includes the last batch applied, to verify that it is the same.
                let from = self.next.saturating_sub(1);
                let next = self.next;
                let reply = Some(Reply { from, next, highest: None, unreadable: None });
                self.pending = Some(PendingQuery { source, at: now, reason, reply });
                FeedStep::Query(source, SourceQuery::Replay { from })
            }
            RecoveryMethod::Snapshot(source) => {
                self.counters.snapshots += 1;
                self.pending = Some(PendingQuery { source, at: now, reason, reply: None });
                let query = match self.unnamed {
                    0 => SourceQuery::Snapshot,
                    _ => SourceQuery::SnapshotWithTokens,
                };
                FeedStep::Query(source, query)
            }
            RecoveryMethod::Rebuild => {
                self.counters.rebuilds += 1;
                self.backoff.failed();
                self.clear_state();
                self.has_base = false;
                FeedStep::Rebuild(Rebuild::FROM_START)
            }
            RecoveryMethod::Skip => self.continue_without(),
        }
    }

    /// Gives up the missing batches, and continues from the last run of batches without a gap.
    fn continue_without(&mut self) -> FeedStep {
        let mut from = self.highest.map_or(self.next, |highest| highest.saturating_add(1));
        for sequence in self.early.keys().rev() {
            if sequence.saturating_add(1) != from {
                break;
            }
            from = *sequence;
        }
        self.counters.rebuilds += 1;
        self.drop_resumed();
        self.backoff.succeeded();
        self.early = self.early.split_off(&from);
        self.recent.clear();
        self.next = from;
        self.has_base = true;
        self.verifying = false;
        self.replay_exhausted = false;
        self.gap = None;
        self.partial = true;
        FeedStep::Rebuild(Rebuild::From(from))
    }

    /// A connected source with the capability.
    fn find_source(&self, capability: impl Fn(Capabilities) -> bool) -> Option<SourceId> {
        let is_able =
            |source: &super::FeedSource| source.connected && capability(source.capabilities);
        self.sources.iter().position(is_able).map(SourceId)
    }
}

/// A recovery and when it is due.
#[derive(Clone, Copy)]
struct NextRecovery {
    reason: Recovery,
    method: RecoveryMethod,
    due: Moment,
}

/// How a feed recovers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RecoveryMethod {
    Replay(SourceId),
    Snapshot(SourceId),
    /// Clear the state, and replay from the start.
    Rebuild,
    /// Clear the state, and continue without the missing batches.
    Skip,
}

/// A query that waits for its reply.
#[derive(Debug)]
pub(super) struct PendingQuery {
    pub(super) source: SourceId,
    /// When it was sent, or the last part of its reply arrived.
    pub(super) at: Moment,
    pub(super) reason: Recovery,
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

    /// Whether it is for a snapshot in the place of a state that may be wrong.
    pub(super) fn replaces_state(&self) -> bool {
        self.is_snapshot() && self.reason != Recovery::Rest
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
