//! What a pushed request says: from a path and its JSON to typed events, without I/O.

use crate::message::{BatchId, Delivery, EngineDigest, Epoch, SourceMessage};
use crate::transport::PodName;
use crate::wire::{
    DecodeNotice, ExtraKeysBuffer, WireBatch, WireEvent, WireExtraKey, WireRemoved, WireStored,
    tier_by_name,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use wornpath_index::{BlockDigest, EngineHash, Tier};

/// Why a request was refused. The sidecar is at fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PushError {
    /// There is nothing at this path.
    #[error(
        "{path}: found no such path, expected /events/ and register, stored, evicted, sync, digest or \
         bye, or /internal/ and eviction or sync"
    )]
    Path {
        /// What was asked for.
        path: String,
    },
    /// The body is not what it should be.
    #[error("{path}: {problem}")]
    Json {
        /// What was asked for.
        path: String,
        /// What is wrong, and where.
        problem: String,
    },
    /// Without this field the request means nothing.
    #[error("{path}: found no `{field}`, expected {expected}")]
    Missing {
        /// What was asked for.
        path: String,
        /// The absent field.
        field: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
}

#[derive(Deserialize)]
struct JsonBody {
    #[serde(alias = "worker_id")]
    pod: String,
    epoch: Option<u64>,
    sequence: Option<u64>,
    stored: Option<Vec<DigestRun>>,
    #[serde(alias = "evicted_hashes")]
    evicted: Option<Vec<JsonPodName>>,
    #[serde(alias = "active_hashes")]
    active: Option<Vec<JsonPodName>>,
    tier: Option<TierName>,
    tiers: Option<BTreeMap<TierName, JsonDigest>>,
}

/// Blocks that follow each other.
#[derive(Deserialize)]
struct DigestRun {
    hashes: Vec<JsonPodName>,
    parent: Option<JsonPodName>,
    #[serde(default)]
    tokens: Vec<u32>,
    #[serde(default)]
    block_size: u32,
    tier: Option<TierName>,
    lora: Option<String>,
    salt: Option<String>,
}

#[derive(Deserialize)]
struct JsonDigest {
    count: u64,
    xor: JsonPodName,
}

/// An engine's hash: a number of either sign, or hexadecimal digits of any even number.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "JsonEvent")]
struct JsonPodName(EngineHash);

#[derive(Deserialize)]
#[serde(untagged, expecting = "a hash as a number or as hexadecimal digits")]
enum JsonEvent {
    Unsigned(u64),
    Signed(i64),
    Digits(String),
}

impl TryFrom<JsonEvent> for JsonPodName {
    type Error = String;

