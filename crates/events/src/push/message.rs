//! The messages of `proto/events.proto`, and their conversion.

use super::request::{named, with_salt};
use crate::message::{BatchId, Delivery, EngineDigest, Epoch, SourceMessage};
use crate::wire::{self, WireBatch, WireEvent, WireLimits, WireRemoved};
use crate::wire::{ExtraKeysBuffer, WireStored, tier_by_name};
use wornpath_index::{BlockDigest, EngineHash, Tier};

/// A report of an engine.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushReport {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub pod: String,
    /// When the engine's process started.
    #[prost(uint64, optional, tag = "2")]
    pub epoch: Option<u64>,
    /// The batch's number, or that of the last batch that a snapshot or digest includes.
    #[prost(uint64, optional, tag = "3")]
    pub sequence: Option<u64>,
    /// The content.
    #[prost(oneof = "PushBody", tags = "4, 5, 6, 7, 8, 9")]
    pub body: Option<PushBody>,
}

/// The content of a report.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum PushBody {
    /// The engine has started, or reaches the router again.
    #[prost(message, tag = "4")]
    Register(PushEmpty),
    /// Blocks were stored and removed.
    #[prost(message, tag = "5")]
    Batch(PushBatch),
    /// A snapshot of the whole cache.
    #[prost(message, tag = "6")]
    Sync(PushBatch),
    /// A digest, to compare.
    #[prost(message, tag = "7")]
    Digest(PushDigest),
    /// The engine shuts down.
    #[prost(message, tag = "8")]
    Bye(PushEmpty),
    /// A batch in vLLM's msgpack encoding.
    #[prost(bytes = "vec", tag = "9")]
    Raw(Vec<u8>),
}

/// No further content.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PushEmpty {}

/// Cache events.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushBatch {
    /// In the engine's order.
    #[prost(message, repeated, tag = "1")]
    pub events: Vec<PushEvent>,
}

/// One cache event.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushEvent {
    /// The event's type and content.
    #[prost(oneof = "PushEventKind", tags = "1, 2, 3")]
    pub kind: Option<PushEventKind>,
}

/// The type and content of an event.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum PushEventKind {
    /// Blocks were stored.
    #[prost(message, tag = "1")]
    Stored(PushStored),
    /// Blocks were removed.
    #[prost(message, tag = "2")]
    Removed(PushRemoved),
    /// All blocks were removed.
    #[prost(message, tag = "3")]
    Cleared(PushEmpty),
}

/// Consecutive blocks of a prompt.
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
    /// The tier that stores them; the GPU if empty.
    #[prost(string, tag = "5")]
    pub tier: String,
    /// The LoRA adapter.
    #[prost(string, tag = "6")]
    pub lora: String,
    /// The tenant's salt.
    #[prost(string, tag = "7")]
    pub salt: String,
}

/// Removed blocks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushRemoved {
    /// The engine's hashes.
    #[prost(fixed64, repeated, tag = "1")]
    pub blocks: Vec<u64>,
    /// The tier that removed them; the GPU if empty.
    #[prost(string, tag = "2")]
    pub tier: String,
}

/// A digest of the whole cache.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushDigest {
    /// One digest per tier.
    #[prost(message, repeated, tag = "1")]
    pub tiers: Vec<TierDigest>,
}

/// The digest of one tier.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TierDigest {
    /// The tier's name.
    #[prost(string, tag = "1")]
    pub tier: String,
    /// The number of blocks.
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// The exclusive or of their hashes.
    #[prost(fixed64, tag = "3")]
    pub xor: u64,
}

/// A message of the router to an engine: `Wish` in the proto file.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PushReply {
    /// The engine should send a snapshot.
    #[prost(bool, tag = "1")]
    pub sync: bool,
    /// The engine should choose a greater epoch than this one of an earlier process.
    #[prost(uint64, optional, tag = "2")]
    pub outdated: Option<u64>,
}

impl PushReport {
    /// Converts the report; `None` for one without content.
    #[must_use]
    pub fn message(&self) -> Option<SourceMessage> {
        let id =
            BatchId { epoch: self.epoch.map(Epoch), sequence: self.sequence, fingerprint: None };
        Some(match self.body.as_ref()? {
            PushBody::Register(_) => SourceMessage::Started(Epoch(self.epoch?)),
            PushBody::Batch(batch) => SourceMessage::Batch {
                id,
                delivery: Delivery::Live,
                batch: Box::new(batch.events()),
            },
            PushBody::Sync(batch) => {
                SourceMessage::Snapshot { id, batch: Box::new(batch.events()) }
            }
            PushBody::Digest(digest) => SourceMessage::Digest(EngineDigest {
                epoch: id.epoch,
                sequence: id.sequence,
                tiers: digest.tiers(),
            }),
            PushBody::Bye(_) => SourceMessage::Bye,
            PushBody::Raw(payload) => {
                let mut batch = Box::<WireBatch>::default();
                match wire::decode(payload, &WireLimits::default(), &mut batch) {
                    Ok(()) => SourceMessage::Batch { id, delivery: Delivery::Live, batch },
                    Err(error) => SourceMessage::Malformed { id, reason: error.to_string() },
                }
            }
        })
    }
}

