//! Blocks a pod is expected to hold soon, because a request was just sent to it.
//!
//! Without them, every request of a burst with one new prefix would find it nowhere and go somewhere
//! else. An expectation sets the pod's bit like a real block. The engine's event confirms it; if none
//! comes in time it expires, and if there are too many, those that would expire next go first.
//!
//! An expectation covers a whole chain from its root, and renewing it renews everything before, so a
//! block never expires before its descendants and expiry leaves no hole. A hole can come only when
//! the engine removes a real block that an expected one follows; then the pod is not to be trusted to
//! be contiguous until its expectations are gone.
//!
//! A request that its engine refuses takes back what it alone was good for. Nobody keeps a list for that: the last
//! block that a request finds expected is marked, and taking back goes from the end of the chain to the first mark.
//!
//! All of this happens for every request, and a router that knows nothing but what it has sent expects
//! half a million blocks for minutes. So blocks are noted in runs, as they came, by when they would have
//! expired then; a run that was renewed is noted again when its first time comes. And times are counted in
//! steps: a prefix that is used a thousand times a second is renewed once in a step.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::time::Duration;

use wornpath_blocks::BlockHash;

use crate::block_map::BlockMap;

/// A point in time, as the time since some fixed moment that the caller chose. The index reads no
/// clock: a simulator passes virtual time, a server passes real time.
pub type Moment = Duration;

/// Blocks that have gone may make up half of what is noted, and a few more.
const MOST_GONE: usize = 64;

/// A moment, counted in steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct SpeculativeStep(u32);

impl SpeculativeStep {
    /// As often as servers look for what has expired.
    const LENGTH: Duration = Duration::from_millis(50);

    /// The first step that is not before the moment: nothing expires early.
    fn after(moment: Moment) -> Self {
        Self::of(moment, moment.subsec_nanos().div_ceil(Self::LENGTH.subsec_nanos()))
    }

    fn before(moment: Moment) -> Self {
        Self::of(moment, moment.subsec_nanos() / Self::LENGTH.subsec_nanos())
    }

    /// So many steps into the moment's second. Whole seconds are whole steps, which spares 128-bit numbers.
    fn of(moment: Moment, steps: u32) -> Self {
        let a_second = u64::from(1_000_000_000 / Self::LENGTH.subsec_nanos());
        let before = moment.as_secs().saturating_mul(a_second);
        Self(u32::try_from(before.saturating_add(steps.into())).unwrap_or(u32::MAX))
    }
}

#[derive(Clone, Copy, Debug)]
struct SpeculativeInsert {
    /// Of no block, if it is the first.
    parent: Option<NonZeroU64>,
    expires: SpeculativeStep,
    uses: Uses,
}

/// How many expected blocks follow a block, and in the lowest bit whether another request was sent with it since it is
/// expected. In one number, because there are half a million of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Uses(u32);

impl Uses {
    const fn followed_by(count: u32) -> Self {
        Self(count << 1)
    }

    const fn followers(self) -> u32 {
        self.0 >> 1
    }

    const fn follow(&mut self) {
        self.0 += 2;
    }

    const fn unfollow(&mut self) {
        self.0 -= 2;
    }

    const fn is_again(self) -> bool {
        self.0 & 1 == 1
    }

    const fn note_again(&mut self) {
        self.0 |= 1;
    }
}

/// What the block that a block followed is to know of it after it has gone.
#[derive(Clone, Copy)]
struct ExpiredBlocks {
    followed: Option<BlockHash>,
    is_again: bool,
}

impl ExpiredBlocks {
    const fn leave(self, uses: &mut Uses) {
        uses.unfollow();
        if self.is_again {
            uses.note_again();
        }
    }
}

/// In which order blocks may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExpiryOrder {
    EndsFirst,
    Any,
}

