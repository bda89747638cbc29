//! What a pushed request says: from a path and its JSON to typed events, without I/O.

use crate::said::{EngineDigest, Epoch, Heading, Said, Via};
use crate::transport::PodName;
use crate::wire::{
    Attention, Batch, Event, ExtraKey, ExtraKeysBuffer, Removed, Stored, tier_by_name,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use wornpath_index::{Digest, EngineHash, Tier};

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
struct Body {
    #[serde(alias = "worker_id")]
    pod: String,
    epoch: Option<u64>,
    sequence: Option<u64>,
    stored: Option<Vec<Run>>,
    #[serde(alias = "evicted_hashes")]
    evicted: Option<Vec<Name>>,
    #[serde(alias = "active_hashes")]
    active: Option<Vec<Name>>,
    tier: Option<TierName>,
    tiers: Option<BTreeMap<TierName, Sum>>,
}

/// Blocks that follow each other.
#[derive(Deserialize)]
struct Run {
    hashes: Vec<Name>,
    parent: Option<Name>,
    #[serde(default)]
    tokens: Vec<u32>,
    #[serde(default)]
    block_size: u32,
    tier: Option<TierName>,
    lora: Option<String>,
    salt: Option<String>,
}

#[derive(Deserialize)]
struct Sum {
    count: u64,
    xor: Name,
}

/// An engine's hash: a number of either sign, or hexadecimal digits of any even number.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Written")]
struct Name(EngineHash);

#[derive(Deserialize)]
#[serde(untagged, expecting = "a hash as a number or as hexadecimal digits")]
enum Written {
    Unsigned(u64),
    Signed(i64),
    Digits(String),
}

impl TryFrom<Written> for Name {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        Ok(Self(match written {
            Written::Unsigned(hash) => hash.into(),
            Written::Signed(hash) => hash.into(),
            Written::Digits(digits) => {
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
pub struct Pushed {
    /// The pod it is about.
    pub pod: PodName,
    /// What is said, in order.
    pub said: Vec<Said>,
}

impl Pushed {
    /// Reads a request.
    ///
    /// # Errors
    /// There is no such path, or its body is not what it should be.
    pub fn parse(path: &str, body: &[u8]) -> Result<Self, PushError> {
        let meaning = meaning(path)?;
        let body: Body = serde_json::from_slice(body).map_err(|error| PushError::Json {
            path: path.to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Self { said: meaning(&body, path)?, pod: body.pod.into() })
    }
}

type Meaning = fn(&Body, &str) -> Result<Vec<Said>, PushError>;

fn meaning(path: &str) -> Result<Meaning, PushError> {
    Ok(match path {
        "/events/register" => |body, _| Ok(register(body)),
        "/events/stored" => stored,
        "/events/evicted" | "/internal/eviction" => evicted,
        "/events/sync" | "/internal/sync" => sync,
        "/events/digest" => digest,
        "/events/bye" => |_, _| Ok(vec![Said::Bye]),
        _ => return Err(PushError::Path { path: path.to_owned() }),
    })
}

impl Body {
    fn heading(&self) -> Heading {
        Heading { epoch: self.epoch.map(Epoch), sequence: self.sequence, fingerprint: None }
    }

    fn tier(&self) -> Tier {
        self.tier.map_or(Tier::Gpu, |tier| tier.0)
    }
}

fn missing(path: &str, field: &'static str, expected: &'static str) -> PushError {
    PushError::Missing { path: path.to_owned(), field, expected }
}

fn register(body: &Body) -> Vec<Said> {
    vec![body.epoch.map_or(Said::Alive, |epoch| Said::Started(Epoch(epoch)))]
}

fn stored(body: &Body, path: &str) -> Result<Vec<Said>, PushError> {
    let runs = body.stored.as_deref().ok_or(missing(path, "stored", "a list of stored blocks"))?;
    let mut batch = Box::<Batch>::default();
    runs.iter().for_each(|run| push_run(&mut batch, run));
    Ok(vec![Said::Batch { heading: body.heading(), via: Via::Live, batch }])
}

fn evicted(body: &Body, path: &str) -> Result<Vec<Said>, PushError> {
    let names = body.evicted.as_deref().ok_or(missing(path, "evicted", "a list of hashes"))?;
    let mut batch = Box::<Batch>::default();
    let blocks = hashes(names);
    batch.push(Event::Removed(Removed { blocks: &blocks, tier: body.tier(), group: None }));
    Ok(vec![Said::Batch { heading: body.heading(), via: Via::Live, batch }])
}

fn sync(body: &Body, path: &str) -> Result<Vec<Said>, PushError> {
    let mut batch = Box::<Batch>::default();
    match (&body.stored, &body.active) {
        (None, None) => return Err(missing(path, "active", "a list of hashes, or `stored`")),
        (runs, names) => {
            runs.iter().flatten().for_each(|run| push_run(&mut batch, run));
            // Of bare names it is not known which follows which, so each stands for itself.
            for name in names.iter().flatten() {
                batch.push(Event::Stored(named(&[name.0], body.tier())));
            }
        }
    }
    Ok(vec![Said::Snapshot { heading: body.heading(), batch }])
}

fn digest(body: &Body, path: &str) -> Result<Vec<Said>, PushError> {
    let sums = body.tiers.as_ref().ok_or(missing(path, "tiers", "count and xor by tier"))?;
    let mut tiers = [Digest::default(); 4];
    for (tier, sum) in sums {
        tiers[tier.0 as usize] = Digest { count: sum.count, xor: sum.xor.0.0 };
    }
    let Heading { epoch, sequence, .. } = body.heading();
    Ok(vec![Said::Digest(EngineDigest { epoch, sequence, tiers })])
}

fn push_run(batch: &mut Batch, run: &Run) {
    let blocks = hashes(&run.hashes);
    let keys = with_salt(run.salt.as_deref().filter(|_| run.parent.is_none()), blocks.len());
    batch.push(Event::Stored(Stored {
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
        keys.push(&[ExtraKey::Text(salt)]);
        (1..blocks).for_each(|_| keys.push(&[]));
    }
    keys
}

/// Blocks of which nothing is known but their names.
pub(super) fn named(blocks: &[EngineHash], tier: Tier) -> Stored<'_> {
    Stored {
        blocks,
        parent: None,
        tokens: &[],
        block_size: 0,
        lora_id: None,
        lora_name: None,
        tier,
        extra_keys: Default::default(),
        group: None,
        attention: Attention::Unsaid,
    }
}

fn hashes(names: &[Name]) -> Vec<EngineHash> {
    names.iter().map(|name| name.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(path: &str, body: &str) -> (PodName, Said) {
        let Pushed { pod, mut said } = Pushed::parse(path, body.as_bytes()).unwrap();
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
        let Said::Batch { heading, batch, .. } = said else { panic!("{said:?}") };
        assert_eq!((&*pod, heading.epoch, heading.sequence), ("a", Some(Epoch(3)), Some(9)));
        let Some(Event::Stored(stored)) = batch.events().next() else { panic!() };
        assert_eq!(stored.blocks, [1, 2, u64::MAX].map(EngineHash));
        assert_eq!((stored.tokens, stored.block_size), (&[5, 5, 6, 6, 7, 7][..], 2));
        assert_eq!((stored.tier, stored.extra_keys.len()), (Tier::Host, 3));
        assert!(stored.extra_keys.block(0).eq([ExtraKey::Text("t")]));
    }

    #[test]
    fn a_salt_keys_the_first_block_of_a_prompt_and_none_that_goes_on() {
        let (_, said) = one(
            "/events/stored",
            r#"{"pod": "a", "stored": [{"hashes": [2], "parent": 1, "tokens": [6, 6], "block_size": 2,
               "salt": "t"}]}"#,
        );
        let Said::Batch { batch, .. } = said else { panic!("{said:?}") };
        let Some(Event::Stored(stored)) = batch.events().next() else { panic!() };
        assert_eq!((stored.parent, stored.extra_keys.len()), (Some(EngineHash(1)), 0));
    }

    #[test]
    fn the_older_paths_mean_the_same() {
        let (pod, said) =
            one("/internal/eviction", r#"{"worker_id": "b", "evicted_hashes": ["ff", 7]}"#);
        let Said::Batch { batch, heading, .. } = said else { panic!("{said:?}") };
        assert_eq!((&*pod, heading), ("b", Heading::default()));
        let expected =
            Removed { blocks: &[EngineHash(255), EngineHash(7)], tier: Tier::Gpu, group: None };
        assert!(batch.events().eq([Event::Removed(expected)]));

        let (_, said) = one("/internal/sync", r#"{"worker_id": "b", "active_hashes": [4, 5]}"#);
        let Said::Snapshot { batch, .. } = said else { panic!("{said:?}") };
        assert_eq!(batch.len(), 2);
    }

    #[test]
    fn a_digest_is_read_by_tier() {
        let (_, said) = one(
            "/events/digest",
            r#"{"pod": "a", "sequence": 1, "tiers": {"GPU": {"count": 2, "xor": "3"}}}"#,
        );
        let Said::Digest(digest) = said else { panic!("{said:?}") };
        assert_eq!(digest.tiers[0], Digest { count: 2, xor: 3 });
        assert_eq!(digest.sequence, Some(1));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refusal =
            |path: &str, body: &str| Pushed::parse(path, body.as_bytes()).unwrap_err().to_string();
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