impl PushBatch {
    fn events(&self) -> WireBatch {
        let mut batch = WireBatch::default();
        for kind in self.events.iter().filter_map(|event| event.kind.as_ref()) {
            match kind {
                PushEventKind::Stored(stored) => stored.push_to(&mut batch),
                PushEventKind::Removed(removed) => batch.push(WireEvent::Removed(WireRemoved {
                    blocks: &hashes(&removed.blocks),
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
        let blocks = hashes(&self.blocks);
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
    fn tiers(&self) -> [BlockDigest; 4] {
        let mut tiers = [BlockDigest::default(); 4];
        for one in &self.tiers {
            tiers[tier(&one.tier) as usize] = BlockDigest { count: one.count, xor: one.xor };
        }
        tiers
    }
}

fn hashes(blocks: &[u64]) -> Vec<EngineHash> {
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
    fn field_numbers_are_those_of_the_proto_file() {
        let stored = PushStored {
            blocks: vec![1],
            tokens: vec![7, 300],
            block_size: 2,
            ..PushStored::default()
        };
        let batch =
            PushBatch { events: vec![PushEvent { kind: Some(PushEventKind::Stored(stored)) }] };
        let body = Some(PushBody::Batch(batch));
        let report = PushReport { pod: "a".to_owned(), epoch: Some(3), sequence: Some(0), body };
        // Written out by hand from the proto file: numbers, wire types and packing.
        let stored = [10, 8, 1, 0, 0, 0, 0, 0, 0, 0, 26, 3, 7, 172, 2, 32, 2];
        let mut expected = vec![10, 1, b'a', 16, 3, 24, 0, 42, 21, 10, 19, 10, 17];
        expected.extend(stored);
        assert_eq!(report.encode_to_vec(), expected);
        assert_eq!(PushReport::decode(&expected[..]).unwrap(), report);
        assert_eq!(PushReply { sync: true, outdated: None }.encode_to_vec(), [8, 1]);
        let outdated = PushReply { sync: false, outdated: Some(7) };
        assert_eq!(outdated.encode_to_vec(), [16, 7]);
    }

    #[test]
    fn a_report_and_the_equivalent_post_give_the_same_batch() {
        let stored = PushStored {
            blocks: vec![1, 2],
            tokens: vec![5, 5, 6, 6],
            block_size: 2,
            tier: "cpu".to_owned(),
            salt: "t".to_owned(),
            ..PushStored::default()
        };
        let events =
            vec![PushEvent { kind: Some(PushEventKind::Stored(stored)) }, PushEvent { kind: None }];
        let body = Some(PushBody::Batch(PushBatch { events }));
        let report = PushReport { pod: "a".to_owned(), epoch: Some(3), sequence: Some(9), body };
        let Some(SourceMessage::Batch { id, batch, .. }) = report.message() else {
            panic!("{report:?}")
        };
        assert_eq!((id.epoch, id.sequence), (Some(Epoch(3)), Some(9)));
        let posted = super::super::PushedMessage::parse(
            "/events/stored",
            br#"{"pod": "a", "epoch": 3, "sequence": 9, "stored": [{"hashes": [1, 2],
               "tokens": [5, 5, 6, 6], "block_size": 2, "tier": "cpu", "salt": "t"}]}"#,
        );
        let SourceMessage::Batch { batch: posted, .. } = posted.unwrap().messages.remove(0) else {
            panic!()
        };
        assert!(batch.events().eq(posted.events()));
    }

    #[test]
    fn a_report_without_content_gives_no_message() {
        assert!(PushReport::default().message().is_none());
        let register =
            PushReport { body: Some(PushBody::Register(PushEmpty {})), ..PushReport::default() };
        assert!(register.message().is_none(), "a start without its time");
        let raw = PushReport { body: Some(PushBody::Raw(vec![0xc1])), ..PushReport::default() };
        assert!(matches!(raw.message(), Some(SourceMessage::Malformed { .. })));
    }
}
