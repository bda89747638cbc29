//! Speculative blocks: a pod is expected to hold them soon, because a request was just sent to it.
//!
//! Without them, every request of a burst with one new prefix would find it on no pod and be routed
//! elsewhere. A speculative insert sets the pod's bit like a confirmed block. The engine's event
//! confirms it; without one it expires, and above the limit the blocks that expire next are dropped
//! first.
//!
//! An insert covers a whole chain from its root, and renewing a block renews its whole prefix, so a
//! block never expires before its descendants and expiry leaves no hole. If the engine removes a
//! confirmed block that has speculative children, the block becomes speculative itself, as long as
//! its children: the engine will compute it again for the request that inserted them. Only where
//! its own prefix has a hole is it removed; then it counts as missing while its children are
//! speculative.
//!
//! A request that its engine rejects is rolled back as far as no other request needs its blocks.
//! That needs no list per request: an insert marks the last speculative block that it finds as
//! shared, and a rollback removes blocks from the end of the chain to the first mark.
//!
//! All of this happens for every request, and a router without cache events keeps half a million
//! speculative blocks for minutes. So blocks are scheduled in runs, as they were inserted, by their
//! expiry at that time; a run that was renewed is rescheduled when that time comes. And time is
//! counted in steps: a prefix that is used a thousand times a second is renewed once per step.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::time::Duration;

use wornpath_blocks::BlockHash;
use wornpath_time::Moment;

use crate::block_map::BlockMap;

/// Removed blocks may make up half of the scheduled blocks, plus this many, before they are purged.
const MAX_STALE: usize = 64;

/// An expiry time, counted in steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ExpiryStep(u32);

impl ExpiryStep {
    /// The interval at which servers expire blocks.
    const LENGTH: Duration = Duration::from_millis(50);

    /// Rounds up: no block expires early.
    fn ceil(moment: Moment) -> Self {
        Self::of(moment, moment.since_zero().subsec_nanos().div_ceil(Self::LENGTH.subsec_nanos()))
    }

    fn floor(moment: Moment) -> Self {
        Self::of(moment, moment.since_zero().subsec_nanos() / Self::LENGTH.subsec_nanos())
    }

    /// `steps` steps into the second of the moment. A second has a whole number of steps, which
    /// avoids 128-bit arithmetic.
    fn of(moment: Moment, steps: u32) -> Self {
        let a_second = u64::from(1_000_000_000 / Self::LENGTH.subsec_nanos());
        let elapsed = moment.since_zero().as_secs().saturating_mul(a_second);
        Self(u32::try_from(elapsed.saturating_add(steps.into())).unwrap_or(u32::MAX))
    }
}

#[derive(Clone, Copy, Debug)]
struct SpeculativeInsert {
    /// `None` for the first block of a chain.
    parent: Option<NonZeroU64>,
    expires: ExpiryStep,
    uses: Uses,
}

/// The number of speculative children of a block, and in the lowest bit whether another request
/// used the block since its insert. Packed into one number, because there are half a million of
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Uses(u32);

impl Uses {
    const fn with_children(count: u32) -> Self {
        Self(count << 1)
    }

    const fn children(self) -> u32 {
        self.0 >> 1
    }

    const fn add_child(&mut self) {
        self.0 += 2;
    }

    const fn remove_child(&mut self) {
        self.0 -= 2;
    }

    const fn is_shared(self) -> bool {
        self.0 & 1 == 1
    }

    const fn mark_shared(&mut self) {
        self.0 |= 1;
    }
}

/// A block that is not speculative, but has speculative children.
#[derive(Clone, Copy, Debug)]
struct OtherParent {
    children: u32,
    /// No child expires later.
    expires: ExpiryStep,
    is_missing: bool,
}

/// Why a block is no longer speculative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Confirmed,
    Expired,
}

/// A removed block whose parent still has to be updated.
#[derive(Clone, Copy)]
struct RemovedChild {
    parent: Option<BlockHash>,
    is_shared: bool,
}

impl RemovedChild {
    const fn update(self, parent: &mut Uses) {
        parent.remove_child();
        if self.is_shared {
            parent.mark_shared();
        }
    }
}

