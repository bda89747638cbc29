//! What counts as hearing of a pod, and what follows from silence.
//!
//! A source that answers for itself is heard by its answers. A store that others fill, such as a broker, answers for
//! ever after they are gone, so of what it holds only what is new counts, and the beats of who fills it.

use super::epoch::EpochRelation;
use super::{Feed, FeedState, Rebuild, SourceId};
use crate::message::{Delivery, SourceHeartbeat};
use wornpath_index::Moment;

impl Feed {
    /// A source can be reached. What was published meanwhile may be lost, and the engine may be another.
    pub fn connected(&mut self, from: SourceId, now: Moment) {
        let was_connected = self.sources.get(from.0).is_some_and(|source| source.connected);
        // Who posts is connected with every post; whether that counts, what it says tells.
        let is_news = !was_connected && !self.is_relayed(from);
        if self.heard.is_none() || is_news {
            self.hear(now);
        }
        self.replay_useless = false;
        if let Some(source) = self.sources.get_mut(from.0) {
            source.connected = true;
        }
    }

    /// A source is there, and has nothing to say. That counts only where it cannot be asked: a socket may
    /// answer for an engine that publishes no more.
    pub fn alive(&mut self, now: Moment) {
        if !self.can(|abilities| abilities.replay) {
            self.hear(now);
        }
    }

    /// Who relays the events is there, and says how far they go.
    pub fn beat(&mut self, beat: SourceHeartbeat, now: Moment) -> Option<Rebuild> {
        if self.is_quarantined(now) {
            return None;
        }
        let life = self.life(beat.epoch, Delivery::Live, now);
        if life == EpochRelation::Over {
            self.counters.outdated += 1;
            return None;
        }
        self.hear(now);
        let rebuild = (life == EpochRelation::New).then(|| self.begin(beat.epoch));
        self.epoch = self.epoch.or(beat.epoch);
        if beat.next > self.next {
            self.expect_up_to(beat.next.checked_sub(1), now);
        }
        rebuild
    }

    /// Takes note of a batch that came.
    pub(super) fn hear_batch(&mut self, from: SourceId, via: Delivery, now: Moment) {
        if via == Delivery::Live || !self.is_relayed(from) {
            self.hear(now);
        }
    }

    /// Takes note of something that came and may be part of an answer.
    pub(super) fn hear_unreadable(&mut self, now: Moment) {
        let asked = self.asked.as_ref().map(|asked| asked.source);
        if !asked.is_some_and(|source| self.is_relayed(source)) {
            self.hear(now);
        }
    }

    /// Takes note that something was heard. Questions that were asked into a silence are lost, and no
    /// reason to wait with the next.
    pub(super) fn hear(&mut self, now: Moment) {
        let silence = self.heard.map_or(Moment::ZERO, |heard| now.saturating_sub(heard));
        if silence > self.rules.probe_after * 2 {
            self.pace.succeeded();
            self.asked.take_if(|asked| now >= asked.at + self.rules.pause / 2);
        }
        self.heard = Some(now);
        self.rival = None;
    }

    /// Whether a source's answers are a store's.
    pub(super) fn is_relayed(&self, source: SourceId) -> bool {
        self.sources.get(source.0).is_some_and(|source| source.abilities.relayed)
    }

    pub(super) fn state(&self, now: Moment) -> FeedState {
        match self.heard {
            _ if self.is_quarantined(now) => FeedState::Quarantined,
            None => FeedState::Waiting,
            Some(heard) if now.saturating_sub(heard) > self.rules.stale_after => FeedState::Stale,
            Some(_) if self.is_unsure() => FeedState::Unsure,
            Some(_) if self.partial => FeedState::Partial,
            Some(_) => FeedState::Live,
        }
    }

    /// Half while something may be wrong, less the longer nothing was heard, down to nothing. What is
    /// partly known is right as far as it goes.
    pub(super) fn confidence(&self, now: Moment) -> f32 {
        let doubt = if self.is_unsure() { 0.5 } else { 1.0 };
        doubt * self.freshness(now)
    }

    pub(super) fn freshness(&self, now: Moment) -> f32 {
        if self.is_quarantined(now) || self.awaits_confirmation() {
            return 0.0;
        }
        let Some(heard) = self.heard else { return 0.0 };
        let silence = now.saturating_sub(heard).as_secs_f32();
        (2.0 - silence / self.rules.stale_after.as_secs_f32()).clamp(0.0, 1.0)
    }

    fn is_unsure(&self) -> bool {
        let unanswered = self.pace.failures() > 0;
        !self.based || self.differs || self.verifying || self.gap.is_some() || unanswered
    }
}
