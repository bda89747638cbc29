//! Event transports over brokers, and what they share: per pod an ordered list of entries, each an
//! envelope.
//!
//! A broker's position is only a cursor; the engine's epoch and number in the envelope identify a
//! batch. Each router reads everything with a cursor of its own, so any number of them share a
//! stream. A broker replays what it still has, and entries that it trimmed are a gap like any
//! other. Relays send heartbeats beside the entries, under the stream's name and `-alive`; they are
//! not stored.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;

#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaSink};
#[cfg(feature = "nats")]
pub use nats::{Nats, NatsSink};
#[cfg(feature = "redis")]
pub use redis::{RedisSink, RedisStreams};

mod follower;

pub(crate) use follower::BrokerFollower;

use crate::message::{BatchId, Delivery, Epoch, SourceHeartbeat, SourceMessage};
use crate::sink::SinkError;
use crate::transport::{PodName, SourceSignal};
use crate::wire::{self, Envelope, WireBatch, WireLimits};
use follower::{Broker, BrokerFailure, reason};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const OMITTED: &str = "the relay omitted this batch, which exceeds the broker's size limit";

impl From<BrokerFailure> for SinkError {
    fn from(failure: BrokerFailure) -> Self {
        let other = |failure: BrokerFailure| Self::Unreachable(reason(&failure));
        failure.downcast().map_or_else(other, |error| *error)
    }
}

/// Decodes an entry. One that names another pod than its stream does is malformed.
fn read(pod: &str, entry: &[u8], delivery: Delivery) -> SourceMessage {
    let malformed = |reason: String| SourceMessage::Malformed { id: BatchId::default(), reason };
    let envelope = match Envelope::parse(entry) {
        Ok(envelope) => envelope,
        Err(error) => return malformed(error.to_string()),
    };
    if envelope.pod != pod {
        return malformed(format!("entry of pod `{}` in the stream of pod `{pod}`", envelope.pod));
    }
    let epoch = envelope.epoch.map(Epoch);
    let sequence = Some(envelope.sequence);
    let id = BatchId { epoch, sequence, fingerprint: None };
    if envelope.payload.is_empty() {
        return SourceMessage::Malformed { id, reason: OMITTED.to_owned() };
    }
    let mut batch = Box::<WireBatch>::default();
    if let Err(error) = wire::decode(envelope.payload, &WireLimits::default(), &mut batch) {
        return SourceMessage::Malformed { id, reason: error.to_string() };
    }
    SourceMessage::Batch { id, delivery, batch }
}

/// Decodes a heartbeat of this pod's relay.
fn read_heartbeat(pod: &str, entry: &[u8]) -> Option<SourceMessage> {
    let envelope = Envelope::parse(entry).ok().filter(|envelope| envelope.pod == pod)?;
    Some(SourceMessage::Heartbeat(SourceHeartbeat {
        epoch: envelope.epoch.map(Epoch),
        next: envelope.sequence,
    }))
}

/// An entry of a replay, with its position in the broker.
struct ReplayedEntry<'a, P> {
    bytes: &'a [u8],
    position: P,
}

/// Queues a replayed entry, unless its number is below `from`: a replay starts at a known position,
/// which may be earlier. The position is recorded, so that a pod that is idle for long is not read
/// from the beginning by every probe.
fn push_replayed<P: Clone>(
    pod: &PodName,
    from: u64,
    entry: ReplayedEntry<'_, P>,
    positions: &mut Positions<P>,
    signals: &mut VecDeque<SourceSignal>,
) {
    let message = read(pod, entry.bytes, Delivery::Replay);
    positions.note(&message, entry.position);
    let is_requested = match &message {
        SourceMessage::Batch { id, .. } => id.sequence >= Some(from),
        _ => true,
    };
    if is_requested {
        signals.push_back(SourceSignal::Pod(Arc::clone(pod), message));
    }
}

/// Positions of batches in a broker's stream, so that a replay need not start at the beginning.
#[derive(Debug)]
struct Positions<P> {
    epoch: Option<Epoch>,
    positions: BTreeMap<u64, P>,
}

impl<P> Default for Positions<P> {
    fn default() -> Self {
        Self { epoch: None, positions: BTreeMap::new() }
    }
}

impl<P: Clone> Positions<P> {
    const KEPT: usize = 512;

    fn note(&mut self, message: &SourceMessage, position: P) {
        let SourceMessage::Batch { id: BatchId { epoch, sequence: Some(sequence), .. }, .. } =
            message
        else {
            return;
        };
        if self.epoch != *epoch {
            *self = Self { epoch: *epoch, positions: BTreeMap::new() };
        }
        self.positions.insert(*sequence, position);
        if self.positions.len() > Self::KEPT {
            self.positions.pop_first();
        }
    }

    /// A position at or before the batch of this number, if one is known.
    fn before(&self, sequence: u64) -> Option<P> {
        self.positions.range(..=sequence).next_back().map(|(_, position)| position.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{HashForm, WireDialect, WireLayout};

    fn entry(epoch: u64, sequence: u64) -> Vec<u8> {
        let mut payload = Vec::new();
        let dialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned };
        wire::encode(&WireBatch::default(), dialect, &mut payload);
        let mut entry = Vec::new();
        Envelope { pod: "a", epoch: Some(epoch), sequence, payload: &payload }.write(&mut entry);
        entry
    }

    #[test]
    fn a_second_replay_starts_at_the_position_of_the_first() {
        let mut positions = Positions::default();
        let mut signals = VecDeque::new();
        let pod: PodName = "a".into();
        for (position, (epoch, sequence)) in
            [(4, 8), (4, 9), (5, 0), (5, 1)].into_iter().enumerate()
        {
            let entry = ReplayedEntry { bytes: &entry(epoch, sequence), position };
            push_replayed(&pod, 1, entry, &mut positions, &mut signals);
        }
        assert_eq!(
            (positions.before(0), positions.before(1), positions.before(7)),
            (Some(2), Some(3), Some(3))
        );
        assert_eq!(signals.len(), 3, "of epoch 5 only what was requested");
    }
}
