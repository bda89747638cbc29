//! The model and the stores of simulated engines.

use std::num::NonZeroUsize;
use wornpath_blocks::HashKey;
use wornpath_events::wire::{WireEvent, WireStored};
use wornpath_events::{BlockIdScheme, ServedModel};
use wornpath_index::EngineHash;

/// Tokens in a block.
pub(crate) const BLOCK: usize = 16;

/// The model that their pods serve.
pub(crate) fn served_model() -> ServedModel {
    ServedModel {
        key: HashKey::DEFAULT,
        model: "any".to_owned(),
        block_size: NonZeroUsize::new(BLOCK).unwrap(),
        id_scheme: BlockIdScheme::Engine,
    }
}

/// A store of consecutive blocks on the GPU.
pub(crate) fn stored<'a>(
    blocks: &'a [EngineHash],
    parent: Option<EngineHash>,
    tokens: &'a [u32],
) -> WireEvent<'a> {
    WireEvent::Stored(WireStored::plain(blocks, parent, tokens))
}
