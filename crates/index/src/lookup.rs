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
use crate::table::{Place, SetId, find, touch};

/// Parts into which the first round divides the chain: two to this power.
const FIRST: u32 = 3;
/// Parts into which a later round divides a gap: two to this power.
const FAN: u32 = 2;
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
    /// Stretches with a change inside.
    gaps: Vec<Gap>,
    next: Vec<Gap>,
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
        search.holding.clear();
        search.holding.extend(shared.alive.iter().map(|word| word.load(Ordering::Acquire)));
        let Some(first) = search.first_round(view, chain) else { return Ok(()) };
        while !search.gaps.is_empty() {
            search.later_round(view, chain);
        }
        keep(view, first, &mut search.holding)?;
        // Suspicion is read after the blocks: a hole that was there before them is seen here.
        let suspects = shared.suspects.iter().map(|word| word.load(Ordering::Acquire));
        if suspects.zip(&search.holding).any(|(suspects, holding)| suspects & holding != 0) {
            search.look_at_all(view, chain, first);
        }
        search.levels(view, chain.len(), answer)
    }
}

impl Search {
    /// Looks at blocks spread over the chain, the first and the last among them. Returns the first
    /// block's set, unless nobody holds it.
    fn first_round(&mut self, view: &View, chain: &[BlockHash]) -> Option<SetId> {
        self.changes.clear();
        self.gaps.clear();
        let last = chain.len() as u32 - 1;
        let whole = Gap {
            low: Point { position: 0, set: SetId::EMPTY },
            high: Point { position: last, set: SetId::EMPTY },
        };
        let parts = whole.parts(FIRST);
        let mut sum = touch_block(view, chain[0]);
        for part in 1..=parts {
            sum = sum.wrapping_add(touch_block(view, chain[whole.at(part, FIRST) as usize]));
        }
        black_box(sum);
        let first = read_block(view, chain[0]);
        if first == SetId::EMPTY {
            return None;
        }
        let mut low = Point { position: 0, set: first };
        for part in 1..=parts {
            let position = whole.at(part, FIRST);
            let high = Point { position, set: read_block(view, chain[position as usize]) };
            if !self.note(low, high) {
                break;
            }
            low = high;
        }
        std::mem::swap(&mut self.gaps, &mut self.next);
        Some(first)
    }

    /// Looks inside every gap.
    fn later_round(&mut self, view: &View, chain: &[BlockHash]) {
        let mut sum = 0u32;
        for gap in &self.gaps {
            for part in 1..gap.parts(FAN) {
                sum = sum.wrapping_add(touch_block(view, chain[gap.at(part, FAN) as usize]));
            }
        }
        black_box(sum);
        for at in 0..self.gaps.len() {
            let gap = self.gaps[at];
            let mut low = gap.low;
            for part in 1..gap.parts(FAN) {
                let position = gap.at(part, FAN);
                let point = Point { position, set: read_block(view, chain[position as usize]) };
                let somebody = self.note(low, point);
                low = point;
                if !somebody {
                    break;
                }
            }
            if low.set != SetId::EMPTY {
                self.note(low, gap.high);
            }
        }
        self.gaps.clear();
        std::mem::swap(&mut self.gaps, &mut self.next);
    }

    /// Takes down what two blocks tell: nothing, a change between neighbours, or a gap to look into.
    /// `false` when nobody holds the second: nothing counts after it.
    #[inline]
    fn note(&mut self, low: Point, high: Point) -> bool {
        if low.set != high.set {
            if high.position == low.position + 1 {
                self.changes.push(high);
            } else {
                self.next.push(Gap { low, high });
            }
        }
        high.set != SetId::EMPTY
    }

    /// Looks at every block, up to the first that nobody holds.
    fn look_at_all(&mut self, view: &View, chain: &[BlockHash], first: SetId) {
        const AHEAD: usize = 16;
        self.changes.clear();
        let mut last = first;
        for (part, blocks) in chain.chunks(AHEAD).enumerate() {
            black_box(
                blocks.iter().fold(0u32, |sum, block| sum.wrapping_add(touch_block(view, *block))),
            );
            for (at, block) in blocks.iter().enumerate() {
                let point =
                    Point { position: (part * AHEAD + at) as u32, set: read_block(view, *block) };
                if point.set != last && point.position > 0 {
                    self.changes.push(point);
                    last = point.set;
                }
                if point.set == SetId::EMPTY {
                    return;
                }
            }
        }
    }

    /// Turns changes into levels: pods drop out where they are first missing.
    fn levels(&mut self, view: &View, length: usize, answer: &mut Answer) -> Result<(), Overtaken> {
        self.changes.sort_unstable_by_key(|change| change.position);
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
    /// How many parts the gap is divided into: `2^parts`, or fewer when it is short.
    #[inline]
    fn parts(self, parts: u32) -> u32 {
        (self.high.position - self.low.position).min(1 << parts)
    }

    /// Where part `part` of `2^parts` begins.
    #[inline]
    fn at(self, part: u32, parts: u32) -> u32 {
        let distance = self.high.position - self.low.position;
        let inside = if distance < 1 << parts {
            part
        } else {
            ((u64::from(distance) * u64::from(part)) >> parts) as u32
        };
        self.low.position + inside
    }
}

#[inline]
fn touch_block(view: &View, block: BlockHash) -> u32 {
    let place = Place::of(block);
    touch(&view.tables[place.shard], place)
}

#[inline]
fn read_block(view: &View, block: BlockHash) -> SetId {
    let place = Place::of(block);
    find(&view.tables[place.shard], place, block)
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
