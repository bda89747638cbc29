//! The search for the depths where the set of pods that hold a chain changes.
//!
//! Along a chain the set of pods that hold a block only shrinks, as long as pods have no holes: a
//! pod that holds block i holds all blocks before it. Equal sets have equal numbers, so if two
//! blocks have the same set number, every block between them has it too. The search reads a few
//! spread blocks, then searches each gap whose ends differ, until all differences are between
//! neighbours. Prompts that share a beginning mostly share its length too, so each set stores where
//! it last ended, and the search tries that position first: a right guess resolves the gap at once,
//! a wrong one costs two blocks. With K distinct depths in a chain of N blocks that is O(K log N)
//! blocks, for any number of pods. The blocks of a round are prefetched together, so that their
//! cache misses overlap: a round costs about one miss. Where depths are so many that the search
//! would read about as much as there is, one scan over the chain is cheaper.
//!
//! Pods with holes do not mislead the search about others: if two blocks have the same number,
//! every pod without holes that holds one holds the other, and all between them.

use wornpath_blocks::BlockHash;

use crate::depths::Answer;
use crate::directory::{NamedSet, ROWS, View};
use crate::holes::HoleOnChain;
use crate::members::{LookupRaced, intersect, members, without};
use crate::steps::step;
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
/// With so many gaps after the first round, the hints are followed from set to set: the blocks of
/// so many depths are no cache misses.
const MANY_GAPS: usize = 4;
/// After so many changes it is clear how close they are: if there are more than two for five
/// blocks, a scan is cheaper.
const ENOUGH: usize = 8;
/// A search that has read one in this many blocks of a chain, and is not finished, becomes a scan.
const SCAN: usize = 6;

/// Buffers of a search, reused by the next one.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Ranges with a change inside: all that were found, the last of them not searched yet.
    gaps: Vec<Gap>,
    round: Round,
    /// Positions from which a different set holds the chain.
    changes: Vec<Point>,
    /// Whether every block was read, so that the changes are right also for pods with holes.
    pub(crate) is_scan: bool,
    /// Known holes that the chain may contain.
    pub(crate) holes: Vec<HoleOnChain>,
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

/// How far hints were followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Followed {
    ToTheEnd,
    /// There are so many changes that a scan is cheaper.
    TooMany,
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
    pub(crate) fn first_round(&mut self, view: &View, chain: &[BlockHash]) -> Option<SetId> {
        self.gaps.clear();
        self.changes.clear();
        self.holes.clear();
        self.is_scan = false;
        if chain.len() <= FIRST + 1 {
            let first = find_set(view, chain[0]);
            self.scan(view, chain, first);
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
            step();
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

    /// Searches gaps until there are none. The set of the first block is `first`.
    #[inline]
    pub(crate) fn later_rounds(&mut self, view: &View, chain: &[BlockHash], first: SetId) {
        let mut from = 0;
        if self.gaps.len() >= MANY_GAPS {
            from = self.gaps.len();
            if self.follow_all(view, chain) == Followed::TooMany {
                return self.scan(view, chain, first);
            }
        }
        let mut left = chain.len() / SCAN;
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
            match left.checked_sub(self.round.len) {
                Some(rest) => left = rest,
                None if chain.len() > 8 * ROUND => return self.scan(view, chain, first),
                None => {}
            }
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

    /// Follows the hints through all gaps; those that they do not resolve become new gaps.
    fn follow_all(&mut self, view: &View, chain: &[BlockHash]) -> Followed {
        for at in 0..self.gaps.len() {
            let Gap { low, high, .. } = self.gaps[at];
            if self.follow(view, chain, low, high) == Followed::TooMany {
                return Followed::TooMany;
            }
        }
        Followed::ToTheEnd
    }

    /// Goes from the end of one set to the end of the next: two blocks for each.
    #[inline]
    fn follow(&mut self, view: &View, chain: &[BlockHash], low: Point, high: Point) -> Followed {
        let before = self.changes.len();
        let mut at = low;
        while at.set != high.set {
            let end = end_hint(view, at.set);
            if end <= at.position || end > high.position {
                self.add_difference(at, high);
                break;
            }
            let last = if end - 1 > at.position {
                find_set(view, chain[end as usize - 1])
            } else {
                at.set
            };
            let next =
                if end < high.position { find_set(view, chain[end as usize]) } else { high.set };
            if last != at.set || next == at.set {
                self.add_difference(at, high);
                break;
            }
            at = Point { position: end, set: next };
            self.changes.push(at);
            let found = self.changes.len() - before;
            if found >= ENOUGH && found * 5 > (end - low.position) as usize * 2 {
                return Followed::TooMany;
            }
        }
        Followed::ToTheEnd
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
    #[inline(never)]
    pub(crate) fn scan(&mut self, view: &View, chain: &[BlockHash], first: SetId) {
        self.changes.clear();
        self.is_scan = true;
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
    pub(crate) fn learn(&self, view: &View, first: SetId) {
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

    /// Brings the changes in order.
    #[inline]
    pub(crate) fn sort(&mut self) {
        if !self.is_scan {
            sort(&mut self.changes);
        }
    }

    /// Converts changes to levels: a pod drops out at the first block it misses.
    #[inline]
    pub(crate) fn levels<const WORDS: usize>(
        &self,
        view: &View,
        mut holding: [u64; WORDS],
        length: usize,
        answer: &mut impl Answer,
    ) -> Result<(), LookupRaced> {
        for change in &self.changes {
            let depth = change.position as usize;
            match view.numbering.decode(change.set) {
                NamedSet::Empty => {
                    answer.push(depth, holding);
                    return Ok(());
                }
                NamedSet::Row(row) => {
                    let page = view.pages.get(row / ROWS).ok_or(LookupRaced)?;
                    let row = page.row(row % ROWS).first_chunk().ok_or(LookupRaced)?;
                    answer.narrow(depth, &mut holding, row);
                }
                NamedSet::Single(_) => {
                    let kept = intersect(holding, members(view, change.set)?);
                    answer.push(depth, without(holding, kept));
                    holding = kept;
                }
            }
        }
        answer.push(length, holding);
        Ok(())
    }

    /// Reads block after block, as long as one of the pods of `walking` holds all of them. All of
    /// these pods hold the first.
    #[cold]
    pub(crate) fn walk<const WORDS: usize>(
        view: &View,
        chain: &[BlockHash],
        mut walking: [u64; WORDS],
        answer: &mut impl Answer,
    ) -> Result<(), LookupRaced> {
        let mut last = None;
        for (part, blocks) in chain.chunks(PREFETCH_DISTANCE).enumerate() {
            blocks.iter().for_each(|block| Probe::new(&view.tables, *block).prefetch());
            for (at, block) in blocks.iter().enumerate() {
                let position = part * PREFETCH_DISTANCE + at;
                let set = find_set(view, *block);
                if position == 0 || Some(set) == last {
                    continue;
                }
                last = Some(set);
                let kept = intersect(walking, members(view, set)?);
                answer.add(position, without(walking, kept));
                walking = kept;
                if walking == [0; WORDS] {
                    return Ok(());
                }
            }
        }
        answer.add(chain.len(), walking);
        Ok(())
    }
}

/// Insertion sort where changes are few, and nearly in order.
fn sort(changes: &mut [Point]) {
    if changes.len() > 2 * ROUND {
        return changes.sort_unstable_by_key(|change| change.position);
    }
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
pub(crate) fn find_set(view: &View, block: BlockHash) -> SetId {
    step();
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
