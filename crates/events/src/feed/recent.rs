//! Fingerprints of the batches applied last.
//!
//! Engines without epochs number from zero again after a restart. A number that was applied before
//! is then either a repetition or a batch of another run; the batch's fingerprint tells which.

use std::collections::VecDeque;

/// More than any network reorders, and 2 KiB per pod.
const KEPT: usize = 256;

/// The fingerprints of the last batches, by number.
#[derive(Debug, Default)]
pub(super) struct RecentBatches {
    /// The number of the first fingerprint.
    first: u64,
    fingerprints: VecDeque<Option<u64>>,
}

/// How a batch compares with the one of the same number that was applied before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repetition {
    /// The same batch again.
    Same,
    /// Another batch under the same number.
    Other,
    /// Too long ago, or never fingerprinted.
    Unknown,
}

impl RecentBatches {
    /// Records a batch that was applied; numbers come in order.
    pub(super) fn note(&mut self, sequence: u64, fingerprint: Option<u64>) {
        if self.first.saturating_add(self.fingerprints.len() as u64) != sequence {
            self.fingerprints.clear();
        }
        if self.fingerprints.is_empty() {
            self.first = sequence;
        }
        self.fingerprints.push_back(fingerprint);
        if self.fingerprints.len() > KEPT {
            self.fingerprints.pop_front();
            self.first = self.first.saturating_add(1);
        }
    }

    /// The fingerprint of a batch, if it is known.
    pub(super) fn get(&self, sequence: u64) -> Option<u64> {
        let position = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.fingerprints.get(position).copied().flatten()
    }

    pub(super) fn compare(&self, sequence: u64, fingerprint: Option<u64>) -> Repetition {
        match (self.get(sequence), fingerprint) {
            (Some(known), Some(found)) if known == found => Repetition::Same,
            (Some(_), Some(_)) => Repetition::Other,
            _ => Repetition::Unknown,
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_256_fingerprints_are_known() {
        let mut recent = RecentBatches::default();
        for sequence in 100..600 {
            recent.note(sequence, Some(sequence * 7));
        }
        assert_eq!(recent.compare(599, Some(599 * 7)), Repetition::Same);
        assert_eq!(recent.compare(599, Some(1)), Repetition::Other);
        assert_eq!(recent.compare(599, None), Repetition::Unknown);
        assert_eq!(recent.compare(343, Some(1)), Repetition::Unknown);
        assert_eq!(recent.compare(344, Some(1)), Repetition::Other);
        assert_eq!(recent.compare(600, Some(1)), Repetition::Unknown);
        recent.note(0, None);
        assert_eq!(recent.compare(599, Some(599 * 7)), Repetition::Unknown);
        assert_eq!(recent.compare(0, Some(1)), Repetition::Unknown);
    }
}
