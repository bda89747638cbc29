//! One pod's batches in a relay: in order, without repetitions, and the last ones kept.

use crate::feed::{BatchAdmission, Feed, FeedRules, FeedState, FeedStep, Rebuild, SourceId};
use crate::message::{BatchId, Capabilities, Epoch, SourceHeartbeat, SourceMessage, SourceQuery};
use crate::sink::KEPT_PER_POD;
use crate::wire::{HashForm, WireBatch, WireDialect, WireLayout, encode};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wornpath_index::{Applied, Moment};

/// Bytes of payloads that are kept.
const KEPT_BYTES: usize = 256 << 20;
/// An engine that is silent for so long gets no heartbeats. Engines with replay are probed every
/// second, others are pinged every five.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(10);
const DIALECT: WireDialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned };

/// A batch to publish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OrderedEntry {
    pub(super) epoch: Epoch,
    pub(super) sequence: u64,
    pub(super) payload: Vec<u8>,
}

/// The last batch that a broker has of a pod.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct BrokerPosition {
    pub(super) epoch: Epoch,
    pub(super) sequence: u64,
}

impl OrderedEntry {
    fn position(&self) -> BrokerPosition {
        BrokerPosition { epoch: self.epoch, sequence: self.sequence }
    }
}

/// One pod's batches in order. The first `published` of those kept are in the broker.
pub(super) struct OrderedBatches {
    feed: Feed,
    source: SourceId,
    epoch: Epoch,
    /// The number that is due next from the engine.
    next: u64,
    early: BTreeMap<u64, Vec<u8>>,
    kept: VecDeque<OrderedEntry>,
    kept_bytes: usize,
    published: usize,
}

