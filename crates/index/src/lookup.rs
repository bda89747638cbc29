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

/// Parts into which the first round divides the chain.
const FIRST: usize = 8;
/// Parts into which a later round divides a gap.
const FAN: usize = 4;
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

#[derive(Debug, Default)]
struct Search {
    /// Blocks looked at, in order of position.
    points: Vec<Point>,
    next: Vec<Point>,
    alive: Vec<u64>,
    /// Pods that hold everything so far.
    holding: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    position: u32,
    set: SetId,
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
        answer.reset(view_width(shared));
        search.alive.clear();
        search.alive.extend(shared.alive.iter().map(|word| word.load(Ordering::Acquire)));
        search.points.clear();
        if chain.is_empty() {
            return Ok(());
        }
        search.first_round(view, chain);
        while search.later_round(view, chain) {}
        if search.doubts(shared, view)? {
            search.look_at_all(view, chain);
        }
        search.levels(view, shared, answer)
    }
}

fn view_width(shared: &Shared) -> usize {
    shared.directory.numbering.words
}

impl Search {
    fn first_round(&mut self, view: &View, chain: &[BlockHash]) {
        let parts = FIRST.min(chain.len());
        let last = chain.len() - 1;
        self.points.clear();
        for part in 0..parts {
            let position = if parts == 1 { 0 } else { part * last / (parts - 1) } as u32;
            self.points.push(Point { position, set: UNREAD });
        }
        read(view, chain, &mut self.points);
        self.cut_at_nobody();
    }

    /// Looks inside every gap whose ends differ; `false` when there is none.
    fn later_round(&mut self, view: &View, chain: &[BlockHash]) -> bool {
        self.next.clear();
        let mut before: Option<Point> = None;
        for point in &self.points {
            if let Some(before) = before
                && before.set != point.set
            {
                let inside = point.position - before.position - 1;
                let parts = (FAN as u32 - 1).min(inside);
                for part in 1..=parts {
                    let position = before.position + part * (inside + 1) / (parts + 1);
                    self.next.push(Point { position, set: UNREAD });
                }
            }
            self.next.push(*point);
            before = Some(*point);
        }
        if self.next.len() == self.points.len() {
            return false;
        }
        std::mem::swap(&mut self.points, &mut self.next);
        read(view, chain, &mut self.points);
        self.cut_at_nobody();
        true
    }

    /// Nothing counts after a block that nobody holds.
    fn cut_at_nobody(&mut self) {
        if let Some(at) = self.points.iter().position(|point| point.set == SetId::EMPTY) {
            self.points.truncate(at + 1);
        }
    }

    /// Whether a live pod that may have holes holds the first block.
    fn doubts(&mut self, shared: &Shared, view: &View) -> Result<bool, Overtaken> {
        let mut doubtful = false;
        for (word, suspects) in shared.suspects.iter().enumerate() {
            let suspects = suspects.load(Ordering::Acquire) & self.alive[word];
            if suspects != 0 {
                doubtful |= suspects & word_of(view, self.points[0].set, word)? != 0;
            }
        }
        Ok(doubtful)
    }

    fn look_at_all(&mut self, view: &View, chain: &[BlockHash]) {
        let end = self.points.last().map_or(0, |point| point.position as usize);
        self.points.clear();
        for start in (0..=end).step_by(FIRST) {
            let positions = start..(start + FIRST).min(end + 1);
            self.next.clear();
            self.next
                .extend(positions.map(|position| Point { position: position as u32, set: UNREAD }));
            read(view, chain, &mut self.next);
            self.points.append(&mut self.next);
            let before = self.points.len();
            self.cut_at_nobody();
            if self.points.len() < before {
                return;
            }
        }
    }

    /// Turns positions and sets into levels: pods drop out where they are first missing.
    fn levels(
        &mut self,
        view: &View,
        shared: &Shared,
        answer: &mut Answer,
    ) -> Result<(), Overtaken> {
        let Self { points, alive, holding, .. } = self;
        debug_assert_eq!(alive.len(), view_width(shared));
        holding.clear();
        holding.extend_from_slice(alive);
        let mut last = UNREAD;
        for point in points.iter() {
            if point.set == last {
                continue;
            }
            last = point.set;
            let mut overtaken = false;
            let depth = point.position as usize;
            if depth == 0 {
                overtaken = keep(view, point.set, holding, None).is_err();
            } else {
                answer.level(depth, |gone| {
                    overtaken = keep(view, point.set, holding, Some(gone)).is_err();
                });
            }
            if overtaken {
                return Err(Overtaken);
            }
        }
        // What is left holds everything up to the last block looked at.
        if let Some(end) = points.last() {
            answer.level(end.position as usize + 1, |rest| rest.copy_from_slice(holding));
        }
        Ok(())
    }
}

/// A block not looked at yet.
const UNREAD: SetId = SetId(u32::MAX);

/// Reads the sets of all points not read yet: first asks for their lines, then reads them.
#[inline]
fn read(view: &View, chain: &[BlockHash], points: &mut [Point]) {
    let mut sum = 0u32;
    for point in points.iter().filter(|point| point.set == UNREAD) {
        let place = Place::of(chain[point.position as usize]);
        sum = sum.wrapping_add(touch(&view.tables[place.shard], place));
    }
    black_box(sum);
    for point in points.iter_mut().filter(|point| point.set == UNREAD) {
        let hash = chain[point.position as usize];
        let place = Place::of(hash);
        point.set = find(&view.tables[place.shard], place, hash);
    }
}

/// Takes from `holding` everybody who is not in `set`, and puts them into `gone`.
#[inline]
fn keep(
    view: &View,
    set: SetId,
    holding: &mut [u64],
    gone: Option<&mut [u64]>,
) -> Result<(), Overtaken> {
    if let Some(gone) = gone {
        for word in 0..holding.len() {
            let kept = holding[word] & word_of(view, set, word)?;
            gone[word] = holding[word] & !kept;
            holding[word] = kept;
        }
    } else {
        for (word, bits) in holding.iter_mut().enumerate() {
            *bits &= word_of(view, set, word)?;
        }
    }
    Ok(())
}

/// One word of a set. A row on a page that the view lacks is newer than the view.
#[inline]
fn word_of(view: &View, set: SetId, word: usize) -> Result<u64, Overtaken> {
    match view.numbering.read(set) {
        Named::Empty => Ok(0),
        Named::Single(slot) => {
            let (of, bit) = place(slot);
            Ok(if of == word { bit } else { 0 })
        }
        Named::Row(row) => {
            let page = view.pages.get(row / ROWS).ok_or(Overtaken)?;
            Ok(page.row(row % ROWS)[word].load(Ordering::Acquire))
        }
    }
}
