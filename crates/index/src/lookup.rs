//! The search for drop-off depths.
//!
//! Along a chain the set of pods that hold a block only shrinks, as long as pods have no holes: who
//! holds block i holds everything before it. Sets are numbered and equal sets have equal numbers, so
//! if two blocks have the same number, every block between them has it too. The search asks a few
//! spread blocks, then looks inside each gap whose ends differ, until all differences are between
//! neighbours. With K distinct depths in a chain of N blocks that is O(K log N) blocks, whatever the
//! number of pods. Each round's blocks are asked for together, so that their cache misses overlap: a
//! round costs about one miss.
//!
//! Pods that may have holes are marked. If one of them holds the first block, the whole chain is
//! looked at block by block instead. Either way the result is a list of (position, set), and pods drop
//! out where they are first missing, so a pod with a hole is never credited beyond it.

use std::hint::black_box;
use std::sync::Arc;

use wornpath_blocks::BlockHash;

use crate::answer::Answer;
use crate::directory::View;
use crate::index::Shared;
use crate::pod::place;
use crate::sets::{Named, ROWS};
use crate::sync::Ordering;
use crate::table::{Probe, SetId};

/// Parts into which the first round divides the chain.
const FIRST: usize = 8;
/// Parts into which a later round divides a gap.
const FAN: usize = 4;
/// Hashes in a cache line.
const LINE: usize = 8;
/// Gaps that are looked into together.
const GAPS: usize = 4;
/// Blocks that are asked for together when all are looked at.
const AHEAD: usize = 16;
/// Queries that were overtaken so often wait for their turn instead of trying again.
const PATIENCE: usize = 8;

/// A thread's access to the index. Queries take no lock and allocate nothing.
///
/// It keeps a view of where the tables are; an idle reader keeps old ones alive, so drop it or use it
/// now and then.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    view: View,
    search: Search,
}

/// The state of a search, kept to be reused.
#[derive(Debug, Default)]
struct Search {
    /// Stretches with a change inside, and those of the round before.
    gaps: Vec<Gap>,
    before: Vec<Gap>,
    /// Positions from which another set holds.
    changes: Vec<Point>,
    /// Pods that hold everything so far.
    holding: Vec<u64>,
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
}

/// What was read no longer means what it meant.
struct Overtaken;

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let view = View::new(&shared.directory);
        Self { shared, view, search: Search::default() }
    }

    /// Finds who holds how much of `chain`, for every live pod: the longest run of leading blocks it
    /// holds without a break.
    pub fn lookup(&mut self, chain: &[BlockHash], answer: &mut Answer) {
        for _ in 0..PATIENCE {
            let recycled = self.shared.directory.recycled();
            self.view.refresh(&self.shared.directory);
            if self.attempt(chain, answer).is_ok() && self.shared.directory.recycled() == recycled {
                return;
            }
        }
        self.view.refresh(&self.shared.directory);
        let shared = Arc::clone(&self.shared);
        let _still = shared.directory.forbid_recycling();
        // Nothing is recycled now, so only pages that came meanwhile can be missing.
        while self.attempt(chain, answer).is_err() {
            self.view.pages.refresh(&shared.directory);
        }
    }

    /// Lets go of tables that have been replaced. For readers that seldom ask.
    pub fn refresh(&mut self) {
        self.view.refresh(&self.shared.directory);
    }

    fn attempt(&mut self, chain: &[BlockHash], answer: &mut Answer) -> Result<(), Overtaken> {
        let Self { shared, view, search } = self;
        answer.reset(shared.directory.numbering.words);
        if chain.is_empty() {
            return Ok(());
        }
        let lifted = shared.lifted.load(Ordering::Acquire);
        search.holding.clear();
        search.holding.extend(shared.alive.iter().map(|word| word.load(Ordering::Acquire)));
        let Some(first) = search.first_round(view, chain) else { return Ok(()) };
        while !search.gaps.is_empty() {
            search.later_round(view, chain);
        }
        keep(view, first, &mut search.holding)?;
        // Suspicion is read after the blocks: a hole that was there before them is seen here, or the
        // suspicion has been lifted meanwhile.
        let suspects = shared.suspects.iter().map(|word| word.load(Ordering::Acquire));
        let suspected =
            suspects.zip(&search.holding).any(|(suspects, holding)| suspects & holding != 0);
        if suspected || shared.lifted.load(Ordering::Acquire) != lifted {
            search.look_at_all(view, chain, first);
        }
        search.levels(view, chain.len(), answer)
    }
}

impl Search {
    /// Looks at blocks spread over the chain, the first and the last among them. Returns the first
    /// block's set, unless nobody holds it.
    fn first_round(&mut self, view: &View, chain: &[BlockHash]) -> Option<SetId> {
        self.gaps.clear();
        self.changes.clear();
        if chain.len() <= FIRST + 1 {
            let first = Probe::new(&view.tables, chain[0]).read(&view.tables);
            self.look_at_all(view, chain, first);
            return (first != SetId::EMPTY).then_some(first);
        }
        // The search jumps about in the chain. Brought in from one end to the other it costs little if
        // it is not in the cache, and next to nothing if it is.
        black_box(chain.iter().step_by(LINE).fold(0, |sum, block| sum ^ block.0));
        let last = chain.len() - 1;
        let positions: [usize; FIRST + 1] = std::array::from_fn(|part| last * part / FIRST);
        let probes = positions.map(|position| Probe::new(&view.tables, chain[position]));
        black_box(probes.iter().fold(0u32, |sum, probe| sum.wrapping_add(probe.touch())));
        let seen: [Point; FIRST + 1] = std::array::from_fn(|part| Point {
            position: positions[part] as u32,
            set: probes[part].read(&view.tables),
        });
        self.note(&seen);
        (seen[0].set != SetId::EMPTY).then_some(seen[0].set)
    }

