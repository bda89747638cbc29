//! One pod's batches in a relay: each once, in order, and the last ones kept.

use super::{KEPT_PER_POD, is_numbered};
use crate::feed::{BatchAdmission, Feed, FeedRules, FeedState, FeedStep, Rebuild, SourceId};
use crate::message::{BatchId, Capabilities, Epoch, SourceHeartbeat, SourceMessage, SourceQuery};
use crate::wire::{HashForm, WireBatch, WireDialect, WireLayout, encode};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wornpath_index::{Applied, Moment};

/// Bytes of payloads that are kept.
const KEPT_BYTES: usize = 256 << 20;
/// An engine that was not heard for so long is not spoken for. Engines that can be asked answer every second, others
/// are pinged every five.
const HEARD_WITHIN: Duration = Duration::from_secs(10);
const DIALECT: WireDialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned };

/// A batch to be published: its life, its number, its payload.
type OrderedEntry = (Epoch, u64, Vec<u8>);

pub(super) struct OrderedBatches {
    feed: Feed,
    source: SourceId,
    epoch: Epoch,
    /// The number to be published next.
    next: u64,
    early: BTreeMap<u64, Vec<u8>>,
    kept: VecDeque<OrderedEntry>,
    kept_bytes: usize,
    /// How many of those kept have been published.
    published: usize,
}

impl OrderedBatches {
    pub(super) fn new(abilities: Capabilities, epoch: Epoch) -> Self {
        let mut feed = Feed::new(FeedRules { stale_after: HEARD_WITHIN, ..FeedRules::default() });
        let source = feed.add_source(abilities);
        Self {
            feed,
            source,
            epoch,
            next: 0,
            early: BTreeMap::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            published: 0,
        }
    }

    pub(super) fn hear(&mut self, said: SourceMessage, now: Moment) {
        let numbered = is_numbered(&said);
        let rebuild = match said {
            SourceMessage::Connected => {
                self.feed.connected(self.source, now);
                None
            }
            SourceMessage::Disconnected => self.feed.disconnected(self.source),
            SourceMessage::Unreachable(_) => None,
            SourceMessage::Alive => {
                self.feed.alive(now);
                None
            }
            SourceMessage::Malformed { heading, reason } => {
                self.feed.malformed(heading, reason, now)
            }
            SourceMessage::ReplayEnd => self.feed.replay_ended(self.source, now),
            SourceMessage::Refused => {
                self.feed.refused(self.source);
                None
            }
            SourceMessage::Started(epoch) => self.feed.started(epoch, now),
            SourceMessage::Batch { heading, via, batch } if numbered => {
                match self.feed.admit(self.source, heading, via, now) {
                    // What is held elsewhere is missed here, and replayed.
                    BatchAdmission::PassOver | BatchAdmission::Hold => {}
                    BatchAdmission::Apply => self.take(heading, &batch, now),
                    BatchAdmission::RebuildAndApply(rebuild) => {
                        self.rebuild(rebuild, now);
                        self.take(heading, &batch, now);
                    }
                }
                None
            }
            // Brokers carry numbered batches; all else routers get from the engine itself.
            SourceMessage::Batch { .. }
            | SourceMessage::Snapshot { .. }
            | SourceMessage::Digest(_)
            | SourceMessage::Beat(_)
            | SourceMessage::Bye => None,
        };
        if let Some(rebuild) = rebuild {
            self.rebuild(rebuild, now);
        }
    }

    pub(super) fn tick(&mut self, now: Moment) -> Option<SourceQuery> {
        while let Some(step) = self.feed.tick(now) {
            match step {
                FeedStep::Ask(_, ask) => return Some(ask),
                FeedStep::Rebuild(rebuild) => self.rebuild(rebuild, now),
            }
        }
        None
    }

    /// Goes on with the life that the broker has, if its last batch is one that the engine replayed: then only the relay
    /// was started again. Nothing was published yet.
    pub(super) fn take_up(&mut self, life: Epoch, sequence: u64, payload: &[u8]) -> bool {
        let is_it = |entry: &OrderedEntry| entry.1 == sequence && entry.2 == payload;
        let is_one_life = self.kept.iter().all(|(epoch, ..)| *epoch == self.epoch);
        let Some(place) = self.kept.iter().position(is_it).filter(|_| is_one_life) else {
            return false;
        };
        self.kept.iter_mut().for_each(|(epoch, ..)| *epoch = life);
        (self.epoch, self.published) = (life, place + 1);
        true
    }

