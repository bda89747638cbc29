//! Decodes a msgpack payload of vLLM or SGLang into a [`WireBatch`].
//!
//! Both engines encoded events as arrays with the tag first; vLLM switched to maps with a `type` in
//! 0.24. The batch and each event may have either layout, and new fields are added at the end:
//! unknown keys and further elements are skipped, unknown event types are counted. A known field of
//! the wrong type refuses the whole message: half a batch is worse than a known gap.
//!
//! Behind `medium` the arrays of both engines differ: vLLM goes on with the adapter's name, the extra
//! keys, the group and more, SGLang ends with the salt, the session and the adapter's name. Types
//! tell them apart, and for the first of the three the length: a short array of vLLM has a name only
//! with a number (`lora_id`).

use super::batch::{EventSlot, RemovedSlot, StoredSlot, WireBatch};
use super::error::DecodeError;
use super::extra::{Span, WireExtraKey};
use super::msgpack::MsgpackReader;
use wornpath_index::Tier;

/// Decodes `payload` into `batch`, which is cleared first. After an error the batch is empty.
///
/// # Errors
/// The payload is not a batch of cache events, or exceeds a limit.
pub fn decode(
    payload: &[u8],
    limits: &WireLimits,
    batch: &mut WireBatch,
) -> Result<(), DecodeError> {
    batch.clear();
    let limit = limits.payload_bytes.min(u32::MAX as usize);
    at_most("payload", payload.len(), limit)?;
    let mut decoder = Decoder { reader: MsgpackReader::new(payload), limits, batch };
    let result = decoder.batch();
    if result.is_err() {
        batch.clear();
    }
    result
}

pub(super) struct Decoder<'a, 'b> {
    pub(super) reader: MsgpackReader<'a>,
    pub(super) limits: &'b WireLimits,
    pub(super) batch: &'b mut WireBatch,
}

#[derive(Clone, Copy)]
enum BatchField {
    SentAt,
    Events,
    DpRank,
    Unknown,
}

#[derive(Clone, Copy)]
enum Field {
    Blocks,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    Salt,
    ExtraKeys,
    Group,
    Attention,
    Locality,
    Unknown,
}

/// The order of the array form; the map form uses the names.
const STORED: [(&[u8], Field); 12] = [
    (b"block_hashes", Field::Blocks),
    (b"parent_block_hash", Field::Parent),
    (b"token_ids", Field::Tokens),
    (b"block_size", Field::BlockSize),
    (b"lora_id", Field::LoraId),
    (b"medium", Field::Medium),
    (b"lora_name", Field::LoraName),
    (b"extra_keys", Field::ExtraKeys),
    (b"group_idx", Field::Group),
    (b"kv_cache_spec_kind", Field::Attention),
    (b"kv_cache_spec_sliding_window", Field::Unknown),
    (b"locality", Field::Locality),
];
/// SGLang's name of a field that its arrays have where vLLM has the adapter's name.
const SALT: &[u8] = b"cache_salt";
/// The most fields of an array of SGLang.
const SGLANG_FIELDS: usize = 9;

const REMOVED: [(&[u8], Field); 4] = [
    (b"block_hashes", Field::Blocks),
    (b"medium", Field::Medium),
    (b"group_idx", Field::Group),
    (b"locality", Field::Locality),
];

/// How the fields of an event are identified.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// By position, after the tag.
    Array,
    /// By key.
    Map,
}

