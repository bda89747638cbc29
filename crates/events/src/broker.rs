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
    let malformed = |sequence, reason: String| Said::Malformed { sequence, reason };
    let envelope = match Envelope::parse(entry) {
        Ok(envelope) => envelope,
        Err(error) => return malformed(None, error.to_string()),
    };
    if envelope.pod != pod {
        return malformed(None, format!("pod: found `{}`, expected `{pod}`", envelope.pod));
    }
    let sequence = Some(envelope.sequence);
    if envelope.payload.is_empty() {
        return malformed(sequence, LEFT_OUT.to_owned());
    }
    let mut batch = Box::<Batch>::default();
    if let Err(error) = wire::decode(envelope.payload, &Limits::default(), &mut batch) {
        return malformed(sequence, error.to_string());
    }
    let heading = Heading { epoch: envelope.epoch.map(Epoch), sequence, fingerprint: None };
    Said::Batch { heading, via, batch }
}

/// What a relay says beside its entries; nothing if it is no beat of this pod's relay.
fn read_beat(pod: &str, entry: &[u8]) -> Option<Said> {
    let envelope = Envelope::parse(entry).ok().filter(|envelope| envelope.pod == pod)?;
    Some(Said::Beat(Beat { epoch: envelope.epoch.map(Epoch), next: envelope.sequence }))
}

/// Takes in what was read for a replay from a number on: who reads from a known place on reads more than that.
fn take_replayed(pod: &PodName, entry: &[u8], from: u64, heard: &mut VecDeque<Heard>) {
    let said = read(pod, entry, Via::Replay);
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
