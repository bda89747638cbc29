//! The messages of `proto/events.proto`, and what they say.

use super::request::{named, with_salt};
use crate::message::{BatchId, Delivery, EngineDigest, Epoch, SourceMessage};
use crate::wire::{self, WireBatch, WireEvent, WireLimits, WireRemoved};
use crate::wire::{ExtraKeysBuffer, WireStored, tier_by_name};
use wornpath_index::{BlockDigest as Sum, EngineHash, Tier};

/// One thing that an engine says.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushReport {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub pod: String,
    /// When the engine's process started.
    #[prost(uint64, optional, tag = "2")]
    pub epoch: Option<u64>,
    /// The batch's number, or that of the last one counted in.
    #[prost(uint64, optional, tag = "3")]
    pub sequence: Option<u64>,
    /// What is said.
    #[prost(oneof = "PushBody", tags = "4, 5, 6, 7, 8, 9")]
    pub said: Option<PushBody>,
}

/// What a report says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum PushBody {
    /// The engine has started, or found the router again.
    #[prost(message, tag = "4")]
    Register(PushEmpty),
    /// Blocks came and went.
    #[prost(message, tag = "5")]
    Batch(PushBatch),
    /// Everything that the engine holds.
    #[prost(message, tag = "6")]
    Sync(PushBatch),
    /// A sum, to compare.
    #[prost(message, tag = "7")]
    Digest(PushDigest),
    /// The engine ends.
    #[prost(message, tag = "8")]
    Bye(PushEmpty),
    /// A batch as vLLM writes it.
    #[prost(bytes = "vec", tag = "9")]
    Raw(Vec<u8>),
}

/// Nothing more to say.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PushEmpty {}

/// Things that happened.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushBatch {
    /// In order.
    #[prost(message, repeated, tag = "1")]
    pub events: Vec<PushEvent>,
}

/// One of them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushEvent {
    /// Which.
    #[prost(oneof = "PushEventKind", tags = "1, 2, 3")]
    pub what: Option<PushEventKind>,
}

/// What happened.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum PushEventKind {
    /// Blocks came.
    #[prost(message, tag = "1")]
    Stored(PushStored),
    /// Blocks went.
    #[prost(message, tag = "2")]
    Removed(PushRemoved),
    /// All blocks went.
    #[prost(message, tag = "3")]
    Cleared(PushEmpty),
}

/// Blocks that follow each other.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushStored {
    /// The engine's hashes.
    #[prost(fixed64, repeated, tag = "1")]
    pub blocks: Vec<u64>,
    /// The block before the first.
    #[prost(fixed64, optional, tag = "2")]
    pub parent: Option<u64>,
    /// The tokens of all blocks.
    #[prost(uint32, repeated, tag = "3")]
    pub tokens: Vec<u32>,
    /// Tokens in a block.
    #[prost(uint32, tag = "4")]
    pub block_size: u32,
    /// Where they are; on the GPU if empty.
    #[prost(string, tag = "5")]
    pub tier: String,
    /// The LoRA adapter.
    #[prost(string, tag = "6")]
    pub lora: String,
    /// The tenant's salt.
    #[prost(string, tag = "7")]
    pub salt: String,
}

/// Blocks that went.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushRemoved {
    /// The engine's hashes.
    #[prost(fixed64, repeated, tag = "1")]
    pub blocks: Vec<u64>,
    /// Where they were; on the GPU if empty.
    #[prost(string, tag = "2")]
    pub tier: String,
}

/// A sum of everything.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushDigest {
    /// By tier.
    #[prost(message, repeated, tag = "1")]
    pub tiers: Vec<TierDigest>,
}

/// The sum of one tier.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TierDigest {
    /// Which.
    #[prost(string, tag = "1")]
    pub tier: String,
    /// How many blocks.
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// The exclusive or of their hashes.
    #[prost(fixed64, tag = "3")]
    pub xor: u64,
}

/// What the router would like to have.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PushRequestedQuery {
    /// Everything.
    #[prost(bool, tag = "1")]
    pub sync: bool,
    /// An epoch greater than this, which a process that is silent now had.
    #[prost(uint64, optional, tag = "2")]
    pub outdated: Option<u64>,
}

impl PushReport {
    /// What it says of its pod.
    #[must_use]
    pub fn said(&self) -> Option<SourceMessage> {
        let heading =
            BatchId { epoch: self.epoch.map(Epoch), sequence: self.sequence, fingerprint: None };
        Some(match self.said.as_ref()? {
            PushBody::Register(_) => SourceMessage::Started(Epoch(self.epoch?)),
            PushBody::Batch(batch) => SourceMessage::Batch {
                heading,
                via: Delivery::Live,
                batch: Box::new(batch.events()),
            },
            PushBody::Sync(batch) => {
                SourceMessage::Snapshot { heading, batch: Box::new(batch.events()) }
            }
            PushBody::Digest(digest) => SourceMessage::Digest(EngineDigest {
                epoch: heading.epoch,
                sequence: heading.sequence,
                tiers: digest.sums(),
            }),
            PushBody::Bye(_) => SourceMessage::Bye,
            PushBody::Raw(payload) => {
                let mut batch = Box::<WireBatch>::default();
                match wire::decode(payload, &WireLimits::default(), &mut batch) {
                    Ok(()) => SourceMessage::Batch { heading, via: Delivery::Live, batch },
                    Err(error) => SourceMessage::Malformed { heading, reason: error.to_string() },
                }
            }
        })
    }
}

