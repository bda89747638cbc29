//! Names of blocks that were removed a moment ago.
//!
//! A block may leave the GPU before its copy on another tier is reported, and that report is a bare
//! name: the content came with the copy that is gone. So the most recent removals are remembered, a
//! bounded number of them: the name, our hash, and the name of the parent, which may be among them
//! as well.

use std::collections::HashMap;

use wornpath_blocks::BlockHash;

use crate::event::EngineHash;

/// The least and the most names that are remembered; between them, one for sixteen blocks of the
/// pod.
const LEAST: usize = 128;
const MOST: usize = 1_024;

/// What is remembered of a removed block.
#[derive(Clone, Debug)]
pub(crate) struct RemovedBlock {
    pub(crate) engine: EngineHash,
    pub(crate) block: BlockHash,
    /// Itself if it has none.
    pub(crate) parent: EngineHash,
}

/// A ring of the last removed blocks. A search is a scan of the names: only bare names that are not
/// held are searched for.
#[derive(Debug, Default)]
pub(crate) struct RemovedBlocks {
    names: Vec<EngineHash>,
    /// Our hash and the parent's name, at the same positions.
    blocks: Vec<(BlockHash, EngineHash)>,
    /// For entries that cover several blocks: all of these but the last.
    spans: HashMap<EngineHash, Box<[BlockHash]>>,
    /// Where the next one is written.
    next: usize,
}

impl RemovedBlocks {
    /// Remembers a block of a pod with `len` entries.
    #[inline]
    pub(crate) fn push(&mut self, removed: &RemovedBlock, span: &[BlockHash], len: usize) {
        let RemovedBlock { engine, block, parent } = *removed;
        if self.names.len() < (len / 16).clamp(LEAST, MOST) && self.next == self.names.len() {
            self.names.push(engine);
            self.blocks.push((block, parent));
        } else {
            self.next = if self.next < self.names.len() { self.next } else { 0 };
            let before = std::mem::replace(&mut self.names[self.next], engine);
            self.blocks[self.next] = (block, parent);
            if !self.spans.is_empty() {
                self.spans.remove(&before);
            }
        }
        if !span.is_empty() {
            self.spans.insert(engine, span.into());
        }
        self.next += 1;
    }

    /// The last removed block of this name.
    pub(crate) fn find(&self, engine: EngineHash) -> Option<RemovedBlock> {
        let (newer, older) = self.names.split_at(self.next);
        let at = newer.iter().rposition(|name| *name == engine).or_else(|| {
            older.iter().rposition(|name| *name == engine).map(|at| newer.len() + at)
        })?;
        let (block, parent) = self.blocks[at];
        Some(RemovedBlock { engine, block, parent })
    }

    /// Its blocks but the last.
    pub(crate) fn span(&self, engine: EngineHash) -> &[BlockHash] {
        self.spans.get(&engine).map_or(&[], |parts| parts)
    }

    /// The number of names.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.names.capacity() * size_of::<EngineHash>()
            + self.blocks.capacity() * size_of::<(BlockHash, EngineHash)>()
    }
}
