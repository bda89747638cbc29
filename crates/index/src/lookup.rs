//! The search for drop-off depths.
//!
//! Along a chain the set of pods that hold a block only shrinks, as long as pods have no holes: who
//! holds block i holds everything before it. Sets are numbered and equal sets have equal numbers, so
//! if two blocks have the same number, every block between them has it too. The search asks a few
//! spread blocks, then looks inside each gap whose ends differ, until all differences are between
//! neighbours. Prompts that share a beginning mostly share its length too, so each set remembers where
//! it was last seen to end, and a gap is looked into there first: a right guess settles it at once, a
//! wrong one costs two blocks. With K distinct depths in a chain of N blocks that is O(K log N) blocks,
//! whatever the number of pods. Each round's blocks are asked for together, so that their cache misses
//! overlap: a round costs about one miss.
//!
//! Pods that may have holes are marked. If one of them holds the first block, the whole chain is
//! looked at block by block instead. Either way the result is a list of (position, set), and pods drop
//! out where they are first missing, so a pod with a hole is never credited beyond it.

use std::array::from_fn;
use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::depths::Depths;
use crate::directory::View;
use crate::index::Shared;
use crate::ledger::Ledger;
use crate::pod::{PodId, place};
use crate::sets::{MAX_WORDS, NamedSet, ROWS};
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Probe, SetId, find_slowly};

/// Parts into which the first round divides the chain.
const FIRST: usize = 8;
/// Blocks that are asked for together when all are looked at.
const AHEAD: usize = 16;
/// Blocks of a later round. It costs about a miss however many they are, up to as many as a core asks
/// for at once.
const ROUND: usize = 16;
/// The most parts into which a later round divides a gap.
const MOST_PARTS: usize = 8;
/// One in so many queries remembers what it learnt, lest readers write more than they read.
const LEARN: u32 = 8;
/// Queries that were overtaken so often wait for their turn instead of trying again.
const PATIENCE: usize = 8;

/// A thread's access to the index. Queries take no lock and allocate nothing.
///
/// It keeps a view of where the tables are; an idle reader keeps old ones alive, so drop it or use it
/// now and then.
#[derive(Debug)]
pub struct IndexReader {
    shared: Arc<Shared>,
    view: View,
    search: Search,
}

/// The state of a search, kept to be reused.
#[derive(Debug, Default)]
struct Search {
    /// Stretches with a change inside: all there were, the last of them not yet looked into.
    gaps: Vec<Gap>,
    round: Round,
    /// Positions from which another set holds.
    changes: Vec<Point>,
    /// Queries made.
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
    /// How many blocks between them are being asked for.
    inside: u32,
}

/// Blocks that are asked for together, gap by gap.
#[derive(Debug)]
struct Round {
    points: [Point; ROUND],
    len: usize,
}

/// What was read no longer means what it meant.
struct LookupRaced;

