//! Replies to a feed's queries, and digests.

use super::liveness::EpochRelation;
use super::recent::Repetition;
use super::recovery::{PendingQuery, Recovery, ReplyFailure};
use super::{BatchAdmission, Feed, Rebuild, SourceId};
use crate::message::{BatchId, Delivery, EngineDigest};
use wornpath_index::{Moment, PodDigest, SnapshotApplied};

impl Feed {
    /// Decides what to do with a replayed batch. The first one shows whether the engine has
    /// restarted: a replay begins with the last batch that was applied.
    pub(super) fn admit_replayed(
        &mut self,
        from: SourceId,
        sequence: u64,
        id: BatchId,
        now: Moment,
    ) -> BatchAdmission {
        let query = self.pending.as_mut().filter(|query| query.source == from);
        let Some(reply) = query.and_then(|query| query.reply_mut(now)) else {
            return self.repeated();
        };
        let is_first = reply.highest.is_none();
        reply.highest = reply.highest.max(Some(sequence));
        if is_first && sequence > reply.from && (self.verifying || sequence > self.next) {
            return self.replay_truncated(sequence);
        }
        if sequence >= self.next {
            return BatchAdmission::Apply;
        }
        match self.recent.compare(sequence, id.fingerprint) {
            Repetition::Other => self.start_epoch_at(sequence),
            // A checkpoint needs an epoch or a fingerprint to be confirmed.
            Repetition::Unknown if id.epoch.is_none() && self.awaits_confirmation() => {
                self.start_epoch_at(sequence)
            }
            Repetition::Same | Repetition::Unknown => self.repeated(),
        }
    }

    /// Extends the timeout of a query: a part of its reply has arrived, though it has no effect.
    pub(super) fn note_reply_progress(&mut self, from: SourceId, now: Moment) {
        if let Some(query) = self.pending.as_mut().filter(|query| query.source == from) {
            query.at = now;
        }
    }

    /// The engine no longer keeps the first of the requested batches.
    fn replay_truncated(&mut self, first: u64) -> BatchAdmission {
        if self.can(|capabilities| capabilities.snapshot) {
            self.replay_exhausted = true;
            self.pending = None;
            return BatchAdmission::Skip;
        }
        self.counters.rebuilds += 1;
        self.drop_resumed();
        self.advance(first);
        self.recent.clear();
        self.has_base = true;
        self.verifying = false;
        self.partial = true;
        BatchAdmission::RebuildAndApply(Rebuild::From(first))
    }

    /// Records an undecodable batch during a replay, and returns whether the feed is past it
    /// already. If it was a live one, the feed moves past it without another query, which loses a
    /// batch and makes nothing wrong.
    pub(super) fn is_past_unreadable(&mut self, sequence: Option<u64>, now: Moment) -> bool {
        let reply = self.pending.as_mut().and_then(|query| query.reply_mut(now));
        let Some((reply, sequence)) = reply.zip(sequence) else { return false };
        reply.unreadable = reply.unreadable.max(Some(sequence));
        sequence < self.next
    }

    /// A replay is complete.
    pub fn replay_ended(&mut self, from: SourceId, now: Moment) -> Option<Rebuild> {
        let query = self.pending.take_if(|query| query.source == from && !query.is_snapshot())?;
        let reply = query.reply?;
        if !self.is_relayed(from) {
            self.note_activity(now);
        }
        self.backoff.succeeded();
        // An undecodable batch does not verify the epoch.
        let is_verified = reply.highest.is_some() || !self.verifying;
        let Some(highest) = reply.highest.max(reply.unreadable).filter(|_| is_verified) else {
            if self.next > 0 && self.epoch.is_some() && self.is_relayed(from) {
                self.store_was_emptied(now);
                return None;
            }
            // Not even the last batch applied: the engine that sent it is gone.
            if self.next > 0 {
                return Some(self.start_epoch(None));
            }
            self.has_base = true;
            self.highest = self.early.last_key_value().map(|(sequence, _)| *sequence);
            self.note_gap(now);
            return None;
        };
        self.confirm();
        self.has_base = true;
        self.verifying = false;
        self.highest = self.early.last_key_value().map(|(early, _)| *early).max(Some(highest));
        self.note_gap(now);
        if self.next <= highest {
            // The reply itself has a gap: another would have it too.
            self.replay_exhausted = true;
        } else if self.gap.is_some() && self.next == reply.next {
            self.backoff.failed();
        }
        None
    }

    /// A broker was wiped. The engine still holds its blocks, and its relay fills the broker again;
    /// a restart would show by its epoch.
    fn store_was_emptied(&mut self, now: Moment) {
        self.note_gap(now);
        if self.gap.is_some() || self.verifying {
            self.backoff.failed();
        }
    }

    /// A source refused a query.
    pub fn refused(&mut self, from: SourceId) {
        if let Some(query) = self.pending.take_if(|query| query.source == from) {
            self.fail(&query, ReplyFailure::Refused);
        }
    }

