//! Which life of each pod was heard last, so that a sidecar whose clock was set back can be told.
//!
//! Its reports have no effect, and it cannot know. But a late word of a process that ends is outdated too, and must not
//! come to life again: so nobody is told while the later life speaks.

use crate::message::{Epoch, SourceMessage};
use crate::transport::PodName;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Sidecars post a digest every second.
const SILENT_AFTER: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct LatestEpochs(Mutex<BTreeMap<PodName, (Epoch, Instant)>>);

impl LatestEpochs {
    /// Takes note of a report. The epoch by which it is outdated, if its sender should choose a greater one.
    pub(super) fn note(
        &self,
        pod: &PodName,
        said: &[SourceMessage],
        now: Instant,
    ) -> Option<Epoch> {
        let epoch = said.iter().find_map(epoch)?;
        let mut lives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lives.entry(Arc::clone(pod)).or_insert((epoch, now));
        if epoch >= known.0 {
            *known = (epoch, now);
            return None;
        }
        (now.duration_since(known.1) >= SILENT_AFTER).then_some(known.0)
    }
}

fn epoch(said: &SourceMessage) -> Option<Epoch> {
    match said {
        SourceMessage::Batch { heading, .. } | SourceMessage::Snapshot { heading, .. } => {
            heading.epoch
        }
        SourceMessage::Digest(digest) => digest.epoch,
        SourceMessage::Started(epoch) => Some(*epoch),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_life_is_told_so_once_the_later_one_is_silent() {
        let (lives, pod, start) = (LatestEpochs::default(), PodName::from("a"), Instant::now());
        let note = |epoch, seconds| {
            let said = [SourceMessage::Connected, SourceMessage::Started(Epoch(epoch))];
            lives.note(&pod, &said, start + Duration::from_secs(seconds))
        };
        assert_eq!((note(7, 0), note(7, 4)), (None, None));
        assert_eq!(note(6, 8), None, "the later one spoke a moment ago");
        assert_eq!(note(6, 9), Some(Epoch(7)));
        assert_eq!((note(8, 10), note(7, 11)), (None, None));
    }
}