/// The order in which blocks are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExpiryOrder {
    /// Only blocks without children.
    EndsFirst,
    Any,
}

#[derive(Debug, Default)]
pub(crate) struct SpeculativeBlocks {
    blocks: BlockMap<SpeculativeInsert>,
    /// The map grows at this number of blocks: half of its capacity. Where new blocks replace old
    /// ones all the time, a fuller map would run out of empty buckets much later and double then.
    grow_at: usize,
    /// Runs of blocks, each in the order of its chain, by a time not later than their expiry.
    due: BTreeMap<ExpiryStep, VecDeque<Vec<BlockHash>>>,
    /// The number of blocks in `due`, including removed ones.
    scheduled: usize,
    other_parents: BlockMap<OtherParent>,
    /// How many of `other_parents` the pod does not hold.
    missing: usize,
    /// A block was inserted where the pod has a hole: it may expire before its descendants.
    unordered: bool,
}

impl SpeculativeBlocks {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn contains(&self, block: BlockHash) -> bool {
        self.blocks.contains_key(&block)
    }

    /// Whether a speculative block follows a block that the pod does not hold.
    pub(crate) fn is_broken(&self) -> bool {
        self.missing > 0
    }

    /// Blocks will be inserted where the pod may have a hole.
    pub(crate) fn note_holes(&mut self) {
        self.unordered = true;
    }

    /// Whether speculative blocks follow a block that the pod holds.
    pub(crate) fn is_parent(&self, block: BlockHash) -> bool {
        self.other_parents.get(&block).is_some_and(|parent| !parent.is_missing)
    }

    /// The engine has removed these blocks of one chain, and speculative blocks follow the last of
    /// them: they are expected as long as those. The pod holds `parent`, which is before them.
    pub(crate) fn expect_again(&mut self, parent: Option<BlockHash>, run: &[BlockHash]) {
        self.reserve(run.len());
        let mut expires = ExpiryStep(0);
        let mut children = 0;
        for (at, block) in run.iter().enumerate().rev() {
            if let Some(known) = self.other_parents.remove(block) {
                expires = expires.max(known.expires);
                children += known.children;
            }
            let before = if at > 0 { Some(run[at - 1]) } else { parent };
            let parent = before.and_then(|before| NonZeroU64::new(before.0));
            let uses = Uses::with_children(children);
            self.blocks.insert(*block, SpeculativeInsert { parent, expires, uses });
            children = 1;
        }
        let ends = run.last().and_then(|last| self.blocks.get(last));
        self.schedule(run.to_vec(), ends.map_or(expires, |last| last.expires));
        self.add_child(parent, expires);
    }

    /// The engine has removed a block whose own prefix may have a hole.
    pub(crate) fn note_missing(&mut self, block: BlockHash) {
        if let Some(parent) = self.other_parents.get_mut(&block)
            && !parent.is_missing
        {
            parent.is_missing = true;
            self.missing += 1;
        }
    }

    /// The engine has stored a block that the pod did not hold.
    pub(crate) fn note_stored(&mut self, block: BlockHash) {
        if let Some(parent) = self.other_parents.get_mut(&block)
            && parent.is_missing
        {
            parent.is_missing = false;
            self.missing -= 1;
        }
    }

    /// Inserts the blocks of a chain after `parent`, or renews them. The pod already holds those in
    /// `set`, speculative or confirmed; they are in the order of the chain.
    pub(crate) fn insert(
        &mut self,
        parent: Option<BlockHash>,
        chain: &[BlockHash],
        set: &[BlockHash],
        expires: Moment,
    ) {
        let expires = ExpiryStep::ceil(expires);
        self.mark_shared(set);
        self.renew(set, expires);
        if let (Some(parent), Some(first)) = (parent, set.first())
            && self.blocks.contains_key(first)
        {
            self.renew_other_parent(parent, expires);
        }
        // Mostly the pod holds the beginning of the chain and not the rest. Each iteration consumes
        // at least one block: the next one in `set` is old, and all blocks before it are new.
        let mut at = 0;
        let mut set = set;
        while at < chain.len() {
            let old = chain[at..].iter().zip(set).take_while(|(block, set)| block == set).count();
            at += old;
            set = &set[old..];
            let ends = set.first().and_then(|next| chain[at..].iter().position(|it| it == next));
            let new = &chain[at..ends.map_or(chain.len(), |ends| at + ends)];
            let before = at.checked_sub(1).map_or(parent, |before| Some(chain[before]));
            self.insert_run(before, new, expires);
            at += new.len();
        }
    }

