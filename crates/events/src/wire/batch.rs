//! One message's events in buffers that are used again for the next message.
//!
//! Hashes, tokens and extra keys of all events lie in three flat lists, and an event holds ranges into
//! them: decoding a stream allocates nothing once the buffers have grown to its usual size.

use super::extra::{ByteSpan, ExtraKeysBuffer, WireExtraKeys};
use bytes::Bytes;
use wornpath_index::{EngineHash, Tier};

/// Buffers that grew beyond this many items for one huge message shrink back before the next.
const KEPT_ITEMS: usize = 1 << 17;

/// Which blocks a cache group keeps. Engines with several kinds of attention keep one group for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DecodeNotice {
    /// The engine does not say; such engines have one group, of full attention.
    #[default]
    Unsaid,
    /// All blocks of a prefix: full, latent (MLA) or sink attention.
    Full,
    /// Only some, such as a sliding window: tells nothing about whole prefixes.
    Partial,
}

/// Blocks came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireStored<'a> {
    /// The engine's names, each the child of the one before it.
    pub blocks: &'a [EngineHash],
    /// The block before the first; `None` when it starts a prompt, or when nothing is said at all.
    pub parent: Option<EngineHash>,
    /// The tokens of all blocks in order; empty in placeholders of offload tiers.
    pub tokens: &'a [u32],
    /// Tokens per block; zero in placeholders.
    pub block_size: u32,
    /// The LoRA adapter's number, as older engines give it.
    pub lora_id: Option<u32>,
    /// The LoRA adapter's name.
    pub lora_name: Option<&'a str>,
    /// Where the blocks now are.
    pub tier: Tier,
    /// What else keys each block.
    pub extra_keys: WireExtraKeys<'a>,
    /// The number of the cache group.
    pub group: Option<u32>,
    /// What that group keeps.
    pub attention: DecodeNotice,
}

impl<'a> WireStored<'a> {
    /// Blocks on the GPU with nothing particular about them, each with its share of the tokens.
    #[must_use]
    pub fn plain(blocks: &'a [EngineHash], parent: Option<EngineHash>, tokens: &'a [u32]) -> Self {
        Self {
            blocks,
            parent,
            tokens,
            block_size: (tokens.len() / blocks.len().max(1)) as u32,
            lora_id: None,
            lora_name: None,
            tier: Tier::Gpu,
            extra_keys: WireExtraKeys::default(),
            group: None,
            attention: DecodeNotice::Unsaid,
        }
    }
}

/// Blocks went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireRemoved<'a> {
    /// The engine's names.
    pub blocks: &'a [EngineHash],
    /// Where they were.
    pub tier: Tier,
    /// The number of the cache group.
    pub group: Option<u32>,
}

