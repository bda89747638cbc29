//! What all brokers have in common: an order of entries per pod, in which an entry is an envelope.
//!
//! A broker's position is only a cursor: what counts is the engine's epoch and number in the envelope. Each
//! router reads everything with a cursor of its own, so any number of them share a stream. What a broker
//! still has is its ability to replay; what it trimmed is a gap like any other. Beats of relays travel beside the
//! entries, under the stream's name and `-alive`, and are not kept.

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
use crate::relay::SinkError;
use crate::transport::{PodName, SourceSignal};
use crate::wire::{self, Envelope, WireBatch, WireLimits};
use follower::{Broker, BrokerFailure};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const LEFT_OUT: &str = "the relay left this batch out, which is larger than the broker takes";

impl From<BrokerFailure> for SinkError {
    fn from(failure: BrokerFailure) -> Self {
        let other = |failure: BrokerFailure| Self::Unreachable(failure.to_string());
        failure.downcast().map_or_else(other, |error| *error)
    }
}

/// What an entry says of its pod. An entry that names another pod than its place is a lie about that pod.
fn read(pod: &str, entry: &[u8], via: Delivery) -> SourceMessage {
    let nameless =
        |reason: String| SourceMessage::Malformed { heading: BatchId::default(), reason };
    let envelope = match Envelope::parse(entry) {
        Ok(envelope) => envelope,
        Err(error) => return nameless(error.to_string()),
    };
    if envelope.pod != pod {
        return nameless(format!("pod: found `{}`, expected `{pod}`", envelope.pod));
    }
    let (epoch, sequence) = (envelope.epoch.map(Epoch), Some(envelope.sequence));
    let heading = BatchId { epoch, sequence, fingerprint: None };
    if envelope.payload.is_empty() {
        return SourceMessage::Malformed { heading, reason: LEFT_OUT.to_owned() };
    }
    let mut batch = Box::<WireBatch>::default();
    if let Err(error) = wire::decode(envelope.payload, &WireLimits::default(), &mut batch) {
        return SourceMessage::Malformed { heading, reason: error.to_string() };
    }
    SourceMessage::Batch { heading, via, batch }
}

/// What a relay says beside its entries; nothing if it is no beat of this pod's relay.
fn read_beat(pod: &str, entry: &[u8]) -> Option<SourceMessage> {
    let envelope = Envelope::parse(entry).ok().filter(|envelope| envelope.pod == pod)?;
    Some(SourceMessage::Beat(SourceHeartbeat {
        epoch: envelope.epoch.map(Epoch),
        next: envelope.sequence,
    }))
}

/// Takes in what was read for a replay from a number on: who reads from a known place on reads more than that. Where it
/// stands is noted, so that a pod that says nothing for long is not read from the beginning whenever it is asked for.
fn take_replayed<P: Clone>(
    pod: &PodName,
    (entry, position): (&[u8], P),
    (from, marks): (u64, &mut Positions<P>),
    heard: &mut VecDeque<SourceSignal>,
) {
    let said = read(pod, entry, Delivery::Replay);
    marks.note(&said, position);
    let is_wanted = match &said {
        SourceMessage::Batch { heading, .. } => heading.sequence >= Some(from),
        _ => true,
    };
    if is_wanted {
        heard.push_back(SourceSignal::Of(Arc::clone(pod), said));
    }
}

/// Where in a broker's stream numbers were seen, so that a replay need not begin at its beginning.
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

    fn note(&mut self, said: &SourceMessage, position: P) {
        let SourceMessage::Batch {
            heading: BatchId { epoch, sequence: Some(sequence), .. }, ..
        } = said
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

    /// A position from which everything from this number on comes, if one is known.
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
    fn a_pod_that_was_replayed_once_is_replayed_from_where_it_was() {
        let (mut marks, mut heard) = (Positions::default(), VecDeque::new());
        let pod: PodName = "a".into();
        for (position, (epoch, sequence)) in
            [(4, 8), (4, 9), (5, 0), (5, 1)].into_iter().enumerate()
        {
            take_replayed(&pod, (&entry(epoch, sequence), position), (1, &mut marks), &mut heard);
        }
        assert_eq!(
            (marks.before(0), marks.before(1), marks.before(7)),
            (Some(2), Some(3), Some(3))
        );
        assert_eq!(heard.len(), 3, "of life 5 only what was asked for");
    }
}
