//! What an engine's batch means for the index.
//!
//! The index speaks of contents under a root: our hashes of an engine's tokens, started from the model,
//! the LoRA adapter and the tenant's salt. So two engines that hash differently, or keep blocks of
//! different sizes, describe one prefix in one way, and an engine's own hashes are only its names.
//!
//! - An engine's block may be several of the index's: its tokens are cut into that many contents.
//! - LoRA and salt come as bare values among a block's extra keys. They belong to the root, so they
//!   are taken out there; whatever is left (images, embeddings) stays part of its block's content, so
//!   that equal placeholder tokens of different images never pass for each other.
//! - Groups that keep only a window of a prompt say nothing about whole prefixes and are left out.
//!   Their removals name only the group, so the translator remembers which groups are such.
//!
//! The limit: SGLang sends no extra keys. Behind such an engine a salt cannot be told from none, and
//! tenants must not be isolated by it.

mod error;
mod groups;
mod keys;

pub use error::TranslateError;

use crate::checkpoint::BlockIdentity;
use crate::wire::{WireBatch, WireEvent as Wire, WireStored};
use groups::CacheGroups;
use keys::{BlockKeys, RootKeys};
use std::num::NonZeroUsize;
use std::ops::Range;
use wornpath_blocks::{BlockHash, BlockHasher, ContentHash, HashKey, Scope};
use wornpath_index::{CacheEvent, Content, Parent, StoredBlocks};

/// A buffer that grew beyond this for one huge batch shrinks back before the next.
const KEPT_CONTENTS: usize = 1 << 17;

/// What blocks are called that come without tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BlockIdScheme {
    /// By the engine's own names, which other stores explain.
    #[default]
    OfTheEngine,
    /// By the index's hashes, which the engine was given or can compute.
    OfTheIndex,
}

/// Turns the batches of one pod, in one life of its engine, into events for the index.
pub struct Translator {
    key: HashKey,
    model: String,
    root: BlockHash,
    hasher: BlockHasher,
    names: BlockIdScheme,
    groups: CacheGroups,
    contents: Vec<ContentHash>,
    extra: Vec<u8>,
}

/// A batch, ready for the index.
#[derive(Debug)]
pub struct Translated<'a> {
    /// In the order in which they happened.
    pub events: Vec<CacheEvent<'a>>,
    /// Events left out because their group keeps only a part of a prefix.
    pub ignored: usize,
}

/// One event of the batch after the first pass: where its contents lie.
enum TranslateStep {
    Chained { parent: Parent, contents: Range<usize> },
    Named,
    AsIs,
    Ignored,
}

impl Translator {
    /// For a pod that serves `model`, in an index whose blocks of that model are `block_size` tokens.
    #[must_use]
    pub fn new(key: &HashKey, model: &str, block_size: NonZeroUsize) -> Self {
        Self {
            key: key.clone(),
            model: model.to_owned(),
            root: key.root(&Scope::model(model)),
            hasher: BlockHasher::new(key, block_size),
            names: BlockIdScheme::default(),
            groups: CacheGroups::default(),
            contents: Vec::new(),
            extra: Vec::new(),
        }
    }

    /// For a pod that calls blocks without tokens by these names.
    #[must_use]
    pub fn with_names(self, names: BlockIdScheme) -> Self {
        Self { names, ..self }
    }

    /// What blocks are called by.
    #[must_use]
    pub fn naming(&self) -> BlockIdentity {
        let block_size = self.hasher.block_size().get();
        let block_size = u32::try_from(block_size).unwrap_or(u32::MAX);
        BlockIdentity { root: self.root, block_size, names: self.names }
    }

    /// Groups of the cache that keep only a part of a prefix, as far as stores have said so.
    pub(crate) fn partial_groups(&self) -> &[u32] {
        self.groups.partial()
    }

    /// Takes up what an earlier translator of the same life of the engine had learnt.
    pub(crate) fn recall(&mut self, partial_groups: &[u32]) {
        self.groups = CacheGroups::recalled(partial_groups);
    }

    /// Translates one batch. The events borrow from both.
    ///
    /// # Errors
    /// An event contradicts itself or the index's block size. The batch counts as lost then: a part
    /// of it would leave the index in a state that the engine never had.
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
            let content = match step {
                TranslateStep::Ignored => {
                    ignored += 1;
                    continue;
                }
                TranslateStep::Chained { parent, contents } => {
                    Content::Chained { parent, contents: &self.contents[contents] }
                }
                TranslateStep::Named if self.names == BlockIdScheme::OfTheIndex => Content::Native,
                TranslateStep::Named | TranslateStep::AsIs => Content::Named,
            };
            events.push(match event {
                Wire::Stored(WireStored { tier, blocks, .. }) => {
                    CacheEvent::Stored(StoredBlocks { tier, blocks, content, locations: &[] })
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
                if stored.tokens.is_empty() {
                    return Ok(TranslateStep::Named);
                }
                self.chain(stored)
            }
            Wire::Removed(removed) if self.groups.is_partial(removed.group) => {
                Ok(TranslateStep::Ignored)
            }
            Wire::Removed(_) | Wire::Cleared => Ok(TranslateStep::AsIs),
        }
    }

    fn chain(&mut self, stored: &WireStored<'_>) -> Result<TranslateStep, TranslateError> {
        let index_block = self.hasher.block_size().get();
        let engine_block = stored.block_size as usize;
        if engine_block == 0 || !engine_block.is_multiple_of(index_block) {
            return Err(TranslateError::BlockSize { engine_block, index_block });
        }
        let (blocks, tokens) = (stored.blocks.len(), stored.tokens.len());
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

    /// The engine says which block an image lies in, not where in it: all parts of the block carry
    /// the key. That can cost a hit on a part before the image, and can never invent one.
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
