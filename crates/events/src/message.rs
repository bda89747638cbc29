//! What is said about a pod, and what can be asked, whatever carries it.
//!
//! An engine numbers its batches from zero at its start. (epoch, sequence) are the engine's own and travel
//! unchanged through relays and brokers; an offset in a broker is only a cursor. A source without numbers
//! says whether a block is there, and cannot count copies.

use crate::wire::WireBatch;
use wornpath_index::BlockDigest;

/// One life of an engine's process, by its start: a later life has a larger number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch(pub u64);

/// Which batch this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchId {
    /// The engine's life, where the source knows it.
    pub epoch: Option<Epoch>,
    /// The engine's number of the batch, or of the last batch that a snapshot contains.
    pub sequence: Option<u64>,
    /// A hash of the batch as the engine wrote it, time and all: two lives never agree on it.
    pub fingerprint: Option<u64>,
}

/// On which way a batch came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// As it happened.
    Live,
    /// In answer to [`Ask::ReplayQuery`].
    Replay,
}

/// What an engine's cache comes to, by the engine's own count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineDigest {
    /// The engine's life, where the source knows it.
    pub epoch: Option<Epoch>,
    /// The last batch that is counted in.
    pub sequence: Option<u64>,
    /// Per tier, over the engine's hashes.
    pub tiers: [BlockDigest; 4],
}

/// What a relay says while there is nothing new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceHeartbeat {
    /// The engine's life.
    pub epoch: Option<Epoch>,
    /// The number that its next batch will have: all before it were published.
    pub next: u64,
}

/// One thing said about one pod.
#[derive(Clone, Debug)]
pub enum SourceMessage {
    /// The engine, or what carries its events, can be reached.
    Connected,
    /// It cannot any more.
    Disconnected,
    /// It could not be reached, and why.
    Unreachable(String),
    /// Nothing happened, and the source is there.
    Alive,
    /// Things happened.
    Batch {
        /// Which batch it is.
        heading: BatchId,
        /// How it came.
        via: Delivery,
        /// What happened.
        batch: Box<WireBatch>,
    },
    /// Something came that cannot be understood.
    Malformed {
        /// Which batch it is, as far as that could be read.
        heading: BatchId,
        /// What is wrong with it.
        reason: String,
    },
    /// All batches of a replay have come.
    ReplayEnd,
    /// Everything that the pod holds, as stores; each block once for every copy.
    Snapshot {
        /// The last batch it contains.
        heading: BatchId,
        /// The stores.
        batch: Box<WireBatch>,
    },
    /// A sum, to compare.
    Digest(EngineDigest),
    /// Who relays the engine's events is there, and so was the engine a moment ago.
    Beat(SourceHeartbeat),
    /// The engine's process started then, as learnt from elsewhere.
    Started(Epoch),
    /// The source cannot answer what it was asked.
    Refused,
    /// The engine says that it ends: it holds nothing any more.
    Bye,
}

/// A question to a source; the answer comes among what it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceQuery {
    /// All batches from this number on, then [`Said::ReplayEnd`].
    Replay {
        /// The first number wanted.
        from: u64,
    },
    /// Everything, as one [`Said::Snapshot`].
    Snapshot,
}

/// What a source can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// Batches that have been.
    pub replay: bool,
    /// The whole state.
    pub snapshot: bool,
    /// Answers come from a store that others fill, such as a broker: they say what was, and nothing of whether the
    /// engine, or who relays its events, is still there.
    pub relayed: bool,
}
