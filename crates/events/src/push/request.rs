//! Parses a pushed request: from a path and its JSON to typed messages, without I/O.

use super::parts::SnapshotPart;
use crate::message::{BatchId, Delivery, EngineDigest, Epoch, SourceMessage};
use crate::transport::PodName;
use crate::wire::{
    ExtraKeysBuffer, GroupAttention, WireBatch, WireEvent, WireExtraKey, WireRemoved, WireStored,
    tier_by_name,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use wornpath_index::{BlockDigest, EngineHash, Location, Tier};

/// Why a request was refused. The sidecar is at fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PushError {
    /// The path is unknown.
    #[error(
        "unknown path {path}; use /events/ and register, stored, evicted, sync, digest or bye, or /internal/ \
         and eviction or sync"
    )]
    Path {
        /// The request's path.
        path: String,
    },
    /// The body is not the expected JSON.
    #[error("{path}: {problem}")]
    Json {
        /// The request's path.
        path: String,
        /// What is wrong, and where.
        problem: String,
    },
    /// A required field is missing.
    #[error("{path}: missing field `{field}`; expected {expected}")]
    Missing {
        /// The request's path.
        path: String,
        /// The missing field.
        field: &'static str,
        /// What is valid there.
        expected: &'static str,
    },
    /// A part of a snapshot that has another number than its snapshot can have.
    #[error(
        "{path}: part {part} of {parts}; `part` counts from 0 and stays below `parts`, which is at most {MOST_PARTS}"
    )]
    Part {
        /// The request's path.
        path: String,
        /// The number of the part.
        part: u32,
        /// The number of parts.
        parts: u32,
    },
}

/// A snapshot of ten million blocks in parts of two thousand.
const MOST_PARTS: u32 = 5_000;

#[derive(Deserialize)]
struct JsonBody {
    #[serde(alias = "worker_id")]
    pod: String,
    epoch: Option<u64>,
    sequence: Option<u64>,
    stored: Option<Vec<JsonStored>>,
    #[serde(alias = "evicted_hashes")]
    evicted: Option<Vec<JsonHash>>,
    #[serde(alias = "active_hashes")]
    active: Option<Vec<JsonHash>>,
    tier: Option<TierName>,
    tiers: Option<BTreeMap<TierName, JsonDigest>>,
    #[serde(default)]
    part: u32,
    parts: Option<u32>,
}

/// Consecutive blocks of a prompt.
#[derive(Deserialize)]
struct JsonStored {
    hashes: Vec<JsonHash>,
    parent: Option<JsonHash>,
    #[serde(default)]
    tokens: Vec<u32>,
    #[serde(default)]
    block_size: u32,
    tier: Option<TierName>,
    lora: Option<String>,
    salt: Option<String>,
    #[serde(default)]
    locations: Vec<JsonLocation>,
}

/// Where a block lies on its tier.
#[derive(Deserialize)]
struct JsonLocation {
    offset: u64,
    #[serde(default)]
    length: u64,
    #[serde(default)]
    device: u32,
}

impl From<&JsonLocation> for Location {
    fn from(JsonLocation { offset, length, device }: &JsonLocation) -> Self {
        Self { offset: *offset, length: *length, device: *device }
    }
}

#[derive(Deserialize)]
struct JsonDigest {
    count: u64,
    xor: JsonHash,
}

/// An engine's hash: an integer of either sign, or hexadecimal digits of which the last sixteen
/// count.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "HashLiteral")]
struct JsonHash(EngineHash);

#[derive(Deserialize)]
#[serde(untagged, expecting = "a hash as a number or as hexadecimal digits")]
enum HashLiteral {
    Unsigned(u64),
    Signed(i64),
    Digits(String),
}

impl TryFrom<HashLiteral> for JsonHash {
    type Error = String;

