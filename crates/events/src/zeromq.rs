//! Events straight from an engine: vLLM and SGLang publish them over ZeroMQ.
//!
//! One transport per pod, that is per data-parallel rank: rank r publishes on the configured port + r, and
//! replays on the replay port + r. Numbers and payloads are the engine's; it says nothing of its epoch, so
//! batches carry a fingerprint of their bytes. A connection that breaks is told at once, because a restart
//! begins with it. A silent one is pinged.

mod address;
mod dial;
mod listed;
mod replay;

pub use address::{AddressError, ZmqAddress};
pub use dial::Judge;
pub use listed::ListedError;

use crate::said::{Abilities, Ask, Heading, Said, Via};
use crate::transport::{Heard, PodName, Transport};
use crate::wire::{self, Batch, Limits, Message};
use crate::zmtp::{Connection, Socket, ZmtpError};
use bytes::Bytes;
use dial::Dial;
use replay::Replay;
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
    dial: Dial,
    live: Option<Connection<TcpStream>>,
    replay: Option<Replay>,
    /// When to connect, and how long to wait after that fails.
    connect_at: Instant,
    pause: Duration,
    ping_at: Instant,
    /// Why the last connection could not be made or was lost.
    last_error: Option<String>,
    /// Why it cannot be reached, as it was said.
    told: Option<String>,
    originals: Originals,
}

/// What becomes of messages once they are decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Originals {
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
            replay: address.replay.as_ref().map(|at| Replay::new(at.clone())),
            address,
            dial: Dial::default(),
            live: None,
            connect_at: Instant::now(),
            pause: FIRST_PAUSE,
            ping_at: Instant::now(),
            last_error: None,
            told: None,
            originals: Originals::Dropped,
        }
    }

    /// The same, for a relay: batches keep their message as it came.
    #[must_use]
    pub fn with_originals(self) -> Self {
        Self { originals: Originals::Kept, ..self }
    }

    /// The same, connecting only to addresses that `judge` has nothing against.
    #[must_use]
    pub fn judged_by(mut self, judge: Judge) -> Self {
        self.dial = Dial(Some(judge));
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
    async fn connect(&mut self) -> Option<Said> {
        sleep_until(self.connect_at).await;
        let attempt = async {
            let (dial, place) = (self.dial.clone(), self.address.publisher.clone());
            let mut live = dial.connect(place, Socket::Sub).await?;
            live.subscribe(self.address.topic.as_bytes()).await?;
            Ok::<_, ZmtpError>(live)
        };
        match attempt.await {
            Ok(live) => {
                self.live = Some(live);
                self.pause = FIRST_PAUSE;
                self.told = None;
                self.ping_at = Instant::now() + PING_AFTER;
                Some(Said::Connected)
            }
            Err(error) => {
                self.wait_after(&error);
                let reason = error.to_string();
                let is_new = self.told.as_ref() != Some(&reason);
                self.told = Some(reason.clone());
                is_new.then_some(Said::Unreachable(reason))
            }
        }
    }

    fn lost(&mut self, error: &ZmtpError) -> Said {
        self.live = None;
        if let Some(replay) = &mut self.replay {
            replay.forget();
        }
        self.wait_after(error);
        Said::Disconnected
    }

    /// The pause doubles, and each pod's is a little different: engines that went together are not
    /// connected to all at once.
    fn wait_after(&mut self, error: &ZmtpError) {
        self.last_error = Some(error.to_string());
        let jitter = xxh3_64(self.name.as_bytes()) % 256;
        self.connect_at = Instant::now() + self.pause + self.pause * jitter as u32 / 1024;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    async fn hear(&mut self) -> Option<Said> {
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
                    read(&frames, Via::Live, self.originals)
                }
                Err(error) => Some(self.lost(&error)),
            },
            frames = replay => read(&frames, Via::Replay, self.originals),
            () = sleep_until(self.ping_at) => {
                self.ping_at = Instant::now() + PING_AFTER;
                match live.ping().await {
                    Ok(alive) => alive.then_some(Said::Alive),
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

    fn abilities(&self) -> Abilities {
        Abilities { replay: self.replay.is_some(), snapshot: false, relayed: false }
    }

    async fn next(&mut self) -> Heard {
        loop {
            if let Some(said) = self.hear().await {
                return Heard::Of(Arc::clone(&self.pod), said);
            }
        }
    }

    fn ask(&mut self, _pod: &PodName, ask: Ask) {
        if let (Some(replay), Ask::Replay { from }) = (&mut self.replay, ask) {
            replay.ask(from);
        }
    }
}

/// What a message says. Live streams do not end as replays do.
fn read(frames: &[Bytes], via: Via, originals: Originals) -> Option<Said> {
    let malformed = |sequence, error: wire::DecodeError| {
        let heading = Heading { sequence, ..Heading::default() };
        Some(Said::Malformed { heading, reason: error.to_string() })
    };
    match Message::parse(frames) {
        Err(error) => malformed(None, error),
        Ok(Message::ReplayEnd) => (via == Via::Replay).then_some(Said::ReplayEnd),
        Ok(Message::Batch { sequence, payload, .. }) => {
            let mut batch = Box::<Batch>::default();
            if let Err(error) = wire::decode(payload, &Limits::default(), &mut batch) {
                return malformed(Some(sequence), error);
            }
            if originals == Originals::Kept {
                batch.original = Some(Bytes::copy_from_slice(payload));
            }
            let fingerprint = Some(xxh3_64(payload));
            let heading = Heading { epoch: None, sequence: Some(sequence), fingerprint };
            Some(Said::Batch { heading, via, batch })
        }
    }
}
