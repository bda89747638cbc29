//! One message's events, in flat buffers.
//!
//! Hashes, tokens, locations and extra keys of all events are in flat lists, and an event holds ranges
//! of them: decoding allocates for the lists, not for each event. A caller that decodes into the
//! same batch again allocates only for a message that is larger than those before it. Transports
//! do not: a pod may hold a batch back, so each message has a batch of its own.

use super::extra::{ExtraKeysBuffer, Span, WireExtraKeys};
use bytes::Bytes;
use wornpath_index::{EngineHash, Location, Tier};

/// Buffers shrink to this many items after a huge message.
const KEPT_ITEMS: usize = 1 << 17;

/// Which blocks a cache group keeps. Engines with several kinds of attention keep one group for
/// each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GroupAttention {
    /// Not specified: such engines have one group, of full attention.
    #[default]
    Unspecified,
    /// All blocks of a prefix: full, latent (MLA) or sink attention.
    Full,
    /// Only some, such as a sliding window: no whole prefixes.
    Partial,
}

/// Stored blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireStored<'a> {
    /// The engine's hashes, each the child of the one before it.
    pub blocks: &'a [EngineHash],
    /// The block before the first; `None` at the start of a prompt, or if the engine sends none at
    /// all.
    pub parent: Option<EngineHash>,
    /// The tokens of all blocks in order; empty in placeholders of offload tiers.
    pub tokens: &'a [u32],
    /// Tokens per block; zero in placeholders.
    pub block_size: u32,
    /// The LoRA adapter's number, which older engines send.
    pub lora_id: Option<u32>,
    /// The LoRA adapter's name.
    pub lora_name: Option<&'a str>,
    /// The tier that stores them.
    pub tier: Tier,
    /// Further keys of each block.
    pub extra_keys: WireExtraKeys<'a>,
    /// The number of the cache group.
    pub group: Option<u32>,
    /// Which blocks that group keeps.
    pub attention: GroupAttention,
    /// Where each block lies on its tier; empty if the source does not say so.
    pub locations: &'a [Location],
}

impl<'a> WireStored<'a> {
    /// Blocks on the GPU without LoRA, extra keys and group; the tokens are split evenly.
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
            attention: GroupAttention::Unspecified,
            locations: &[],
        }
    }
}

/// Removed blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireRemoved<'a> {
    /// The engine's hashes.
    pub blocks: &'a [EngineHash],
    /// The tier that removed them.
    pub tier: Tier,
    /// The number of the cache group.
    pub group: Option<u32>,
}

/// One event, as the engine sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireEvent<'a> {
    /// Blocks were stored.
    Stored(WireStored<'a>),
    /// Blocks were removed.
    Removed(WireRemoved<'a>),
    /// All blocks were removed.
    Cleared,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoredSlot {
    pub(super) blocks: Span,
    pub(super) parent: Option<EngineHash>,
    pub(super) tokens: Span,
    pub(super) block_size: u32,
    pub(super) lora_id: Option<u32>,
    pub(super) lora_name: Option<Span>,
    pub(super) tier: Option<Tier>,
    pub(super) extra_keys: Span,
    pub(super) group: Option<u32>,
    pub(super) attention: GroupAttention,
    pub(super) locations: Span,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RemovedSlot {
    pub(super) blocks: Span,
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
    /// Events of an unknown type, which were skipped.
    pub unknown_events: usize,
    /// The payload as it arrived, unknown events and fields included, if it is to be relayed.
    pub raw: Option<Bytes>,
    pub(super) slots: Vec<EventSlot>,
    pub(super) hashes: Vec<EngineHash>,
    pub(super) tokens: Vec<u32>,
    pub(super) locations: Vec<Location>,
    pub(super) names: String,
    pub(super) extra_keys: ExtraKeysBuffer,
}

impl WireBatch {
    /// Number of events, without unknown ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The events in the engine's order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = WireEvent<'_>> {
        self.slots.iter().map(|slot| self.event(slot))
    }

    /// Number of hashes, tokens and locations: a measure of its memory.
    #[must_use]
    pub fn items(&self) -> usize {
        self.hashes.len() + self.tokens.len() + self.locations.len()
    }

    /// Empties the batch and keeps its buffers, up to a bound.
    pub fn clear(&mut self) {
        self.sent_at = 0.0;
        self.dp_rank = None;
        self.unknown_events = 0;
        self.raw = None;
        self.slots.clear();
        self.hashes.clear();
        self.tokens.clear();
        self.locations.clear();
        self.names.clear();
        self.extra_keys.clear();
        self.slots.shrink_to(KEPT_ITEMS);
        self.hashes.shrink_to(KEPT_ITEMS);
        self.tokens.shrink_to(KEPT_ITEMS);
        self.locations.shrink_to(KEPT_ITEMS);
        self.names.shrink_to(KEPT_ITEMS);
        self.extra_keys.shrink_to(KEPT_ITEMS);
    }

    /// Appends an event. For simulated engines and pushed events, which are not decoded from
    /// msgpack.
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

    pub(super) fn keep_name(&mut self, name: &str) -> Span {
        let start = self.names.len();
        self.names.push_str(name);
        Span::new(start, self.names.len())
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
            extra_keys: Span::new(first, self.extra_keys.block_count()),
            group: stored.group,
            attention: stored.attention,
            locations: append(&mut self.locations, stored.locations),
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
                locations: slot.locations.of(&self.locations),
            }),
            EventSlot::Removed(slot) => WireEvent::Removed(WireRemoved {
                blocks: slot.blocks.of(&self.hashes),
                tier: slot.tier.unwrap_or(Tier::Gpu),
                group: slot.group,
            }),
            EventSlot::Cleared => WireEvent::Cleared,
        }
    }

    fn name(&self, name: Span) -> Option<&str> {
        self.names.get(name.start as usize..name.end as usize)
    }
}

fn append<T: Copy>(items: &mut Vec<T>, more: &[T]) -> Span {
    let start = items.len();
    items.extend_from_slice(more);
    Span::new(start, items.len())
}
