//! Messages about one pod and queries to its sources, the same for every transport.
//!
//! An engine numbers its batches from zero when it starts. (epoch, sequence) are the engine's own
//! and pass unchanged through relays and brokers; an offset in a broker is only a cursor. A source
//! without numbers reports whether a block is present, and cannot count copies.

use crate::wire::WireBatch;
use wornpath_index::BlockDigest;

/// One run of an engine's process, by its start time: a later run has a larger number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch(pub u64);

/// Identifies a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchId {
    /// The engine's epoch, where the source knows it.
    pub epoch: Option<Epoch>,
    /// The engine's number of the batch, or of the last batch that a snapshot contains.
    pub sequence: Option<u64>,
    /// A hash of the batch as the engine encoded it, timestamp included, so that it differs between
    /// epochs.
    pub fingerprint: Option<u64>,
}

/// How a batch arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// As it was published.
    Live,
    /// In reply to [`SourceQuery::Replay`].
    Replay,
}

/// A digest of an engine's cache, computed by the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineDigest {
    /// The engine's epoch, where the source knows it.
    pub epoch: Option<Epoch>,
    /// The last batch that the digest includes.
    pub sequence: Option<u64>,
    /// Per tier, over the engine's hashes.
    pub tiers: [BlockDigest; 4],
}

/// A relay's report that its engine has nothing new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceHeartbeat {
    /// The engine's epoch.
    pub epoch: Option<Epoch>,
    /// The number that its next batch will have: all before it were published.
    pub next: u64,
}

/// One message about one pod.
#[derive(Clone, Debug)]
pub enum SourceMessage {
    /// The source is connected.
    Connected,
    /// The source was connected and is no more.
    Disconnected,
    /// A connection attempt failed, and why.
    Unreachable(String),
    /// The source answers pings and has nothing to report.
    Alive,
    /// Reading the source was paused: it sent too many messages that name no blocks.
    Throttled,
    /// Cache events.
    Batch {
        /// Which batch it is.
        id: BatchId,
        /// How it arrived.
        delivery: Delivery,
        /// The events.
        batch: Box<WireBatch>,
    },
    /// A batch that cannot be decoded.
    Malformed {
        /// Which batch it is, as far as that could be decoded.
        id: BatchId,
        /// What is wrong with it.
        reason: String,
    },
    /// All batches of a replay have arrived.
    ReplayEnd,
    /// The whole cache, as stores; each block once per copy.
    Snapshot {
        /// The last batch that it contains.
        id: BatchId,
        /// The stores.
        batch: Box<WireBatch>,
    },
    /// A digest, to compare with the index.
    Digest(EngineDigest),
    /// The relay is alive, and its engine was a moment ago.
    Heartbeat(SourceHeartbeat),
    /// The start time of the engine's process, learnt from elsewhere.
    Started(Epoch),
    /// The source cannot answer the query.
    Refused,
    /// The engine shuts down: it holds nothing any more.
    Bye,
}

/// A query to a source; the reply arrives among its messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceQuery {
    /// All batches from this number on, then [`SourceMessage::ReplayEnd`].
    Replay {
        /// The first number wanted.
        from: u64,
    },
    /// The whole cache, as one [`SourceMessage::Snapshot`].
    Snapshot,
    /// The same, with the tokens of every block: the last one named blocks that the router does not
    /// know.
    SnapshotWithTokens,
}

/// Which queries a source can answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// Replay past batches.
    pub replay: bool,
    /// Send a snapshot.
    pub snapshot: bool,
    /// Replies come from a store that relays fill, such as a broker: they do not show that the
    /// engine or its relay is alive.
    pub relayed: bool,
}
