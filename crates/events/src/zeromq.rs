//! ZeroMQ transport: vLLM and SGLang publish their events over it.
//!
//! There is one transport per pod, that is per data-parallel rank: rank r publishes on the
//! configured port + r, and replays on the replay port + r. Numbers and payloads are the engine's.
//! Engines do not send their epoch, so batches get a fingerprint of their bytes. A lost connection
//! is reported at once, because a restart begins with it. A silent one is pinged.

mod address;
mod dial;
mod event_sources;
mod replay;

pub use address::{ZmqAddress, ZmqAddressError};
pub use dial::DialPolicy;
pub use event_sources::EventSourcesError;

use crate::message::{BatchId, Capabilities, Delivery, SourceMessage, SourceQuery};
use crate::transport::{PodName, SourceSignal, Transport};
use crate::wire::{self, WireBatch, WireLimits, WireMessage};
use crate::zmtp::{SocketKind, ZmtpConnection, ZmtpError};
use bytes::Bytes;
use dial::Dialer;
use replay::ReplayClient;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use wornpath_time::Backoff;
use xxhash_rust::xxh3::xxh3_64;

const RECONNECT: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// A useless message counts once more for each of these bytes, because it is decoded to its end.
const CHARGED_BYTES: u64 = 256;
/// Silence before a ping, and timeout of the ping.
const PING_AFTER: Duration = Duration::from_secs(5);

/// The connection to a pod's publisher.
pub struct ZeroMq {
    name: String,
    pod: PodName,
    address: ZmqAddress,
    dial: Dialer,
    live: Option<ZmtpConnection<TcpStream>>,
    replay: Option<ReplayClient>,
    connect_at: Instant,
    backoff: Backoff,
    ping_at: Instant,
    /// Why the last connection attempt failed or the last connection was lost.
    last_error: Option<String>,
    /// The last reason that was reported.
    reported: Option<String>,
    raw_payloads: RawPayloads,
}

/// Whether batches keep their payload as it arrived, which a relay publishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RawPayloads {
    Drop,
    Keep,
}

impl ZeroMq {
    /// For a pod whose engine publishes at `address`. Connects on the first [`Transport::next`].
    #[must_use]
    pub fn new(pod: PodName, address: ZmqAddress) -> Self {
        let name = address.to_string();
        // Each pod's delay is a little different: engines that went down together are not all
        // redialled at once.
        let backoff = RECONNECT.with_jitter(xxh3_64(name.as_bytes()));
        Self {
            name,
            pod,
            replay: address.replay.as_ref().map(|at| ReplayClient::new(at.clone())),
            address,
            dial: Dialer::default(),
            live: None,
            connect_at: Instant::now(),
            backoff,
            ping_at: Instant::now(),
            last_error: None,
            reported: None,
            raw_payloads: RawPayloads::Drop,
        }
    }

    /// Makes batches keep their payload as it arrived, for a relay.
    #[must_use]
    pub fn with_raw_payloads(self) -> Self {
        Self { raw_payloads: RawPayloads::Keep, ..self }
    }

    /// Connects only to addresses that `policy` allows.
    #[must_use]
    pub fn with_dial_policy(mut self, policy: DialPolicy) -> Self {
        self.dial = Dialer(Some(policy));
        if let Some(replay) = &mut self.replay {
            replay.dial = self.dial.clone();
        }
        self
    }

    /// Why the last connection attempt failed or the last connection was lost.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Connects after the backoff. Returns `None` if that failed for a reason that was reported
    /// already.
    async fn connect(&mut self) -> Option<SourceMessage> {
        sleep_until(self.connect_at).await;
        let attempt = async {
            let dial = self.dial.clone();
            let address = self.address.publisher.clone();
            let mut live = dial.connect(address, SocketKind::Sub).await?;
            live.subscribe(self.address.topic.as_bytes()).await?;
            Ok::<_, ZmtpError>(live)
        };
        match attempt.await {
            Ok(live) => {
                self.live = Some(live);
                self.backoff.succeeded();
                self.reported = None;
                self.ping_at = Instant::now() + PING_AFTER;
                Some(SourceMessage::Connected)
            }
            Err(error) => {
                self.back_off(&error);
                let reason = error.to_string();
                let is_new = self.reported.as_ref() != Some(&reason);
                self.reported = Some(reason.clone());
                is_new.then_some(SourceMessage::Unreachable(reason))
            }
        }
    }

