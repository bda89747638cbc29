//! Translates an engine's batches into events for the index.
//!
//! The index identifies blocks by its own hashes of their tokens, chained from a root that depends
//! on the model, the LoRA adapter and the tenant's salt. So engines that hash differently, or have
//! blocks of different sizes, describe one prefix in one way, and an engine's own hashes are only
//! its names of blocks.
//!
//! - An engine's block may be several of the index's: its tokens are split into that many contents.
//! - LoRA and salt arrive as bare values among a block's extra keys. They belong to the root and
//!   are removed; the other keys (images, embeddings) are hashed with the block's content, so that
//!   equal placeholder tokens of different images differ.
//! - Cache groups that keep only a window of a prompt hold no whole prefixes and are ignored. Their
//!   removals name only the group, so the translator remembers which groups are such.
//!
//! The limit: SGLang sends no extra keys but the salt. Blocks of requests with an `extra_key` look
//! like those of requests without one.

mod keys;

use crate::block_id::{BlockIdScheme, BlockIdentity};
use crate::wire::GroupAttention;
use crate::wire::{WireBatch, WireEvent as Wire, WireStored};
use keys::{BlockKeys, RootKeys};
use std::num::NonZeroUsize;
use std::ops::Range;
use wornpath_blocks::{BlockHash, BlockHasher, ContentHash, HashKey, Scope};
use wornpath_index::{CacheEvent, Content, Parent, StoredBlocks};

/// The buffer shrinks to this size after a huge batch.
const KEPT_CONTENTS: usize = 1 << 17;

/// Translates the batches of one pod in one epoch of its engine.
pub struct Translator {
    key: HashKey,
    model: String,
    root: BlockHash,
    hasher: BlockHasher,
    scheme: BlockIdScheme,
    groups: CacheGroups,
    contents: Vec<ContentHash>,
    extra: Vec<u8>,
}

/// A translated batch.
#[derive(Debug)]
pub struct Translated<'a> {
    /// In the engine's order.
    pub events: Vec<CacheEvent<'a>>,
    /// Events ignored because their group keeps only a part of a prefix.
    pub ignored: usize,
}

/// One event after the first pass, with the range of its contents.
enum TranslateStep {
    Chained { parent: Parent, contents: Range<usize> },
    KnownAliases,
    Unchanged,
    Ignored,
}

impl Translator {
    /// For a pod that serves `model`, in an index whose blocks of that model are `block_size`
    /// tokens.
    #[must_use]
    pub fn new(key: &HashKey, model: &str, block_size: NonZeroUsize) -> Self {
        Self {
            key: key.clone(),
            model: model.to_owned(),
            root: key.root(&Scope::model(model)),
            hasher: BlockHasher::new(key, block_size),
            scheme: BlockIdScheme::default(),
            groups: CacheGroups::default(),
            contents: Vec::new(),
            extra: Vec::new(),
        }
    }

    /// Sets how blocks without tokens are identified.
    #[must_use]
    pub fn with_id_scheme(self, scheme: BlockIdScheme) -> Self {
        Self { scheme, ..self }
    }

    /// How blocks are identified.
    #[must_use]
    pub fn identity(&self) -> BlockIdentity {
        let block_size = self.hasher.block_size().get();
        let block_size = u32::try_from(block_size).unwrap_or(u32::MAX);
        BlockIdentity { root: self.root, block_size, scheme: self.scheme }
    }

    /// Cache groups that keep only a part of a prefix, as far as stores have shown.
    pub(crate) fn partial_groups(&self) -> &[u32] {
        self.groups.partial()
    }

    /// Restores the partial groups that an earlier translator of the same epoch knew.
    pub(crate) fn restore_partial_groups(&mut self, partial_groups: &[u32]) {
        self.groups = CacheGroups::restored(partial_groups);
    }

