//! The lookup: a search for drop-off depths, and its result.
//!
//! Along a chain the set of pods that hold a block only shrinks, as long as pods have no holes: a
//! pod that holds block i holds all blocks before it. Equal sets have equal numbers, so if two
//! blocks have the same set number, every block between them has it too. The search reads a few
//! spread blocks, then searches each gap whose ends differ, until all differences are between
//! neighbours. Prompts that share a beginning mostly share its length too, so each set stores where
//! it last ended, and the search tries that position first: a right guess resolves the gap at once,
//! a wrong one costs two blocks. With K distinct depths in a chain of N blocks that is O(K log N)
//! blocks, for any number of pods. The blocks of a round are prefetched together, so that their
//! cache misses overlap: a round costs about one miss.
//!
//! Pods that may have holes are marked as suspects. If one of them holds the first block, the
//! search scans the whole chain instead. Either way the result is a list of (position, set), and a
//! pod drops out at the first block it misses, so it is never credited beyond a hole.

use std::array::from_fn;
use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::directory::{MAX_WORDS, NamedSet, ROWS, View};
use crate::ledger::Ledger;
use crate::pod::{PodId, PodSet, PodSlot, word_and_bit};
use crate::state::IndexState;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Probe, SetId, find_slowly};

/// Parts into which the first round divides the chain.
const FIRST: usize = 8;
/// Blocks that a scan of the whole chain reads together.
const PREFETCH_DISTANCE: usize = 16;
/// Blocks of a later round. It costs about one miss for any number of them, up to the misses that a
/// core keeps in flight.
const ROUND: usize = 16;
/// The most parts into which a later round divides a gap.
const MAX_PARTS: usize = 8;
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
}

/// The pods that hold a chain, grouped by the number of leading blocks they hold. Made to be
/// reused: after the first few queries, a lookup allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Depths {
    width: usize,
    depths: Vec<u32>,
    words: Vec<u64>,
}

/// The pods that hold exactly `depth` leading blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level<'a> {
    /// Leading blocks of the chain, without a hole. At least one.
    pub depth: usize,
    /// The pods that hold exactly that many. At least one pod.
    pub pods: PodSet<'a>,
}

impl Depths {
    /// The levels, shallowest first. Pods that hold nothing are in none.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = Level<'_>> {
        self.depths.iter().enumerate().map(|(at, depth)| Level {
            depth: *depth as usize,
            pods: PodSet::new(&self.words[at * self.width..(at + 1) * self.width]),
        })
    }

    /// The deepest level, if any pod holds the first block.
    #[must_use]
    pub fn deepest(&self) -> Option<Level<'_>> {
        self.levels().next_back()
    }

    /// How many leading blocks one pod holds.
    #[must_use]
    pub fn depth(&self, slot: PodSlot) -> usize {
        let (word, bit) = word_and_bit(slot);
        self.depths
            .iter()
            .enumerate()
            .find(|(at, _)| self.words[at * self.width + word] & bit != 0)
            .map_or(0, |(_, depth)| *depth as usize)
    }

    /// Writes the depth of each pod to the position of its slot, zero for pods that hold nothing.
    /// Ignores slots beyond the buffer.
    pub fn depths_into(&self, depths: &mut [u32]) {
        depths.fill(0);
        for level in self.levels() {
            for slot in level.pods.iter() {
                if let Some(depth) = depths.get_mut(slot.position()) {
                    *depth = level.depth as u32;
                }
            }
        }
    }

    fn reset(&mut self, width: usize) {
        self.width = width;
        self.depths.clear();
        self.words.clear();
    }

    /// Adds a level, unless it has no pod.
    #[inline]
    fn push<const WORDS: usize>(&mut self, depth: usize, pods: [u64; WORDS]) {
        if pods != [0; WORDS] {
            self.depths.push(depth as u32);
            self.words.extend_from_slice(&pods);
        }
    }
}

/// Buffers of a search, reused by the next one.
#[derive(Debug, Default)]
struct Search {
    /// Ranges with a change inside: all that were found, the last of them not searched yet.
    gaps: Vec<Gap>,
    round: Round,
    /// Positions from which a different set holds the chain.
    changes: Vec<Point>,
    /// Completed queries.
    queries: u32,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    position: u32,
    set: SetId,
}

/// Two blocks held by different sets, with others between them.
#[derive(Clone, Copy, Debug)]
struct Gap {
    low: Point,
    high: Point,
    /// How many blocks between them the current round probes.
    inside: u32,
}

/// Blocks that are read together, gap by gap.
#[derive(Debug)]
struct Round {
    points: [Point; ROUND],
    len: usize,
}

/// The query read a row that its view does not have yet.
struct LookupRaced;

impl IndexReader {
    pub(crate) fn new(state: Arc<IndexState>) -> Self {
        let view = View::new(&state.directory);
        Self { state, view, search: Search::default() }
    }