    fn try_from(written: HashLiteral) -> Result<Self, String> {
        Ok(Self(match written {
            HashLiteral::Unsigned(hash) => hash.into(),
            HashLiteral::Signed(hash) => hash.into(),
            HashLiteral::Digits(digits) => {
                let plain = digits.strip_prefix("0x").unwrap_or(&digits);
                let is_hex = !plain.is_empty() && plain.bytes().all(|one| one.is_ascii_hexdigit());
                let tail = plain.len().saturating_sub(16);
                let hash = if is_hex { u64::from_str_radix(&plain[tail..], 16).ok() } else { None };
                hash.ok_or(format!("hash `{digits}`: expected hexadecimal digits"))?.into()
            }
        }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct TierName(Tier);

impl TryFrom<String> for TierName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Ok(Self(tier_by_name(name.as_bytes())))
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct PushedReport {
    /// The pod it is about.
    pub pod: PodName,
    /// What it says.
    pub(super) reported: Reported,
}

/// What a request says.
#[derive(Clone, Debug)]
pub(super) enum Reported {
    /// A message.
    Message(SourceMessage),
    /// A part of a snapshot.
    Part(SnapshotPart),
}

impl PushedReport {
    /// Parses a request.
    ///
    /// # Errors
    /// The path is unknown, or the body is not the expected JSON.
    pub fn parse(path: &str, body: &[u8]) -> Result<Self, PushError> {
        let parse = parser(path)?;
        let body: JsonBody = serde_json::from_slice(body).map_err(|error| PushError::Json {
            path: path.to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Self { reported: parse(&body, path)?, pod: body.pod.into() })
    }

    /// The cache events in it, if it has any.
    #[must_use]
    pub fn batch(&self) -> Option<&WireBatch> {
        match &self.reported {
            Reported::Message(
                SourceMessage::Batch { batch, .. } | SourceMessage::Snapshot { batch, .. },
            ) => Some(batch),
            Reported::Message(_) => None,
            Reported::Part(part) => Some(&part.batch),
        }
    }
}

type Parser = fn(&JsonBody, &str) -> Result<Reported, PushError>;

fn parser(path: &str) -> Result<Parser, PushError> {
    Ok(match path {
        "/events/register" => |body, _| Ok(Reported::Message(register(body))),
        "/events/stored" => stored,
        "/events/evicted" | "/internal/eviction" => evicted,
        "/events/sync" | "/internal/sync" => sync,
        "/events/digest" => digest,
        "/events/bye" => |_, _| Ok(Reported::Message(SourceMessage::Bye)),
        _ => return Err(PushError::Path { path: path.to_owned() }),
    })
}

impl JsonBody {
    fn id(&self) -> BatchId {
        BatchId { epoch: self.epoch.map(Epoch), sequence: self.sequence, fingerprint: None }
    }

    fn tier(&self) -> Tier {
        self.tier.map_or(Tier::Gpu, |tier| tier.0)
    }
}

fn missing(path: &str, field: &'static str, expected: &'static str) -> PushError {
    PushError::Missing { path: path.to_owned(), field, expected }
}

fn register(body: &JsonBody) -> SourceMessage {
    body.epoch.map_or(SourceMessage::Alive, |epoch| SourceMessage::Started(Epoch(epoch)))
}

fn live(body: &JsonBody, batch: Box<WireBatch>) -> Reported {
    Reported::Message(SourceMessage::Batch { id: body.id(), delivery: Delivery::Live, batch })
}

fn stored(body: &JsonBody, path: &str) -> Result<Reported, PushError> {
    let stored =
        body.stored.as_deref().ok_or(missing(path, "stored", "a list of stored blocks"))?;
    let mut batch = Box::<WireBatch>::default();
    stored.iter().for_each(|one| push_stored(&mut batch, one));
    Ok(live(body, batch))
}

fn evicted(body: &JsonBody, path: &str) -> Result<Reported, PushError> {
    let names = body.evicted.as_deref().ok_or(missing(path, "evicted", "a list of hashes"))?;
    let mut batch = Box::<WireBatch>::default();
    let blocks = hashes(names);
    batch.push(WireEvent::Removed(WireRemoved { blocks: &blocks, tier: body.tier(), group: None }));
    Ok(live(body, batch))
}

fn sync(body: &JsonBody, path: &str) -> Result<Reported, PushError> {
    let mut batch = Box::<WireBatch>::default();
    match (&body.stored, &body.active) {
        (None, None) => return Err(missing(path, "active", "a list of hashes, or `stored`")),
        (stored, names) => {
            stored.iter().flatten().for_each(|one| push_stored(&mut batch, one));
            // The order of bare hashes is unknown, so each is a store of its own.
            for name in names.iter().flatten() {
                batch.push(WireEvent::Stored(named(&[name.0], body.tier())));
            }
        }
    }
    let id = body.id();
    let Some(parts) = body.parts else {
        return Ok(Reported::Message(SourceMessage::Snapshot { id, batch }));
    };
    if body.part >= parts || parts > MOST_PARTS {
        return Err(PushError::Part { path: path.to_owned(), part: body.part, parts });
    }
    Ok(Reported::Part(SnapshotPart { id, part: body.part, parts, batch }))
}

fn digest(body: &JsonBody, path: &str) -> Result<Reported, PushError> {
    let sums = body.tiers.as_ref().ok_or(missing(path, "tiers", "count and xor by tier"))?;
    let mut tiers = [BlockDigest::default(); 4];
    for (tier, sum) in sums {
        tiers[tier.0 as usize] = BlockDigest { count: sum.count, xor: sum.xor.0.0 };
    }
    let BatchId { epoch, sequence, .. } = body.id();
    Ok(Reported::Message(SourceMessage::Digest(EngineDigest { epoch, sequence, tiers })))
}

fn push_stored(batch: &mut WireBatch, one: &JsonStored) {
    let blocks = hashes(&one.hashes);
    let keys = with_salt(one.salt.as_deref().filter(|_| one.parent.is_none()), blocks.len());
    let locations: Vec<Location> = one.locations.iter().map(Location::from).collect();
    batch.push(WireEvent::Stored(WireStored {
        parent: one.parent.map(|parent| parent.0),
        tokens: &one.tokens,
        block_size: one.block_size,
        lora_name: one.lora.as_deref(),
        extra_keys: keys.keys(),
        locations: &locations,
        ..named(&blocks, one.tier.map_or(Tier::Gpu, |tier| tier.0))
    }));
}

/// The extra keys of blocks at the start of a prompt: a salt keys the first one.
pub(super) fn with_salt(salt: Option<&str>, blocks: usize) -> ExtraKeysBuffer {
    let mut keys = ExtraKeysBuffer::default();
    if let Some(salt) = salt {
        keys.push(&[WireExtraKey::Text(salt)]);
        (1..blocks).for_each(|_| keys.push(&[]));
    }
    keys
}

/// A store of which only the hashes are known.
pub(super) fn named(blocks: &[EngineHash], tier: Tier) -> WireStored<'_> {
    WireStored {
        blocks,
        parent: None,
        tokens: &[],
        block_size: 0,
        lora_id: None,
        lora_name: None,
        tier,
        extra_keys: Default::default(),
        group: None,
        attention: GroupAttention::Unspecified,
        locations: &[],
    }
}

fn hashes(names: &[JsonHash]) -> Vec<EngineHash> {
    names.iter().map(|name| name.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_one(path: &str, body: &str) -> (PodName, SourceMessage) {
        let PushedReport { pod, reported } = PushedReport::parse(path, body.as_bytes()).unwrap();
        let Reported::Message(message) = reported else { panic!("{reported:?}") };
        (pod, message)
    }

    #[test]
    fn a_store_has_everything_that_a_chain_needs() {
        let (pod, messages) = parse_one(
            "/events/stored",
            r#"{"pod": "a", "epoch": 3, "sequence": 9, "stored": [{"hashes": [1, "0x2", -1],
               "tokens": [5, 5, 6, 6, 7, 7], "block_size": 2, "tier": "cpu", "salt": "t"}]}"#,
        );
        let SourceMessage::Batch { id, batch, .. } = messages else { panic!("{messages:?}") };
        assert_eq!((&*pod, id.epoch, id.sequence), ("a", Some(Epoch(3)), Some(9)));
        let Some(WireEvent::Stored(stored)) = batch.events().next() else { panic!() };
        assert_eq!(stored.blocks, [1, 2, u64::MAX].map(EngineHash));
        assert_eq!((stored.tokens, stored.block_size), (&[5, 5, 6, 6, 7, 7][..], 2));
        assert_eq!((stored.tier, stored.extra_keys.len()), (Tier::Host, 3));
        assert!(stored.extra_keys.block(0).eq([WireExtraKey::Text("t")]));
    }

    #[test]
    fn a_salt_keys_the_first_block_of_a_prompt_and_no_later_one() {
        let (_, messages) = parse_one(
            "/events/stored",
            r#"{"pod": "a", "stored": [{"hashes": [2], "parent": 1, "tokens": [6, 6], "block_size": 2,
               "salt": "t"}]}"#,
        );
        let SourceMessage::Batch { batch, .. } = messages else { panic!("{messages:?}") };
        let Some(WireEvent::Stored(stored)) = batch.events().next() else { panic!() };
        assert_eq!((stored.parent, stored.extra_keys.len()), (Some(EngineHash(1)), 0));
    }

    #[test]
    fn a_part_of_a_snapshot_says_which_one_it_is() {
        let body = r#"{"pod": "a", "sequence": 4, "part": 2, "parts": 3, "stored": []}"#;
        let report = PushedReport::parse("/events/sync", body.as_bytes()).unwrap();
        let Reported::Part(part) = &report.reported else { panic!("{report:?}") };
        assert_eq!((part.part, part.parts, part.id.sequence), (2, 3, Some(4)));
        assert!(report.batch().unwrap().is_empty());
        for (part, parts) in [(3, 3), (0, 0), (0, 5001)] {
            let body = format!(r#"{{"pod": "a", "part": {part}, "parts": {parts}, "active": []}}"#);
            let error = PushedReport::parse("/events/sync", body.as_bytes()).unwrap_err();
            let expected = format!("/events/sync: part {part} of {parts}; `part` counts from 0");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn the_older_paths_mean_the_same() {
        let (pod, messages) =
            parse_one("/internal/eviction", r#"{"worker_id": "b", "evicted_hashes": ["ff", 7]}"#);
        let SourceMessage::Batch { batch, id, .. } = messages else { panic!("{messages:?}") };
        assert_eq!((&*pod, id), ("b", BatchId::default()));
        let expected =
            WireRemoved { blocks: &[EngineHash(255), EngineHash(7)], tier: Tier::Gpu, group: None };
        assert!(batch.events().eq([WireEvent::Removed(expected)]));

        let (_, messages) =
            parse_one("/internal/sync", r#"{"worker_id": "b", "active_hashes": [4, 5]}"#);
        let SourceMessage::Snapshot { batch, .. } = messages else { panic!("{messages:?}") };
        assert_eq!(batch.len(), 2);
    }

    #[test]
    fn a_digest_is_parsed_by_tier() {
        let (_, messages) = parse_one(
            "/events/digest",
            r#"{"pod": "a", "sequence": 1, "tiers": {"GPU": {"count": 2, "xor": "3"}}}"#,
        );
        let SourceMessage::Digest(digest) = messages else { panic!("{messages:?}") };
        assert_eq!(digest.tiers[0], BlockDigest { count: 2, xor: 3 });
        assert_eq!(digest.sequence, Some(1));
    }

    #[test]
    fn an_error_names_what_is_wrong() {
        let refusal = |path: &str, body: &str| {
            PushedReport::parse(path, body.as_bytes()).unwrap_err().to_string()
        };
        assert!(refusal("/events/fly", "{}").contains("use /events/ and register"));
        assert!(refusal("/events/bye", "{}").contains("missing field `pod`"));
        assert!(refusal("/events/bye", "[").contains("/events/bye: EOF"));
        let body = r#"{"pod": "a"}"#;
        assert!(refusal("/events/stored", body).contains("missing field `stored`"));
        assert!(refusal("/internal/sync", body).contains("missing field `active`"));
        let body = r#"{"pod": "a", "evicted": ["zz"]}"#;
        assert!(refusal("/events/evicted", body).contains("hash `zz`: expected hexadecimal"));
        let body = r#"{"pod": "a", "evicted": [[]]}"#;
        assert!(refusal("/events/evicted", body).contains("a hash as a number or as hexa"));
    }
}
