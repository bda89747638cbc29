//! Events straight from an engine: vLLM and SGLang publish them over ZeroMQ.
//!
//! One transport per pod, that is per data-parallel rank: rank r publishes on the configured port + r, and
//! replays on the replay port + r. Numbers and payloads are the engine's; it says nothing of its epoch, so
//! batches carry a fingerprint of their bytes. A connection that breaks is told at once, because a restart
//! begins with it. A silent one is pinged.

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
use replay::ReplayQuery;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use xxhash_rust::xxh3::xxh3_64;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// After so long a silence the peer is pinged, and after as long again without an answer it is lost.
const PING_AFTER: Duration = Duration::from_secs(5);

/// A pod's publisher.
pub struct ZeroMq {
    name: String,
    pod: PodName,
    address: ZmqAddress,
    dial: Dialer,
    live: Option<ZmtpConnection<TcpStream>>,
    replay: Option<ReplayQuery>,
    /// When to connect, and how long to wait after that fails.
    connect_at: Instant,
    pause: Duration,
    ping_at: Instant,
    /// Why the last connection could not be made or was lost.
    last_error: Option<String>,
    /// Why it cannot be reached, as it was said.
    told: Option<String>,
    originals: FrameCopies,
}

/// What becomes of messages once they are decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameCopies {
    Dropped,
    Kept,
}

impl ZeroMq {
    /// For a pod whose engine publishes at `address`. Nothing is connected yet.
    #[must_use]
    pub fn new(pod: PodName, address: ZmqAddress) -> Self {
        Self {
            name: address.to_string(),
            pod,
            replay: address.replay.as_ref().map(|at| ReplayQuery::new(at.clone())),
            address,
            dial: Dialer::default(),
            live: None,
            connect_at: Instant::now(),
            pause: FIRST_PAUSE,
            ping_at: Instant::now(),
            last_error: None,
            told: None,
            originals: FrameCopies::Dropped,
        }
    }

    /// The same, for a relay: batches keep their message as it came.
    #[must_use]
    pub fn with_originals(self) -> Self {
        Self { originals: FrameCopies::Kept, ..self }
    }

    /// The same, connecting only to addresses that `judge` has nothing against.
    #[must_use]
    pub fn judged_by(mut self, judge: DialPolicy) -> Self {
        self.dial = Dialer(Some(judge));
        if let Some(replay) = &mut self.replay {
            replay.dial = self.dial.clone();
        }
        self
    }

    /// Why the engine could not be reached last time.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Connects, after the pause that is due. `None` if that failed, for a reason that was said.
    async fn connect(&mut self) -> Option<SourceMessage> {
        sleep_until(self.connect_at).await;
        let attempt = async {
            let (dial, place) = (self.dial.clone(), self.address.publisher.clone());
            let mut live = dial.connect(place, SocketKind::Sub).await?;
            live.subscribe(self.address.topic.as_bytes()).await?;
            Ok::<_, ZmtpError>(live)
        };
        match attempt.await {
            Ok(live) => {
                self.live = Some(live);
                self.pause = FIRST_PAUSE;
                self.told = None;
                self.ping_at = Instant::now() + PING_AFTER;
                Some(SourceMessage::Connected)
            }
            Err(error) => {
                self.wait_after(&error);
                let reason = error.to_string();
                let is_new = self.told.as_ref() != Some(&reason);
                self.told = Some(reason.clone());
                is_new.then_some(SourceMessage::Unreachable(reason))
            }
        }
    }

    fn lost(&mut self, error: &ZmtpError) -> SourceMessage {
        self.live = None;
        if let Some(replay) = &mut self.replay {
            replay.forget();
        }
        self.wait_after(error);
        SourceMessage::Disconnected
    }

    /// The pause doubles, and each pod's is a little different: engines that went together are not
    /// connected to all at once.
    fn wait_after(&mut self, error: &ZmtpError) {
        self.last_error = Some(error.to_string());
        let jitter = xxh3_64(self.name.as_bytes()) % 256;
        self.connect_at = Instant::now() + self.pause + self.pause * jitter as u32 / 1024;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    async fn hear(&mut self) -> Option<SourceMessage> {
        let Some(live) = &mut self.live else { return self.connect().await };
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
                    read(&frames, Delivery::Live, self.originals)
                }
                Err(error) => Some(self.lost(&error)),
            },
            frames = replay => read(&frames, Delivery::Replay, self.originals),
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

    fn abilities(&self) -> Capabilities {
        Capabilities { replay: self.replay.is_some(), snapshot: false, relayed: false }
    }

    async fn next(&mut self) -> SourceSignal {
        loop {
            if let Some(said) = self.hear().await {
                return SourceSignal::Of(Arc::clone(&self.pod), said);
            }
        }
    }

    fn ask(&mut self, _pod: &PodName, ask: SourceQuery) {
        if let (Some(replay), SourceQuery::Replay { from }) = (&mut self.replay, ask) {
            replay.ask(from);
        }
    }
}

/// What a message says. Live streams do not end as replays do.
fn read(frames: &[Bytes], via: Delivery, originals: FrameCopies) -> Option<SourceMessage> {
    let malformed = |sequence, error: wire::DecodeError| {
        let heading = BatchId { sequence, ..BatchId::default() };
        Some(SourceMessage::Malformed { heading, reason: error.to_string() })
    };
    match WireMessage::parse(frames) {
        Err(error) => malformed(None, error),
        Ok(WireMessage::ReplayEnd) => (via == Delivery::Replay).then_some(SourceMessage::ReplayEnd),
        Ok(WireMessage::Batch { sequence, payload, .. }) => {
            let mut batch = Box::<WireBatch>::default();
            if let Err(error) = wire::decode(payload, &WireLimits::default(), &mut batch) {
                return malformed(Some(sequence), error);
            }
            if originals == FrameCopies::Kept {
                batch.original = Some(Bytes::copy_from_slice(payload));
            }
            let fingerprint = Some(xxh3_64(payload));
            let heading = BatchId { epoch: None, sequence: Some(sequence), fingerprint };
            Some(SourceMessage::Batch { heading, via, batch })
        }
    }
}
