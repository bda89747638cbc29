//! What all brokers have in common: an order of entries per pod, in which an entry is an envelope.
//!
//! A broker's position is only a cursor: what counts is the engine's epoch and number in the envelope. Each
//! router reads everything with a cursor of its own, so any number of them share a stream. What a broker
//! still has is its ability to replay; what it trimmed is a gap like any other.

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

use crate::said::{Epoch, Heading, Said, Via};
use crate::wire::{self, Batch, Envelope, Limits};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

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
    let mut batch = Box::<Batch>::default();
    if let Err(error) = wire::decode(envelope.payload, &Limits::default(), &mut batch) {
        return malformed(sequence, error.to_string());
    }
    let heading = Heading { epoch: envelope.epoch.map(Epoch), sequence, fingerprint: None };
    Said::Batch { heading, via, batch }
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

/// When to connect next: the pause doubles while it fails, and differs between routers.
#[derive(Debug)]
struct Backoff {
    at: Instant,
    pause: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(2);

    fn new() -> Self {
        Self { at: Instant::now(), pause: Self::FIRST }
    }

    async fn wait(&self) {
        tokio::time::sleep_until(self.at).await;
    }

    fn succeeded(&mut self) {
        self.pause = Self::FIRST;
    }

    /// The address of a value is random enough to keep routers apart.
    fn failed(&mut self) {
        let jitter = (std::ptr::from_ref(self).addr() >> 4) as u32 % 256;
        self.at = Instant::now() + self.pause + self.pause * jitter / 1024;
        self.pause = (self.pause * 2).min(Self::LONGEST);
    }
}
