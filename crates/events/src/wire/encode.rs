//! Encodes a [`WireBatch`] as an engine does: for relays, simulated engines and tests of the
//! decoder.

use super::batch::{GroupAttention, WireBatch, WireEvent, WireRemoved, WireStored};
use super::extra::WireExtraKeys;
use super::pack;
use wornpath_index::{EngineHash, Tier};

/// The layout of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireLayout {
    /// Maps with a `type`: vLLM since 0.24.
    Maps,
    /// Arrays with the tag first: SGLang, and vLLM before 0.24.
    Arrays,
}

/// The encoding of hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HashForm {
    /// Unsigned integers: vLLM, if configured so.
    Unsigned,
    /// Signed integers: SGLang.
    Signed,
    /// 32 bytes of which the last eight are significant: vLLM's digests.
    Digest,
}

/// An engine's dialect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireDialect {
    /// The layout of events.
    pub layout: WireLayout,
    /// The encoding of hashes.
    pub hashes: HashForm,
}

/// Appends the payload of one message to `out`.
pub fn encode(batch: &WireBatch, dialect: WireDialect, out: &mut Vec<u8>) {
    pack::array(out, 3);
    pack::float(out, batch.sent_at);
    pack::array(out, batch.len());
    for event in batch.events() {
        match event {
            WireEvent::Stored(stored) => write_stored(&stored, dialect, out),
            WireEvent::Removed(removed) => write_removed(&removed, dialect, out),
            WireEvent::Cleared => Fields::begin("AllBlocksCleared", 0, dialect.layout, out),
        }
    }
    optional_u32(batch.dp_rank, out);
}

fn write_stored(stored: &WireStored<'_>, dialect: WireDialect, out: &mut Vec<u8>) {
    let mut fields = Fields::of("BlockStored", 10, dialect.layout, out);
    write_hashes(stored.blocks, dialect.hashes, fields.next("block_hashes"));
    let parent = fields.next("parent_block_hash");
    match stored.parent {
        Some(hash) => write_hash(hash, dialect.hashes, parent),
        None => pack::nil(parent),
    }
    let tokens = fields.next("token_ids");
    pack::array(tokens, stored.tokens.len());
    for token in stored.tokens {
        pack::unsigned(tokens, u64::from(*token));
    }
    pack::unsigned(fields.next("block_size"), u64::from(stored.block_size));
    optional_u32(stored.lora_id, fields.next("lora_id"));
    pack::text(fields.next("medium"), medium(stored.tier));
    optional_text(stored.lora_name, fields.next("lora_name"));
    write_extra_keys(stored.extra_keys, fields.next("extra_keys"));
    optional_u32(stored.group, fields.next("group_idx"));
    let kind = match stored.attention {
        GroupAttention::Unspecified => None,
        GroupAttention::Full => Some("full_attention"),
        GroupAttention::Partial => Some("sliding_window"),
    };
    optional_text(kind, fields.next("kv_cache_spec_kind"));
}

fn write_removed(removed: &WireRemoved<'_>, dialect: WireDialect, out: &mut Vec<u8>) {
    let mut fields = Fields::of("BlockRemoved", 3, dialect.layout, out);
    write_hashes(removed.blocks, dialect.hashes, fields.next("block_hashes"));
    pack::text(fields.next("medium"), medium(removed.tier));
    optional_u32(removed.group, fields.next("group_idx"));
}

/// Writes an event's type and, in the map layout, the key before each value.
struct Fields<'a> {
    layout: WireLayout,
    out: &'a mut Vec<u8>,
}

impl<'a> Fields<'a> {
    fn begin(tag: &str, fields: usize, layout: WireLayout, out: &mut Vec<u8>) {
        match layout {
            WireLayout::Maps => {
                pack::map(out, fields + 1);
                pack::text(out, "type");
            }
            WireLayout::Arrays => pack::array(out, fields + 1),
        }
        pack::text(out, tag);
    }

    fn of(tag: &str, fields: usize, layout: WireLayout, out: &'a mut Vec<u8>) -> Self {
        Self::begin(tag, fields, layout, out);
        Self { layout, out }
    }

    fn next(&mut self, key: &str) -> &mut Vec<u8> {
        if self.layout == WireLayout::Maps {
            pack::text(self.out, key);
        }
        self.out
    }
}

fn write_hashes(hashes: &[EngineHash], form: HashForm, out: &mut Vec<u8>) {
    pack::array(out, hashes.len());
    for hash in hashes {
        write_hash(*hash, form, out);
    }
}

fn write_hash(hash: EngineHash, form: HashForm, out: &mut Vec<u8>) {
    match form {
        HashForm::Unsigned => pack::unsigned(out, hash.0),
        HashForm::Signed => pack::signed(out, hash.0.cast_signed()),
        HashForm::Digest => {
            let mut digest = [0xA5; 32];
            digest[24..].copy_from_slice(&hash.0.to_be_bytes());
            pack::binary(out, &digest);
        }
    }
}

fn write_extra_keys(keys: WireExtraKeys<'_>, out: &mut Vec<u8>) {
    if keys.is_empty() {
        return pack::nil(out);
    }
    pack::array(out, keys.len());
    for block in 0..keys.len() {
        match keys.block(block).count() {
            0 => pack::nil(out),
            values => {
                pack::array(out, values);
                out.extend_from_slice(keys.msgpack_of(block));
            }
        }
    }
}

const fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Gpu => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "STORAGE",
        Tier::Other => "EXTERNAL",
    }
}

fn optional_u32(value: Option<u32>, out: &mut Vec<u8>) {
    match value {
        Some(value) => pack::unsigned(out, u64::from(value)),
        None => pack::nil(out),
    }
}

fn optional_text(value: Option<&str>, out: &mut Vec<u8>) {
    match value {
        Some(text) => pack::text(out, text),
        None => pack::nil(out),
    }
}
