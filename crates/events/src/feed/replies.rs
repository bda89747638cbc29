//! What answers to a feed's questions, and digests, make known.

use super::epoch::EpochRelation;
use super::recent::Repetition;
use super::recovery::PendingQuery;
use super::{BatchAdmission, Feed, Rebuild, SourceId};
use crate::message::{BatchId, Delivery, EngineDigest};
use wornpath_index::{Moment, PodDigest};

impl Feed {
    /// What to do with a batch that answers a replay. The first tells whether the engine is still the one
    /// that was known: a replay begins with the last batch that was applied.
    pub(super) fn admit_replayed(
        &mut self,
        from: SourceId,
        sequence: u64,
        heading: BatchId,
        now: Moment,
    ) -> BatchAdmission {
        let asked = self.asked.as_mut().filter(|asked| asked.source == from);
        let Some(answer) = asked.and_then(|asked| asked.answer_mut(now)) else {
            return self.repeated();
        };
        let is_first = answer.highest.is_none();
        answer.highest = answer.highest.max(Some(sequence));
        if is_first && sequence > answer.from && (self.verifying || sequence > self.next) {
            return self.out_of_reach(sequence);
        }
        if sequence >= self.next {
            return BatchAdmission::Apply;
        }
        match self.recent.compare(sequence, heading.fingerprint) {
            Repetition::Other => self.begin_with(sequence),
            // What is only remembered must be told by the one or the other.
            Repetition::Unknown if heading.epoch.is_none() && self.awaits_confirmation() => {
                self.begin_with(sequence)
            }
            Repetition::Same | Repetition::Unknown => self.repeated(),
        }
    }