#[derive(Debug, Default)]
pub(crate) struct SpeculativeBlocks {
    blocks: BlockMap<SpeculativeInsert>,
    /// How many blocks may be there before the map is to be larger: half of what it has places for. Where new blocks
    /// replace old ones for ever, a map that is fuller runs out of places long after and doubles then.
    room: usize,
    /// Runs of blocks, each in the order of its chain, by a time no later than their own.
    due: BTreeMap<SpeculativeStep, VecDeque<Vec<BlockHash>>>,
    /// How many blocks these have; some have gone.
    noted: usize,
    /// How many expected blocks follow each block that is not expected itself: it is there.
    followed: BlockMap<u32>,
    /// A block that an expected one follows has gone.
    broken: bool,
    /// Some block has gone: if it is expected anew, it may expire before what follows it.
    uneven: bool,
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

    /// Whether the pod may show a hole on their account.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Expects the blocks of a chain after `parent`, or expects them for longer. Those in `set`, which
    /// are in the chain's order, are there already: expected or real.
    pub(crate) fn expect(
        &mut self,
        parent: Option<BlockHash>,
        chain: &[BlockHash],
        set: &[BlockHash],
        expires: Moment,
    ) {
        let expires = SpeculativeStep::after(expires);
        self.note_again(set);
        self.renew(set, expires);
        // Mostly the beginning of the chain is there and the rest is not. Each turn takes at least one block: one
        // that is next in `set` counts as old, and up to that all are new.
        let (mut at, mut set) = (0, set);
        while at < chain.len() {
            let old = chain[at..].iter().zip(set).take_while(|(block, set)| block == set).count();
            (at, set) = (at + old, &set[old..]);
            let ends = set.first().and_then(|next| chain[at..].iter().position(|it| it == next));
            let new = &chain[at..ends.map_or(chain.len(), |ends| at + ends)];
            let before = at.checked_sub(1).map_or(parent, |before| Some(chain[before]));
            self.insert(before, new, expires);
            at += new.len();
        }
    }

    /// Expects a chain for longer that is there from its root without a hole.
    pub(crate) fn renew_whole(&mut self, chain: &[BlockHash], expires: Moment) {
        let expires = SpeculativeStep::after(expires);
        if let Some(last) = chain.last().and_then(|last| self.blocks.get_mut(last)) {
            last.uses.note_again();
        }
        for block in chain.iter().rev() {
            match self.blocks.get_mut(block) {
                Some(expectation) if expectation.expires < expires => expectation.expires = expires,
                Some(_) if self.uneven => {}
                // Expected for as long, or real; and so is what it follows.
                Some(_) | None => return,
            }
        }
    }

    /// Adds blocks that follow each other, and the first one `parent`.
    fn insert(&mut self, parent: Option<BlockHash>, run: &[BlockHash], expires: SpeculativeStep) {
        let Some(last) = run.last() else { return };
        if self.noted + run.len() > MOST_GONE + 2 * (self.blocks.len() + run.len()) {
            self.forget_gone();
        }
        let count = self.blocks.len() + run.len();
        if count > self.room {
            self.blocks.reserve(count + run.len());
            self.room = self.blocks.capacity() / 2;
        }
        self.bring(run);
        let mut before = parent;
        for block in run {
            // Mostly empty: few chains begin at a block that is there.
            let known = if self.followed.is_empty() { None } else { self.followed.remove(block) };
            let followers = known.unwrap_or_default() + u32::from(block != last);
            let parent = before.and_then(|before| NonZeroU64::new(before.0));
            let uses = Uses::followed_by(followers);
            self.blocks.insert(*block, SpeculativeInsert { parent, expires, uses });
            before = Some(*block);
        }
        self.note(run.to_vec(), expires);
        let Some(parent) = parent else { return };
        match self.blocks.get_mut(&parent) {
            Some(expected) => expected.uses.follow(),
            None => *self.followed.entry(parent).or_default() += 1,
        }
    }

    /// Puts the expiry of a chain's blocks off, as far as they are expected. Nothing before one that
    /// expires as late expires earlier, unless a block between them has gone and is expected anew.
    fn renew(&mut self, chain: &[BlockHash], expires: SpeculativeStep) {
        for block in chain.iter().rev() {
            let Some(expectation) = self.blocks.get_mut(block) else { continue };
            if expectation.expires < expires {
                expectation.expires = expires;
            } else if !self.uneven {
                return;
            }
        }
    }