impl IndexReader {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let view = View::new(&shared.directory);
        Self { shared, view, search: Search::default() }
    }

    /// Finds who holds how much of `chain`, for every live pod: the longest run of leading blocks it
    /// holds without a break.
    pub fn lookup(&mut self, chain: &[BlockHash], answer: &mut Depths) {
        // The width of sets is known to the compiler where it matters.
        match self.view.numbering.words {
            1 => self.lookup_in::<1>(chain, answer),
            4 => self.lookup_in::<4>(chain, answer),
            16 => self.lookup_in::<16>(chain, answer),
            _ => self.lookup_in::<MAX_WORDS>(chain, answer),
        }
    }

    fn lookup_in<const WORDS: usize>(&mut self, chain: &[BlockHash], answer: &mut Depths) {
        for _ in 0..PATIENCE {
            let recycled = self.shared.directory.recycled();
            self.view.refresh(&self.shared.directory);
            if self.attempt::<WORDS>(chain, answer).is_ok()
                && self.shared.directory.recycled() == recycled
            {
                return;
            }
        }
        let shared = Arc::clone(&self.shared);
        let _still = shared.directory.forbid_recycling();
        // Nothing is recycled from here on: what tables of now name stays what it is, and only what came since
        // they were looked for can be missing. Each turn that fails has met a page of sets that a writer added
        // meanwhile, thousands of new sets for one query.
        loop {
            self.view.refresh(&shared.directory);
            if self.attempt::<WORDS>(chain, answer).is_ok() {
                return;
            }
        }
    }

    /// Whether the pod's events have confirmed that it holds a block and all that this follows. What it is only expected to
    /// hold does not count, nor does anything while the pod may have holes. Takes the pod's lock.
    pub fn is_confirmed(&mut self, pod: PodId, block: BlockHash, answer: &mut Depths) -> bool {
        self.lookup(std::slice::from_ref(&block), answer);
        let is_real =
            |ledger: &mut Ledger| !ledger.may_have_holes() && !ledger.expected.contains(block);
        answer.depth(pod.slot) == 1 && self.shared.with_ledger(pod, is_real).unwrap_or(false)
    }

    /// Lets go of tables that have been replaced. For readers that seldom ask.
    pub fn refresh(&mut self) {
        self.view.refresh(&self.shared.directory);
    }

    #[inline]
    fn attempt<const WORDS: usize>(
        &mut self,
        chain: &[BlockHash],
        answer: &mut Depths,
    ) -> Result<(), LookupRaced> {
        let Self { shared, view, search } = self;
        answer.reset(WORDS);
        if chain.is_empty() {
            return Ok(());
        }
        let lifted = shared.lifted.load(Ordering::Acquire);
        let alive = mask::<WORDS>(&shared.alive);
        let Some(first) = search.first_round(view, chain) else { return Ok(()) };
        search.later_rounds(view, chain);
        let holding = both(alive, members(view, first)?);
        // Suspicion is read after the blocks: a hole that was there before them is seen here, or the
        // suspicion has been lifted meanwhile.
        let suspected = both(holding, mask(&shared.suspects)) != [0; WORDS];
        if suspected || shared.lifted.load(Ordering::Acquire) != lifted {
            search.look_at_all(view, chain, first);
        }
        sort(&mut search.changes);
        search.queries = search.queries.wrapping_add(1);
        if search.queries.is_multiple_of(LEARN) {
            search.learn(view, first);
        }
        search.levels(view, holding, chain.len(), answer)
    }
}

impl Default for Round {
    fn default() -> Self {
        Self { points: [Point { position: 0, set: SetId::EMPTY }; ROUND], len: 0 }
    }
}

impl Round {
    /// Chooses the blocks to ask for inside a gap, and asks for them: where the set was last seen to
    /// end, its neighbours, else some that divide the gap into parts. Returns how many they are.
    #[inline]
    fn choose(&mut self, view: &View, chain: &[BlockHash], gap: &Gap, parts: u32) -> u32 {
        let (low, high) = (gap.low.position, gap.high.position);
        let before = self.len;
        let end = end_of(view, gap.low.set);
        if end > low && end < high {
            if end - 1 > low {
                self.ask(view, chain, end - 1);
            }
            self.ask(view, chain, end);
        } else {
            let step = (high - low).div_ceil(parts);
            let mut position = low + step;
            while position < high {
                self.ask(view, chain, position);
                position += step;
            }
        }
        (self.len - before) as u32
    }

    #[inline]
    fn ask(&mut self, view: &View, chain: &[BlockHash], position: u32) {
        let probe = Probe::new(&view.tables, chain[position as usize]);
        probe.prefetch();
        self.points[self.len].position = position;
        self.len += 1;
    }

    #[inline]
    fn read(&mut self, view: &View, chain: &[BlockHash]) {
        for point in &mut self.points[..self.len] {
            point.set = ask(view, chain[point.position as usize]);
        }
    }
}

impl Search {
    /// Looks at blocks spread over the chain, the first and the last among them. Returns the first
    /// block's set, unless nobody holds it.
    #[inline]
    fn first_round(&mut self, view: &View, chain: &[BlockHash]) -> Option<SetId> {
        self.gaps.clear();
        self.changes.clear();
        if chain.len() <= FIRST + 1 {
            let first = ask(view, chain[0]);
            self.look_at_all(view, chain, first);
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
            self.differ(seen[at - 1], seen[at]);
            if seen[at].set == SetId::EMPTY {
                break;
            }
            differing &= differing - 1;
        }
        (seen[0].set != SetId::EMPTY).then_some(seen[0].set)
    }

