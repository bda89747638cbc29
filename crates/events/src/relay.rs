//! Publishes engines' events to a broker, so that many routers share one stream.
//!
//! A relay listens as a router does, with the same [`Feed`](crate::Feed), and publishes each batch in
//! order under the engine's own number, and again only where the broker never said that it has it. What an engine does not say, its epoch, the relay assigns: a new
//! one whenever it finds that the engine restarted. It keeps the last batches, and when the broker was away
//! it looks what the broker still has and publishes what comes after that, all of it if the broker was wiped. It looks
//! every other second too: a broker can be wiped without a connection that breaks. At its start it waits until the
//! engine has replayed what it has; if the broker's last batch is among that, it goes on under the same epoch.
//!
//! A broker answers for a relay that is gone as it does for one that has nothing new. So a relay that hears its engine
//! and has nothing to publish says that once a second, beside the stream, which does not grow by it.

mod order;

use crate::consume::EventClock;
use crate::message::{Epoch, SourceMessage};
use crate::transport::{PodName, SourceSignal, Transport};
use crate::wire::Envelope;
use order::OrderedBatches;
use std::convert::Infallible;
use std::time::Duration;
use wornpath_index::Moment;

/// Why a broker does not have what it was to be given.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SinkError {
    /// It could not be reached, or refused for now.
    #[error("{0}")]
    Unreachable(String),
    /// It will never take one of the entries. It has those before it.
    #[error(
        "batch {sequence} has {bytes} bytes, more than the broker takes, and is left out; raise {cure}"
    )]
    TooLarge {
        /// Which of those that were to be published.
        at: usize,
        /// Its number.
        sequence: u64,
        /// The size of the entry.
        bytes: usize,
        /// The setting that keeps it out.
        cure: &'static str,
    },
}

