//! The largest prefixes that pods hold, for the admin page: which pods hold what, and where prompts
//! diverge.
//!
//! The table stores no order among blocks, but every ledger knows the parent of each of its blocks.
//! So a bounded number of entries is copied from each ledger, pods are merged by block, and blocks
//! without branches between them that the same pods hold become one run. The largest runs are
//! returned, each after its parent. Queries are not delayed; the events of a pod wait while its
//! entries are copied.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use wornpath_blocks::BlockHash;

use crate::entry::{EntryId, Flag};
use crate::index::Index;
use crate::ledger::Ledger;
use crate::pod::PodId;

/// Limits on what is read and returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixLimits {
    /// Blocks read from each pod.
    pub blocks_per_pod: usize,
    /// Runs returned.
    pub runs: usize,
}

/// Consecutive blocks without a branch, held by the same pods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefixRun {
    /// The position of the parent run in the list; `None` if prompts begin with this run.
    pub follows: Option<usize>,
    /// Its last block, whose hash names the whole prefix.
    pub last: BlockHash,
    /// Blocks before the run.
    pub depth: usize,
    /// Blocks of the run.
    pub blocks: usize,
    /// The pods that hold it, as positions in the queried list of pods.
    pub holders: Vec<usize>,
    /// Blocks of the run and of all its descendants, each counted once per pod that holds it.
    pub weight: usize,
}

/// The largest prefixes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Prefixes {
    /// Parents before children, otherwise the largest first.
    pub runs: Vec<PrefixRun>,
    /// Blocks that were read, each counted once per pod that holds it.
    pub looked_at: usize,
    /// Of those, how many have no known path to the start of a prompt.
    pub detached: usize,
    /// Pods that have more blocks than were read.
    pub cut_short: usize,
}

impl Index {
    /// The largest prefixes that `pods` hold. Removed pods hold nothing.
    #[must_use]
    pub fn prefixes(&self, pods: &[PodId], limits: PrefixLimits) -> Prefixes {
        let mut links = Vec::new();
        let mut cut_short = 0;
        for (pod, id) in pods.iter().enumerate() {
            let copied = self.with_ledger(*id, |ledger| {
                copy_links(ledger, limits.blocks_per_pod, |block, before| {
                    links.push(Link { block, before, pod });
                })
            });
            cut_short += usize::from(copied == Ok(PrefixCopy::Part));
        }
        // Sorted, so that the pods of a block are adjacent.
        links.sort_unstable_by_key(|link| (link.block, link.pod));
        links.dedup_by_key(|link| (link.block, link.pod));
        let forest = PrefixForest::of(&links);
        let runs = forest.largest(limits.runs);
        let attached: usize = forest.roots().map(|root| forest.weights[root]).sum();
        Prefixes { runs, looked_at: links.len(), detached: links.len() - attached, cut_short }
    }
}

/// A block that a pod holds, and its parent; itself if it has none.
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
    max: usize,
    mut each: impl FnMut(BlockHash, BlockHash),
) -> PrefixCopy {
    let mut copied = 0;
    for number in ledger.slab.numbers(0) {
        let entry = ledger.slab.get(number);
        if !entry.is_held() || entry.has(Flag::Unlinked) {
            continue;
        }
        if copied >= max {
            return PrefixCopy::Part;
        }
        let mut before =
            (entry.parent != EntryId::NONE).then(|| ledger.slab.get(entry.parent).block);
        for block in ledger.slab.blocks_of(number) {
            each(block, before.unwrap_or(block));
            before = Some(block);
            copied += 1;
        }
    }
    PrefixCopy::All
}

/// The distinct blocks of all pods, by number.
struct PrefixForest<'a> {
    links: &'a [Link],
    /// The links of each block.
    held: Vec<Range<usize>>,
    /// Pairs of a block and a child.
    follows: Vec<(usize, usize)>,
    /// Whether each block starts a prompt.
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
        let mut follows = Vec::new();
        let mut is_root = vec![false; held.len()];
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

    /// Adds the weights of its descendants to every block that a root reaches. A block has one
    /// parent, and a root none, so the blocks that a root reaches form a tree.
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

    /// The last block of the run that begins with `first`, and its length.
    fn run_from(&self, first: usize) -> (usize, usize) {
        let mut last = first;
        let mut blocks = 1;
        loop {
            let mut after = self.after(last);
            match (after.next(), after.next()) {
                (Some(next), None) if self.holders(next).eq(self.holders(first)) => last = next,
                _ => return (last, blocks),
            }
            blocks += 1;
        }
    }

    /// The runs of most weight; a run is a candidate once its parent is chosen.
    fn largest(&self, max: usize) -> Vec<PrefixRun> {
        let mut runs: Vec<PrefixRun> = Vec::new();
        let candidate = |at: usize, follows: Option<usize>, depth: usize| {
            (self.weights[at], Reverse((at, follows, depth)))
        };
        let mut open: BinaryHeap<_> = self.roots().map(|root| candidate(root, None, 0)).collect();
        while runs.len() < max
            && let Some((weight, Reverse((first, follows, depth)))) = open.pop()
        {
            let (last, blocks) = self.run_from(first);
            let next = self.after(last).map(|at| candidate(at, Some(runs.len()), depth + blocks));
            open.extend(next);
            let holders = self.holders(first).collect();
            let last = self.links[self.held[last].start].block;
            runs.push(PrefixRun { follows, last, depth, blocks, holders, weight });
        }
        runs
    }
}