    fn lost(&mut self, error: &ZmtpError) -> SourceMessage {
        self.live = None;
        if let Some(replay) = &mut self.replay {
            replay.reset();
        }
        self.back_off(error);
        SourceMessage::Disconnected
    }

    fn back_off(&mut self, error: &ZmtpError) {
        self.last_error = Some(error.to_string());
        self.connect_at = Instant::now() + self.backoff.failed();
    }

    async fn receive(&mut self) -> Option<SourceMessage> {
        let Some(live) = &mut self.live else { return self.connect().await };
        if live.take_paused() {
            return Some(SourceMessage::Throttled);
        }
        let replay = async {
            match &mut self.replay {
                Some(replay) => replay.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            frames = live.receive() => match frames {
                Ok(frames) => {
                    self.ping_at = Instant::now() + PING_AFTER;
                    let message = read(&frames, Delivery::Live, self.raw_payloads);
                    if !names_blocks(message.as_ref()) {
                        live.charge(1 + frames.iter().map(Bytes::len).sum::<usize>() as u64 / CHARGED_BYTES);
                    }
                    message
                }
                Err(error) => Some(self.lost(&error)),
            },
            frames = replay => read(&frames, Delivery::Replay, self.raw_payloads),
            () = sleep_until(self.ping_at) => {
                self.ping_at = Instant::now() + PING_AFTER;
                match live.ping().await {
                    Ok(alive) => alive.then_some(SourceMessage::Alive),
                    Err(error) => Some(self.lost(&error)),
                }
            }
        }
    }
}

impl Transport for ZeroMq {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { replay: self.replay.is_some(), snapshot: false, relayed: false }
    }

    async fn next(&mut self) -> SourceSignal {
        loop {
            if let Some(message) = self.receive().await {
                return SourceSignal::Pod(Arc::clone(&self.pod), message);
            }
        }
    }

    fn query(&mut self, _pod: &PodName, query: SourceQuery) {
        if let (Some(replay), SourceQuery::Replay { from }) = (&mut self.replay, query) {
            replay.request(from);
        }
    }
}

/// Whether a message changes what a pod holds, by naming blocks. One that clears it does so once.
fn names_blocks(message: Option<&SourceMessage>) -> bool {
    matches!(message, Some(SourceMessage::Batch { batch, .. }) if batch.items() > 0)
}

/// Decodes a message. The end marker of replays means nothing in a live stream.
fn read(frames: &[Bytes], delivery: Delivery, raw_payloads: RawPayloads) -> Option<SourceMessage> {
    let malformed = |sequence, error: wire::DecodeError| {
        let id = BatchId { sequence, ..BatchId::default() };
        Some(SourceMessage::Malformed { id, reason: error.to_string() })
    };
    match WireMessage::parse(frames) {
        Err(error) => malformed(None, error),
        Ok(WireMessage::ReplayEnd) => {
            (delivery == Delivery::Replay).then_some(SourceMessage::ReplayEnd)
        }
        Ok(WireMessage::Batch { sequence, payload, .. }) => {
            let mut batch = Box::<WireBatch>::default();
            if let Err(error) = wire::decode(payload, &WireLimits::default(), &mut batch) {
                return malformed(Some(sequence), error);
            }
            if raw_payloads == RawPayloads::Keep {
                batch.raw = Some(Bytes::copy_from_slice(payload));
            }
            let fingerprint = Some(xxh3_64(payload));
            let id = BatchId { epoch: None, sequence: Some(sequence), fingerprint };
            Some(SourceMessage::Batch { id, delivery, batch })
        }
    }
}