    /// Notes that another request was sent with these blocks of a chain: the last that is expected stands for those
    /// before it.
    fn note_again(&mut self, set: &[BlockHash]) {
        for block in set.iter().rev() {
            if let Some(expectation) = self.blocks.get_mut(block) {
                expectation.uses.note_again();
                return;
            }
        }
    }

    /// Ends the expectation of a block; `false` if there is none.
    pub(crate) fn take(&mut self, block: BlockHash) -> bool {
        let Some(expectation) = self.blocks.remove(&block) else { return false };
        let followers = expectation.uses.followers();
        if followers > 0 {
            self.followed.insert(block, followers);
        }
        self.unfollow(expectation.parent);
        true
    }

    /// Takes out the end of a chain that was expected of one request only, which its engine has refused. Whether what
    /// comes before may go too.
    pub(crate) fn withdraw(&mut self, chain: &[BlockHash], taken: &mut Vec<BlockHash>) -> bool {
        let ends = chain.iter().rposition(|block| self.blocks.contains_key(block));
        let Some(ends) = ends else { return true };
        for block in chain[..=ends].iter().rev() {
            let Entry::Occupied(known) = self.blocks.entry(*block) else { return false };
            if known.get().uses != Uses::followed_by(0) {
                return false;
            }
            let SpeculativeInsert { parent, .. } = known.remove();
            self.unfollow(parent);
            taken.push(*block);
        }
        true
    }

    /// A real block has gone.
    pub(crate) fn note_gone(&mut self, block: BlockHash) {
        self.uneven = true;
        self.broken |= self.followed.contains_key(&block);
    }

    /// Takes out everything that has expired.
    pub(crate) fn take_expired(&mut self, now: Moment) -> Vec<BlockHash> {
        let (mut expired, now) = (Vec::new(), SpeculativeStep::before(now));
        while let Some(due) = self.due.first_entry()
            && *due.key() <= now
        {
            for run in due.remove() {
                self.noted -= run.len();
                let run = self.note_renewed(run, now);
                expired.extend(run.into_iter().rev().filter(|block| self.take(*block)));
            }
        }
        // None has a follower left, by how they are renewed; if one had, there would be a hole now.
        if !self.followed.is_empty() {
            self.broken |= expired.iter().any(|block| self.followed.contains_key(block));
            self.uneven |= self.broken;
        }
        expired
    }

    /// Takes out `count` blocks that would expire next, or all there are; ends of chains first.
    pub(crate) fn take_oldest(&mut self, count: usize, taken: &mut Vec<BlockHash>) {
        let enough = taken.len() + count;
        // Runs in a row of which nothing could be taken, because other runs continue them.
        let mut stuck = 0;
        while taken.len() < enough
            && let Some(mut due) = self.due.first_entry()
        {
            let (step, runs) = (*due.key(), due.get_mut());
            let Some(run) = runs.pop_front() else {
                due.remove();
                continue;
            };
            // What continues a run expires no later, so it comes before long. A hole is better than no end.
            let order = if stuck > runs.len() { ExpiryOrder::Any } else { ExpiryOrder::EndsFirst };
            self.noted -= run.len();
            let (mut run, before) = (self.note_renewed(run, step), taken.len());
            self.take_end(&mut run, order, enough, taken);
            stuck = if run.is_empty() || taken.len() > before { 0 } else { stuck + 1 };
            self.note_back(run, step, taken.len() >= enough);
        }
    }