impl OrderedBatches {
    pub(super) fn new(capabilities: Capabilities, epoch: Epoch) -> Self {
        let mut feed = Feed::new(FeedRules { stale_after: ENGINE_TIMEOUT, ..FeedRules::default() });
        let source = feed.add_source(capabilities);
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

    pub(super) fn handle(&mut self, message: SourceMessage, now: Moment) {
        let numbered = is_numbered(&message);
        let rebuild = match message {
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
            SourceMessage::Throttled => {
                self.feed.throttled();
                None
            }
            SourceMessage::Malformed { id, reason } => self.feed.malformed(id, reason, now),
            SourceMessage::ReplayEnd => self.feed.replay_ended(self.source, now),
            SourceMessage::Refused => {
                self.feed.refused(self.source);
                None
            }
            SourceMessage::Started(epoch) => self.feed.started(epoch, now),
            SourceMessage::Batch { id, delivery, batch } if numbered => {
                match self.feed.admit(self.source, id, delivery, now) {
                    // A relay holds nothing: it requests a replay instead.
                    BatchAdmission::Skip | BatchAdmission::Hold => {}
                    BatchAdmission::Apply => self.push(id, &batch, now),
                    BatchAdmission::RebuildAndApply(rebuild) => {
                        self.rebuild(rebuild, now);
                        self.push(id, &batch, now);
                    }
                }
                None
            }
            // Brokers carry numbered batches only.
            SourceMessage::Batch { .. }
            | SourceMessage::Snapshot { .. }
            | SourceMessage::Digest(_)
            | SourceMessage::Heartbeat(_)
            | SourceMessage::Bye => None,
        };
        if let Some(rebuild) = rebuild {
            self.rebuild(rebuild, now);
        }
    }

    pub(super) fn tick(&mut self, now: Moment) -> Option<SourceQuery> {
        while let Some(step) = self.feed.tick(now) {
            match step {
                FeedStep::Query(_, query) => return Some(query),
                FeedStep::Rebuild(rebuild) => self.rebuild(rebuild, now),
            }
        }
        None
    }

    /// Continues the epoch that the broker has if its last batch is one that the engine replayed:
    /// then only the relay was restarted. Called before anything is published.
    pub(super) fn adopt_epoch(&mut self, last: BrokerPosition, payload: &[u8]) -> bool {
        let is_it =
            |entry: &OrderedEntry| entry.sequence == last.sequence && entry.payload == payload;
        let is_one_epoch = self.kept.iter().all(|entry| entry.epoch == self.epoch);
        let Some(at) = self.kept.iter().position(is_it).filter(|_| is_one_epoch) else {
            return false;
        };
        self.kept.iter_mut().for_each(|entry| entry.epoch = last.epoch);
        self.epoch = last.epoch;
        self.published = at + 1;
        true
    }

    /// Makes the epochs of all batches so far later than one that the broker has. Called before
    /// anything is published.
    pub(super) fn advance_epoch_past(&mut self, last: Epoch) {
        let first = self.kept.front().map_or(self.epoch, |entry| entry.epoch);
        let Some(short) = last.0.checked_sub(first.0) else { return };
        let later = |epoch: &mut Epoch| epoch.0 = epoch.0.saturating_add(short).saturating_add(1);
        self.kept.iter_mut().for_each(|entry| later(&mut entry.epoch));
        later(&mut self.epoch);
    }

    /// Whether every batch that the engine published is known.
    pub(super) fn is_complete(&self, now: Moment) -> bool {
        matches!(self.feed.status(now).state, FeedState::Live | FeedState::Partial)
    }

    /// The heartbeat of an idle relay, if every batch is known.
    pub(super) fn heartbeat(&self, now: Moment) -> Option<SourceHeartbeat> {
        self.is_complete(now)
            .then_some(SourceHeartbeat { epoch: Some(self.epoch), next: self.next })
    }

    /// The batches to publish next.
    pub(super) fn due(&self) -> impl Iterator<Item = &OrderedEntry> {
        self.kept.range(self.published..)
    }

    /// The broker has accepted the first `count` of those that are due.
    pub(super) fn published(&mut self, count: usize) {
        self.published += count;
    }

    /// The broker does not accept the first of those that are due. It is published without its
    /// payload, so that routers notice the gap; if even that is refused, it is skipped.
    pub(super) fn omit_first(&mut self) {
        let Some(OrderedEntry { payload, .. }) = self.kept.get_mut(self.published) else { return };
        if payload.is_empty() {
            self.published += 1;
        }
        self.kept_bytes -= payload.len();
        payload.clear();
        payload.shrink_to_fit();
    }

    /// Resumes after the last batch that the broker has, or with the first that is kept if it has
    /// none of them. But never after one that it did not acknowledge: of several in flight when a
    /// connection was lost, a later one may have been stored and an earlier one not. Routers skip
    /// repetitions.
    pub(super) fn resume_after(&mut self, last: Option<BrokerPosition>) {
        let is_stored = |entry: &OrderedEntry| last.is_some_and(|last| entry.position() <= last);
        self.published = self.published.min(self.kept.partition_point(is_stored));
    }

    /// Whether the broker has lost a batch that it acknowledged, by its last one. If that is of
    /// another epoch, another relay published it, and nothing follows.
    pub(super) fn is_lost(&self, last: Option<BrokerPosition>) -> bool {
        let acknowledged = self.published.checked_sub(1).and_then(|at| self.kept.get(at));
        acknowledged.is_some_and(|entry| {
            last.is_none_or(|last| last.epoch == entry.epoch && last.sequence < entry.sequence)
        })
    }

    fn push(&mut self, id: BatchId, batch: &WireBatch, now: Moment) {
        let Some(sequence) = id.sequence else { return };
        let payload = match &batch.raw {
            Some(raw) => raw.to_vec(),
            None => {
                let mut written = Vec::new();
                encode(batch, DIALECT, &mut written);
                written
            }
        };
        let outcome = if sequence < self.next {
            Applied::Duplicate
        } else if sequence > self.next {
            let has_room = self.early.len() < FeedRules::default().max_early;
            if has_room {
                self.early.insert(sequence, payload);
                Applied::Early { expected: self.next }
            } else {
                Applied::Dropped { expected: self.next }
            }
        } else {
            self.keep(sequence, payload);
            Applied::Now { caught_up: self.catch_up() }
        };
        self.feed.applied(id, outcome, 0, now);
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
        self.kept.push_back(OrderedEntry { epoch: self.epoch, sequence, payload });
        while self.kept.len() > KEPT_PER_POD || self.kept_bytes > KEPT_BYTES {
            let Some(dropped) = self.kept.pop_front() else { break };
            self.kept_bytes -= dropped.payload.len();
            self.published = self.published.saturating_sub(1);
        }
    }

    fn rebuild(&mut self, rebuild: Rebuild, now: Moment) {
        match rebuild {
            Rebuild::NewEpoch { first } => {
                // Batches of the earlier epoch stay: routers tell them apart by the epoch.
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

/// Whether a message can be relayed: brokers carry numbered batches only.
fn is_numbered(message: &SourceMessage) -> bool {
    matches!(message, SourceMessage::Batch { id, .. } if id.sequence.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Delivery;
    use crate::wire::{WireLimits, decode};
    use bytes::Bytes;

    fn entry(epoch: u64, sequence: u64, payload: Vec<u8>) -> OrderedEntry {
        OrderedEntry { epoch: Epoch(epoch), sequence, payload }
    }

    fn at(epoch: u64, sequence: u64) -> BrokerPosition {
        BrokerPosition { epoch: Epoch(epoch), sequence }
    }

    #[test]
    fn unknown_events_and_fields_are_relayed_unchanged() {
        // A later engine's batch: an event of an unknown type, and an unknown field at the end.
        let mut message = vec![0x94, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x81];
        message.extend(b"\xa4type\xabBlockWarmed\xc0\xa3new");
        let mut batch = Box::<WireBatch>::default();
        decode(&message, &WireLimits::default(), &mut batch).unwrap();
        assert_eq!((batch.len(), batch.unknown_events), (0, 1));
        batch.raw = Some(Bytes::from(message.clone()));
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(1));
        let id = BatchId { sequence: Some(0), ..BatchId::default() };
        ordered.handle(SourceMessage::Connected, Moment::ZERO);
        ordered.handle(SourceMessage::Batch { id, delivery: Delivery::Live, batch }, Moment::ZERO);
        let due: Vec<_> = ordered.due().collect();
        assert_eq!(due, [&entry(1, 0, message)]);
    }

    #[test]
    fn it_resumes_after_what_the_broker_has_and_acknowledged() {
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(1));
        (0..6).for_each(|sequence| ordered.keep(sequence, vec![sequence as u8]));
        let next = |ordered: &OrderedBatches| ordered.due().next().map(|entry| entry.sequence);
        ordered.published(4);
        ordered.resume_after(Some(at(1, 5)));
        assert_eq!(
            next(&ordered),
            Some(4),
            "the sixth came through before the fifth was acknowledged"
        );
        ordered.resume_after(Some(at(1, 1)));
        assert_eq!(next(&ordered), Some(2), "it lost two of them");
        ordered.resume_after(None);
        assert_eq!(next(&ordered), Some(0), "it was wiped");
    }

    #[test]
    fn a_batch_that_the_broker_refuses_is_published_without_its_payload() {
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(1));
        (0..3).for_each(|sequence| ordered.keep(sequence, vec![1; 9]));
        ordered.published(1);
        ordered.omit_first();
        let due: Vec<_> = ordered.due().cloned().collect();
        assert_eq!(due, [entry(1, 1, vec![]), entry(1, 2, vec![1; 9])]);
        assert_eq!(ordered.kept_bytes, 18);
        ordered.omit_first();
        assert_eq!(ordered.due().count(), 1, "not even that");
    }

    #[test]
    fn a_relay_whose_clock_is_behind_starts_a_later_epoch_than_the_brokers() {
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(3));
        ordered.keep(0, vec![0]);
        ordered.rebuild(Rebuild::FROM_START, Moment::ZERO);
        ordered.keep(0, vec![1]);
        let epochs =
            |ordered: &OrderedBatches| ordered.due().map(|entry| entry.epoch.0).collect::<Vec<_>>();
        ordered.advance_epoch_past(Epoch(2));
        assert_eq!(epochs(&ordered), [3, 4]);
        ordered.advance_epoch_past(Epoch(7));
        assert_eq!(epochs(&ordered), [8, 9]);
        assert_eq!(ordered.epoch, Epoch(9));
        ordered.advance_epoch_past(Epoch(u64::MAX));
        assert_eq!(ordered.epoch, Epoch(u64::MAX));
    }

    #[test]
    fn a_restarted_relay_continues_the_epoch_of_the_last_one() {
        let kept = || {
            let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(9));
            (4..8).for_each(|sequence| ordered.keep(sequence, vec![sequence as u8]));
            ordered
        };
        let mut ordered = kept();
        assert!(ordered.adopt_epoch(at(3, 6), &[6]));
        let due: Vec<_> = ordered.due().cloned().collect();
        assert_eq!((due, ordered.epoch), (vec![entry(3, 7, vec![7])], Epoch(3)));
        let mut ordered = kept();
        assert!(!ordered.adopt_epoch(at(3, 6), &[7]), "a batch of another epoch");
        assert!(!ordered.adopt_epoch(at(3, 3), &[3]), "the engine no longer has it");
        assert_eq!((ordered.due().count(), ordered.epoch), (4, Epoch(9)));
    }

    #[test]
    fn a_wiped_broker_is_told_from_one_that_another_relay_filled() {
        let mut ordered = OrderedBatches::new(Capabilities::default(), Epoch(2));
        (0..6).for_each(|sequence| ordered.keep(sequence, vec![sequence as u8]));
        assert!(!ordered.is_lost(None), "it was given nothing");
        ordered.published(6);
        assert!(!ordered.is_lost(Some(at(2, 5))));
        assert!(ordered.is_lost(Some(at(2, 4))) && ordered.is_lost(None));
        assert!(!ordered.is_lost(Some(at(1, 4))) && !ordered.is_lost(Some(at(3, 4))));
    }
}