    /// Renews a chain that the pod holds from its root without a hole.
    pub(crate) fn renew_prefix(&mut self, chain: &[BlockHash], expires: Moment) {
        let expires = ExpiryStep::ceil(expires);
        if let Some(last) = chain.last().and_then(|last| self.blocks.get_mut(last)) {
            last.uses.mark_shared();
        }
        for (above, block) in chain.iter().rev().enumerate() {
            match self.blocks.get_mut(block) {
                Some(known) if known.expires < expires => known.expires = expires,
                Some(_) if self.unordered => {}
                // It expires as late, and so does its whole prefix.
                Some(_) => return,
                // It is confirmed, and so is its whole prefix.
                None if above == 0 => return,
                None => return self.renew_other_parent(*block, expires),
            }
        }
    }

    /// Inserts blocks that follow each other, the first one after `parent`.
    fn insert_run(&mut self, parent: Option<BlockHash>, run: &[BlockHash], expires: ExpiryStep) {
        let Some(last) = run.last() else { return };
        if self.scheduled + run.len() > MAX_STALE + 2 * (self.blocks.len() + run.len()) {
            self.purge_stale();
        }
        self.reserve(run.len());
        self.load_buckets(run);
        let mut before = parent;
        for block in run {
            // Mostly empty: few chains begin at a confirmed block.
            let known =
                if self.other_parents.is_empty() { None } else { self.other_parents.remove(block) };
            self.missing -= usize::from(known.is_some_and(|known| known.is_missing));
            let known = known.map_or(0, |known| known.children);
            let children = known + u32::from(block != last);
            let parent = before.and_then(|before| NonZeroU64::new(before.0));
            let uses = Uses::with_children(children);
            self.blocks.insert(*block, SpeculativeInsert { parent, expires, uses });
            before = Some(*block);
        }
        self.schedule(run.to_vec(), expires);
        self.add_child(parent, expires);
    }

    /// Makes room for `more` blocks.
    fn reserve(&mut self, more: usize) {
        let count = self.blocks.len() + more;
        if count > self.grow_at {
            self.blocks.reserve(count + more);
            self.grow_at = self.blocks.capacity() / 2;
        }
    }

    /// Counts a child of a block that the pod holds, speculative or not.
    fn add_child(&mut self, parent: Option<BlockHash>, expires: ExpiryStep) {
        let Some(parent) = parent else { return };
        if let Some(known) = self.blocks.get_mut(&parent) {
            known.uses.add_child();
            return;
        }
        let first = OtherParent { children: 0, expires, is_missing: false };
        let known = self.other_parents.entry(parent).or_insert(first);
        known.children += 1;
        known.expires = known.expires.max(expires);
    }

    fn renew_other_parent(&mut self, block: BlockHash, expires: ExpiryStep) {
        if let Some(parent) = self.other_parents.get_mut(&block) {
            parent.expires = parent.expires.max(expires);
        }
    }

    /// Renews the speculative blocks of a chain. No block before one that expires as late expires
    /// earlier, unless a block between them was removed and inserted again.
    fn renew(&mut self, chain: &[BlockHash], expires: ExpiryStep) {
        let mut is_child_speculative = false;
        for block in chain.iter().rev() {
            let Some(known) = self.blocks.get_mut(block) else {
                if is_child_speculative {
                    self.renew_other_parent(*block, expires);
                }
                is_child_speculative = false;
                continue;
            };
            is_child_speculative = true;
            if known.expires < expires {
                known.expires = expires;
            } else if !self.unordered {
                return;
            }
        }
    }

    /// Records that another request uses these blocks of a chain: the mark on the last speculative
    /// one covers those before it.
    fn mark_shared(&mut self, set: &[BlockHash]) {
        for block in set.iter().rev() {
            if let Some(known) = self.blocks.get_mut(block) {
                known.uses.mark_shared();
                return;
            }
        }
    }