    /// Takes blocks off the end of a run, until there are enough or one that another run continues comes.
    fn take_end(
        &mut self,
        run: &mut Vec<BlockHash>,
        order: ExpiryOrder,
        enough: usize,
        taken: &mut Vec<BlockHash>,
    ) {
        // Mostly what went last followed what goes next, which need not be looked for twice then.
        let mut gone: Option<ExpiredBlocks> = None;
        while taken.len() < enough
            && let Some(block) = run.last()
        {
            let Entry::Occupied(mut known) = self.blocks.entry(*block) else {
                // Its event came.
                run.pop();
                continue;
            };
            if let Some(gone) = gone.take_if(|gone| gone.followed == Some(*block)) {
                gone.leave(&mut known.get_mut().uses);
            }
            let is_followed = known.get().uses.followers() > 0;
            if is_followed && order == ExpiryOrder::EndsFirst {
                break;
            }
            let SpeculativeInsert { parent, uses, .. } = known.remove();
            if is_followed {
                (self.broken, self.uneven) = (true, true);
                self.followed.insert(*block, uses.followers());
            }
            let followed = parent.map(|parent| BlockHash(parent.get()));
            let before = gone.replace(ExpiredBlocks { followed, is_again: uses.is_again() });
            self.settle(before);
            taken.extend(run.pop());
        }
        self.settle(gone);
    }

    /// Tells the block that one which has gone followed, wherever it is.
    fn settle(&mut self, gone: Option<ExpiredBlocks>) {
        let Some(ExpiredBlocks { followed, is_again }) = gone else { return };
        if is_again {
            // Both requests were sent with what comes before, too.
            self.note_again(followed.as_slice());
        }
        self.unfollow(followed.and_then(|block| NonZeroU64::new(block.0)));
    }

    /// Takes out everything.
    pub(crate) fn take_all(&mut self) -> Vec<BlockHash> {
        let all = self.blocks.keys().copied().collect();
        *self = Self::default();
        all
    }

    /// Asks for what is known of blocks all at once: one after the other, each would wait for memory by itself.
    fn bring(&self, blocks: &[BlockHash]) {
        std::hint::black_box(blocks.iter().filter(|it| self.blocks.contains_key(it)).count());
    }

    fn note(&mut self, run: Vec<BlockHash>, expires: SpeculativeStep) {
        self.noted += run.len();
        self.due.entry(expires).or_default().push_back(run);
    }

    /// What is left of a run: the next to go, or to come after those that continue it.
    fn note_back(&mut self, run: Vec<BlockHash>, step: SpeculativeStep, is_next: bool) {
        if run.is_empty() {
            return;
        }
        self.noted += run.len();
        let runs = self.due.entry(step).or_default();
        if is_next { runs.push_front(run) } else { runs.push_back(run) }
    }

    /// Notes those of a run that expire after `now` again, and gives back the others.
    fn note_renewed(&mut self, run: Vec<BlockHash>, now: SpeculativeStep) -> Vec<BlockHash> {
        // Nothing in a run expires later than its first block, unless that went and is expected anew.
        let first = run.first().and_then(|first| self.blocks.get(first));
        if !self.uneven && first.is_some_and(|first| first.expires <= now) {
            return run;
        }
        let (mut kept, mut renewed, mut until) = (Vec::new(), Vec::new(), now);
        for block in run {
            let Some(expires) = self.blocks.get(&block).map(|known| known.expires) else {
                continue;
            };
            if expires <= now {
                kept.push(block);
                continue;
            }
            if expires != until && !renewed.is_empty() {
                self.note(std::mem::take(&mut renewed), until);
            }
            until = expires;
            renewed.push(block);
        }
        if !renewed.is_empty() {
            self.note(renewed, until);
        }
        kept
    }

    /// Notes what is expected anew, each block once.
    fn forget_gone(&mut self) {
        let mut known = std::mem::take(&mut self.blocks);
        self.noted = 0;
        for (step, runs) in std::mem::take(&mut self.due) {
            for mut run in runs {
                run.retain(|block| {
                    let expectation = known.remove(block);
                    self.blocks.extend(expectation.map(|expectation| (*block, expectation)));
                    expectation.is_some()
                });
                self.note_back(run, step, false);
            }
        }
    }

    fn unfollow(&mut self, parent: Option<NonZeroU64>) {
        if let Some(parent) = parent {
            let parent = BlockHash(parent.get());
            match self.blocks.get_mut(&parent) {
                Some(expected) => expected.uses.unfollow(),
                None => self.unfollow_held(parent),
            }
        }
        if self.blocks.is_empty() {
            (self.broken, self.uneven) = (false, false);
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
mod tests;
