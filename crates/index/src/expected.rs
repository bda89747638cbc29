//! Blocks a pod is expected to hold soon, because a request was just sent to it.
//!
//! Without them, every request of a burst with one new prefix would find it nowhere and go somewhere
//! else. An expectation sets the pod's bit like a real block. The engine's event confirms it; if none
//! comes in time it expires.
//!
//! An expectation covers a whole chain from its root, and renewing it renews everything before, so a
//! block never expires before its descendants and expiry leaves no hole. A hole can come only when
//! the engine removes a real block that an expected one follows; then the pod is not to be trusted to
//! be contiguous until its expectations are gone.

use std::time::Duration;

use wornpath_blocks::BlockHash;

use crate::by_block::ByBlock;

/// A point in time, as the time since some fixed moment that the caller chose. The index reads no
/// clock: a simulator passes virtual time, a server passes real time.
pub type Moment = Duration;

#[derive(Clone, Copy, Debug)]
struct Expectation {
    expires: Moment,
    parent: Option<BlockHash>,
}

#[derive(Debug, Default)]
pub(crate) struct Expected {
    blocks: ByBlock<Expectation>,
    /// How many expected blocks follow each block.
    followed: ByBlock<u32>,
    /// A block that an expected one follows has gone.
    broken: bool,
}

impl Expected {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether the pod may show a hole on their account.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(crate) fn insert(&mut self, block: BlockHash, parent: Option<BlockHash>, expires: Moment) {
        self.blocks.insert(block, Expectation { expires, parent });
        if let Some(parent) = parent {
            *self.followed.entry(parent).or_default() += 1;
        }
    }

    /// Puts the expiry off; `false` if the block is not expected.
    pub(crate) fn renew(&mut self, block: BlockHash, expires: Moment) -> bool {
        let Some(expectation) = self.blocks.get_mut(&block) else { return false };
        expectation.expires = expectation.expires.max(expires);
        true
    }

    /// Ends the expectation of a block; `false` if there is none.
    pub(crate) fn take(&mut self, block: BlockHash) -> bool {
        let Some(expectation) = self.blocks.remove(&block) else { return false };
        self.unfollow(expectation.parent);
        true
    }

    /// A real block has gone.
    pub(crate) fn note_gone(&mut self, block: BlockHash) {
        self.broken |= self.followed.contains_key(&block);
    }

    /// Takes out everything that has expired.
    pub(crate) fn take_expired(&mut self, now: Moment) -> Vec<BlockHash> {
        let late = |(block, expectation): (&BlockHash, &Expectation)| {
            (expectation.expires <= now).then_some(*block)
        };
        let expired: Vec<_> = self.blocks.iter().filter_map(late).collect();
        for block in &expired {
            self.take(*block);
        }
        expired
    }

    /// Takes out everything.
    pub(crate) fn take_all(&mut self) -> Vec<BlockHash> {
        let all = self.blocks.keys().copied().collect();
        *self = Self::default();
        all
    }

    fn unfollow(&mut self, parent: Option<BlockHash>) {
        if let Some(parent) = parent
            && let Some(count) = self.followed.get_mut(&parent)
        {
            *count -= 1;
            if *count == 0 {
                self.followed.remove(&parent);
            }
        }
        if self.blocks.is_empty() {
            self.broken = false;
        }
    }
}
