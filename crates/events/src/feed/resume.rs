//! Where a feed stood, written down; and going on from there once the pod's source has confirmed it.
//!
//! A feed that recalls holds all live batches and asks as one whose connection was lost: for a replay that begins
//! with the last batch that is remembered. Until the answer has come, or a digest agrees, its [`FeedStatus`] gives it no
//! credit at all.
//!
//! [`FeedStatus`]: super::Status

use super::{Feed, Rebuild, Resumed};
use crate::message::Epoch;
use wornpath_index::Moment;

/// Where a feed stood.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResumePoint {
    /// The engine's life.
    pub epoch: Option<Epoch>,
    /// The last batch applied, if batches are numbered.
    pub last: Option<u64>,
    /// The fingerprint of that batch.
    pub fingerprint: Option<u64>,
}

impl Feed {
    /// Where it stands, if that is worth remembering: what is applied is right up to there, and the engine can be
    /// told from its next life.
    #[must_use]
    pub fn memo(&self) -> Option<ResumePoint> {
        let is_right = self.based || self.awaits_confirmation();
        if !is_right || self.differs || self.partial || self.quarantined_until.is_some() {
            return None;
        }
        let epoch = self.epoch;
        if !self.numbered {
            return Some(ResumePoint { epoch, ..ResumePoint::default() });
        }
        let last = self.next.checked_sub(1)?;
        let fingerprint = self.recent.get(last);
        let is_known = epoch.is_some() || fingerprint.is_some();
        is_known.then_some(ResumePoint { epoch, last: Some(last), fingerprint })
    }

    /// Takes up where an earlier feed of the same pod stood. What that one had applied is in the index already.
    pub fn recall(&mut self, memo: ResumePoint) {
        self.epoch = memo.epoch;
        if let Some(last) = memo.last {
            self.next = last.saturating_add(1);
            self.recent.note(last, memo.fingerprint);
            (self.numbered, self.based, self.verifying) = (true, true, true);
        }
        self.recalled = Some(Resumed::Waiting);
    }

    /// Takes note that what was written down could not be entered into the index.
    pub fn cannot_recall(&mut self) {
        self.recalled = Some(Resumed::Dropped);
    }

    /// What nobody confirms for too long is given up: meanwhile nothing counts that is expected of the pod either.
    pub(super) fn give_up_recalled(&mut self, now: Moment) -> Option<Rebuild> {
        if !self.awaits_confirmation() {
            return None;
        }
        let until = *self.recalled_until.get_or_insert(now + self.rules.stale_after);
        if now < until {
            return None;
        }
        self.forget();
        (self.epoch, self.based, self.numbered) = (None, false, false);
        Some(Rebuild::ANEW)
    }

    /// Whether what is there is only remembered.
    pub(super) fn awaits_confirmation(&self) -> bool {
        self.recalled == Some(Resumed::Waiting)
    }

    /// The source says what is remembered, or the rest of it.
    pub(super) fn confirm(&mut self) {
        if self.awaits_confirmation() {
            self.recalled = Some(Resumed::Confirmed);
        }
    }

    /// What was remembered is gone.
    pub(super) fn drop_recalled(&mut self) {
        if self.awaits_confirmation() {
            self.recalled = Some(Resumed::Dropped);
        }
    }
}