    /// Makes all that was heard so far later than a life that the broker knows of. Nothing was published yet.
    pub(super) fn start_after(&mut self, last: Epoch) {
        let first = self.kept.front().map_or(self.epoch, |(epoch, ..)| *epoch);
        let Some(short) = last.0.checked_sub(first.0) else { return };
        let later = |epoch: &mut Epoch| epoch.0 = epoch.0.saturating_add(short).saturating_add(1);
        self.kept.iter_mut().for_each(|(epoch, ..)| later(epoch));
        later(&mut self.epoch);
    }

    /// Whether all that the engine said is known.
    pub(super) fn is_sure(&self, now: Moment) -> bool {
        matches!(self.feed.status(now).state, FeedState::Live | FeedState::Partial)
    }

    /// What can be said while there is nothing new, if all that the engine said is known.
    pub(super) fn beat(&self, now: Moment) -> Option<SourceHeartbeat> {
        self.is_sure(now).then_some(SourceHeartbeat { epoch: Some(self.epoch), next: self.next })
    }

    /// The batches to be published next.
    pub(super) fn due(&self) -> impl Iterator<Item = &OrderedEntry> {
        self.kept.range(self.published..)
    }

    /// The broker has so many of those that were due.
    pub(super) fn published(&mut self, count: usize) {
        self.published += count;
    }

    /// The broker does not take the first of those that are due. Its number goes without its payload, so that routers
    /// know that something is missing; one that even so is refused is passed over.
    pub(super) fn leave_out(&mut self) {
        let Some((.., payload)) = self.kept.get_mut(self.published) else { return };
        if payload.is_empty() {
            self.published += 1;
        }
        self.kept_bytes -= payload.len();
        payload.clear();
        payload.shrink_to_fit();
    }

    /// Goes on after the last batch that the broker has; with all that is kept, if it has none of them. But never
    /// after one that it did not say it has: of several on their way when a connection broke, a later one may
    /// have come through. Routers pass over what comes twice.
    pub(super) fn resume_after(&mut self, last: Option<(Epoch, u64)>) {
        let had = |(epoch, sequence, _): &OrderedEntry| {
            last.is_some_and(|last| (*epoch, *sequence) <= last)
        };
        self.published = self.published.min(self.kept.partition_point(had));
    }

    /// Whether the broker does not have what it said it has, by the last batch that it has. That of another life is
    /// another relay's, and tells nothing.
    pub(super) fn is_lost(&self, last: Option<(Epoch, u64)>) -> bool {
        let given = self.published.checked_sub(1).and_then(|place| self.kept.get(place));
        given.is_some_and(|(epoch, sequence, _)| {
            last.is_none_or(|(life, number)| life == *epoch && number < *sequence)
        })
    }

    fn take(&mut self, heading: BatchId, batch: &WireBatch, now: Moment) {
        let Some(sequence) = heading.sequence else { return };
        let payload = match &batch.original {
            Some(original) => original.to_vec(),
            None => {
                let mut written = Vec::new();
                encode(batch, DIALECT, &mut written);
                written
            }
        };
        let outcome = if sequence < self.next {
            Applied::Duplicate
        } else if sequence > self.next {
            let room = self.early.len() < FeedRules::default().early_most;
            if room {
                self.early.insert(sequence, payload);
                Applied::Early { expected: self.next }
            } else {
                Applied::Dropped { expected: self.next }
            }
        } else {
            self.keep(sequence, payload);
            Applied::Now { caught_up: self.catch_up() }
        };
        self.feed.applied(heading, outcome, 0, now);
    }

    fn catch_up(&mut self) -> usize {
        let mut count = 0;
        while let Some(payload) = self.early.remove(&self.next) {
            self.keep(self.next, payload);
            count += 1;
        }
        count
    }

    fn keep(&mut self, sequence: u64, payload: Vec<u8>) {
        self.next = sequence.saturating_add(1);
        self.kept_bytes += payload.len();
        self.kept.push_back((self.epoch, sequence, payload));
        while self.kept.len() > KEPT_PER_POD || self.kept_bytes > KEPT_BYTES {
            let Some((_, _, payload)) = self.kept.pop_front() else { break };
            self.kept_bytes -= payload.len();
            self.published = self.published.saturating_sub(1);
        }
    }