    fn try_from(written: JsonEvent) -> Result<Self, String> {
        Ok(Self(match written {
            JsonEvent::Unsigned(hash) => hash.into(),
            JsonEvent::Signed(hash) => hash.into(),
            JsonEvent::Digits(digits) => {
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

/// What a request says.
#[derive(Clone, Debug)]
pub struct PushedMessage {
    /// The pod it is about.
    pub pod: PodName,
    /// What is said, in order.
    pub said: Vec<SourceMessage>,
}

impl PushedMessage {
    /// Reads a request.
    ///
    /// # Errors
    /// There is no such path, or its body is not what it should be.
    pub fn parse(path: &str, body: &[u8]) -> Result<Self, PushError> {
        let meaning = meaning(path)?;
        let body: JsonBody = serde_json::from_slice(body).map_err(|error| PushError::Json {
            path: path.to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Self { said: meaning(&body, path)?, pod: body.pod.into() })
    }
}

type JsonMeaning = fn(&JsonBody, &str) -> Result<Vec<SourceMessage>, PushError>;

fn meaning(path: &str) -> Result<JsonMeaning, PushError> {
    Ok(match path {
        "/events/register" => |body, _| Ok(register(body)),
        "/events/stored" => stored,
        "/events/evicted" | "/internal/eviction" => evicted,
        "/events/sync" | "/internal/sync" => sync,
        "/events/digest" => digest,
        "/events/bye" => |_, _| Ok(vec![SourceMessage::Bye]),
        _ => return Err(PushError::Path { path: path.to_owned() }),
    })
}

impl JsonBody {
    fn heading(&self) -> BatchId {
        BatchId { epoch: self.epoch.map(Epoch), sequence: self.sequence, fingerprint: None }
    }

    fn tier(&self) -> Tier {
        self.tier.map_or(Tier::Gpu, |tier| tier.0)
    }
}

fn missing(path: &str, field: &'static str, expected: &'static str) -> PushError {
    PushError::Missing { path: path.to_owned(), field, expected }
}

fn register(body: &JsonBody) -> Vec<SourceMessage> {
    vec![body.epoch.map_or(SourceMessage::Alive, |epoch| SourceMessage::Started(Epoch(epoch)))]
}

fn stored(body: &JsonBody, path: &str) -> Result<Vec<SourceMessage>, PushError> {
    let runs = body.stored.as_deref().ok_or(missing(path, "stored", "a list of stored blocks"))?;
    let mut batch = Box::<WireBatch>::default();
    runs.iter().for_each(|run| push_run(&mut batch, run));
    Ok(vec![SourceMessage::Batch { heading: body.heading(), via: Delivery::Live, batch }])
}

fn evicted(body: &JsonBody, path: &str) -> Result<Vec<SourceMessage>, PushError> {
    let names = body.evicted.as_deref().ok_or(missing(path, "evicted", "a list of hashes"))?;
    let mut batch = Box::<WireBatch>::default();
    let blocks = hashes(names);
    batch.push(WireEvent::Removed(WireRemoved { blocks: &blocks, tier: body.tier(), group: None }));
    Ok(vec![SourceMessage::Batch { heading: body.heading(), via: Delivery::Live, batch }])
}

fn sync(body: &JsonBody, path: &str) -> Result<Vec<SourceMessage>, PushError> {
    let mut batch = Box::<WireBatch>::default();
    match (&body.stored, &body.active) {
        (None, None) => return Err(missing(path, "active", "a list of hashes, or `stored`")),
        (runs, names) => {
            runs.iter().flatten().for_each(|run| push_run(&mut batch, run));
            // Of bare names it is not known which follows which, so each stands for itself.
            for name in names.iter().flatten() {
                batch.push(WireEvent::Stored(named(&[name.0], body.tier())));
            }
        }
    }
    Ok(vec![SourceMessage::Snapshot { heading: body.heading(), batch }])
}

fn digest(body: &JsonBody, path: &str) -> Result<Vec<SourceMessage>, PushError> {
    let sums = body.tiers.as_ref().ok_or(missing(path, "tiers", "count and xor by tier"))?;
    let mut tiers = [BlockDigest::default(); 4];
    for (tier, sum) in sums {
        tiers[tier.0 as usize] = BlockDigest { count: sum.count, xor: sum.xor.0.0 };
    }
    let BatchId { epoch, sequence, .. } = body.heading();
    Ok(vec![SourceMessage::Digest(EngineDigest { epoch, sequence, tiers })])
}

fn push_run(batch: &mut WireBatch, run: &DigestRun) {
    let blocks = hashes(&run.hashes);
    let keys = with_salt(run.salt.as_deref().filter(|_| run.parent.is_none()), blocks.len());
    batch.push(WireEvent::Stored(WireStored {
        parent: run.parent.map(|parent| parent.0),
        tokens: &run.tokens,
        block_size: run.block_size,
        lora_name: run.lora.as_deref(),
        extra_keys: keys.keys(),
        ..named(&blocks, run.tier.map_or(Tier::Gpu, |tier| tier.0))
    }));
}

/// A salt keys the first of some blocks, if they are the first of a prompt.
pub(super) fn with_salt(salt: Option<&str>, blocks: usize) -> ExtraKeysBuffer {
    let mut keys = ExtraKeysBuffer::default();
    if let Some(salt) = salt {
        keys.push(&[WireExtraKey::Text(salt)]);
        (1..blocks).for_each(|_| keys.push(&[]));
    }
    keys
}

/// Blocks of which nothing is known but their names.
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
        attention: DecodeNotice::Unsaid,
    }
}

fn hashes(names: &[JsonPodName]) -> Vec<EngineHash> {
    names.iter().map(|name| name.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(path: &str, body: &str) -> (PodName, SourceMessage) {
        let PushedMessage { pod, mut said } = PushedMessage::parse(path, body.as_bytes()).unwrap();
        assert_eq!(said.len(), 1);
        (pod, said.remove(0))
    }

    #[test]
    fn stores_carry_everything_a_chain_needs() {
        let (pod, said) = one(
            "/events/stored",
            r#"{"pod": "a", "epoch": 3, "sequence": 9, "stored": [{"hashes": [1, "0x2", -1],
               "tokens": [5, 5, 6, 6, 7, 7], "block_size": 2, "tier": "cpu", "salt": "t"}]}"#,
        );
        let SourceMessage::Batch { heading, batch, .. } = said else { panic!("{said:?}") };
        assert_eq!((&*pod, heading.epoch, heading.sequence), ("a", Some(Epoch(3)), Some(9)));
        let Some(WireEvent::Stored(stored)) = batch.events().next() else { panic!() };
        assert_eq!(stored.blocks, [1, 2, u64::MAX].map(EngineHash));
        assert_eq!((stored.tokens, stored.block_size), (&[5, 5, 6, 6, 7, 7][..], 2));
        assert_eq!((stored.tier, stored.extra_keys.len()), (Tier::Host, 3));
        assert!(stored.extra_keys.block(0).eq([WireExtraKey::Text("t")]));
    }

    #[test]
    fn a_salt_keys_the_first_block_of_a_prompt_and_none_that_goes_on() {
        let (_, said) = one(
            "/events/stored",
            r#"{"pod": "a", "stored": [{"hashes": [2], "parent": 1, "tokens": [6, 6], "block_size": 2,
               "salt": "t"}]}"#,
        );
        let SourceMessage::Batch { batch, .. } = said else { panic!("{said:?}") };
        let Some(WireEvent::Stored(stored)) = batch.events().next() else { panic!() };
        assert_eq!((stored.parent, stored.extra_keys.len()), (Some(EngineHash(1)), 0));
    }