/// One event as the wire gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireEvent<'a> {
    /// Blocks came.
    Stored(WireStored<'a>),
    /// Blocks went.
    Removed(WireRemoved<'a>),
    /// Everything went.
    Cleared,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoredSlot {
    pub(super) blocks: ByteSpan,
    pub(super) parent: Option<EngineHash>,
    pub(super) tokens: ByteSpan,
    pub(super) block_size: u32,
    pub(super) lora_id: Option<u32>,
    pub(super) lora_name: Option<ByteSpan>,
    pub(super) tier: Option<Tier>,
    pub(super) extra_keys: ByteSpan,
    pub(super) group: Option<u32>,
    pub(super) attention: DecodeNotice,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RemovedSlot {
    pub(super) blocks: ByteSpan,
    pub(super) tier: Option<Tier>,
    pub(super) group: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EventSlot {
    Stored(StoredSlot),
    Removed(RemovedSlot),
    Cleared,
}

/// The events of one message.
#[derive(Clone, Debug, Default)]
pub struct WireBatch {
    /// The engine's clock when it sent the message, in seconds. Informative only.
    pub sent_at: f64,
    /// The data-parallel rank that sent it.
    pub dp_rank: Option<u32>,
    /// Events of a type that this version does not know. They were passed over.
    pub unknown_events: usize,
    /// The message as it came, where it is to be passed on: with what this version does not know.
    pub original: Option<Bytes>,
    pub(super) slots: Vec<EventSlot>,
    pub(super) hashes: Vec<EngineHash>,
    pub(super) tokens: Vec<u32>,
    pub(super) names: String,
    pub(super) extra_keys: ExtraKeysBuffer,
}

impl WireBatch {
    /// How many events there are, without unknown ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The events in the order in which they happened.
    pub fn events(&self) -> impl ExactSizeIterator<Item = WireEvent<'_>> {
        self.slots.iter().map(|slot| self.event(slot))
    }

    /// How many hashes and tokens it holds: what keeping it costs.
    #[must_use]
    pub fn items(&self) -> usize {
        self.hashes.len() + self.tokens.len()
    }

    /// Empties the batch and keeps its buffers, up to a bound.
    pub fn clear(&mut self) {
        self.sent_at = 0.0;
        self.dp_rank = None;
        self.unknown_events = 0;
        self.original = None;
        self.slots.clear();
        self.hashes.clear();
        self.tokens.clear();
        self.names.clear();
        self.extra_keys.clear();
        self.slots.shrink_to(KEPT_ITEMS);
        self.hashes.shrink_to(KEPT_ITEMS);
        self.tokens.shrink_to(KEPT_ITEMS);
        self.names.shrink_to(KEPT_ITEMS);
        self.extra_keys.shrink_to(KEPT_ITEMS);
    }

    /// Appends an event, for an engine that makes batches instead of reading them.
    pub fn push(&mut self, event: WireEvent<'_>) {
        let slot = match event {
            WireEvent::Stored(stored) => EventSlot::Stored(self.keep(stored)),
            WireEvent::Removed(removed) => EventSlot::Removed(RemovedSlot {
                blocks: append(&mut self.hashes, removed.blocks),
                tier: Some(removed.tier),
                group: removed.group,
            }),
            WireEvent::Cleared => EventSlot::Cleared,
        };
        self.slots.push(slot);
    }

    pub(super) fn keep_name(&mut self, name: &str) -> ByteSpan {
        let start = self.names.len();
        self.names.push_str(name);
        ByteSpan::new(start, self.names.len())
    }

    fn keep(&mut self, stored: WireStored<'_>) -> StoredSlot {
        let first = self.extra_keys.block_count();
        for block in 0..stored.extra_keys.len() {
            self.extra_keys.push_msgpack(stored.extra_keys.msgpack_of(block));
        }
        StoredSlot {
            blocks: append(&mut self.hashes, stored.blocks),
            parent: stored.parent,
            tokens: append(&mut self.tokens, stored.tokens),
            block_size: stored.block_size,
            lora_id: stored.lora_id,
            lora_name: stored.lora_name.map(|name| self.keep_name(name)),
            tier: Some(stored.tier),
            extra_keys: ByteSpan::new(first, self.extra_keys.block_count()),
            group: stored.group,
            attention: stored.attention,
        }
    }

    fn event(&self, slot: &EventSlot) -> WireEvent<'_> {
        match slot {
            EventSlot::Stored(slot) => WireEvent::Stored(WireStored {
                blocks: slot.blocks.of(&self.hashes),
                parent: slot.parent,
                tokens: slot.tokens.of(&self.tokens),
                block_size: slot.block_size,
                lora_id: slot.lora_id,
                lora_name: slot.lora_name.and_then(|name| self.name(name)),
                tier: slot.tier.unwrap_or(Tier::Gpu),
                extra_keys: self.extra_keys.slice(slot.extra_keys),
                group: slot.group,
                attention: slot.attention,
            }),
            EventSlot::Removed(slot) => WireEvent::Removed(WireRemoved {
                blocks: slot.blocks.of(&self.hashes),
                tier: slot.tier.unwrap_or(Tier::Gpu),
                group: slot.group,
            }),
            EventSlot::Cleared => WireEvent::Cleared,
        }
    }

    fn name(&self, name: ByteSpan) -> Option<&str> {
        self.names.get(name.start as usize..name.end as usize)
    }
}

fn append<T: Copy>(items: &mut Vec<T>, more: &[T]) -> ByteSpan {
    let start = items.len();
    items.extend_from_slice(more);
    ByteSpan::new(start, items.len())
}