/// What whoever runs a relay should know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelayEvent<'a> {
    /// The engine can be heard, for the first time or again.
    EngineHeard,
    /// It cannot, and why; told for each new reason.
    EngineUnheard(&'a str),
    /// The broker does not have something.
    Broker(&'a SinkError),
}

/// Takes envelopes.
pub trait Sink: Send {
    /// The last entry of a pod that the broker has. Connects if needed, and anew after an error.
    fn last(
        &mut self,
        pod: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, SinkError>> + Send;

    /// Appends entries of one pod in their order, and returns when the broker has all of them. After an error
    /// it may have some.
    fn publish(
        &mut self,
        envelopes: &[Envelope<'_>],
    ) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Tells all who listen now that this relay is there, by an envelope without a payload whose number is that of the
    /// batch to come. Nothing of it is kept for long.
    fn beat(
        &mut self,
        envelope: Envelope<'_>,
    ) -> impl Future<Output = Result<(), SinkError>> + Send;
}

/// Batches of one pod that a relay and a broker keep, as many as an engine itself keeps for replay.
pub(crate) const KEPT_PER_POD: usize = 10_000;

/// Batches that are on their way to the broker at a time. To wait for each one alone takes seconds for all that
/// are kept.
const ON_THEIR_WAY: usize = 256;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(50);
/// A relay that has nothing to publish says so this often.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How often it is seen whether the broker still has what it was given.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Relays what `transport` says of one pod, for as long as it is polled. `epoch` should be greater than that of any
/// relay of this pod before, such as the time, and is made so if the broker knows of a later one; `report` is told when
/// the engine or the broker cannot be reached, and what the broker does not take.
pub async fn relay<T: Transport, S: Sink>(
    mut transport: T,
    sink: S,
    pod: PodName,
    epoch: Epoch,
    mut report: impl FnMut(RelayEvent<'_>) + Send,
) -> Infallible {
    let clock = EventClock::start();
    let mut is_heard = false;
    let ordered = OrderedBatches::new(transport.abilities(), epoch);
    let mut line = RelayStream {
        ordered,
        sink,
        pod,
        broken: true,
        met: false,
        looked_at: Moment::ZERO,
        said_at: None,
    };
    let mut pause = FIRST_PAUSE;
    loop {
        tokio::select! {
            heard = transport.next() => {
                let (SourceSignal::Of(_, said) | SourceSignal::OfAll(said)) = heard;
                match &said {
                    SourceMessage::Unreachable(why) => {
                        is_heard = false;
                        report(RelayEvent::EngineUnheard(why));
                    }
                    SourceMessage::Disconnected if is_heard => {
                        is_heard = false;
                        report(RelayEvent::EngineUnheard("the connection broke"));
                    }
                    SourceMessage::Connected if !is_heard => {
                        is_heard = true;
                        report(RelayEvent::EngineHeard);
                    }
                    _ => {}
                }
                line.ordered.hear(said, clock.now());
            }
            () = tokio::time::sleep(TICK) => {}
        }
        if let Some(ask) = line.ordered.tick(clock.now()) {
            transport.ask(&line.pod, ask);
        }
        match line.turn(clock.now(), &mut report).await {
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) => {
                report(RelayEvent::Broker(&error));
                line.broken = true;
                // The engine is not listened to meanwhile; what it says then is replayed.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// One pod on its way to the broker.
struct RelayStream<S> {
    ordered: OrderedBatches,
    sink: S,
    pod: PodName,
    /// Whether it is to be seen first what the broker has.
    broken: bool,
    /// Whether it is known which lives the broker knows of.
    met: bool,
    /// When that was last seen.
    looked_at: Moment,
    /// When the broker last took something.
    said_at: Option<Moment>,
}

impl<S: Sink> RelayStream<S> {
    /// Publishes what is due, or says that nothing is.
    async fn turn(
        &mut self,
        now: Moment,
        report: &mut (impl FnMut(RelayEvent<'_>) + Send),
    ) -> Result<(), SinkError> {
        if !self.met && !self.ordered.is_sure(now) {
            return Ok(());
        }
        if self.broken || now >= self.looked_at + LOOK_EVERY {
            self.look(now).await?;
        }
        self.publish(now, report).await?;
        let is_silent = self.said_at.is_none_or(|said| now >= said + BEAT_EVERY);
        // Who speaks for an engine has heard of it.
        if let Some(beat) = self.ordered.beat(now).filter(|_| is_silent) {
            let envelope = Envelope {
                pod: &self.pod,
                epoch: beat.epoch.map(|epoch| epoch.0),
                sequence: beat.next,
                payload: &[],
            };
            self.sink.beat(envelope).await?;
            self.said_at = Some(now);
        }
        Ok(())
    }

    /// Looks what the broker has, and goes on from there if a connection broke or it lost something.
    async fn look(&mut self, now: Moment) -> Result<(), SinkError> {
        let last = self.sink.last(&self.pod).await?;
        let entry = last.as_deref().and_then(|entry| Envelope::parse(entry).ok());
        let last = entry.and_then(|entry| Some((Epoch(entry.epoch?), entry.sequence)));
        if !self.met
            && let (Some(entry), Some((life, sequence))) = (entry, last)
            && !self.ordered.take_up(life, sequence, entry.payload)
        {
            self.ordered.start_after(life);
        }
        self.met = true;
        if self.broken || self.ordered.is_lost(last) {
            self.ordered.resume_after(last);
        }
        (self.broken, self.looked_at) = (false, now);
        Ok(())
    }

    async fn publish(
        &mut self,
        now: Moment,
        report: &mut (impl FnMut(RelayEvent<'_>) + Send),
    ) -> Result<(), SinkError> {
        loop {
            let due = self.ordered.due().take(ON_THEIR_WAY);
            let envelopes: Vec<_> = due
                .map(|(epoch, sequence, payload)| Envelope {
                    pod: &self.pod,
                    epoch: Some(epoch.0),
                    sequence: *sequence,
                    payload,
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
                    self.ordered.leave_out();
                    report(RelayEvent::Broker(&error));
                }
                Err(error) => return Err(error),
            }
            self.said_at = Some(now);
        }
    }
}

/// Whether something heard can be relayed at all.
fn is_numbered(said: &SourceMessage) -> bool {
    matches!(said, SourceMessage::Batch { heading, .. } if heading.sequence.is_some())
}