    /// Translates one batch. The events borrow from both. Of several clears in a row one is kept.
    ///
    /// # Errors
    /// An event contradicts itself or the index's block size. The whole batch is refused: a part of
    /// it would leave the index in a state that the engine never had.
    pub fn translate<'a>(
        &'a mut self,
        batch: &'a WireBatch,
    ) -> Result<Translated<'a>, TranslateError> {
        self.contents.clear();
        self.contents.shrink_to(KEPT_CONTENTS);
        let steps: Vec<_> =
            batch.events().map(|event| self.step(&event)).collect::<Result<_, _>>()?;
        let mut events = Vec::with_capacity(steps.len());
        let mut ignored = 0;
        for (event, step) in batch.events().zip(steps) {
            if event == Wire::Cleared && events.last() == Some(&CacheEvent::Cleared) {
                continue;
            }
            let content = match step {
                TranslateStep::Ignored => {
                    ignored += 1;
                    continue;
                }
                TranslateStep::Chained { parent, contents } => {
                    Content::Chained { parent, contents: &self.contents[contents] }
                }
                TranslateStep::KnownAliases if self.scheme == BlockIdScheme::Index => {
                    Content::IndexHashes
                }
                TranslateStep::KnownAliases | TranslateStep::Unchanged => Content::KnownAliases,
            };
            events.push(match event {
                Wire::Stored(WireStored { tier, blocks, locations, .. }) => {
                    CacheEvent::Stored(StoredBlocks { tier, blocks, content, locations })
                }
                Wire::Removed(removed) => {
                    CacheEvent::Removed { tier: removed.tier, blocks: removed.blocks }
                }
                Wire::Cleared => CacheEvent::Cleared,
            });
        }
        Ok(Translated { events, ignored })
    }

    fn step(&mut self, event: &Wire<'_>) -> Result<TranslateStep, TranslateError> {
        match event {
            Wire::Stored(stored) => {
                if !self.groups.keeps_prefixes(stored.group, stored.attention)? {
                    return Ok(TranslateStep::Ignored);
                }
                let blocks = stored.blocks.len();
                let locations = stored.locations.len();
                if locations != 0 && locations != blocks {
                    return Err(TranslateError::Locations { blocks, locations });
                }
                if stored.tokens.is_empty() {
                    return Ok(TranslateStep::KnownAliases);
                }
                self.chain(stored)
            }
            Wire::Removed(removed) if self.groups.is_partial(removed.group) => {
                Ok(TranslateStep::Ignored)
            }
            Wire::Removed(_) | Wire::Cleared => Ok(TranslateStep::Unchanged),
        }
    }

    fn chain(&mut self, stored: &WireStored<'_>) -> Result<TranslateStep, TranslateError> {
        let index_block = self.hasher.block_size().get();
        let engine_block = stored.block_size as usize;
        if engine_block == 0 || !engine_block.is_multiple_of(index_block) {
            return Err(TranslateError::BlockSize { engine_block, index_block });
        }
        let blocks = stored.blocks.len();
        let tokens = stored.tokens.len();
        if blocks.checked_mul(engine_block) != Some(tokens) {
            return Err(TranslateError::Tokens { blocks, engine_block, tokens });
        }
        let lists = stored.extra_keys.len();
        if lists != 0 && lists != blocks {
            return Err(TranslateError::ExtraKeys { blocks, lists });
        }

        let first = self.contents.len();
        let (parent, mut keys) = match stored.parent {
            Some(parent) => (Parent::Block(parent), BlockKeys::of(stored, 0)),
            None => {
                let (root, rest) = RootKeys::of(stored);
                (Parent::Root(self.root(&root)), rest)
            }
        };
        for (block, tokens) in stored.tokens.chunks_exact(engine_block).enumerate() {
            if block > 0 {
                keys = BlockKeys::of(stored, block);
            }
            self.extra.clear();
            keys.write(&mut self.extra);
            self.push_contents(tokens, index_block);
        }
        Ok(TranslateStep::Chained { parent, contents: first..self.contents.len() })
    }

    /// The engine sends the block of an image, not its position in the block, so all parts of the
    /// block get the key. That can cost a hit on a part before the image, and never causes a false
    /// one.
    fn push_contents(&mut self, tokens: &[u32], index_block: usize) {
        if self.extra.is_empty() {
            self.hasher.contents(tokens, &mut self.contents);
            return;
        }
        let parts = tokens.chunks_exact(index_block);
        self.contents.extend(parts.map(|part| self.hasher.content_with_extra(part, &self.extra)));
    }

    fn root(&self, keys: &RootKeys<'_>) -> BlockHash {
        let lora = keys.lora();
        if lora.is_none() && keys.salt.is_none() {
            return self.root;
        }
        self.key.root(&Scope { model: &self.model, lora: lora.as_deref(), salt: keys.salt })
    }
}

