//! The lookup: how many leading blocks of a chain each pod holds.
//!
//! A search finds the depths where the set of pods changes ([`crate::search`]). It is right for
//! every pod without holes. Holes that are known are checked one by one, and cut the depth of their
//! pod ([`crate::holes`]). Pods that may have others are suspects: if one of them holds the first
//! block, their depths come from a walk over the chain, and those of all other pods from the
//! search. Either way a pod is never credited beyond a hole.

use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::depths::{Answer, Dense, Depths};
use crate::directory::{MAX_WORDS, View};
use crate::ledger::Ledger;
use crate::members::{LookupRaced, intersect, mask, members, without};
use crate::pod::{PodId, word_and_bit};
use crate::search::{Search, find_set};
use crate::state::IndexState;
use crate::sync::Ordering;

/// One in this many queries stores its end hints, so that readers mostly read.
const LEARN: u32 = 8;
/// After this many retries a query blocks recycling instead of trying again.
const MAX_RETRIES: usize = 8;

/// A handle to query the index, one per thread. Queries take no lock and allocate nothing.
///
/// It keeps references to the current tables; an idle reader keeps replaced tables in memory, so
/// drop it or [`refresh`](Self::refresh) it now and then.
#[derive(Debug)]
pub struct IndexReader {
    state: Arc<IndexState>,
    view: View,
    search: Search,
    /// Completed queries.
    queries: u32,
}

impl IndexReader {
    pub(crate) fn new(state: Arc<IndexState>) -> Self {
        let view = View::new(&state.directory);
        Self { state, view, search: Search::default(), queries: 0 }
    }

    /// Finds how many leading blocks of `chain` each live pod holds without a hole.
    pub fn lookup(&mut self, chain: &[BlockHash], depths: &mut Depths) {
        self.answer(chain, depths);
    }

    /// The same, as an array: writes the depth of each pod to the position of its slot, and zero
    /// for pods that hold nothing. Ignores slots beyond the array.
    pub fn depths(&mut self, chain: &[BlockHash], depths: &mut [u32]) {
        self.answer(chain, &mut Dense(depths));
    }

    fn answer(&mut self, chain: &[BlockHash], answer: &mut impl Answer) {
        // The width of sets is a compile-time constant in the hot code.
        match self.view.numbering.words {
            1 => self.answer_in::<1>(chain, answer),
            4 => self.answer_in::<4>(chain, answer),
            16 => self.answer_in::<16>(chain, answer),
            _ => self.answer_in::<MAX_WORDS>(chain, answer),
        }
    }

    fn answer_in<const WORDS: usize>(&mut self, chain: &[BlockHash], answer: &mut impl Answer) {
        for _ in 0..MAX_RETRIES {
            let recycled = self.state.directory.recycled();
            self.view.refresh(&self.state.directory);
            if self.attempt::<WORDS>(chain, answer).is_ok()
                && self.state.directory.recycled() == recycled
            {
                return;
            }
        }
        let state = Arc::clone(&self.state);
        let _guard = state.directory.forbid_recycling();
        // Nothing is recycled from here on: the meaning of all numbers in current tables is fixed,
        // and only newer pages can be missing. Each failed attempt has met a page that a writer
        // added meanwhile, thousands of new sets per attempt.
        loop {
            self.view.refresh(&state.directory);
            if self.attempt::<WORDS>(chain, answer).is_ok() {
                return;
            }
        }
    }

    /// Whether the pod's events have confirmed that it holds a block and its whole prefix.
    /// Speculative blocks do not count, and nothing counts while the pod may have holes. Takes the
    /// pod's lock.
    pub fn is_confirmed(&mut self, pod: PodId, block: BlockHash, depths: &mut Depths) -> bool {
        self.lookup(std::slice::from_ref(&block), depths);
        let is_confirmed =
            |ledger: &mut Ledger| !ledger.may_have_holes() && !ledger.speculative.contains(block);
        depths.depth(pod.slot) == 1 && self.state.with_ledger(pod, is_confirmed).unwrap_or(false)
    }

    /// Drops references to replaced tables. For readers that query seldom.
    pub fn refresh(&mut self) {
        self.view.refresh(&self.state.directory);
    }

    #[inline]
    fn attempt<const WORDS: usize>(
        &mut self,
        chain: &[BlockHash],
        answer: &mut impl Answer,
    ) -> Result<(), LookupRaced> {
        let Self { state, view, search, queries } = self;
        answer.begin(WORDS);
        if chain.is_empty() {
            return Ok(());
        }
        let cleared = state.holes_cleared.load(Ordering::Acquire);
        let alive = mask::<WORDS>(&state.alive);
        let Some(first) = search.first_round(view, chain) else { return Ok(()) };
        search.later_rounds(view, chain, first);
        let holding = intersect(alive, members(view, first)?);
        let mut walking = [0; WORDS];
        if !search.is_scan {
            // Holes are read after the blocks: if a pod had one before, it is seen here, or the
            // counter tells that it ended meanwhile.
            walking = intersect(holding, mask(&state.suspects));
            state.holes.on_chain(chain, |hole| search.holes.push(hole));
            if state.holes_cleared.load(Ordering::Acquire) != cleared {
                walking = [0; WORDS];
                search.holes.clear();
                search.scan(view, chain, first);
            }
        }
        search.sort();
        *queries = queries.wrapping_add(1);
        if queries.is_multiple_of(LEARN) {
            search.learn(view, first);
        }
        search.levels(view, without(holding, walking), chain.len(), answer)?;
        if walking != [0; WORDS] {
            Search::walk(view, chain, walking, answer)?;
        }
        for hole in &search.holes {
            // A hole is announced before its bit is cleared, and another of the engine's hashes may
            // name the same block.
            let set = find_set(view, chain[hole.position as usize]);
            let (word, bit) = word_and_bit(hole.slot);
            if members::<WORDS>(view, set)?[word] & bit == 0 {
                answer.limit(hole.slot, hole.position as usize);
            }
        }
        Ok(())
    }
}