    /// Looks into gaps until there are none.
    #[inline]
    fn later_rounds(&mut self, view: &View, chain: &[BlockHash]) {
        let mut from = 0;
        while from < self.gaps.len() {
            // All are asked for before any is read, and all are read before any is judged: no wait
            // and no wrong guess about one delays another.
            self.round.len = 0;
            let mut end = from;
            let parts = if self.gaps.len() - from > 2 { 4 } else { MOST_PARTS as u32 };
            while let Some(gap) = self.gaps.get_mut(end)
                && self.round.len + MOST_PARTS <= ROUND + 1
            {
                gap.inside = self.round.choose(view, chain, gap, parts);
                end += 1;
            }
            self.round.read(view, chain);
            let mut asked = 0;
            for at in from..end {
                let Gap { low, high, inside } = self.gaps[at];
                let mut before = low;
                for _ in 0..inside {
                    let point = self.round.points[asked];
                    asked += 1;
                    if point.set != before.set {
                        self.differ(before, point);
                    }
                    before = point;
                }
                if high.set != before.set {
                    self.differ(before, high);
                }
            }
            from = end;
        }
    }

    /// Takes down that two points differ: as a change if nothing lies between them, else as a gap to
    /// look into.
    #[inline]
    fn differ(&mut self, low: Point, high: Point) {
        if high.position == low.position + 1 {
            self.changes.push(high);
        } else {
            self.gaps.push(Gap { low, high, inside: 0 });
        }
    }

    /// Looks at every block, up to the first that nobody holds.
    fn look_at_all(&mut self, view: &View, chain: &[BlockHash], first: SetId) {
        self.changes.clear();
        let mut last = first;
        for (part, blocks) in chain.chunks(AHEAD).enumerate() {
            let mut sets = [SetId::EMPTY; AHEAD];
            for (set, block) in sets.iter_mut().zip(blocks) {
                *set = ask(view, *block);
            }
            for (at, set) in sets[..blocks.len()].iter().enumerate() {
                let position = (part * AHEAD + at) as u32;
                // The first block was read before; it counts as it was seen then.
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

    /// Remembers where sets were seen to end. A guess for later queries, nothing more.
    #[cold]
    fn learn(&self, view: &View, first: SetId) {
        let mut set = first;
        for change in &self.changes {
            if let NamedSet::Row(row) = view.numbering.read(set)
                && let Some(page) = view.pages.get(row / ROWS)
            {
                page.remember_end(row % ROWS, change.position);
            }
            set = change.set;
        }
    }

    /// Turns changes into levels: pods drop out where they are first missing.
    #[inline]
    fn levels<const WORDS: usize>(
        &mut self,
        view: &View,
        mut holding: [u64; WORDS],
        length: usize,
        answer: &mut Depths,
    ) -> Result<(), LookupRaced> {
        for change in &self.changes {
            let kept = both(holding, members(view, change.set)?);
            let left: [u64; WORDS] = from_fn(|word| holding[word] & !kept[word]);
            answer.push(change.position as usize, left);
            if change.set == SetId::EMPTY {
                return Ok(());
            }
            holding = kept;
        }
        answer.push(length, holding);
        Ok(())
    }
}

/// Changes are few and nearly in order.
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
fn ask(view: &View, block: BlockHash) -> SetId {
    Probe::new(&view.tables, block).read().unwrap_or_else(|| find_slowly(&view.tables, block))
}

/// Where a set was last seen to end; zero if that is not known.
#[inline]
fn end_of(view: &View, set: SetId) -> u32 {
    match view.numbering.read(set) {
        NamedSet::Row(row) => view.pages.get(row / ROWS).map_or(0, |page| page.end(row % ROWS)),
        _ => 0,
    }
}

#[inline]
fn mask<const WORDS: usize>(words: &[AtomicU64]) -> [u64; WORDS] {
    from_fn(|at| words.get(at).map_or(0, |word| word.load(Ordering::Acquire)))
}

#[inline]
fn both<const WORDS: usize>(one: [u64; WORDS], other: [u64; WORDS]) -> [u64; WORDS] {
    from_fn(|word| one[word] & other[word])
}

/// The pods in a set. A row on a page that the view lacks is newer than the view.
#[inline]
fn members<const WORDS: usize>(view: &View, set: SetId) -> Result<[u64; WORDS], LookupRaced> {
    match view.numbering.read(set) {
        NamedSet::Empty => Ok([0; WORDS]),
        NamedSet::Single(slot) => {
            let mut words = [0; WORDS];
            let (word, bit) = place(slot);
            words[word] = bit;
            Ok(words)
        }
        NamedSet::Row(row) => {
            let page = view.pages.get(row / ROWS).ok_or(LookupRaced)?;
            Ok(mask(page.row(row % ROWS)))
        }
    }
}
