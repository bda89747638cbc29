//! Which epoch of the engine a message belongs to.
//!
//! A later epoch replaces the current one, and messages of an earlier epoch have no effect. But
//! epochs are read from clocks, which may be set back, and of two relays the later one may be the
//! one that ends. So an earlier epoch whose messages keep arriving while the current one is silent
//! becomes the current one.

use super::Feed;
use crate::message::{Delivery, Epoch};
use wornpath_index::Moment;

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
    /// An epoch from a checkpoint yields at once to any other with live messages. A replay may
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
        earlier.epoch == epoch && now.saturating_sub(earlier.since) >= self.rules.stale_after
    }
}