    /// The engine has stored a block; `false` if it is not speculative.
    pub(crate) fn confirm(&mut self, block: BlockHash) -> bool {
        self.remove(block, Ended::Confirmed)
    }

    fn remove(&mut self, block: BlockHash, why: Ended) -> bool {
        let Some(removed) = self.blocks.remove(&block) else { return false };
        self.keep_parent(block, removed, why);
        self.remove_child(removed.parent);
        true
    }

    /// Keeps count of the children of a removed block.
    fn keep_parent(&mut self, block: BlockHash, removed: SpeculativeInsert, why: Ended) {
        let SpeculativeInsert { expires, uses, .. } = removed;
        let children = uses.children();
        if children > 0 {
            let is_missing = why == Ended::Expired;
            self.missing += usize::from(is_missing);
            self.other_parents.insert(block, OtherParent { children, expires, is_missing });
        }
    }

    /// Removes the end of a chain that only the rejected request inserted. Returns whether the
    /// blocks before `chain` may be removed too.
    pub(crate) fn rollback(&mut self, chain: &[BlockHash], removed: &mut Vec<BlockHash>) -> bool {
        let ends = chain.iter().rposition(|block| self.blocks.contains_key(block));
        let Some(ends) = ends else { return true };
        for block in chain[..=ends].iter().rev() {
            let Entry::Occupied(known) = self.blocks.entry(*block) else { return false };
            if known.get().uses != Uses::with_children(0) {
                return false;
            }
            let SpeculativeInsert { parent, .. } = known.remove();
            self.remove_child(parent);
            removed.push(*block);
        }
        true
    }

    /// Removes and returns all expired blocks.
    pub(crate) fn take_expired(&mut self, now: Moment) -> Vec<BlockHash> {
        let now = ExpiryStep::floor(now);
        let mut expired = Vec::new();
        while let Some(due) = self.due.first_entry()
            && *due.key() <= now
        {
            for run in due.remove() {
                self.scheduled -= run.len();
                let run = self.reschedule_renewed(run, now);
                let ended = |block: &BlockHash| self.remove(*block, Ended::Expired);
                expired.extend(run.into_iter().rev().filter(ended));
            }
        }
        expired
    }

    /// Removes the `count` blocks that expire next, or all if there are fewer; ends of chains
    /// first.
    pub(crate) fn take_oldest(&mut self, count: usize, removed: &mut Vec<BlockHash>) {
        let enough = removed.len() + count;
        // Consecutive runs of which nothing could be removed, because other runs continue them.
        let mut stuck = 0;
        while removed.len() < enough
            && let Some(mut due) = self.due.first_entry()
        {
            let step = *due.key();
            let runs = due.get_mut();
            let Some(run) = runs.pop_front() else {
                due.remove();
                continue;
            };
            // A run that continues this one expires no later, so it is found soon. A hole is better
            // than an endless loop.
            let order = if stuck > runs.len() { ExpiryOrder::Any } else { ExpiryOrder::EndsFirst };
            self.scheduled -= run.len();
            let mut run = self.reschedule_renewed(run, step);
            let before = removed.len();
            self.take_end(&mut run, order, enough, removed);
            stuck = if run.is_empty() || removed.len() > before { 0 } else { stuck + 1 };
            self.put_back(run, step, removed.len() >= enough);
        }
    }

    /// Removes blocks from the end of a run, until there are enough or another run continues the
    /// last.
    fn take_end(
        &mut self,
        run: &mut Vec<BlockHash>,
        order: ExpiryOrder,
        enough: usize,
        removed: &mut Vec<BlockHash>,
    ) {
        // Mostly the next block is the parent of the last one, so one lookup serves both.
        let mut child: Option<RemovedChild> = None;
        while removed.len() < enough
            && let Some(block) = run.last()
        {
            let Entry::Occupied(mut known) = self.blocks.entry(*block) else {
                // It was confirmed.
                run.pop();
                continue;
            };
            if let Some(child) = child.take_if(|child| child.parent == Some(*block)) {
                child.update(&mut known.get_mut().uses);
            }
            let has_children = known.get().uses.children() > 0;
            if has_children && order == ExpiryOrder::EndsFirst {
                break;
            }
            let ended = known.remove();
            let SpeculativeInsert { parent, uses, .. } = ended;
            self.unordered |= has_children;
            self.keep_parent(*block, ended, Ended::Expired);
            let parent = parent.map(|parent| BlockHash(parent.get()));
            let before = child.replace(RemovedChild { parent, is_shared: uses.is_shared() });
            self.update_parent(before);
            removed.extend(run.pop());
        }
        self.update_parent(child);
    }