impl<'a> Decoder<'a, '_> {
    fn batch(&mut self) -> Result<(), DecodeError> {
        let (fields, layout) = match self.reader.peek("batch")? {
            0x90..=0x9f | 0xdc | 0xdd => (self.reader.array("batch")?, Layout::Array),
            0x80..=0x8f | 0xde | 0xdf => (self.reader.map("batch")?, Layout::Map),
            _ => return Err(self.reader.unexpected("batch", "an array or a map")),
        };
        let mut has_events = false;
        for position in 0..fields {
            let field = match layout {
                Layout::Array => [BatchField::SentAt, BatchField::Events, BatchField::DpRank]
                    .get(position)
                    .copied()
                    .unwrap_or(BatchField::Unknown),
                Layout::Map => self.batch_key()?,
            };
            match field {
                BatchField::SentAt => self.batch.sent_at = self.reader.f64("batch.ts")?,
                BatchField::Events if !has_events => {
                    has_events = true;
                    self.events()?;
                }
                BatchField::DpRank => {
                    self.batch.dp_rank = self.optional_u32("batch.data_parallel_rank")?;
                }
                BatchField::Events | BatchField::Unknown => self.reader.skip("batch")?,
            }
        }
        if !has_events {
            return Err(DecodeError::Missing { field: "batch.events", expected: "an array" });
        }
        match self.reader.remaining() {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { at: self.reader.position(), bytes }),
        }
    }

    fn batch_key(&mut self) -> Result<BatchField, DecodeError> {
        Ok(match self.key("batch")? {
            Some(b"ts") => BatchField::SentAt,
            Some(b"events") => BatchField::Events,
            Some(b"data_parallel_rank" | b"attn_dp_rank" | b"dp_rank") => BatchField::DpRank,
            _ => BatchField::Unknown,
        })
    }

    fn events(&mut self) -> Result<(), DecodeError> {
        let events = self.reader.array("batch.events")?;
        at_most("batch.events", events, self.limits.events)?;
        for _ in 0..events {
            match self.reader.peek("event")? {
                0x90..=0x9f | 0xdc | 0xdd => self.array_event()?,
                0x80..=0x8f | 0xde | 0xdf => self.map_event()?,
                _ => return Err(self.reader.unexpected("event", "an array or a map")),
            }
        }
        Ok(())
    }

    fn array_event(&mut self) -> Result<(), DecodeError> {
        let elements = self.reader.array("event")?;
        let Some(fields) = elements.checked_sub(1) else {
            return Err(DecodeError::Missing { field: "event", expected: "its type" });
        };
        let tag = self.reader.text("event type")?;
        self.event(tag, fields, Layout::Array)
    }

    /// The type may be anywhere in the map, though engines put it first.
    fn map_event(&mut self) -> Result<(), DecodeError> {
        let fields = self.reader.map("event")?;
        let mut ahead = self.reader;
        for _ in 0..fields {
            let is_type = key(&mut ahead, "event")? == Some(b"type");
            if is_type {
                let tag = ahead.text("event type")?;
                return self.event(tag, fields, Layout::Map);
            }
            ahead.skip("event")?;
        }
        Err(DecodeError::Missing { field: "event", expected: "a `type`" })
    }

    fn event(&mut self, tag: &[u8], fields: usize, layout: Layout) -> Result<(), DecodeError> {
        let slot = match tag {
            b"BlockStored" => EventSlot::Stored(self.stored(fields, layout)?),
            b"BlockRemoved" => EventSlot::Removed(self.removed(fields, layout)?),
            b"AllBlocksCleared" => {
                self.skip_fields(fields, layout)?;
                EventSlot::Cleared
            }
            _ => {
                self.batch.unknown_events += 1;
                return self.skip_fields(fields, layout);
            }
        };
        self.batch.slots.push(slot);
        Ok(())
    }

    fn skip_fields(&mut self, fields: usize, layout: Layout) -> Result<(), DecodeError> {
        let values = match layout {
            Layout::Array => fields,
            Layout::Map => 2 * fields,
        };
        (0..values).try_for_each(|_| self.reader.skip("event"))
    }

    fn stored(&mut self, fields: usize, layout: Layout) -> Result<StoredSlot, DecodeError> {
        let mut slot = StoredSlot::default();
        let mut blocks = None;
        let mut salt = None;
        let mut remote = false;
        for position in 0..fields {
            let field = self.field(&STORED, position, layout)?;
            let is_short = layout == Layout::Array && fields <= SGLANG_FIELDS;
            match if is_short { self.in_short_array(field, &slot)? } else { field } {
                Field::Blocks => blocks = Some(self.hashes("BlockStored.block_hashes")?),
                Field::Parent => slot.parent = self.optional_hash()?,
                Field::Tokens => slot.tokens = self.tokens()?,
                Field::BlockSize => {
                    slot.block_size = self.optional_u32("BlockStored.block_size")?.unwrap_or(0);
                }
                Field::LoraId => slot.lora_id = self.optional_u32("BlockStored.lora_id")?,
                Field::Medium => slot.tier = self.tier("BlockStored.medium")?,
                Field::LoraName => slot.lora_name = self.lora_name()?,
                Field::Salt => salt = self.salt()?,
                Field::ExtraKeys => slot.extra_keys = self.extra_keys()?,
                Field::Group => slot.group = self.optional_u32("BlockStored.group_idx")?,
                Field::Attention => slot.attention = self.attention()?,
                Field::Locality => remote = self.is_remote("BlockStored.locality")?,
                Field::Unknown => self.reader.skip("BlockStored")?,
            }
        }
        if remote {
            slot.tier = Some(Tier::Other);
        }
        slot.blocks = required(blocks, "BlockStored.block_hashes")?;
        // As vLLM sends it: among the keys of a prompt's first block. The others are chained to it.
        if let (Some(salt), None, true) = (salt, slot.parent, slot.extra_keys.is_empty()) {
            slot.extra_keys = self.salted(salt, slot.blocks.len());
        }
        Ok(slot)
    }

    /// The field that an element of a short array is, which may be one of SGLang's.
    fn in_short_array(&self, field: Field, slot: &StoredSlot) -> Result<Field, DecodeError> {
        let is_moved = matches!(field, Field::LoraName | Field::ExtraKeys | Field::Group);
        let is_text = |byte: u8| matches!(byte, 0xa0..=0xbf | 0xd9..=0xdb);
        if !is_moved || !is_text(self.reader.peek("BlockStored")?) {
            return Ok(field);
        }
        Ok(match field {
            Field::LoraName if slot.lora_id.is_none() => Field::Salt,
            // The session.
            Field::ExtraKeys => Field::Unknown,
            _ => Field::LoraName,
        })
    }

    /// Extra keys of that many blocks, of which the first has a salt.
    fn salted(&mut self, salt: &str, blocks: usize) -> Span {
        let keys = &mut self.batch.extra_keys;
        let first = keys.block_count();
        for block in 0..blocks {
            let own: &[WireExtraKey<'_>] = &[WireExtraKey::Text(salt)];
            keys.push(if block == 0 { own } else { &[] });
        }
        Span::new(first, keys.block_count())
    }

    fn removed(&mut self, fields: usize, layout: Layout) -> Result<RemovedSlot, DecodeError> {
        let mut slot = RemovedSlot::default();
        let mut blocks = None;
        let mut remote = false;
        for position in 0..fields {
            match self.field(&REMOVED, position, layout)? {
                Field::Blocks => blocks = Some(self.hashes("BlockRemoved.block_hashes")?),
                Field::Medium => slot.tier = self.tier("BlockRemoved.medium")?,
                Field::Group => slot.group = self.optional_u32("BlockRemoved.group_idx")?,
                Field::Locality => remote = self.is_remote("BlockRemoved.locality")?,
                _ => self.reader.skip("BlockRemoved")?,
            }
        }
        if remote {
            slot.tier = Some(Tier::Other);
        }
        slot.blocks = required(blocks, "BlockRemoved.block_hashes")?;
        Ok(slot)
    }

    fn field(
        &mut self,
        fields: &[(&[u8], Field)],
        position: usize,
        layout: Layout,
    ) -> Result<Field, DecodeError> {
        let known = match layout {
            Layout::Array => fields.get(position),
            Layout::Map => {
                let key = self.key("event")?;
                if key == Some(SALT) {
                    return Ok(Field::Salt);
                }
                fields.iter().find(|(name, _)| Some(*name) == key)
            }
        };
        Ok(known.map_or(Field::Unknown, |(_, field)| *field))
    }

    fn key(&mut self, field: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
        key(&mut self.reader, field)
    }
}

