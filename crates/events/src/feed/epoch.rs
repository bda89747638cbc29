//! Whose life it is that somebody speaks of.
//!
//! A later epoch is a later life, and one that is over has no effect. But epochs are read from clocks, which are set
//! back, and of two relays the later one may be the one that ends. So an earlier life that goes on speaking while the
//! known one says nothing is the one that lives.

use super::Feed;
use crate::message::{Delivery, Epoch};
use wornpath_index::Moment;

/// How a life that somebody speaks of stands to the one that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EpochRelation {
    /// It is the same, as far as can be told.
    Same,
    /// It is over.
    Over,
    /// It has just begun.
    New,
}

/// A life that counts as over, and speaks.
#[derive(Clone, Copy, Debug)]
pub(super) struct RivalEpoch {
    epoch: Epoch,
    /// Since when it speaks and the known one does not.
    since: Moment,
}

impl Feed {
    /// A life that was only remembered yields at once to any other that shows itself. A replay may go further back, and
    /// does not show itself.
    pub(super) fn life(
        &mut self,
        said: Option<Epoch>,
        via: Delivery,
        now: Moment,
    ) -> EpochRelation {
        match (said, self.epoch) {
            (Some(said), Some(known)) if said > known => {
                // A store still has what was said in a life that fell silent.
                if via == Delivery::Replay && self.silenced.is_some_and(|silenced| said <= silenced)
                {
                    return EpochRelation::Over;
                }
                self.silenced = None;
                EpochRelation::New
            }
            (Some(said), Some(known)) if said < known => match via {
                Delivery::Live if self.awaits_confirmation() => EpochRelation::New,
                Delivery::Live if self.is_outlived_by(said, now) => {
                    self.silenced = Some(known);
                    EpochRelation::New
                }
                _ => EpochRelation::Over,
            },
            _ => EpochRelation::Same,
        }
    }

    /// Whether a life that counts as over has spoken for so long, and nobody else, that it is the one that lives.
    fn is_outlived_by(&mut self, epoch: Epoch, now: Moment) -> bool {
        let rival = self.rival.filter(|rival| rival.epoch >= epoch);
        let rival = rival.unwrap_or(RivalEpoch { epoch, since: now });
        self.rival = Some(rival);
        rival.epoch == epoch && now.saturating_sub(rival.since) >= self.rules.stale_after
    }
}