    /// Finds how many leading blocks of `chain` each live pod holds without a hole.
    pub fn lookup(&mut self, chain: &[BlockHash], depths: &mut Depths) {
        // The width of sets is a compile-time constant in the hot code.
        match self.view.numbering.words {
            1 => self.lookup_in::<1>(chain, depths),
            4 => self.lookup_in::<4>(chain, depths),
            16 => self.lookup_in::<16>(chain, depths),
            _ => self.lookup_in::<MAX_WORDS>(chain, depths),
        }
    }

    fn lookup_in<const WORDS: usize>(&mut self, chain: &[BlockHash], depths: &mut Depths) {
        for _ in 0..MAX_RETRIES {
            let recycled = self.state.directory.recycled();
            self.view.refresh(&self.state.directory);
            if self.attempt::<WORDS>(chain, depths).is_ok()
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
            if self.attempt::<WORDS>(chain, depths).is_ok() {
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
        depths: &mut Depths,
    ) -> Result<(), LookupRaced> {
        let Self { state, view, search } = self;
        depths.reset(WORDS);
        if chain.is_empty() {
            return Ok(());
        }
        let lifted = state.suspects_cleared.load(Ordering::Acquire);
        let alive = mask::<WORDS>(&state.alive);
        let Some(first) = search.first_round(view, chain) else { return Ok(()) };
        search.later_rounds(view, chain);
        let holding = intersect(alive, members(view, first)?);
        // Suspects are read after the blocks: if a pod had a hole before, its bit is seen here, or
        // the counter tells that the bit was cleared meanwhile.
        let has_suspects = intersect(holding, mask(&state.suspects)) != [0; WORDS];
        if has_suspects || state.suspects_cleared.load(Ordering::Acquire) != lifted {
            search.scan_all(view, chain, first);
        }
        sort(&mut search.changes);
        search.queries = search.queries.wrapping_add(1);
        if search.queries.is_multiple_of(LEARN) {
            search.learn(view, first);
        }
        search.levels(view, holding, chain.len(), depths)
    }
}

impl Default for Round {
    fn default() -> Self {
        Self { points: [Point { position: 0, set: SetId::EMPTY }; ROUND], len: 0 }
    }
}

impl Round {
    /// Chooses and prefetches blocks inside a gap: those around the position where the set last
    /// ended, otherwise some that divide the gap into parts. Returns their number.
    #[inline]
    fn choose(&mut self, view: &View, chain: &[BlockHash], gap: &Gap, parts: u32) -> u32 {
        let low = gap.low.position;
        let high = gap.high.position;
        let before = self.len;
        let end = end_hint(view, gap.low.set);
        if end > low && end < high {
            if end - 1 > low {
                self.probe(view, chain, end - 1);
            }
            self.probe(view, chain, end);
        } else {
            let step = (high - low).div_ceil(parts);
            let mut position = low + step;
            while position < high {
                self.probe(view, chain, position);
                position += step;
            }
        }
        (self.len - before) as u32
    }

    #[inline]
    fn probe(&mut self, view: &View, chain: &[BlockHash], position: u32) {
        let probe = Probe::new(&view.tables, chain[position as usize]);
        probe.prefetch();
        self.points[self.len].position = position;
        self.len += 1;
    }

    #[inline]
    fn read(&mut self, view: &View, chain: &[BlockHash]) {
        for point in &mut self.points[..self.len] {
            point.set = find_set(view, chain[point.position as usize]);
        }
    }
}

impl Search {
    /// Reads blocks spread over the chain, including the first and the last. Returns the set of the
    /// first block, unless no pod holds it.
    #[inline]
    fn first_round(&mut self, view: &View, chain: &[BlockHash]) -> Option<SetId> {
        self.gaps.clear();
        self.changes.clear();
        if chain.len() <= FIRST + 1 {
            let first = find_set(view, chain[0]);
            self.scan_all(view, chain, first);
            return (first != SetId::EMPTY).then_some(first);
        }
        let last = chain.len() - 1;
        let mut probes = [Probe::new(&view.tables, chain[0]); FIRST + 1];
        let mut seen = [Point { position: 0, set: SetId::EMPTY }; FIRST + 1];
        for part in 1..=FIRST {
            let position = last * part / FIRST;
            probes[part] = Probe::new(&view.tables, chain[position]);
            seen[part].position = position as u32;
            probes[part].prefetch();
        }
        for (point, probe) in seen.iter_mut().zip(&probes) {
            point.set = probe
                .read()
                .unwrap_or_else(|| find_slowly(&view.tables, chain[point.position as usize]));
        }
        let mut differing = 0u32;
        for at in 1..=FIRST {
            differing |= u32::from(seen[at].set != seen[at - 1].set) << at;
        }
        while differing != 0 {
            let at = differing.trailing_zeros() as usize;
            self.add_difference(seen[at - 1], seen[at]);
            if seen[at].set == SetId::EMPTY {
                break;
            }
            differing &= differing - 1;
        }
        (seen[0].set != SetId::EMPTY).then_some(seen[0].set)
    }

    /// Searches gaps until there are none.
    #[inline]
    fn later_rounds(&mut self, view: &View, chain: &[BlockHash]) {
        let mut from = 0;
        while from < self.gaps.len() {
            // All blocks are prefetched before any is read, and all are read before any is
            // compared: no miss and no mispredicted branch delays another.
            self.round.len = 0;
            let mut end = from;
            let parts = if self.gaps.len() - from > 2 { 4 } else { MAX_PARTS as u32 };
            while let Some(gap) = self.gaps.get_mut(end)
                && self.round.len + MAX_PARTS <= ROUND + 1
            {
                gap.inside = self.round.choose(view, chain, gap, parts);
                end += 1;
            }
            self.round.read(view, chain);
            let mut next = 0;
            for at in from..end {
                let Gap { low, high, inside } = self.gaps[at];
                let mut before = low;
                for _ in 0..inside {
                    let point = self.round.points[next];
                    next += 1;
                    if point.set != before.set {
                        self.add_difference(before, point);
                    }
                    before = point;
                }
                if high.set != before.set {
                    self.add_difference(before, high);
                }
            }
            from = end;
        }
    }

    /// Records that two points differ: as a change if they are neighbours, otherwise as a gap to
    /// search.
    #[inline]
    fn add_difference(&mut self, low: Point, high: Point) {
        if high.position == low.position + 1 {
            self.changes.push(high);
        } else {
            self.gaps.push(Gap { low, high, inside: 0 });
        }
    }

    /// Reads every block, up to the first that no pod holds.
    fn scan_all(&mut self, view: &View, chain: &[BlockHash], first: SetId) {
        self.changes.clear();
        let mut last = first;
        for (part, blocks) in chain.chunks(PREFETCH_DISTANCE).enumerate() {
            let mut sets = [SetId::EMPTY; PREFETCH_DISTANCE];
            for (set, block) in sets.iter_mut().zip(blocks) {
                *set = find_set(view, *block);
            }
            for (at, set) in sets[..blocks.len()].iter().enumerate() {
                let position = (part * PREFETCH_DISTANCE + at) as u32;
                // The first block was read before; that read counts.
                if *set != last && position > 0 {
                    self.changes.push(Point { position, set: *set });
                    last = *set;
                }
                if last == SetId::EMPTY {
                    return;
                }
            }
        }
    }

    /// Stores where sets ended, as hints for later queries.
    #[cold]
    fn learn(&self, view: &View, first: SetId) {
        let mut set = first;
        for change in &self.changes {
            if let NamedSet::Row(row) = view.numbering.decode(set)
                && let Some(page) = view.pages.get(row / ROWS)
            {
                page.set_end_hint(row % ROWS, change.position);
            }
            set = change.set;
        }
    }

    /// Converts changes to levels: a pod drops out at the first block it misses.
    #[inline]
    fn levels<const WORDS: usize>(
        &mut self,
        view: &View,
        mut holding: [u64; WORDS],
        length: usize,
        depths: &mut Depths,
    ) -> Result<(), LookupRaced> {
        for change in &self.changes {
            let kept = intersect(holding, members(view, change.set)?);
            let left: [u64; WORDS] = from_fn(|word| holding[word] & !kept[word]);
            depths.push(change.position as usize, left);
            if change.set == SetId::EMPTY {
                return Ok(());
            }
            holding = kept;
        }
        depths.push(length, holding);
        Ok(())
    }
}

/// Insertion sort: changes are few and nearly in order.
fn sort(changes: &mut [Point]) {
    for end in 1..changes.len() {
        let mut at = end;
        while at > 0 && changes[at - 1].position > changes[at].position {
            changes.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// The set of pods that hold a block.
#[inline]
fn find_set(view: &View, block: BlockHash) -> SetId {
    Probe::new(&view.tables, block).read().unwrap_or_else(|| find_slowly(&view.tables, block))
}

/// Where a set last ended; zero if unknown.
#[inline]
fn end_hint(view: &View, set: SetId) -> u32 {
    match view.numbering.decode(set) {
        NamedSet::Row(row) => {
            view.pages.get(row / ROWS).map_or(0, |page| page.end_hint(row % ROWS))
        }
        _ => 0,
    }
}

#[inline]
fn mask<const WORDS: usize>(words: &[AtomicU64]) -> [u64; WORDS] {
    from_fn(|at| words.get(at).map_or(0, |word| word.load(Ordering::Acquire)))
}

#[inline]
fn intersect<const WORDS: usize>(one: [u64; WORDS], other: [u64; WORDS]) -> [u64; WORDS] {
    from_fn(|word| one[word] & other[word])
}

/// The pods in a set. A row on a page that the view lacks is newer than the view.
#[inline]
fn members<const WORDS: usize>(view: &View, set: SetId) -> Result<[u64; WORDS], LookupRaced> {
    match view.numbering.decode(set) {
        NamedSet::Empty => Ok([0; WORDS]),
        NamedSet::Single(slot) => {
            let mut words = [0; WORDS];
            let (word, bit) = word_and_bit(slot);
            words[word] = bit;
            Ok(words)
        }
        NamedSet::Row(row) => {
            let page = view.pages.get(row / ROWS).ok_or(LookupRaced)?;
            Ok(mask(page.row(row % ROWS)))
        }
    }
}