/// A map's key; `None` for one that is not a string, which is unknown.
fn key<'a>(
    reader: &mut MsgpackReader<'a>,
    field: &'static str,
) -> Result<Option<&'a [u8]>, DecodeError> {
    match reader.peek(field)? {
        0xa0..=0xbf | 0xd9..=0xdb => reader.text(field).map(Some),
        _ => reader.skip(field).map(|()| None),
    }
}

fn required(span: Option<Span>, field: &'static str) -> Result<Span, DecodeError> {
    span.ok_or(DecodeError::Missing { field, expected: "an array of hashes" })
}

/// Limits of one message, which bound the memory of a batch whatever an engine sends.
#[derive(Clone, Copy, Debug)]
pub struct WireLimits {
    /// Bytes of the payload.
    pub payload_bytes: usize,
    /// Events, unknown ones included.
    pub events: usize,
    /// Block hashes over all events.
    pub blocks: usize,
    /// Token ids over all events.
    pub tokens: usize,
}

impl Default for WireLimits {
    /// An engine that fills a cache of a million tokens in one step stays well below these.
    fn default() -> Self {
        Self { payload_bytes: 32 << 20, events: 1 << 18, blocks: 1 << 20, tokens: 1 << 23 }
    }
}

pub(super) fn at_most(field: &'static str, found: usize, limit: usize) -> Result<(), DecodeError> {
    if found > limit { Err(DecodeError::TooLarge { field, found, limit }) } else { Ok(()) }
}