#[cfg(test)]
mod tests;

/// Why a well-formed batch cannot be translated. The engine or the configuration is at fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TranslateError {
    /// The engine's blocks do not split into whole blocks of the index.
    #[error(
        "block_size: found {engine_block}, expected a multiple of {index_block}, the index's block \
         size for this model; set that to a common divisor of its engines' block sizes"
    )]
    BlockSize {
        /// Tokens per block of the engine.
        engine_block: usize,
        /// Tokens per block of the index.
        index_block: usize,
    },
    /// The number of tokens does not match the number of blocks.
    #[error("token_ids: found {tokens}, expected {blocks} blocks of {engine_block}")]
    Tokens {
        /// Blocks in the event.
        blocks: usize,
        /// Tokens per block.
        engine_block: usize,
        /// Tokens in the event.
        tokens: usize,
    },
    /// Some blocks have a list of extra keys and others none.
    #[error("extra_keys: found {lists} lists, expected none or one for each of {blocks} blocks")]
    ExtraKeys {
        /// Blocks in the event.
        blocks: usize,
        /// Lists in the event.
        lists: usize,
    },
    /// Some blocks have a location and others none.
    #[error("locations: found {locations}, expected none or one for each of {blocks} blocks")]
    Locations {
        /// Blocks in the event.
        blocks: usize,
        /// Locations in the event.
        locations: usize,
    },
    /// More cache groups than any engine has.
    #[error("group_idx: found more than {limit} groups that keep a part of a prefix")]
    Groups {
        /// The limit.
        limit: usize,
    },
}

/// Engines have a handful. The bound is against one that invents numbers.
const LIMIT: usize = 64;

/// The groups that keep only a part of a prefix.
#[derive(Default)]
pub(super) struct CacheGroups {
    partial: Vec<u32>,
}

impl CacheGroups {
    pub(super) fn restored(partial: &[u32]) -> Self {
        Self { partial: partial[..partial.len().min(LIMIT)].to_vec() }
    }

    pub(super) fn partial(&self) -> &[u32] {
        &self.partial
    }

    /// Records a store's description of its group, and returns whether the group keeps whole
    /// prefixes.
    pub(super) fn keeps_prefixes(
        &mut self,
        group: Option<u32>,
        attention: GroupAttention,
    ) -> Result<bool, TranslateError> {
        let Some(number) = group else { return Ok(attention != GroupAttention::Partial) };
        match attention {
            GroupAttention::Unspecified => return Ok(!self.is_partial(group)),
            GroupAttention::Full => self.partial.retain(|known| *known != number),
            GroupAttention::Partial if self.is_partial(group) => {}
            GroupAttention::Partial if self.partial.len() == LIMIT => {
                return Err(TranslateError::Groups { limit: LIMIT });
            }
            GroupAttention::Partial => self.partial.push(number),
        }
        Ok(attention == GroupAttention::Full)
    }

    pub(super) fn is_partial(&self, group: Option<u32>) -> bool {
        group.is_some_and(|number| self.partial.contains(&number))
    }
}
