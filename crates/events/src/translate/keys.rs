//! Classifies bare extra keys by the rest of their event.
//!
//! The order is LoRA, multimodal, salt, embeddings. The LoRA key repeats the event's own LoRA
//! field. A salt is text, and only the first block of a prompt has one; embeddings are bytes and
//! images are (identifier, offset) pairs, so the last text of a first block is the salt. Older
//! engines send images as bare text too: taken for a salt, such an image still gets a root that no
//! other prompt has.

use crate::wire::{WireExtraKey, WireStored};
use std::borrow::Cow;

/// The keys that determine the root of a chain.
pub(super) struct RootKeys<'a> {
    lora_name: Option<&'a str>,
    lora_id: Option<u32>,
    /// The tenant's salt.
    pub(super) salt: Option<&'a str>,
}

impl<'a> RootKeys<'a> {
    /// The root's keys, and the other keys of the first block.
    pub(super) fn of(stored: &WireStored<'a>) -> (Self, BlockKeys<'a>) {
        let rest = BlockKeys::of(stored, 0);
        let salt_at = rest.0.iter().rposition(|key| matches!(key, WireExtraKey::Text(_)));
        let mut rest = rest;
        let salt = salt_at.and_then(|at| match rest.0.remove(at) {
            WireExtraKey::Text(salt) => Some(salt),
            _ => None,
        });
        (Self { lora_name: stored.lora_name, lora_id: stored.lora_id, salt }, rest)
    }

    /// Older engines send a number without a name. No request has that name, but it must not be
    /// taken for the base model either. Engines number adapters from 1, so 0 is none.
    pub(super) fn lora(&self) -> Option<Cow<'a, str>> {
        match (self.lora_name, self.lora_id) {
            (Some(name), _) => Some(Cow::Borrowed(name)),
            (None, Some(number @ 1..)) => Some(Cow::Owned(format!("lora number {number}"))),
            (None, Some(0) | None) => None,
        }
    }
}

/// The keys of one block besides its tokens and its root.
pub(super) struct BlockKeys<'a>(Vec<WireExtraKey<'a>>);

impl<'a> BlockKeys<'a> {
    pub(super) fn of(stored: &WireStored<'a>, block: usize) -> Self {
        let mut keys: Vec<_> = stored.extra_keys.block(block).collect();
        let starts_with_lora = match keys.first() {
            Some(WireExtraKey::Text(name)) => stored.lora_name == Some(*name),
            Some(WireExtraKey::Unsigned(number)) => stored.lora_id.map(u64::from) == Some(*number),
            _ => false,
        };
        if starts_with_lora {
            keys.remove(0);
        }
        Self(keys)
    }

    /// Writes the keys as msgpack values: different lists give different bytes, and no keys give
    /// none.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|key| key.write(out));
    }
}
