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

mod following;

pub(crate) use following::Following;

use crate::relay::SinkError;
use crate::said::{Beat, Epoch, Heading, Said, Via};
use crate::transport::{Heard, PodName};
use crate::wire::{self, Batch, Envelope, Limits};
use following::{Broker, Failure};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const LEFT_OUT: &str = "the relay left this batch out, which is larger than the broker takes";

impl From<Failure> for SinkError {
    fn from(failure: Failure) -> Self {
        let other = |failure: Failure| Self::Unreachable(failure.to_string());
        failure.downcast().map_or_else(other, |error| *error)
    }
}

/// What an entry says of its pod. An entry that names another pod than its place is a lie about that pod.
fn read(pod: &str, entry: &[u8], via: Via) -> Said {
    let nameless = |reason: String| Said::Malformed { heading: Heading::default(), reason };
    let envelope = match Envelope::parse(entry) {
        Ok(envelope) => envelope,
        Err(error) => return nameless(error.to_string()),
    };
    if envelope.pod != pod {
        return nameless(format!("pod: found `{}`, expected `{pod}`", envelope.pod));
    }
    let (epoch, sequence) = (envelope.epoch.map(Epoch), Some(envelope.sequence));
    let heading = Heading { epoch, sequence, fingerprint: None };
    if envelope.payload.is_empty() {
        return Said::Malformed { heading, reason: LEFT_OUT.to_owned() };
    }
    let mut batch = Box::<Batch>::default();
    if let Err(error) = wire::decode(envelope.payload, &Limits::default(), &mut batch) {
        return Said::Malformed { heading, reason: error.to_string() };
    }
    Said::Batch { heading, via, batch }
}

/// What a relay says beside its entries; nothing if it is no beat of this pod's relay.
fn read_beat(pod: &str, entry: &[u8]) -> Option<Said> {
    let envelope = Envelope::parse(entry).ok().filter(|envelope| envelope.pod == pod)?;
    Some(Said::Beat(Beat { epoch: envelope.epoch.map(Epoch), next: envelope.sequence }))
}

/// Takes in what was read for a replay from a number on: who reads from a known place on reads more than that. Where it
/// stands is noted, so that a pod that says nothing for long is not read from the beginning whenever it is asked for.
fn take_replayed<P: Clone>(
    pod: &PodName,
    (entry, position): (&[u8], P),
    (from, marks): (u64, &mut Marks<P>),
    heard: &mut VecDeque<Heard>,
) {
    let said = read(pod, entry, Via::Replay);
    marks.note(&said, position);
    let is_wanted = match &said {
        Said::Batch { heading, .. } => heading.sequence >= Some(from),
        _ => true,
    };
    if is_wanted {
        heard.push_back(Heard::Of(Arc::clone(pod), said));
    }
}

/// Where in a broker's stream numbers were seen, so that a replay need not begin at its beginning.
#[derive(Debug)]
struct Marks<P> {
    epoch: Option<Epoch>,
    positions: BTreeMap<u64, P>,
}

impl<P> Default for Marks<P> {
    fn default() -> Self {
        Self { epoch: None, positions: BTreeMap::new() }
    }
}

impl<P: Clone> Marks<P> {
    const KEPT: usize = 512;

    fn note(&mut self, said: &Said, position: P) {
        let Said::Batch { heading: Heading { epoch, sequence: Some(sequence), .. }, .. } = said
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
    use crate::wire::{Dialect, HashForm, Layout};

    fn entry(epoch: u64, sequence: u64) -> Vec<u8> {
        let mut payload = Vec::new();
        let dialect = Dialect { layout: Layout::Maps, hashes: HashForm::Unsigned };
        wire::encode(&Batch::default(), dialect, &mut payload);
        let mut entry = Vec::new();
        Envelope { pod: "a", epoch: Some(epoch), sequence, payload: &payload }.write(&mut entry);
        entry
    }

    #[test]
    fn a_pod_that_was_replayed_once_is_replayed_from_where_it_was() {
        let (mut marks, mut heard) = (Marks::default(), VecDeque::new());
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
