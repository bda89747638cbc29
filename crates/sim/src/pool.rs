//! The blocks of one memory tier: reference counts, lookup by hash, and eviction order.
//!
//! A block is in use (referenced by requests) or free. A free block keeps its content until it is
//! needed for something else, and the free blocks form a queue that is evicted from the front, as
//! in vLLM: a request releases its blocks last one first, so the tail of a prompt leaves the cache
//! before its head. Two blocks may hold the same content, when two requests computed it at the same
//! time; both keep the hash and each is evicted on its own.
//!
//! Blocks without a hash can never be found again, so they are reused before all others. That too
//! is what vLLM 0.32 does: a recording of its evictions is reproduced only this way.

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
    hash: Option<EngineHash>,
    references: u32,
    /// Neighbours in the queue of free blocks.
    previous: u32,
    next: u32,
    /// The next block with the same hash.
    next_duplicate: u32,
}

/// All blocks of a tier.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    capacity: usize,
    /// Blocks are created when first needed, so that an unlimited pool costs what it uses.
    blocks: Vec<Block>,
    /// The first of the blocks with this hash.
    by_hash: HashMap<EngineHash, u32>,
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
            by_hash: HashMap::new(),
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

    /// Blocks that can be allocated, at the price of what they cache.
    pub(crate) fn available(&self) -> usize {
        self.capacity - self.in_use
    }

    /// Changes whenever a request that did not fit might fit now.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn find(&self, hash: EngineHash) -> Option<BlockId> {
        self.by_hash.get(&hash).copied().map(BlockId)
    }

    pub(crate) fn is_free(&self, block: BlockId) -> bool {
        self.block(block).references == 0
    }

    /// Adds a reference to a block.
    pub(crate) fn acquire(&mut self, block: BlockId) {
        if self.block(block).references == 0 {
            self.unlink(block.0);
            self.in_use += 1;
        }
        self.block_mut(block).references += 1;
    }

    /// Moves a free block to the end of the eviction order.
    pub(crate) fn touch(&mut self, block: BlockId) {
        self.acquire(block);
        self.release(block);
    }

    /// Allocates a block for new content. The hash that it evicts is pushed to `evicted`.
    pub(crate) fn allocate(&mut self, evicted: &mut Vec<EngineHash>) -> Option<BlockId> {
        let unhashed =
            self.blocks.get(self.front as usize).is_some_and(|block| block.hash.is_none());
        let index = if !unhashed && self.blocks.len() < self.capacity {
            self.blocks.push(Block {
                hash: None,
                references: 0,
                previous: NONE,
                next: NONE,
                next_duplicate: NONE,
            });
            self.blocks.len() as u32 - 1
        } else if self.front == NONE {
            return None;
        } else {
            let front = self.front;
            self.unlink(front);
            evicted.extend(self.unregister(front));
            front
        };
        self.in_use += 1;
        self.block_mut(BlockId(index)).references = 1;
        Some(BlockId(index))
    }

    /// Sets the hash of a filled block, which can be found from here on.
    pub(crate) fn register(&mut self, block: BlockId, hash: EngineHash) {
        debug_assert!(self.block(block).hash.is_none(), "a block is filled once");
        self.version += 1;
        self.block_mut(block).hash = Some(hash);
        match self.by_hash.entry(hash) {
            Entry::Vacant(entry) => {
                entry.insert(block.0);
            }
            Entry::Occupied(entry) => {
                let first = *entry.get() as usize;
                let second = std::mem::replace(&mut self.blocks[first].next_duplicate, block.0);
                self.block_mut(block).next_duplicate = second;
            }
        }
    }

    /// Drops a reference to a block. A request releases its blocks last one first.
    pub(crate) fn release(&mut self, block: BlockId) {
        let state = self.block_mut(block);
        state.references -= 1;
        if state.references > 0 {
            return;
        }
        let unhashed = state.hash.is_none();
        self.in_use -= 1;
        self.version += 1;
        if unhashed { self.push_front(block.0) } else { self.push_back(block.0) }
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

    /// Clears a block's hash; its duplicates keep theirs.
    fn unregister(&mut self, index: u32) -> Option<EngineHash> {
        let hash = self.blocks[index as usize].hash.take()?;
        let after = std::mem::replace(&mut self.blocks[index as usize].next_duplicate, NONE);
        let Entry::Occupied(mut first) = self.by_hash.entry(hash) else { return Some(hash) };
        if *first.get() != index {
            let mut before = *first.get() as usize;
            while self.blocks[before].next_duplicate != index {
                before = self.blocks[before].next_duplicate as usize;
            }
            self.blocks[before].next_duplicate = after;
        } else if after == NONE {
            first.remove();
        } else {
            first.insert(after);
        }
        Some(hash)
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
        block.previous = back;
        block.next = NONE;
        match self.blocks.get_mut(back as usize) {
            Some(block) => block.next = index,
            None => self.front = index,
        }
    }

    fn push_front(&mut self, index: u32) {
        let front = std::mem::replace(&mut self.front, index);
        let block = &mut self.blocks[index as usize];
        block.previous = NONE;
        block.next = front;
        match self.blocks.get_mut(front as usize) {
            Some(block) => block.previous = index,
            None => self.back = index,
        }
    }
}

/// The number of blocks in use, which keeps a pool from being cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InUse(pub(crate) usize);

#[cfg(test)]
mod tests;