    /// Something of an answer has come, though it has no effect.
    pub(super) fn answer_goes_on(&mut self, from: SourceId, now: Moment) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.source == from) {
            asked.at = now;
        }
    }

    /// The engine keeps only so many batches, and what is wanted is no more among them.
    fn out_of_reach(&mut self, first: u64) -> BatchAdmission {
        if self.can(|abilities| abilities.snapshot) {
            self.replay_useless = true;
            self.asked = None;
            return BatchAdmission::PassOver;
        }
        self.counters.rebuilds += 1;
        self.drop_recalled();
        self.advance(first);
        self.recent.clear();
        (self.based, self.verifying, self.partial) = (true, false, true);
        BatchAdmission::RebuildAndApply(Rebuild::From(first))
    }

    /// Takes note of a batch that could not be understood while a replay is answered, and tells whether it was gone
    /// past before. It may be a live one: then it is gone past without asking again, which loses something and makes
    /// nothing false.
    pub(super) fn is_gone_past(&mut self, sequence: Option<u64>, now: Moment) -> bool {
        let answer = self.asked.as_mut().and_then(|asked| asked.answer_mut(now));
        let Some((answer, sequence)) = answer.zip(sequence) else { return false };
        answer.unreadable = answer.unreadable.max(Some(sequence));
        sequence < self.next
    }

    /// A replay has come to its end.
    pub fn replay_ended(&mut self, from: SourceId, now: Moment) -> Option<Rebuild> {
        let asked = self.asked.take_if(|asked| asked.source == from && !asked.is_snapshot())?;
        let answer = asked.answer?;
        if !self.is_relayed(from) {
            self.hear(now);
        }
        self.pace.succeeded();
        // What cannot be understood does not tell whose it is.
        let is_known = answer.highest.is_some() || !self.verifying;
        let Some(highest) = answer.highest.max(answer.unreadable).filter(|_| is_known) else {
            if self.next > 0 && self.epoch.is_some() && self.is_relayed(from) {
                self.store_is_empty(now);
                return None;
            }
            // There is nothing from the last batch on: the engine that sent it is gone.
            if self.next > 0 {
                return Some(self.begin(None));
            }
            self.based = true;
            self.highest = self.early.last_key_value().map(|(sequence, _)| *sequence);
            self.note_gap(now);
            return None;
        };
        self.confirm();
        (self.based, self.verifying) = (true, false);
        self.highest = self.early.last_key_value().map(|(early, _)| *early).max(Some(highest));
        self.note_gap(now);
        if self.next <= highest {
            // The answer itself has a hole: asking again gives it again.
            self.replay_useless = true;
        } else if self.gap.is_some() && self.next == answer.next {
            self.pace.failed();
        }
        None
    }

    /// A store has lost what it had. The engine holds what it held, and who fills the store does so again; a later
    /// life would show itself by its epoch.
    fn store_is_empty(&mut self, now: Moment) {
        self.note_gap(now);
        if self.gap.is_some() || self.verifying {
            self.pace.failed();
        }
    }

    /// A source cannot answer.
    pub fn refused(&mut self, from: SourceId) {
        if let Some(asked) = self.asked.take_if(|asked| asked.source == from) {
            self.fail(&asked, ReplyFailure::Refused);
        }
    }

    pub(super) fn fail(&mut self, asked: &PendingQuery, failure: ReplyFailure) {
        self.counters.failures += 1;
        if asked.is_snapshot() || failure == ReplyFailure::Silence {
            self.pace.failed();
        }
        // A source that says nothing at all may still have everything when it comes back.
        let speaks = self.heard.is_some_and(|heard| heard > asked.at);
        let has_failed = self.pace.failures() >= self.rules.most_failures;
        let given_up = speaks && has_failed && !asked.is_probe;
        if !asked.is_snapshot() && (failure == ReplyFailure::Refused || given_up) {
            self.replay_useless = true;
        }
        if !asked.is_snapshot() && failure == ReplyFailure::Refused {
            // Nothing was fetched, so the next way need not wait.
            self.pace.give_back();
        }
    }

    /// Whether a snapshot is to be applied, and what is to be done before.
    pub fn admit_snapshot(&mut self, heading: BatchId, now: Moment) -> BatchAdmission {
        if self.is_quarantined(now) {
            return BatchAdmission::PassOver;
        }
        self.asked.take_if(|asked| asked.is_snapshot());
        let life = self.life(heading.epoch, Delivery::Live, now);
        if life == EpochRelation::Over {
            self.counters.outdated += 1;
            return BatchAdmission::PassOver;
        }
        self.hear(now);
        let is_old = heading.sequence.is_some_and(|last| last.saturating_add(1) < self.next);
        if life == EpochRelation::New || (is_old && self.verifying) {
            return BatchAdmission::RebuildAndApply(self.begin(heading.epoch));
        }
        self.epoch = self.epoch.or(heading.epoch);
        if is_old {
            self.counters.outdated += 1;
            return BatchAdmission::PassOver;
        }
        BatchAdmission::Apply
    }

    /// Tells that a snapshot was applied, and how many batches that had come early followed it.
    pub fn snapshot_applied(&mut self, heading: BatchId, caught_up: usize, now: Moment) {
        if let Some(last) = heading.sequence {
            self.numbered = true;
            self.recent.clear();
            self.advance(last.saturating_add(1).saturating_add(caught_up as u64));
            self.highest = self.early.last_key_value().map(|(early, _)| *early).max(Some(last));
        }
        self.counters.batches += caught_up as u64;
        self.drop_recalled();
        (self.based, self.verifying, self.partial) = (true, false, false);
        // Whether it helped, the next digest says.
        if !self.differs {
            self.pace.succeeded();
        }
        self.cured = self.differs;
        self.differs = false;
        self.replay_useless = false;
        (self.phantom, self.missing) = (0, 0);
        self.note_gap(now);
    }

    /// Compares the engine's own sum with ours.
    pub fn digest(
        &mut self,
        engine: &EngineDigest,
        ours: &PodDigest,
        now: Moment,
    ) -> Option<Rebuild> {
        if self.is_quarantined(now) {
            return None;
        }
        match self.life(engine.epoch, Delivery::Live, now) {
            EpochRelation::Over => {
                self.counters.outdated += 1;
                return None;
            }
            EpochRelation::New => {
                self.hear(now);
                let rebuild = self.begin(engine.epoch);
                self.expect_up_to(engine.sequence, now);
                return Some(rebuild);
            }
            EpochRelation::Same => self.hear(now),
        }
        self.epoch = self.epoch.or(engine.epoch);
        match engine.sequence {
            Some(last) if last >= self.next => self.expect_up_to(Some(last), now),
            Some(last) if last.saturating_add(1) < self.next => {
                // An old digest, or another life that has not said much yet.
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
        self.differs = engine.tiers != ours.tiers;
        if self.differs {
            self.counters.disagreements += 1;
            // A state that no snapshot cures is asked for less and less.
            if self.cured {
                self.pace.failed();
            }
        } else {
            self.pace.succeeded();
            (self.based, self.partial) = (true, false);
            if self.awaits_confirmation() && (engine.sequence.is_some() || !self.numbered) {
                // The same number and the same blocks: whatever the engine says next follows.
                self.verifying = false;
                self.confirm();
            }
        }
        self.cured = false;
        let pairs = || ours.tiers.iter().zip(&engine.tiers);
        self.phantom = pairs().map(|(ours, theirs)| ours.count.saturating_sub(theirs.count)).sum();
        self.missing = pairs().map(|(ours, theirs)| theirs.count.saturating_sub(ours.count)).sum();
    }
}

/// Why a question has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReplyFailure {
    /// The source says that it cannot.
    Refused,
    /// The source says nothing.
    Silence,
}