    #[test]
    fn the_older_paths_mean_the_same() {
        let (pod, said) =
            one("/internal/eviction", r#"{"worker_id": "b", "evicted_hashes": ["ff", 7]}"#);
        let SourceMessage::Batch { batch, heading, .. } = said else { panic!("{said:?}") };
        assert_eq!((&*pod, heading), ("b", BatchId::default()));
        let expected =
            WireRemoved { blocks: &[EngineHash(255), EngineHash(7)], tier: Tier::Gpu, group: None };
        assert!(batch.events().eq([WireEvent::Removed(expected)]));

        let (_, said) = one("/internal/sync", r#"{"worker_id": "b", "active_hashes": [4, 5]}"#);
        let SourceMessage::Snapshot { batch, .. } = said else { panic!("{said:?}") };
        assert_eq!(batch.len(), 2);
    }

    #[test]
    fn a_digest_is_read_by_tier() {
        let (_, said) = one(
            "/events/digest",
            r#"{"pod": "a", "sequence": 1, "tiers": {"GPU": {"count": 2, "xor": "3"}}}"#,
        );
        let SourceMessage::Digest(digest) = said else { panic!("{said:?}") };
        assert_eq!(digest.tiers[0], BlockDigest { count: 2, xor: 3 });
        assert_eq!(digest.sequence, Some(1));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refusal = |path: &str, body: &str| {
            PushedMessage::parse(path, body.as_bytes()).unwrap_err().to_string()
        };
        assert!(refusal("/events/fly", "{}").contains("expected /events/ and register"));
        assert!(refusal("/events/bye", "{}").contains("missing field `pod`"));
        assert!(refusal("/events/bye", "[").contains("/events/bye: EOF"));
        let body = r#"{"pod": "a"}"#;
        assert!(refusal("/events/stored", body).contains("found no `stored`"));
        assert!(refusal("/internal/sync", body).contains("found no `active`"));
        let body = r#"{"pod": "a", "evicted": ["zz"]}"#;
        assert!(refusal("/events/evicted", body).contains("hash `zz`: expected hexadecimal"));
        let body = r#"{"pod": "a", "evicted": [[]]}"#;
        assert!(refusal("/events/evicted", body).contains("a hash as a number or as hexa"));
    }
}