    fn rebuild(&mut self, rebuild: Rebuild, now: Moment) {
        match rebuild {
            Rebuild::NewLife { first } => {
                // Batches of the life that is over stay kept: routers tell them apart by the epoch.
                if self.next > 0 {
                    self.epoch.0 = self.epoch.0.saturating_add(1);
                }
                self.early.clear();
                self.next = first;
            }
            Rebuild::From(first) => {
                self.early = self.early.split_off(&first);
                self.next = first;
                let caught_up = self.catch_up();
                self.feed.caught_up(caught_up, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Delivery;
    use crate::wire::{WireLimits, decode};
    use bytes::Bytes;

    #[test]
    fn what_this_version_does_not_know_is_passed_on_as_it_came() {
        // A later engine's batch: an event of an unknown type, and an unknown field at the end.
        let mut message = vec![0x94, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x81];
        message.extend(b"\xa4type\xabBlockWarmed\xc0\xa3new");
        let mut batch = Box::<WireBatch>::default();
        decode(&message, &WireLimits::default(), &mut batch).unwrap();
        assert_eq!((batch.len(), batch.unknown_events), (0, 1));
        batch.original = Some(Bytes::from(message.clone()));
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(1));
        let heading = BatchId { sequence: Some(0), ..BatchId::default() };
        ordered.hear(SourceMessage::Connected, Moment::ZERO);
        ordered.hear(SourceMessage::Batch { heading, via: Delivery::Live, batch }, Moment::ZERO);
        let due: Vec<_> = ordered.due().collect();
        assert_eq!(due, [&(Epoch(1), 0, message)]);
    }

    #[test]
    fn it_goes_on_after_what_the_broker_has_and_said_it_has() {
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(1));
        (0..6).for_each(|sequence| ordered.keep(sequence, vec![sequence as u8]));
        let next =
            |ordered: &OrderedBatches| ordered.due().next().map(|(_, sequence, _)| *sequence);
        ordered.published(4);
        ordered.resume_after(Some((Epoch(1), 5)));
        assert_eq!(
            next(&ordered),
            Some(4),
            "the sixth came through before the fifth was acknowledged"
        );
        ordered.resume_after(Some((Epoch(1), 1)));
        assert_eq!(next(&ordered), Some(2), "it has lost two of them");
        ordered.resume_after(None);
        assert_eq!(next(&ordered), Some(0), "it was wiped");
    }

    #[test]
    fn of_a_batch_that_the_broker_does_not_take_only_the_number_goes() {
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(1));
        (0..3).for_each(|sequence| ordered.keep(sequence, vec![1; 9]));
        ordered.published(1);
        ordered.leave_out();
        let due: Vec<_> = ordered.due().cloned().collect();
        assert_eq!(due, [(Epoch(1), 1, vec![]), (Epoch(1), 2, vec![1; 9])]);
        assert_eq!(ordered.kept_bytes, 18);
        ordered.leave_out();
        assert_eq!(ordered.due().count(), 1, "not even that");
    }

    #[test]
    fn a_relay_whose_clock_is_behind_starts_after_what_the_broker_has() {
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(3));
        ordered.keep(0, vec![0]);
        ordered.rebuild(Rebuild::ANEW, Moment::ZERO);
        ordered.keep(0, vec![1]);
        let lives =
            |ordered: &OrderedBatches| ordered.due().map(|(epoch, ..)| epoch.0).collect::<Vec<_>>();
        ordered.start_after(Epoch(2));
        assert_eq!(lives(&ordered), [3, 4]);
        ordered.start_after(Epoch(7));
        assert_eq!(lives(&ordered), [8, 9]);
        assert_eq!(ordered.epoch, Epoch(9));
        ordered.start_after(Epoch(u64::MAX));
        assert_eq!(ordered.epoch, Epoch(u64::MAX));
    }

    #[test]
    fn a_relay_that_was_started_again_goes_on_where_the_last_one_was() {
        let kept = || {
            let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(9));
            (4..8).for_each(|sequence| ordered.keep(sequence, vec![sequence as u8]));
            ordered
        };
        let mut ordered = kept();
        assert!(ordered.take_up(Epoch(3), 6, &[6]));
        let due: Vec<_> = ordered.due().cloned().collect();
        assert_eq!((due, ordered.epoch), (vec![(Epoch(3), 7, vec![7])], Epoch(3)));
        let mut ordered = kept();
        assert!(!ordered.take_up(Epoch(3), 6, &[7]), "another life's batch");
        assert!(!ordered.take_up(Epoch(3), 3, &[3]), "the engine no longer has it");
        assert_eq!((ordered.due().count(), ordered.epoch), (4, Epoch(9)));
    }

    #[test]
    fn what_the_broker_has_lost_is_told_from_what_another_relay_gave_it() {
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(2));
        (0..6).for_each(|sequence| ordered.keep(sequence, vec![sequence as u8]));
        assert!(!ordered.is_lost(None), "it was given nothing");
        ordered.published(6);
        assert!(!ordered.is_lost(Some((Epoch(2), 5))));
        assert!(ordered.is_lost(Some((Epoch(2), 4))) && ordered.is_lost(None));
        assert!(!ordered.is_lost(Some((Epoch(1), 4))) && !ordered.is_lost(Some((Epoch(3), 4))));
    }
}
