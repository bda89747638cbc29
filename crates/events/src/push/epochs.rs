//! The latest epoch of each pod, to notify sidecars whose clock was set back.
//!
//! Reports of an earlier epoch have no effect, which their sidecar cannot know. But a late report
//! of a process that ends is outdated too, and that process must not start a new epoch. So a
//! sidecar is notified only once the later one is silent.

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
    /// Records a report. Returns the epoch that outdates it, if its sender should choose a greater
    /// one.
    pub(super) fn note(
        &self,
        pod: &PodName,
        messages: &[SourceMessage],
        now: Instant,
    ) -> Option<Epoch> {
        let epoch = messages.iter().find_map(epoch)?;
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = latest.entry(Arc::clone(pod)).or_insert((epoch, now));
        if epoch >= known.0 {
            *known = (epoch, now);
            return None;
        }
        (now.duration_since(known.1) >= SILENT_AFTER).then_some(known.0)
    }
}

fn epoch(message: &SourceMessage) -> Option<Epoch> {
    match message {
        SourceMessage::Batch { id, .. } | SourceMessage::Snapshot { id, .. } => id.epoch,
        SourceMessage::Digest(digest) => digest.epoch,
        SourceMessage::Started(epoch) => Some(*epoch),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_epoch_is_notified_once_the_later_one_is_silent() {
        let latest = LatestEpochs::default();
        let pod = PodName::from("a");
        let start = Instant::now();
        let note = |epoch, seconds| {
            let messages = [SourceMessage::Connected, SourceMessage::Started(Epoch(epoch))];
            latest.note(&pod, &messages, start + Duration::from_secs(seconds))
        };
        assert_eq!((note(7, 0), note(7, 4)), (None, None));
        assert_eq!(note(6, 8), None, "the later one reported a moment ago");
        assert_eq!(note(6, 9), Some(Epoch(7)));
        assert_eq!((note(8, 10), note(7, 11)), (None, None));
    }
}
