//! Decodes the fields of an event, and checks their types.

use super::batch::GroupAttention;
use super::decode::Decoder;
use super::decode::at_most;
use super::error::DecodeError;
use super::extra::Span;
use super::msgpack::Int;
use wornpath_index::{EngineHash, Tier};

impl<'a> Decoder<'a, '_> {
    pub(super) fn hashes(&mut self, field: &'static str) -> Result<Span, DecodeError> {
        let count = self.reader.array(field)?;
        let start = self.batch.hashes.len();
        at_most(field, start + count, self.limits.blocks)?;
        self.batch.hashes.reserve(count);
        for _ in 0..count {
            let hash = self.hash(field)?;
            self.batch.hashes.push(hash);
        }
        Ok(Span::new(start, self.batch.hashes.len()))
    }

    #[inline]
    fn hash(&mut self, field: &'static str) -> Result<EngineHash, DecodeError> {
        match self.reader.peek(field)? {
            0xc4..=0xc6 => {
                let at = self.reader.position();
                let digest = self.reader.binary(field)?;
                if digest.is_empty() {
                    let found = "empty bytes";
                    let expected = "a hash";
                    return Err(DecodeError::Unexpected { field, at, found, expected });
                }
                Ok(EngineHash::from_digest(digest))
            }
            0x00..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff => Ok(match self.reader.int(field)? {
                Int::Unsigned(value) => value.into(),
                Int::Negative(value) => value.into(),
            }),
            _ => Err(self.reader.unexpected(field, "a hash (an integer or bytes)")),
        }
    }

    pub(super) fn optional_hash(&mut self) -> Result<Option<EngineHash>, DecodeError> {
        const FIELD: &str = "BlockStored.parent_block_hash";
        if self.reader.nil(FIELD)? { Ok(None) } else { self.hash(FIELD).map(Some) }
    }

    pub(super) fn tokens(&mut self) -> Result<Span, DecodeError> {
        const FIELD: &str = "BlockStored.token_ids";
        let start = self.batch.tokens.len();
        if self.reader.nil(FIELD)? {
            return Ok(Span::new(start, start));
        }
        let count = self.reader.array(FIELD)?;
        at_most(FIELD, start + count, self.limits.tokens)?;
        self.batch.tokens.reserve(count);
        for _ in 0..count {
            let token = self.reader.u32(FIELD)?;
            self.batch.tokens.push(token);
        }
        Ok(Span::new(start, self.batch.tokens.len()))
    }

    pub(super) fn optional_u32(&mut self, field: &'static str) -> Result<Option<u32>, DecodeError> {
        if self.reader.nil(field)? { Ok(None) } else { self.reader.u32(field).map(Some) }
    }

    fn optional_text(&mut self, field: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
        if self.reader.nil(field)? { Ok(None) } else { self.reader.text(field).map(Some) }
    }

    pub(super) fn tier(&mut self, field: &'static str) -> Result<Option<Tier>, DecodeError> {
        Ok(self.optional_text(field)?.map(tier_by_name))
    }

    /// A remote copy, which the publisher can reach but does not hold, is on none of its own tiers.
    pub(super) fn is_remote(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        let locality = self.optional_text(field)?;
        Ok(locality.is_some_and(|text| text.eq_ignore_ascii_case(b"REMOTE")))
    }

    pub(super) fn lora_name(&mut self) -> Result<Option<Span>, DecodeError> {
        let name = self.optional_str("BlockStored.lora_name")?;
        Ok(name.map(|name| self.batch.keep_name(name)))
    }

    /// An empty salt is none.
    pub(super) fn salt(&mut self) -> Result<Option<&'a str>, DecodeError> {
        Ok(self.optional_str("BlockStored.cache_salt")?.filter(|salt| !salt.is_empty()))
    }

    fn optional_str(&mut self, field: &'static str) -> Result<Option<&'a str>, DecodeError> {
        let at = self.reader.position();
        let Some(text) = self.optional_text(field)? else { return Ok(None) };
        let text = std::str::from_utf8(text).map_err(|_| DecodeError::Unexpected {
            field,
            at,
            found: "bytes that are not UTF-8",
            expected: "UTF-8",
        })?;
        Ok(Some(text))
    }

    pub(super) fn attention(&mut self) -> Result<GroupAttention, DecodeError> {
        const FULL: [&[u8]; 4] = [b"full_attention", b"mla", b"sink_full", b"sink full"];
        let Some(kind) = self.optional_text("BlockStored.kv_cache_spec_kind")? else {
            return Ok(GroupAttention::Unspecified);
        };
        let starts_with = |prefix: &&[u8]| {
            kind.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        };
        Ok(if FULL.iter().any(starts_with) {
            GroupAttention::Full
        } else {
            GroupAttention::Partial
        })
    }

    pub(super) fn extra_keys(&mut self) -> Result<Span, DecodeError> {
        const FIELD: &str = "BlockStored.extra_keys";
        let first = self.batch.extra_keys.block_count();
        if self.reader.nil(FIELD)? {
            return Ok(Span::new(first, first));
        }
        let count = self.reader.array(FIELD)?;
        at_most(FIELD, first + count, self.limits.blocks)?;
        for _ in 0..count {
            if self.reader.nil(FIELD)? {
                self.batch.extra_keys.push_msgpack(&[]);
                continue;
            }
            let values = self.reader.array(FIELD)?;
            let start = self.reader.position();
            (0..values).try_for_each(|_| self.reader.skip(FIELD))?;
            self.batch.extra_keys.push_msgpack(self.reader.since(start));
        }
        Ok(Span::new(first, self.batch.extra_keys.block_count()))
    }
}

/// The tier of an engine's medium. Engines differ in upper and lower case.
pub(crate) fn tier_by_name(name: &[u8]) -> Tier {
    const MEDIA: [(&[u8], Tier); 6] = [
        (b"GPU", Tier::Gpu),
        (b"CPU", Tier::Host),
        (b"CPU_PINNED", Tier::Host),
        (b"HOST", Tier::Host),
        (b"STORAGE", Tier::Disk),
        (b"DISK", Tier::Disk),
    ];
    let known = MEDIA.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    known.map_or(Tier::Other, |(_, tier)| *tier)
}