impl PushBatch {
    fn events(&self) -> WireBatch {
        let mut batch = WireBatch::default();
        for what in self.events.iter().filter_map(|event| event.what.as_ref()) {
            match what {
                PushEventKind::Stored(stored) => stored.push_to(&mut batch),
                PushEventKind::Removed(removed) => batch.push(WireEvent::Removed(WireRemoved {
                    blocks: &names(&removed.blocks),
                    tier: tier(&removed.tier),
                    group: None,
                })),
                PushEventKind::Cleared(_) => batch.push(WireEvent::Cleared),
            }
        }
        batch
    }
}

impl PushStored {
    fn push_to(&self, batch: &mut WireBatch) {
        let blocks = names(&self.blocks);
        let is_first = self.parent.is_none();
        let salt = Some(self.salt.as_str()).filter(|salt| is_first && !salt.is_empty());
        let keys: ExtraKeysBuffer = with_salt(salt, blocks.len());
        batch.push(WireEvent::Stored(WireStored {
            parent: self.parent.map(EngineHash),
            tokens: &self.tokens,
            block_size: self.block_size,
            lora_name: Some(self.lora.as_str()).filter(|lora| !lora.is_empty()),
            extra_keys: keys.keys(),
            ..named(&blocks, tier(&self.tier))
        }));
    }
}

impl PushDigest {
    fn sums(&self) -> [Sum; 4] {
        let mut sums = [Sum::default(); 4];
        for one in &self.tiers {
            sums[tier(&one.tier) as usize] = Sum { count: one.count, xor: one.xor };
        }
        sums
    }
}

fn names(blocks: &[u64]) -> Vec<EngineHash> {
    blocks.iter().copied().map(EngineHash).collect()
}

fn tier(name: &str) -> Tier {
    if name.is_empty() { Tier::Gpu } else { tier_by_name(name.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn fields_are_where_the_proto_file_says() {
        let stored = PushStored {
            blocks: vec![1],
            tokens: vec![7, 300],
            block_size: 2,
            ..PushStored::default()
        };
        let batch =
            PushBatch { events: vec![PushEvent { what: Some(PushEventKind::Stored(stored)) }] };
        let said = Some(PushBody::Batch(batch));
        let report = PushReport { pod: "a".to_owned(), epoch: Some(3), sequence: Some(0), said };
        // Written out by hand from the proto file: numbers, wire types and packing.
        let stored = [10, 8, 1, 0, 0, 0, 0, 0, 0, 0, 26, 3, 7, 172, 2, 32, 2];
        let mut expected = vec![10, 1, b'a', 16, 3, 24, 0, 42, 21, 10, 19, 10, 17];
        expected.extend(stored);
        assert_eq!(report.encode_to_vec(), expected);
        assert_eq!(PushReport::decode(&expected[..]).unwrap(), report);
        assert_eq!(PushRequestedQuery { sync: true, outdated: None }.encode_to_vec(), [8, 1]);
        let outdated = PushRequestedQuery { sync: false, outdated: Some(7) };
        assert_eq!(outdated.encode_to_vec(), [16, 7]);
    }

    #[test]
    fn reports_mean_what_the_same_posts_mean() {
        let stored = PushStored {
            blocks: vec![1, 2],
            tokens: vec![5, 5, 6, 6],
            block_size: 2,
            tier: "cpu".to_owned(),
            salt: "t".to_owned(),
            ..PushStored::default()
        };
        let events =
            vec![PushEvent { what: Some(PushEventKind::Stored(stored)) }, PushEvent { what: None }];
        let said = Some(PushBody::Batch(PushBatch { events }));
        let report = PushReport { pod: "a".to_owned(), epoch: Some(3), sequence: Some(9), said };
        let Some(SourceMessage::Batch { heading, batch, .. }) = report.said() else {
            panic!("{report:?}")
        };
        assert_eq!((heading.epoch, heading.sequence), (Some(Epoch(3)), Some(9)));
        let posted = super::super::PushedMessage::parse(
            "/events/stored",
            br#"{"pod": "a", "epoch": 3, "sequence": 9, "stored": [{"hashes": [1, 2],
               "tokens": [5, 5, 6, 6], "block_size": 2, "tier": "cpu", "salt": "t"}]}"#,
        );
        let SourceMessage::Batch { batch: posted, .. } = posted.unwrap().said.remove(0) else {
            panic!()
        };
        assert!(batch.events().eq(posted.events()));
    }

    #[test]
    fn what_says_nothing_is_nothing() {
        assert!(PushReport::default().said().is_none());
        let register =
            PushReport { said: Some(PushBody::Register(PushEmpty {})), ..PushReport::default() };
        assert!(register.said().is_none(), "a start of which the time is not known");
        let raw = PushReport { said: Some(PushBody::Raw(vec![0xc1])), ..PushReport::default() };
        assert!(matches!(raw.said(), Some(SourceMessage::Malformed { .. })));
    }
}
