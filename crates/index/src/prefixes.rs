//! The largest prefixes that pods hold, for people who look: who holds what, and where prompts part.
//!
//! The map knows no order among blocks, but every ledger knows what precedes each of its own. So a bounded
//! number of entries is copied out of each ledger, pods are merged by block, and blocks that follow each other
//! alone, held by the same pods, become one run. Of the runs the largest are kept, each after the one that it
//! follows. Queries wait for none of this; the events of a pod wait while its entries are copied.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use wornpath_blocks::BlockHash;

use crate::index::Index;
use crate::ledger::Ledger;
use crate::pod::PodId;
use crate::slab::{EntryId, Flag};

/// How much is looked at, and how much is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixLimits {
    /// Blocks that are looked at of each pod.
    pub blocks_per_pod: usize,
    /// Runs that are told.
    pub runs: usize,
}

/// Blocks that follow each other alone and are held by the same pods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefixRun {
    /// Which run it follows, as a place in the list; none if prompts begin with it.
    pub follows: Option<usize>,
    /// Its last block, which names the whole prefix.
    pub last: BlockHash,
    /// Blocks before it.
    pub depth: usize,
    /// Its blocks.
    pub blocks: usize,
    /// Who holds it: places in the list of pods that was asked about.
    pub holders: Vec<usize>,
    /// Blocks in it and in everything that follows it, each counted once for every pod that holds it.
    pub weight: usize,
}

/// The largest prefixes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Prefixes {
    /// Each after the one that it follows, the largest first otherwise.
    pub runs: Vec<PrefixRun>,
    /// Blocks that were looked at, each counted once for every pod that holds it.
    pub looked_at: usize,
    /// Of those, how many hang on no known beginning.
    pub detached: usize,
    /// Pods that have more blocks than were looked at.
    pub cut_short: usize,
}

impl Index {
    /// The largest prefixes that `pods` hold. Those that have gone hold nothing.
    #[must_use]
    pub fn prefixes(&self, pods: &[PodId], limits: PrefixLimits) -> Prefixes {
        let (mut links, mut cut_short) = (Vec::new(), 0);
        for (pod, id) in pods.iter().enumerate() {
            let copied = self.with_ledger(*id, |ledger| {
                copy_links(ledger, limits.blocks_per_pod, |block, before| {
                    links.push(Link { block, before, pod });
                })
            });
            cut_short += usize::from(copied == Ok(PrefixCopy::Part));
        }
        // The order says everything that follows: which pods hold a block stands together.
        links.sort_unstable_by_key(|link| (link.block, link.pod));
        links.dedup_by_key(|link| (link.block, link.pod));
        let forest = PrefixForest::of(&links);
        let runs = forest.largest(limits.runs);
        let attached: usize = forest.roots().map(|root| forest.weights[root]).sum();
        Prefixes { runs, looked_at: links.len(), detached: links.len() - attached, cut_short }
    }
}

/// That a pod holds a block, and what precedes it; itself if nothing does.
struct Link {
    block: BlockHash,
    before: BlockHash,
    pod: usize,
}

#[derive(PartialEq, Eq, Debug)]
enum PrefixCopy {
    All,
    Part,
}

fn copy_links(
    ledger: &Ledger,
    most: usize,
    mut each: impl FnMut(BlockHash, BlockHash),
) -> PrefixCopy {
    let mut copied = 0;
    for number in ledger.slab.numbers(0) {
        let entry = ledger.slab.get(number);
        if !entry.is_held() || entry.has(Flag::Unlinked) {
            continue;
        }
        if copied >= most {
            return PrefixCopy::Part;
        }
        let mut before =
            (entry.parent != EntryId::NONE).then(|| ledger.slab.get(entry.parent).block);
        ledger.blocks_of(number, |block| {
            each(block, before.unwrap_or(block));
            before = Some(block);
            copied += 1;
        });
    }
    PrefixCopy::All
}

/// The blocks of all pods, each once, by number.
struct PrefixForest<'a> {
    links: &'a [Link],
    /// The links of each block.
    held: Vec<Range<usize>>,
    /// Pairs of a block and one that follows it.
    follows: Vec<(usize, usize)>,
    /// Which blocks nothing precedes.
    is_root: Vec<bool>,
    weights: Vec<usize>,
}

impl<'a> PrefixForest<'a> {
    fn of(links: &'a [Link]) -> Self {
        let mut held = Vec::new();
        let mut start = 0;
        for run in links.chunk_by(|one, other| one.block == other.block) {
            held.push(start..start + run.len());
            start += run.len();
        }
        let block = |range: &Range<usize>| links[range.start].block;
        let (mut follows, mut is_root) = (Vec::new(), vec![false; held.len()]);
        for (at, range) in held.iter().enumerate() {
            let before = links[range.start].before;
            if before == block(range) {
                is_root[at] = true;
            } else if let Ok(parent) = held.binary_search_by_key(&before, block) {
                follows.push((parent, at));
            }
        }
        follows.sort_unstable();
        let weights = held.iter().map(ExactSizeIterator::len).collect();
        let mut forest = Self { links, held, follows, is_root, weights };
        forest.weigh();
        forest
    }

    fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.is_root.len()).filter(|at| self.is_root[*at])
    }

    fn after(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let from = self.follows.partition_point(|(parent, _)| *parent < at);
        let of_it = self.follows[from..].iter().take_while(move |(parent, _)| *parent == at);
        of_it.map(|(_, child)| *child)
    }

    /// Adds to every block what follows it. What hangs on no beginning is not reached and stays as it is.
    /// A block follows one other, and a root none, so what a root reaches is a tree.
    fn weigh(&mut self) {
        let mut order: Vec<_> = self.roots().map(|root| (root, root)).collect();
        let mut done = 0;
        while done < order.len() {
            let (at, _) = order[done];
            order.extend(self.after(at).map(|child| (child, at)));
            done += 1;
        }
        for (at, parent) in order.into_iter().rev() {
            if at != parent {
                self.weights[parent] += self.weights[at];
            }
        }
    }

    fn holders(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        self.links[self.held[at].clone()].iter().map(|link| link.pod)
    }

    /// The last block of the run that begins with a block, and how many it has.
    fn run_from(&self, first: usize) -> (usize, usize) {
        let (mut last, mut blocks) = (first, 1);
        loop {
            let mut after = self.after(last);
            match (after.next(), after.next()) {
                (Some(next), None) if self.holders(next).eq(self.holders(first)) => last = next,
                _ => return (last, blocks),
            }
            blocks += 1;
        }
    }

    /// The runs of most weight: a run is considered once the one that it follows was taken.
    fn largest(&self, most: usize) -> Vec<PrefixRun> {
        let mut runs: Vec<PrefixRun> = Vec::new();
        let place = |at: usize, follows: Option<usize>, depth: usize| {
            (self.weights[at], Reverse((at, follows, depth)))
        };
        let mut open: BinaryHeap<_> = self.roots().map(|root| place(root, None, 0)).collect();
        while runs.len() < most
            && let Some((weight, Reverse((first, follows, depth)))) = open.pop()
        {
            let (last, blocks) = self.run_from(first);
            let next = self.after(last).map(|at| place(at, Some(runs.len()), depth + blocks));
            open.extend(next);
            let holders = self.holders(first).collect();
            let last = self.links[self.held[last].start].block;
            runs.push(PrefixRun { follows, last, depth, blocks, holders, weight });
        }
        runs
    }
}