    /// Updates the parent of a removed block, speculative or confirmed.
    fn update_parent(&mut self, child: Option<RemovedChild>) {
        let Some(RemovedChild { parent, is_shared }) = child else { return };
        if is_shared {
            // Both requests used the prefix too.
            self.mark_shared(parent.as_slice());
        }
        self.remove_child(parent.and_then(|block| NonZeroU64::new(block.0)));
    }

    /// Removes and returns all blocks.
    pub(crate) fn take_all(&mut self) -> Vec<BlockHash> {
        let all = self.blocks.keys().copied().collect();
        *self = Self::default();
        all
    }

    /// Reads the buckets of all blocks first, so that their cache misses overlap.
    fn load_buckets(&self, blocks: &[BlockHash]) {
        std::hint::black_box(blocks.iter().filter(|it| self.blocks.contains_key(it)).count());
    }

    fn schedule(&mut self, run: Vec<BlockHash>, expires: ExpiryStep) {
        self.scheduled += run.len();
        self.due.entry(expires).or_default().push_back(run);
    }

    /// Puts the rest of a run back: first if it is next, otherwise behind the runs that continue
    /// it.
    fn put_back(&mut self, run: Vec<BlockHash>, step: ExpiryStep, is_next: bool) {
        if run.is_empty() {
            return;
        }
        self.scheduled += run.len();
        let runs = self.due.entry(step).or_default();
        if is_next { runs.push_front(run) } else { runs.push_back(run) }
    }

    /// Reschedules the blocks of a run that expire after `now`; returns the others.
    fn reschedule_renewed(&mut self, run: Vec<BlockHash>, now: ExpiryStep) -> Vec<BlockHash> {
        // No block of a run expires later than its first, unless that was removed and inserted
        // again.
        let first = run.first().and_then(|first| self.blocks.get(first));
        if !self.unordered && first.is_some_and(|first| first.expires <= now) {
            return run;
        }
        let mut kept = Vec::new();
        let mut renewed = Vec::new();
        let mut until = now;
        for block in run {
            let Some(expires) = self.blocks.get(&block).map(|known| known.expires) else {
                continue;
            };
            if expires <= now {
                kept.push(block);
                continue;
            }
            if expires != until && !renewed.is_empty() {
                self.schedule(std::mem::take(&mut renewed), until);
            }
            until = expires;
            renewed.push(block);
        }
        if !renewed.is_empty() {
            self.schedule(renewed, until);
        }
        kept
    }

    /// Removes stale blocks from `due`; each speculative block stays once.
    fn purge_stale(&mut self) {
        let mut known = std::mem::take(&mut self.blocks);
        self.scheduled = 0;
        for (step, runs) in std::mem::take(&mut self.due) {
            for mut run in runs {
                run.retain(|block| {
                    let insert = known.remove(block);
                    self.blocks.extend(insert.map(|insert| (*block, insert)));
                    insert.is_some()
                });
                self.put_back(run, step, false);
            }
        }
    }

    fn remove_child(&mut self, parent: Option<NonZeroU64>) {
        if let Some(parent) = parent {
            let parent = BlockHash(parent.get());
            match self.blocks.get_mut(&parent) {
                Some(known) => known.uses.remove_child(),
                None => self.remove_other_child(parent),
            }
        }
        if self.blocks.is_empty() {
            self.unordered = false;
        }
    }

    fn remove_other_child(&mut self, block: BlockHash) {
        if let Some(parent) = self.other_parents.get_mut(&block) {
            parent.children -= 1;
            if parent.children == 0 {
                self.missing -= usize::from(parent.is_missing);
                self.other_parents.remove(&block);
            }
        }
    }
}

#[cfg(test)]
mod tests;
