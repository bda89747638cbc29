//! The blocks of one memory tier: who uses them, what they hold, and which goes next.
//!
//! A block is in use (referenced by requests) or free. A free block keeps its content until it is
//! needed for something else, and the free blocks form a queue whose front goes first, as in vLLM:
//! a request gives its blocks back last one first, so the tail of a prompt leaves the cache before
//! its head. Two blocks may hold the same content, when two requests computed it at the same time;
//! both keep the name and each is evicted on its own.
//!
//! Blocks without a name hold nothing that can be asked for, so they go before all others. That too is
//! what vLLM 0.32 does: a recording of its evictions is reproduced only this way.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use wornpath_index::EngineHash;

/// One physical block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockId(u32);

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Block {
    name: Option<EngineHash>,
    references: u32,
    /// Neighbours in the queue of free blocks.
    previous: u32,
    next: u32,
    /// The next block of the same name.
    twin: u32,
}

/// All blocks of a tier.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    capacity: usize,
    /// Blocks come into being when first needed, so that an unlimited pool costs what it uses.
    blocks: Vec<Block>,
    /// The block that was given this name first, of those that have it.
    named: HashMap<EngineHash, u32>,
    front: u32,
    back: u32,
    in_use: usize,
    version: u64,
}

impl BlockPool {
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.min(NONE as usize);
        Self {
            capacity,
            blocks: Vec::new(),
            named: HashMap::new(),
            front: NONE,
            back: NONE,
            in_use: 0,
            version: 0,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Blocks that can be had, what they cache being given up.
    pub(crate) fn available(&self) -> usize {
        self.capacity - self.in_use
    }

    /// Changes whenever a request that did not fit might fit now.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn find(&self, name: EngineHash) -> Option<BlockId> {
        self.named.get(&name).copied().map(BlockId)
    }

    pub(crate) fn is_free(&self, block: BlockId) -> bool {
        self.block(block).references == 0
    }

    /// One more user of a block.
    pub(crate) fn take(&mut self, block: BlockId) {
        if self.block(block).references == 0 {
            self.unlink(block.0);
            self.in_use += 1;
        }
        self.block_mut(block).references += 1;
    }

    /// Makes a free block the last to go.
    pub(crate) fn touch(&mut self, block: BlockId) {
        self.take(block);
        self.release(block);
    }

    /// A block for new content. A name that goes for it is pushed to `evicted`.
    pub(crate) fn allocate(&mut self, evicted: &mut Vec<EngineHash>) -> Option<BlockId> {
        let nameless =
            self.blocks.get(self.front as usize).is_some_and(|block| block.name.is_none());
        let index = if !nameless && self.blocks.len() < self.capacity {
            self.blocks.push(Block {
                name: None,
                references: 0,
                previous: NONE,
                next: NONE,
                twin: NONE,
            });
            self.blocks.len() as u32 - 1
        } else if self.front == NONE {
            return None;
        } else {
            let front = self.front;
            self.unlink(front);
            evicted.extend(self.forget(front));
            front
        };
        self.in_use += 1;
        self.block_mut(BlockId(index)).references = 1;
        Some(BlockId(index))
    }

    /// Says what a block now holds. It can be found from here on.
    pub(crate) fn name(&mut self, block: BlockId, name: EngineHash) {
        debug_assert!(self.block(block).name.is_none(), "a block is filled once");
        self.version += 1;
        self.block_mut(block).name = Some(name);
        match self.named.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(block.0);
            }
            Entry::Occupied(entry) => {
                let first = *entry.get() as usize;
                let second = std::mem::replace(&mut self.blocks[first].twin, block.0);
                self.block_mut(block).twin = second;
            }
        }
    }

    /// One user less of a block. A request releases its blocks last one first.
    pub(crate) fn release(&mut self, block: BlockId) {
        let state = self.block_mut(block);
        state.references -= 1;
        if state.references > 0 {
            return;
        }
        let nameless = state.name.is_none();
        self.in_use -= 1;
        self.version += 1;
        if nameless { self.push_front(block.0) } else { self.push_back(block.0) }
    }

    /// Forgets all content of free blocks, or nothing if any block is in use.
    pub(crate) fn clear(&mut self) -> Result<(), InUse> {
        if self.in_use > 0 {
            return Err(InUse(self.in_use));
        }
        *self = Self { version: self.version + 1, ..Self::new(self.capacity) };
        Ok(())
    }

    fn block(&self, block: BlockId) -> &Block {
        &self.blocks[block.0 as usize]
    }

    fn block_mut(&mut self, block: BlockId) -> &mut Block {
        &mut self.blocks[block.0 as usize]
    }

    /// Takes a block's name away, its twins keeping theirs.
    fn forget(&mut self, index: u32) -> Option<EngineHash> {
        let name = self.blocks[index as usize].name.take()?;
        let after = std::mem::replace(&mut self.blocks[index as usize].twin, NONE);
        let Entry::Occupied(mut first) = self.named.entry(name) else { return Some(name) };
        if *first.get() != index {
            let mut before = *first.get() as usize;
            while self.blocks[before].twin != index {
                before = self.blocks[before].twin as usize;
            }
            self.blocks[before].twin = after;
        } else if after == NONE {
            first.remove();
        } else {
            first.insert(after);
        }
        Some(name)
    }

    fn unlink(&mut self, index: u32) {
        let Block { previous, next, .. } = self.blocks[index as usize];
        match self.blocks.get_mut(previous as usize) {
            Some(block) => block.next = next,
            None => self.front = next,
        }
        match self.blocks.get_mut(next as usize) {
            Some(block) => block.previous = previous,
            None => self.back = previous,
        }
    }

    fn push_back(&mut self, index: u32) {
        let back = std::mem::replace(&mut self.back, index);
        let block = &mut self.blocks[index as usize];
        (block.previous, block.next) = (back, NONE);
        match self.blocks.get_mut(back as usize) {
            Some(block) => block.next = index,
            None => self.front = index,
        }
    }

    fn push_front(&mut self, index: u32) {
        let front = std::mem::replace(&mut self.front, index);
        let block = &mut self.blocks[index as usize];
        (block.previous, block.next) = (NONE, front);
        match self.blocks.get_mut(front as usize) {
            Some(block) => block.previous = index,
            None => self.back = index,
        }
    }
}

/// So many blocks are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InUse(pub(crate) usize);

#[cfg(test)]
mod tests;
