//! Resuming from a checkpoint, once the pod's source has confirmed it.
//!
//! A feed that resumes holds all live batches and, as after a lost connection, requests a replay
//! that begins with the last batch of the checkpoint. Until the reply confirms it, or a digest
//! matches, the feed's freshness is zero.

use super::{Feed, Rebuild, Resumed};
use crate::message::Epoch;
use wornpath_index::Moment;

/// How far a feed's events were applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResumePoint {
    /// The engine's epoch.
    pub epoch: Option<Epoch>,
    /// The last batch applied, if batches are numbered.
    pub last: Option<u64>,
    /// The fingerprint of that batch.
    pub fingerprint: Option<u64>,
}

impl Feed {
    /// The point to resume from, if there is one: the state is correct up to there, and a restart
    /// of the engine can be detected.
    #[must_use]
    pub fn resume_point(&self) -> Option<ResumePoint> {
        let is_correct = self.has_base || self.awaits_confirmation();
        if !is_correct || self.digest_differs || self.partial || self.quarantined_until.is_some() {
            return None;
        }
        let epoch = self.epoch;
        if !self.numbered {
            return Some(ResumePoint { epoch, ..ResumePoint::default() });
        }
        let last = self.next.checked_sub(1)?;
        let fingerprint = self.recent.get(last);
        let is_recognizable = epoch.is_some() || fingerprint.is_some();
        is_recognizable.then_some(ResumePoint { epoch, last: Some(last), fingerprint })
    }

    /// Resumes from where an earlier feed of the same pod was. The index already holds what that
    /// one had applied.
    pub fn resume(&mut self, point: ResumePoint) {
        self.epoch = point.epoch;
        if let Some(last) = point.last {
            self.next = last.saturating_add(1);
            self.recent.note(last, point.fingerprint);
            self.numbered = true;
            self.has_base = true;
            self.verifying = true;
        }
        self.resumed = Some(Resumed::Waiting);
    }

    /// Records that a checkpoint could not be restored into the index.
    pub fn resume_failed(&mut self) {
        self.resumed = Some(Resumed::Dropped);
    }

    /// Drops restored state that no source has confirmed in time: while it waits, speculative
    /// inserts of the pod do not count either.
    pub(super) fn expire_resumed(&mut self, now: Moment) -> Option<Rebuild> {
        if !self.awaits_confirmation() {
            return None;
        }
        let until = *self.resume_deadline.get_or_insert(now + self.rules.stale_after);
        if now < until {
            return None;
        }
        self.clear_state();
        self.epoch = None;
        self.has_base = false;
        self.numbered = false;
        Some(Rebuild::FROM_START)
    }

    /// Whether the state is restored and unconfirmed.
    pub(super) fn awaits_confirmation(&self) -> bool {
        self.resumed == Some(Resumed::Waiting)
    }

    pub(super) fn confirm(&mut self) {
        if self.awaits_confirmation() {
            self.resumed = Some(Resumed::Confirmed);
        }
    }

    pub(super) fn drop_resumed(&mut self) {
        if self.awaits_confirmation() {
            self.resumed = Some(Resumed::Dropped);
        }
    }
}
