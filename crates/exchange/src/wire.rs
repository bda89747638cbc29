//! The encoding of an update: lengths and numbers in 7 bits a byte, block hashes in 8 bytes.
//!
//! Every length is checked against the bytes that are left before memory is reserved for it, so a
//! peer cannot make a router reserve more than it sends.

use crate::report::{Origin, PodReport, RouterId, TenantReport};
use crate::update::{Scope, SentBlocks, Update};
use wornpath_blocks::BlockHash;
use wornpath_routing::RouterLoad;

/// The longest update, in bytes.
pub const MAX_UPDATE: usize = 4 << 20;
/// The first byte of every update.
const VERSION: u8 = 1;
/// The longest name of a pod or a tenant, in bytes.
const MAX_NAME: usize = 1024;

/// Why bytes are no update.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// A field is cut off.
    #[error("`{0}` is cut off")]
    Short(&'static str),
    /// Bytes follow the last field.
    #[error("{0} bytes follow the last field")]
    Long(usize),
    /// The peer speaks another version of the encoding.
    #[error("version {0}; this router reads version {VERSION}")]
    Version(u8),
    /// A field has an impossible value.
    #[error("`{0}` has an impossible value")]
    Value(&'static str),
    /// The update is too long.
    #[error("{0} bytes; at most {MAX_UPDATE} are read")]
    TooLong(usize),
}

impl Update {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, u8::from(self.scope == Scope::Full)];
        out.extend(self.origin.router.0.to_le_bytes());
        out.extend(self.origin.started.to_le_bytes());
        number(&mut out, self.sequence);
        number(&mut out, self.pods.len() as u64);
        for (name, report) in &self.pods {
            text(&mut out, name);
            pod(&mut out, report);
        }
        number(&mut out, self.tenants.len() as u64);
        for (name, report) in &self.tenants {
            text(&mut out, name);
            tenant(&mut out, report);
        }
        number(&mut out, self.sent.len() as u64);
        for sent in &self.sent {
            text(&mut out, &sent.pod);
            number(&mut out, sent.block_tokens.into());
            number(&mut out, sent.lifetime_ms.into());
            out.push(u8::from(sent.parent.is_some()));
            out.extend(sent.parent.iter().flat_map(|parent| parent.0.to_le_bytes()));
            number(&mut out, sent.blocks.len() as u64);
            out.extend(sent.blocks.iter().flat_map(|block| block.0.to_le_bytes()));
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are not exactly one update.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MAX_UPDATE {
            return Err(DecodeError::TooLong(bytes.len()));
        }
        let mut fields = Fields(bytes);
        match fields.byte("version")? {
            VERSION => {}
            other => return Err(DecodeError::Version(other)),
        }
        let scope = if fields.flag("scope")? { Scope::Full } else { Scope::Changes };
        let router = RouterId(fields.word("router")?);
        let origin = Origin { router, started: fields.word("started")? };
        let sequence = fields.number("sequence")?;
        let mut pods = Vec::new();
        for _ in 0..fields.count("pods")? {
            pods.push((fields.text("pod")?, fields.pod()?));
        }
        let mut tenants = Vec::new();
        for _ in 0..fields.count("tenants")? {
            tenants.push((fields.text("tenant")?, fields.tenant()?));
        }
        let mut sent = Vec::new();
        for _ in 0..fields.count("sent")? {
            sent.push(fields.sent()?);
        }
        match fields.0.len() {
            0 => Ok(Self { origin, sequence, scope, pods, tenants, sent }),
            rest => Err(DecodeError::Long(rest)),
        }
    }
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Small for numbers near zero, of either sign.
fn signed(out: &mut Vec<u8>, value: i64) {
    number(out, (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned());
}

fn maybe(out: &mut Vec<u8>, value: Option<i64>) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        signed(out, value);
    }
}

/// A longer name than can be read is cut, and names no pod.
fn text(out: &mut Vec<u8>, text: &str) {
    let cut = text.floor_char_boundary(MAX_NAME);
    number(out, cut as u64);
    out.extend(&text.as_bytes()[..cut]);
}