    /// Looks inside every gap.
    fn later_round(&mut self, view: &View, chain: &[BlockHash]) {
        std::mem::swap(&mut self.gaps, &mut self.before);
        self.gaps.clear();
        let mut before = std::mem::take(&mut self.before);
        for gaps in before.chunks(GAPS) {
            // All are asked for before any is read, and all are read before any is judged: no wait
            // and no wrong guess about one delays another.
            let mut inside = [[0; FAN - 1]; GAPS];
            let mut probes = [[Probe::new(&view.tables, chain[0]); FAN - 1]; GAPS];
            let mut sum = 0u32;
            for (at, gap) in gaps.iter().enumerate() {
                inside[at] = gap.inside();
                probes[at] = inside[at].map(|position| Probe::new(&view.tables, chain[position]));
                for probe in &probes[at] {
                    sum = sum.wrapping_add(probe.touch());
                }
            }
            black_box(sum);
            let nowhere = Point { position: 0, set: SetId::EMPTY };
            let mut seen = [[nowhere; FAN + 1]; GAPS];
            for (at, gap) in gaps.iter().enumerate() {
                seen[at] = gap.seen(inside[at], probes[at].map(|probe| probe.read(&view.tables)));
            }
            for seen in &seen[..gaps.len()] {
                self.note(seen);
            }
        }
        before.clear();
        self.before = before;
    }

    /// Takes down where neighbours in `seen` differ: as a change if nothing lies between them, else as
    /// a gap to look into.
    #[inline]
    fn note<const N: usize>(&mut self, seen: &[Point; N]) {
        let mut differing = 0u32;
        for at in 1..N {
            differing |= u32::from(seen[at].set != seen[at - 1].set) << at;
        }
        while differing != 0 {
            let at = differing.trailing_zeros() as usize;
            let (low, high) = (seen[at - 1], seen[at]);
            if high.position == low.position + 1 {
                self.changes.push(high);
            } else {
                self.gaps.push(Gap { low, high });
            }
            if high.set == SetId::EMPTY {
                return;
            }
            differing &= differing - 1;
        }
    }

    /// Looks at every block, up to the first that nobody holds.
    fn look_at_all(&mut self, view: &View, chain: &[BlockHash], first: SetId) {
        self.changes.clear();
        let mut last = first;
        for (part, blocks) in chain.chunks(AHEAD).enumerate() {
            let mut probes = [Probe::new(&view.tables, chain[0]); AHEAD];
            let mut sum = 0u32;
            for (probe, block) in probes.iter_mut().zip(blocks) {
                *probe = Probe::new(&view.tables, *block);
                sum = sum.wrapping_add(probe.touch());
            }
            black_box(sum);
            for (at, probe) in probes[..blocks.len()].iter().enumerate() {
                let point =
                    Point { position: (part * AHEAD + at) as u32, set: probe.read(&view.tables) };
                // The first block was read before; it counts as it was seen then.
                if point.set != last && point.position > 0 {
                    self.changes.push(point);
                    last = point.set;
                }
                if last == SetId::EMPTY {
                    return;
                }
            }
        }
    }

    /// Turns changes into levels: pods drop out where they are first missing.
    fn levels(&mut self, view: &View, length: usize, answer: &mut Answer) -> Result<(), Overtaken> {
        sort(&mut self.changes);
        for change in &self.changes {
            answer.open(change.position as usize, &self.holding);
            keep(view, change.set, &mut self.holding)?;
            answer.close(&self.holding);
            if change.set == SetId::EMPTY {
                return Ok(());
            }
        }
        answer.open(length, &self.holding);
        answer.close(&[]);
        Ok(())
    }
}

impl Gap {
    /// The blocks that divide the gap into parts. A short gap has fewer blocks than that; then some
    /// are named twice, or the high end is.
    #[inline]
    fn inside(self) -> [usize; FAN - 1] {
        let distance = (self.high.position - self.low.position) as usize;
        let low = self.low.position as usize;
        std::array::from_fn(|part| low + (distance * (part + 1)).div_ceil(FAN))
    }

    /// The low end, the blocks inside, and the high end. What was seen twice counts as it was first.
    #[inline]
    fn seen(self, inside: [usize; FAN - 1], sets: [SetId; FAN - 1]) -> [Point; FAN + 1] {
        let mut seen = [self.low; FAN + 1];
        for part in 1..FAN {
            let position = inside[part - 1] as u32;
            let before = seen[part - 1];
            let is_high = position == self.high.position;
            let set = if is_high { self.high.set } else { sets[part - 1] };
            let set = if position == before.position { before.set } else { set };
            seen[part] = Point { position, set };
        }
        seen[FAN] = self.high;
        seen
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

/// Takes from `holding` everybody who is not in `set`. A row on a page that the view lacks is newer
/// than the view.
#[inline]
fn keep(view: &View, set: SetId, holding: &mut [u64]) -> Result<(), Overtaken> {
    match view.numbering.read(set) {
        Named::Empty => holding.fill(0),
        Named::Single(slot) => {
            let (word, bit) = place(slot);
            let kept = holding[word] & bit;
            holding.fill(0);
            holding[word] = kept;
        }
        Named::Row(row) => {
            let page = view.pages.get(row / ROWS).ok_or(Overtaken)?;
            for (bits, stored) in holding.iter_mut().zip(page.row(row % ROWS)) {
                *bits &= stored.load(Ordering::Acquire);
            }
        }
    }
    Ok(())
}