    pub(super) fn fail(&mut self, query: &PendingQuery, failure: ReplyFailure) {
        self.counters.failures += 1;
        if query.reason == Recovery::Rest {
            self.rest_backoff.failed();
            return;
        }
        if query.is_snapshot() || failure == ReplyFailure::Timeout {
            self.backoff.failed();
        }
        // A source that is silent altogether may still have everything when it returns.
        let is_alive = self.last_activity.is_some_and(|last| last > query.at);
        let has_failed = self.backoff.failures() >= self.rules.max_failures;
        let given_up = is_alive && has_failed && query.reason != Recovery::Probe;
        if !query.is_snapshot() && (failure == ReplyFailure::Refused || given_up) {
            self.replay_exhausted = true;
        }
        if !query.is_snapshot() && failure == ReplyFailure::Refused {
            // It cost the source nothing, so the next query need not wait.
            self.last_query = None;
        }
    }

    /// Decides what to do with a snapshot.
    pub fn admit_snapshot(&mut self, id: BatchId, now: Moment) -> BatchAdmission {
        if self.is_quarantined(now) {
            return BatchAdmission::Skip;
        }
        let answered = self.pending.take_if(|query| query.is_snapshot());
        if answered.is_some_and(|query| query.reason == Recovery::Rest) {
            // Unless it has the rest, which ends the row of failures.
            self.rest_backoff.failed();
        }
        let relation = self.compare_epoch(id.epoch, Delivery::Live, now);
        if relation == EpochRelation::Outdated {
            self.counters.outdated += 1;
            return BatchAdmission::Skip;
        }
        self.note_activity(now);
        let is_old = id.sequence.is_some_and(|last| last.saturating_add(1) < self.next);
        if relation == EpochRelation::New || (is_old && self.verifying) {
            return BatchAdmission::RebuildAndApply(self.start_epoch(id.epoch));
        }
        self.epoch = self.epoch.or(id.epoch);
        if is_old {
            self.counters.outdated += 1;
            return BatchAdmission::Skip;
        }
        BatchAdmission::Apply
    }

    /// Records what became of a snapshot.
    pub fn snapshot_applied(&mut self, id: BatchId, applied: SnapshotApplied, now: Moment) {
        let SnapshotApplied { caught_up, unnamed, missing } = applied;
        if let Some(last) = id.sequence {
            self.numbered = true;
            self.recent.clear();
            self.advance(last.saturating_add(1).saturating_add(caught_up as u64));
            self.highest = self.early.last_key_value().map(|(early, _)| *early).max(Some(last));
        }
        self.counters.batches += caught_up as u64;
        self.drop_resumed();
        self.has_base = true;
        self.verifying = false;
        if missing == 0 {
            self.become_whole();
        } else {
            self.partial = true;
            self.unnamed = unnamed as u64;
            self.wants_rest = unnamed > 0;
        }
        // The next digest shows whether it helped.
        if !self.digest_differs {
            self.backoff.succeeded();
        }
        self.repaired = self.digest_differs;
        self.digest_differs = false;
        self.replay_exhausted = false;
        self.phantom = 0;
        self.missing = 0;
        self.note_gap(now);
    }

    /// Compares the engine's digest with the index's.
    pub fn digest(
        &mut self,
        engine: &EngineDigest,
        ours: &PodDigest,
        now: Moment,
    ) -> Option<Rebuild> {
        if self.is_quarantined(now) {
            return None;
        }
        match self.compare_epoch(engine.epoch, Delivery::Live, now) {
            EpochRelation::Outdated => {
                self.counters.outdated += 1;
                return None;
            }
            EpochRelation::New => {
                self.note_activity(now);
                let rebuild = self.start_epoch(engine.epoch);
                self.expect_up_to(engine.sequence, now);
                return Some(rebuild);
            }
            EpochRelation::Same => self.note_activity(now),
        }
        self.epoch = self.epoch.or(engine.epoch);
        match engine.sequence {
            Some(last) if last >= self.next => self.expect_up_to(Some(last), now),
            Some(last) if last.saturating_add(1) < self.next => {
                // A late digest, or one of a new epoch that has few batches yet.
                self.verifying |= self.epoch.is_none();
            }
            _ => self.compare(engine, ours),
        }
        None
    }

    pub(super) fn expect_up_to(&mut self, last: Option<u64>, now: Moment) {
        self.numbered |= last.is_some();
        self.highest = self.highest.max(last);
        self.note_gap(now);
    }

    fn compare(&mut self, engine: &EngineDigest, ours: &PodDigest) {
        self.digest_differs = engine.tiers != ours.tiers;
        if self.digest_differs {
            self.counters.disagreements += 1;
            // Snapshots that do not help are requested less and less often.
            if self.repaired {
                self.backoff.failed();
            }
        } else {
            self.backoff.succeeded();
            self.has_base = true;
            self.become_whole();
            if self.awaits_confirmation() && (engine.sequence.is_some() || !self.numbered) {
                // The same number and the same blocks: the engine's next batch follows.
                self.verifying = false;
                self.confirm();
            }
        }
        self.repaired = false;
        let pairs = || ours.tiers.iter().zip(&engine.tiers);
        self.phantom = pairs().map(|(ours, theirs)| ours.count.saturating_sub(theirs.count)).sum();
        self.missing = pairs().map(|(ours, theirs)| theirs.count.saturating_sub(ours.count)).sum();
    }
}
