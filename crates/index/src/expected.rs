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
//!
//! Expiry is asked for many times a second, and a router that knows nothing but what it has sent expects
//! half a million blocks for minutes. So they wait in a heap, by when they would have expired as first
//! noted; a renewed one is noted again when its first time comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use wornpath_blocks::BlockHash;

use crate::by_block::ByBlock;

/// A point in time, as the time since some fixed moment that the caller chose. The index reads no
/// clock: a simulator passes virtual time, a server passes real time.
pub type Moment = Duration;

/// Blocks that have gone may make up half of the heap, and a few more.
const MOST_GONE: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Expectation {
    expires: Moment,
    parent: Option<BlockHash>,
    /// How many expected blocks follow it.
    followers: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Expected {
    blocks: ByBlock<Expectation>,
    /// Every block at a time no later than its own, the next to expire first; and some that have gone.
    due: BinaryHeap<Reverse<(Moment, BlockHash)>>,
    /// How many expected blocks follow each block that is not expected itself: it is there.
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
        // Mostly empty: few chains begin at a block that is there.
        let followers = if self.followed.is_empty() { None } else { self.followed.remove(&block) };
        let followers = followers.unwrap_or_default();
        self.blocks.insert(block, Expectation { expires, parent, followers });
        if self.due.len() >= MOST_GONE + 2 * self.blocks.len() {
            let all = self.blocks.iter().map(|(block, known)| Reverse((known.expires, *block)));
            self.due = all.collect();
        } else {
            self.due.push(Reverse((expires, block)));
        }
        let Some(parent) = parent else { return };
        match self.blocks.get_mut(&parent) {
            Some(expected) => expected.followers += 1,
            None => *self.followed.entry(parent).or_default() += 1,
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
        if expectation.followers > 0 {
            self.followed.insert(block, expectation.followers);
        }
        self.unfollow(expectation.parent);
        true
    }

    /// A real block has gone.
    pub(crate) fn note_gone(&mut self, block: BlockHash) {
        self.broken |= self.followed.contains_key(&block);
    }

    /// Takes out everything that has expired.
    pub(crate) fn take_expired(&mut self, now: Moment) -> Vec<BlockHash> {
        let mut expired = Vec::new();
        while self.due.peek().is_some_and(|due| due.0.0 <= now) {
            let Some(Reverse((_, block))) = self.due.pop() else { break };
            match self.blocks.get(&block) {
                Some(expectation) if expectation.expires > now => {
                    self.due.push(Reverse((expectation.expires, block)));
                }
                Some(_) => {
                    self.take(block);
                    expired.push(block);
                }
                None => {}
            }
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
        if let Some(parent) = parent {
            match self.blocks.get_mut(&parent) {
                Some(expected) => expected.followers -= 1,
                None => self.unfollow_held(parent),
            }
        }
        if self.blocks.is_empty() {
            self.broken = false;
        }
    }

    fn unfollow_held(&mut self, block: BlockHash) {
        if let Some(count) = self.followed.get_mut(&block) {
            *count -= 1;
            if *count == 0 {
                self.followed.remove(&block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_renewed_block_expires_at_its_new_time_and_a_taken_one_never() {
        let mut expected = Expected::default();
        for block in 1..=3 {
            let parent = (block > 1).then(|| BlockHash(block - 1));
            expected.insert(BlockHash(block), parent, at(10));
        }
        assert!(expected.renew(BlockHash(1), at(20)) && expected.take(BlockHash(3)));
        assert!(expected.take_expired(at(9)).is_empty());
        assert_eq!(expected.take_expired(at(10)), [BlockHash(2)]);
        assert!(expected.take_expired(at(19)).is_empty());
        assert_eq!(expected.take_expired(at(20)), [BlockHash(1)]);
        assert!(expected.is_empty() && expected.due.is_empty());
    }

    #[test]
    fn a_block_that_came_true_breaks_its_followers_when_it_goes() {
        let mut expected = Expected::default();
        expected.insert(BlockHash(2), Some(BlockHash(1)), at(10));
        expected.insert(BlockHash(3), Some(BlockHash(2)), at(10));
        assert!(expected.take(BlockHash(2)), "its event came");
        expected.note_gone(BlockHash(1));
        assert!(!expected.is_broken(), "nobody expected follows the first any more");
        expected.note_gone(BlockHash(2));
        assert!(expected.is_broken());
        assert_eq!(expected.take_expired(at(10)), [BlockHash(3)]);
        assert!(!expected.is_broken() && expected.followed.is_empty());
    }

    #[test]
    fn blocks_that_come_and_go_do_not_pile_up() {
        let mut expected = Expected::default();
        expected.insert(BlockHash(0), None, at(1));
        for round in 1..10_000 {
            expected.insert(BlockHash(round % 7 + 1), None, at(600));
            assert!(expected.take(BlockHash(round % 7 + 1)));
            assert!(expected.due.len() <= MOST_GONE + 4);
        }
        assert_eq!(expected.take_expired(at(1)), [BlockHash(0)]);
    }
}
