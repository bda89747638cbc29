//! What simulated engines of several tests say, in one form.

use std::num::NonZeroUsize;
use wornpath_blocks::HashKey;
use wornpath_events::wire::{WireEvent, WireStored};
use wornpath_events::{BlockIdScheme, ServedModel};
use wornpath_index::EngineHash;

/// Tokens in a block.
pub(crate) const BLOCK: usize = 16;

/// How their pods are understood.
pub(crate) fn serving() -> ServedModel {
    ServedModel {
        key: HashKey::DEFAULT,
        model: "any".to_owned(),
        block_size: NonZeroUsize::new(BLOCK).unwrap(),
        names: BlockIdScheme::OfTheEngine,
    }
}

/// Blocks have come to be on the GPU, one after another.
pub(crate) fn stored<'a>(
    blocks: &'a [EngineHash],
    parent: Option<EngineHash>,
    tokens: &'a [u32],
) -> WireEvent<'a> {
    WireEvent::Stored(WireStored::plain(blocks, parent, tokens))
}
