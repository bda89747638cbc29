//! Which messages show that a pod's engine is alive, and what follows from silence.
//!
//! An engine's own replies show that it is alive. A broker replies long after the engine and its
//! relay are gone, so only live batches and the relay's heartbeats count there.

use super::Feed;
use super::FeedState;
use super::Rebuild;
use super::SourceId;
use crate::message::SourceHeartbeat;
use crate::message::{Delivery, Epoch};
use std::time::Duration;
use wornpath_index::Moment;

impl Feed {
    /// A source is connected. Batches may have been lost before, and the engine may have restarted.
    pub fn connected(&mut self, from: SourceId, now: Moment) {
        let was_connected = self.sources.get(from.0).is_some_and(|source| source.connected);
        // A sidecar connects with every post; whether that counts depends on the post's content.
        let is_news = !was_connected && !self.is_relayed(from);
        if self.last_activity.is_none() || is_news {
            self.note_activity(now);
        }
        self.replay_exhausted = false;
        if let Some(source) = self.sources.get_mut(from.0) {
            source.connected = true;
        }
    }

    /// A source answers pings. That counts only where it cannot replay: a socket may answer pings
    /// for an engine that no longer publishes.
    pub fn alive(&mut self, now: Moment) {
        if !self.can(|capabilities| capabilities.replay) {
            self.note_activity(now);
        }
    }

    /// Reading a source was paused.
    pub fn throttled(&mut self) {
        self.counters.throttled += 1;
    }

    /// A relay is alive, and reports how far its engine's events go.
    pub fn heartbeat(&mut self, heartbeat: SourceHeartbeat, now: Moment) -> Option<Rebuild> {
        if self.is_quarantined(now) {
            return None;
        }
        let relation = self.compare_epoch(heartbeat.epoch, Delivery::Live, now);
        if relation == EpochRelation::Outdated {
            self.counters.outdated += 1;
            return None;
        }
        self.note_activity(now);
        let rebuild = (relation == EpochRelation::New).then(|| self.start_epoch(heartbeat.epoch));
        self.epoch = self.epoch.or(heartbeat.epoch);
        if heartbeat.next > self.next {
            self.expect_up_to(heartbeat.next.checked_sub(1), now);
        }
        rebuild
    }

    /// Records the arrival of a batch.
    pub(super) fn note_batch(&mut self, from: SourceId, delivery: Delivery, now: Moment) {
        if delivery == Delivery::Live || !self.is_relayed(from) {
            self.note_activity(now);
        }
    }

    /// Records the arrival of an undecodable batch, which may be part of a reply.
    pub(super) fn note_unreadable(&mut self, now: Moment) {
        let queried = self.pending.as_ref().map(|query| query.source);
        if !queried.is_some_and(|source| self.is_relayed(source)) {
            self.note_activity(now);
        }
    }

    /// Records that the engine is alive. A query that was sent during a silence is lost, and does
    /// not delay the next.
    pub(super) fn note_activity(&mut self, now: Moment) {
        let silence = self.last_activity.map_or(Duration::ZERO, |last| now.since(last));
        if silence > self.rules.probe_after * 2 {
            self.backoff.succeeded();
            self.pending.take_if(|query| now >= query.at + self.rules.min_query_interval / 2);
        }
        self.last_activity = Some(now);
        self.resurfaced = None;
    }

    /// Whether a source's replies come from a broker.
    pub(super) fn is_relayed(&self, source: SourceId) -> bool {
        self.sources.get(source.0).is_some_and(|source| source.capabilities.relayed)
    }

    pub(super) fn state(&self, now: Moment) -> FeedState {
        match self.last_activity {
            _ if self.is_quarantined(now) => FeedState::Quarantined,
            None => FeedState::Waiting,
            Some(last) if now.since(last) > self.rules.stale_after => FeedState::Stale,
            Some(_) if self.is_unsure() => FeedState::Unsure,
            Some(_) if self.partial => FeedState::Partial,
            Some(_) => FeedState::Live,
        }
    }

    /// 1 while live, 0.5 while something may be wrong, and less the longer the silence. A partial
    /// state is correct as far as it goes, and costs nothing.
    pub(super) fn confidence(&self, now: Moment) -> f32 {
        let doubt = if self.is_unsure() { 0.5 } else { 1.0 };
        doubt * self.freshness(now)
    }

    pub(super) fn freshness(&self, now: Moment) -> f32 {
        if self.is_quarantined(now) || self.awaits_confirmation() {
            return 0.0;
        }
        let Some(last) = self.last_activity else { return 0.0 };
        let silence = now.since(last).as_secs_f32();
        (2.0 - silence / self.rules.stale_after.as_secs_f32()).clamp(0.0, 1.0)
    }

    fn is_unsure(&self) -> bool {
        let unanswered = self.backoff.failures() > 0;
        !self.has_base || self.digest_differs || self.verifying || self.gap.is_some() || unanswered
    }
}

/// How a message's epoch compares with the current one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EpochRelation {
    /// The same, or unknown.
    Same,
    /// An earlier one.
    Outdated,
    /// One that has just begun.
    New,
}

/// An earlier epoch whose messages keep arriving.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlierEpoch {
    epoch: Epoch,
    /// Since when the current epoch is silent meanwhile.
    since: Moment,
}

impl Feed {
    /// An epoch from a checkpoint is replaced by the epoch of any live message. A replay may
    /// contain older ones.
    pub(super) fn compare_epoch(
        &mut self,
        epoch: Option<Epoch>,
        delivery: Delivery,
        now: Moment,
    ) -> EpochRelation {
        match (epoch, self.epoch) {
            (Some(epoch), Some(current)) if epoch > current => {
                // A broker still has batches of an epoch that fell silent.
                if delivery == Delivery::Replay
                    && self.given_up.is_some_and(|given_up| epoch <= given_up)
                {
                    return EpochRelation::Outdated;
                }
                self.given_up = None;
                EpochRelation::New
            }
            (Some(epoch), Some(current)) if epoch < current => match delivery {
                Delivery::Live if self.awaits_confirmation() => EpochRelation::New,
                Delivery::Live if self.is_outlived_by(epoch, now) => {
                    self.given_up = Some(current);
                    EpochRelation::New
                }
                _ => EpochRelation::Outdated,
            },
            _ => EpochRelation::Same,
        }
    }

    /// Whether messages of an earlier epoch, and of no other, have arrived for so long that it is
    /// the current one.
    fn is_outlived_by(&mut self, epoch: Epoch, now: Moment) -> bool {
        let earlier = self.resurfaced.filter(|earlier| earlier.epoch >= epoch);
        let earlier = earlier.unwrap_or(EarlierEpoch { epoch, since: now });
        self.resurfaced = Some(earlier);
        earlier.epoch == epoch && now.since(earlier.since) >= self.rules.stale_after
    }
}