fn pod(out: &mut Vec<u8>, report: &PodReport) {
    let PodReport { load, computed_tokens, computed_pairs } = *report;
    number(out, load.requests.into());
    number(out, load.decoding.into());
    for value in [
        load.prefill_tokens,
        load.prefill_pairs,
        load.decode_tokens,
        load.unanswered_tokens,
        load.in_flight_tokens,
        computed_tokens,
        computed_pairs,
    ] {
        number(out, value);
    }
}

fn tenant(out: &mut Vec<u8>, report: &TenantReport) {
    number(out, report.in_flight.into());
    number(out, report.requests);
    signed(out, report.tokens);
    maybe(out, report.requests_left);
    maybe(out, report.tokens_left);
}

/// The bytes that are left.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize, name: &'static str) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Short(name))?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self, name: &'static str) -> Result<u8, DecodeError> {
        Ok(self.take(1, name)?[0])
    }

    fn flag(&mut self, name: &'static str) -> Result<bool, DecodeError> {
        match self.byte(name)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value(name)),
        }
    }

    fn word(&mut self, name: &'static str) -> Result<u64, DecodeError> {
        let (word, rest) = self.0.split_first_chunk().ok_or(DecodeError::Short(name))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn number(&mut self, name: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(name)?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << shift;
            if shifted >> shift != bits {
                return Err(DecodeError::Value(name));
            }
            value |= shifted;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Value(name))
    }

    fn narrow(&mut self, name: &'static str) -> Result<u32, DecodeError> {
        u32::try_from(self.number(name)?).map_err(|_| DecodeError::Value(name))
    }

    fn signed(&mut self, name: &'static str) -> Result<i64, DecodeError> {
        let bits = self.number(name)?;
        Ok((bits >> 1).cast_signed() ^ -(bits & 1).cast_signed())
    }

    fn maybe(&mut self, name: &'static str) -> Result<Option<i64>, DecodeError> {
        if self.flag(name)? { self.signed(name).map(Some) } else { Ok(None) }
    }

    /// A number of items, each of which takes a byte at least.
    fn count(&mut self, name: &'static str) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.number(name)?).map_err(|_| DecodeError::Value(name))?;
        if count > self.0.len() { Err(DecodeError::Short(name)) } else { Ok(count) }
    }

    fn text(&mut self, name: &'static str) -> Result<String, DecodeError> {
        let length = self.count(name)?;
        if length > MAX_NAME {
            return Err(DecodeError::Value(name));
        }
        let text = str::from_utf8(self.take(length, name)?);
        text.map(str::to_owned).map_err(|_| DecodeError::Value(name))
    }

    fn pod(&mut self) -> Result<PodReport, DecodeError> {
        let load = RouterLoad {
            requests: self.narrow("requests")?,
            decoding: self.narrow("decoding")?,
            prefill_tokens: self.amount("prefill tokens")?,
            prefill_pairs: self.amount("prefill pairs")?,
            decode_tokens: self.amount("decode tokens")?,
            unanswered_tokens: self.amount("unanswered tokens")?,
            in_flight_tokens: self.amount("tokens in flight")?,
        };
        let computed_tokens = self.number("computed tokens")?;
        Ok(PodReport { load, computed_tokens, computed_pairs: self.number("computed pairs")? })
    }

    /// A number that can be added up without an overflow: 4,096 routers with 2^50 pairs each.
    fn amount(&mut self, name: &'static str) -> Result<u64, DecodeError> {
        let amount = self.number(name)?;
        if amount >> 56 == 0 { Ok(amount) } else { Err(DecodeError::Value(name)) }
    }

    fn tenant(&mut self) -> Result<TenantReport, DecodeError> {
        Ok(TenantReport {
            in_flight: self.narrow("in flight")?,
            requests: self.number("requests")?,
            tokens: self.signed("tokens")?,
            requests_left: self.maybe("requests left")?,
            tokens_left: self.maybe("tokens left")?,
        })
    }

    fn sent(&mut self) -> Result<SentBlocks, DecodeError> {
        let pod = self.text("pod")?;
        let block_tokens = self.narrow("block tokens")?;
        let lifetime_ms = self.narrow("lifetime")?;
        let has_parent = self.flag("parent")?;
        let parent = if has_parent { Some(BlockHash(self.word("parent")?)) } else { None };
        let count = self.count("blocks")?;
        let bytes = self.take(count.saturating_mul(8), "blocks")?;
        let (words, _) = bytes.as_chunks();
        let blocks = words.iter().map(|word| BlockHash(u64::from_le_bytes(*word))).collect();
        Ok(SentBlocks { pod, parent, block_tokens, lifetime_ms, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number_() -> impl Strategy<Value = u64> {
        prop_oneof![0..300_u64, Just((1 << 56) - 1), any::<u64>().prop_map(|it| it >> 8)]
    }

    fn pods() -> impl Strategy<Value = (String, PodReport)> {
        let numbers = prop::collection::vec(number_(), 7);
        (".{0,9}", any::<[u32; 2]>(), numbers).prop_map(|(name, [requests, decoding], all)| {
            let load = RouterLoad {
                requests,
                decoding,
                prefill_tokens: all[0],
                prefill_pairs: all[1],
                decode_tokens: all[2],
                unanswered_tokens: all[3],
                in_flight_tokens: all[4],
            };
            (name, PodReport { load, computed_tokens: all[5], computed_pairs: all[6] })
        })
    }

    fn tenants() -> impl Strategy<Value = (String, TenantReport)> {
        let left = any::<(Option<i64>, Option<i64>)>();
        (".{0,9}", any::<(u32, u64, i64)>(), left).prop_map(|(name, used, left)| {
            let (in_flight, requests, tokens) = used;
            let (requests_left, tokens_left) = left;
            (name, TenantReport { in_flight, requests, tokens, requests_left, tokens_left })
        })
    }

    fn sent() -> impl Strategy<Value = SentBlocks> {
        let blocks = prop::collection::vec(any::<u64>().prop_map(BlockHash), 0..9);
        (".{0,9}", any::<Option<u64>>(), any::<[u32; 2]>(), blocks).prop_map(
            |(pod, parent, [block_tokens, lifetime_ms], blocks)| {
                let parent = parent.map(BlockHash);
                SentBlocks { pod, parent, block_tokens, lifetime_ms, blocks }
            },
        )
    }

    prop_compose! {
        fn updates()(
            ids in any::<[u64; 3]>(),
            is_full in any::<bool>(),
            pods in prop::collection::vec(pods(), 0..4),
            tenants in prop::collection::vec(tenants(), 0..4),
            sent in prop::collection::vec(sent(), 0..4),
        ) -> Update {
            let [router, started, sequence] = ids;
            let origin = Origin { router: RouterId(router), started };
            let scope = if is_full { Scope::Full } else { Scope::Changes };
            Update { origin, sequence, scope, pods, tenants, sent }
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_and_no_part_of_it_is_an_update(
            update in updates(),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = update.encode();
            prop_assert_eq!(Update::decode(&bytes), Ok(update));
            prop_assert!(Update::decode(&bytes[..cut.index(bytes.len())]).is_err());
            let longer = [&bytes[..], &[0]].concat();
            prop_assert_eq!(Update::decode(&longer), Err(DecodeError::Long(1)));
        }

        #[test]
        fn changed_bytes_are_refused_or_are_another_update(
            update in updates(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let mut bytes = update.encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(decoded) = Update::decode(&bytes) {
                prop_assert_eq!(Update::decode(&decoded.encode()), Ok(decoded));
            }
        }
    }

    #[test]
    fn a_length_beyond_the_bytes_is_refused_before_memory_is_reserved() {
        let origin = Origin { router: RouterId(1), started: 2 };
        let empty = Update {
            origin,
            sequence: 3,
            scope: Scope::Changes,
            pods: Vec::new(),
            tenants: Vec::new(),
            sent: Vec::new(),
        };
        let bytes = empty.encode();
        let head = &bytes[..bytes.len() - 3];
        let mut lying = head.to_vec();
        number(&mut lying, u64::MAX >> 1);
        assert_eq!(Update::decode(&lying), Err(DecodeError::Short("pods")));
        let error = Update::decode(&[VERSION + 1]).unwrap_err();
        assert_eq!(error.to_string(), "version 2; this router reads version 1");
        let error = Update::decode(&vec![VERSION; MAX_UPDATE + 1]).unwrap_err();
        assert_eq!(error, DecodeError::TooLong(MAX_UPDATE + 1));
    }
}
