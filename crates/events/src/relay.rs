//! Relay: publishes an engine's events to a broker, so that many routers share one stream.
//!
//! A relay consumes events as a router does, with the same [`Feed`](crate::Feed), and publishes
//! each batch in order under the engine's own number; it publishes a batch again only if the broker
//! did not acknowledge it. Engines do not send their epoch, so the relay assigns one, and a new one
//! whenever it detects a restart. It keeps the last batches. After a broker was unreachable, it
//! reads what the broker still has and publishes the rest, all of it if the broker was wiped. It
//! checks that every other second too, because a broker can be wiped without a broken connection.
//! At its start it waits for the engine's replay; if the broker's last batch is part of that, it
//! continues under the same epoch.
//!
//! A broker replies in the same way whether a relay is gone or has nothing new. So an idle relay
//! whose engine is alive sends a heartbeat once a second, beside the stream, which does not grow by
//! it.

mod order;

use crate::consume::Clock;
use crate::message::{Epoch, SourceMessage};
use crate::sink::{Sink, SinkError};
use crate::transport::{PodName, SourceSignal, Transport};
use crate::wire::Envelope;
use order::{BrokerPosition, OrderedBatches};
use std::convert::Infallible;
use std::time::Duration;
use wornpath_index::Moment;
use wornpath_time::Backoff;

/// What a relay reports to its operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelayEvent<'a> {
    /// The engine is connected, for the first time or again.
    EngineConnected,
    /// The engine is unreachable; reported once per reason.
    EngineUnreachable(&'a str),
    /// The broker did not accept a batch.
    Broker(&'a SinkError),
}

/// Batches in flight to the broker. One at a time would take seconds for all that are kept.
const MAX_IN_FLIGHT: usize = 256;

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
const TICK: Duration = Duration::from_millis(50);
/// How often an idle relay sends a heartbeat.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// How often the relay checks that the broker still has what it acknowledged.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// Relays one pod's events. `epoch` should be greater than that of any earlier relay of this pod,
/// such as the time, and is raised if the broker has a later one; `report` is called when the
/// engine or the broker is unreachable, and when the broker does not accept a batch.
pub async fn relay<T: Transport, S: Sink>(
    mut transport: T,
    sink: S,
    pod: PodName,
    epoch: Epoch,
    mut report: impl FnMut(RelayEvent<'_>) + Send,
) -> Infallible {
    let clock = Clock::start();
    let mut is_connected = false;
    let ordered = OrderedBatches::new(transport.capabilities(), epoch);
    let mut stream = RelayStream {
        ordered,
        sink,
        pod,
        must_resync: true,
        has_epoch: false,
        checked_at: Moment::ZERO,
        published_at: None,
    };
    let mut backoff = RETRY;
    loop {
        tokio::select! {
            signal = transport.next() => {
                let (SourceSignal::Pod(_, message) | SourceSignal::AllPods(message)) = signal;
                match &message {
                    SourceMessage::Unreachable(why) => {
                        is_connected = false;
                        report(RelayEvent::EngineUnreachable(why));
                    }
                    SourceMessage::Disconnected if is_connected => {
                        is_connected = false;
                        report(RelayEvent::EngineUnreachable("connection lost"));
                    }
                    SourceMessage::Connected if !is_connected => {
                        is_connected = true;
                        report(RelayEvent::EngineConnected);
                    }
                    _ => {}
                }
                stream.ordered.handle(message, clock.now());
            }
            () = tokio::time::sleep(TICK) => {}
        }
        if let Some(query) = stream.ordered.tick(clock.now()) {
            transport.query(&stream.pod, query);
        }
        match stream.publish_due(clock.now(), &mut report).await {
            Ok(()) => backoff.succeeded(),
            Err(error) => {
                report(RelayEvent::Broker(&error));
                stream.must_resync = true;
                // The relay does not read from the engine meanwhile; it requests a replay later.
                tokio::time::sleep(backoff.failed()).await;
            }
        }
    }
}

/// One pod's stream to the broker.
struct RelayStream<S> {
    ordered: OrderedBatches,
    sink: S,
    pod: PodName,
    /// Whether the broker's last entry has to be read first.
    must_resync: bool,
    /// Whether the epoch is known to be later than all in the broker.
    has_epoch: bool,
    /// When the broker's last entry was read.
    checked_at: Moment,
    /// When the broker last accepted an entry or a heartbeat.
    published_at: Option<Moment>,
}

impl<S: Sink> RelayStream<S> {
    /// Publishes due batches, or a heartbeat if there are none.
    async fn publish_due(
        &mut self,
        now: Moment,
        report: &mut (impl FnMut(RelayEvent<'_>) + Send),
    ) -> Result<(), SinkError> {
        if !self.has_epoch && !self.ordered.is_complete(now) {
            return Ok(());
        }
        if self.must_resync || now >= self.checked_at + CHECK_EVERY {
            self.check(now).await?;
        }
        self.publish(now, report).await?;
        let is_idle = self.published_at.is_none_or(|last| now >= last + HEARTBEAT_EVERY);
        if let Some(heartbeat) = self.ordered.heartbeat(now).filter(|_| is_idle) {
            let envelope = Envelope {
                pod: &self.pod,
                epoch: heartbeat.epoch.map(|epoch| epoch.0),
                sequence: heartbeat.next,
                payload: &[],
            };
            self.sink.heartbeat(envelope).await?;
            self.published_at = Some(now);
        }
        Ok(())
    }

    /// Reads the broker's last entry, and resumes after it if a connection was lost or the broker
    /// lost entries.
    async fn check(&mut self, now: Moment) -> Result<(), SinkError> {
        let last = self.sink.last(&self.pod).await?;
        let entry = last.as_deref().and_then(|entry| Envelope::parse(entry).ok());
        let last = entry.and_then(|entry| {
            Some(BrokerPosition { epoch: Epoch(entry.epoch?), sequence: entry.sequence })
        });
        if !self.has_epoch
            && let (Some(entry), Some(last)) = (entry, last)
            && !self.ordered.adopt_epoch(last, entry.payload)
        {
            self.ordered.advance_epoch_past(last.epoch);
        }
        self.has_epoch = true;
        if self.must_resync || self.ordered.is_lost(last) {
            self.ordered.resume_after(last);
        }
        self.must_resync = false;
        self.checked_at = now;
        Ok(())
    }

    async fn publish(
        &mut self,
        now: Moment,
        report: &mut (impl FnMut(RelayEvent<'_>) + Send),
    ) -> Result<(), SinkError> {
        loop {
            let due = self.ordered.due().take(MAX_IN_FLIGHT);
            let envelopes: Vec<_> = due
                .map(|entry| Envelope {
                    pod: &self.pod,
                    epoch: Some(entry.epoch.0),
                    sequence: entry.sequence,
                    payload: &entry.payload,
                })
                .collect();
            if envelopes.is_empty() {
                return Ok(());
            }
            let count = envelopes.len();
            match self.sink.publish(&envelopes).await {
                Ok(()) => self.ordered.published(count),
                Err(error @ SinkError::TooLarge { at, .. }) => {
                    self.ordered.published(at);
                    self.ordered.omit_first();
                    report(RelayEvent::Broker(&error));
                }
                Err(error) => return Err(error),
            }
            self.published_at = Some(now);
        }
    }
}
