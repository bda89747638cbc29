//! Sorts chains into the depth-first order of the prefix forest.
//!
//! Chained hashes make this cheaper than sorting strings: one comparison tells whether two whole
//! prefixes are equal. So requests of a range are not compared pair by pair; probing finds the
//! prefix that all of them share, and the range is sorted by the one hash behind that prefix and
//! split into ranges of equal hashes. Each request is visited once per branching on its path.
//!
//! Siblings are ordered by their hashes, which has no meaning but is the same for every input
//! order. A request that ends where others continue comes before them.

use crate::queue::{JobId, Queue, shared};
use std::cmp::{Ordering, Reverse};
use wornpath_blocks::BlockHash;

/// Ranges up to this length are sorted by comparing chains: splitting them costs more.
const SHORT: usize = 16;

/// A range of requests that share their first `depth` blocks.
struct Task {
    start: usize,
    end: usize,
    depth: usize,
}

/// Sorts requests into depth-first order.
pub(crate) fn depth_first(queue: &Queue, jobs: &mut [JobId]) {
    // Recursion would follow the longest chain, and a client may send one of any length.
    let mut tasks = vec![Task { start: 0, end: jobs.len(), depth: 0 }];
    let mut keyed: Vec<(u64, JobId)> = Vec::new();
    while let Some(Task { start, end, depth }) = tasks.pop() {
        let range = &mut jobs[start..end];
        if range.len() <= SHORT {
            range.sort_unstable_by(|one, other| compare(queue, *one, *other, depth));
            continue;
        }
        let depth = common_depth(queue, range, depth);
        keyed.clear();
        let mut ended = 0;
        for at in 0..range.len() {
            let job = range[at];
            match queue.chain(job).get(depth) {
                Some(hash) => keyed.push((hash.0, job)),
                None => {
                    range[ended] = job;
                    ended += 1;
                }
            }
        }
        range[..ended].sort_unstable_by_key(|job| tie(queue, *job));
        keyed.sort_unstable();
        for (slot, (_, job)) in range[ended..].iter_mut().zip(&keyed) {
            *slot = *job;
        }
        let mut next = start + ended;
        for run in keyed.chunk_by(|one, other| one.0 == other.0) {
            if run.len() > 1 {
                tasks.push(Task { start: next, end: next + run.len(), depth: depth + 1 });
            }
            next += run.len();
        }
    }
}

/// Blocks that all requests of a range share, at least `known`.
fn common_depth(queue: &Queue, range: &[JobId], known: usize) -> usize {
    let first = queue.chain(range[0]);
    let mut common = first.len();
    for job in &range[1..] {
        let chain = queue.chain(*job);
        // One probe suffices, unless this request shares less than all before it.
        if common > known && (chain.len() < common || chain[common - 1] != first[common - 1]) {
            common = shared(&first[..common], chain, known);
        }
        if common == known {
            break;
        }
    }
    common
}

fn compare(queue: &Queue, one: JobId, other: JobId, known: usize) -> Ordering {
    let by_chain = compare_chains(queue.chain(one), queue.chain(other), known);
    by_chain.then_with(|| tie(queue, one).cmp(&tie(queue, other)))
}

/// The order of two chains of which the first `known` blocks are equal.
pub(crate) fn compare_chains(one: &[BlockHash], other: &[BlockHash], known: usize) -> Ordering {
    let depth = shared(one, other, known);
    one.get(depth).cmp(&other.get(depth))
}

/// The order of requests with equal chains: by their properties first, then by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tie {
    prompt_tokens: usize,
    output_tokens: Reverse<usize>,
    pub(crate) job: JobId,
}

pub(crate) fn tie(queue: &Queue, job: JobId) -> Tie {
    Tie {
        prompt_tokens: queue.prompt_tokens(job),
        output_tokens: Reverse(queue.output_tokens(job)),
        job,
    }
}
