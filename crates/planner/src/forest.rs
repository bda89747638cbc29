//! The prefix forest of a queue, as a sorted order and the blocks that neighbours share.
//!
//! An engine computes a block once if all requests that need it arrive while the block is cached.
//! In depth-first order all requests that need a block form one run, and the cache must hold only
//! one path. So the order, together with the blocks that neighbours share, represents the whole
//! forest: its nodes, the minimal work, and the cost of a cut between two neighbours follow from
//! it.

use crate::queue::{JobId, Queue};
use crate::sorting;
use std::collections::BTreeMap;

/// Requests in depth-first order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forest {
    order: Vec<JobId>,
    /// Blocks that each request shares with the one before it.
    shared: Vec<u32>,
    /// Requests that take the answer of another: the copy, and the request that is computed.
    copies: Vec<(JobId, JobId)>,
}

impl Forest {
    /// The forest of all requests of a queue.
    #[must_use]
    pub fn of(queue: &Queue) -> Self {
        Self::of_jobs(queue, queue.jobs().collect())
    }

    /// The forest of some requests of a queue, each given once.
    #[must_use]
    pub fn of_jobs(queue: &Queue, order: Vec<JobId>) -> Self {
        let Self { order, shared, .. } = Self::with_copies(queue, order);
        Self::sorted(queue, order, shared)
    }

    /// The same, but without deduplication: for one part of a queue, because the original of a copy
    /// may be in another part.
    #[must_use]
    pub fn with_copies(queue: &Queue, mut order: Vec<JobId>) -> Self {
        sorting::depth_first(queue, &mut order);
        let pairs = order.windows(2).map(|pair| queue.shared_blocks(pair[0], pair[1]) as u32);
        let shared = order.first().map(|_| 0).into_iter().chain(pairs).collect();
        Self { order, shared, copies: Vec::new() }
    }

    /// The forest of requests that are in depth-first order already; `shared` is the number of
    /// blocks that each one shares with the one before it.
    pub(crate) fn sorted(queue: &Queue, mut order: Vec<JobId>, mut shared: Vec<u32>) -> Self {
        let copies = remove_copies(queue, &mut order, &mut shared);
        Self { order, shared, copies }
    }

    /// The requests to be computed, in depth-first order.
    #[must_use]
    pub fn order(&self) -> &[JobId] {
        &self.order
    }

    /// Blocks that each request shares with the one before it.
    #[must_use]
    pub fn shared(&self) -> &[u32] {
        &self.shared
    }

    /// Requests that take the answer of another: the copy, and the request that is computed.
    #[must_use]
    pub fn copies(&self) -> &[(JobId, JobId)] {
        &self.copies
    }

    pub(crate) fn into_copies(self) -> Vec<(JobId, JobId)> {
        self.copies
    }

    /// The fewest prompt tokens that can be computed: each block once, and for every prompt the
    /// tokens behind its last full block, at least the last token.
    #[must_use]
    pub fn least_tokens(&self, queue: &Queue) -> u64 {
        let pairs = self.order.iter().zip(&self.shared);
        pairs.map(|(job, shared)| fresh_tokens(queue, *job, *shared as usize) as u64).sum()
    }

    /// Tokens of the prompts of all requests to be computed, cached or not.
    #[must_use]
    pub fn prompt_tokens(&self, queue: &Queue) -> u64 {
        self.order.iter().map(|job| queue.prompt_tokens(*job) as u64).sum()
    }

    /// Tokens of the longest prompt with its answer: a smaller cache cannot hold a path.
    #[must_use]
    pub fn longest_tokens(&self, queue: &Queue) -> usize {
        let all =
            self.order.iter().map(|job| queue.prompt_tokens(*job) + queue.output_tokens(*job));
        all.max().unwrap_or(0)
    }
}

/// Prompt tokens that remain to be computed if the first `cached` blocks of a request are cached.
pub(crate) fn fresh_tokens(queue: &Queue, job: JobId, cached: usize) -> usize {
    let found = cached.min(queue.reusable_blocks(job));
    queue.prompt_tokens(job) - found * queue.block_size().get()
}

/// Removes requests from `order` that can take another's answer; returns pairs of copy and
/// original. `shared` stays the number of blocks that each request shares with the one before it.
pub(crate) fn remove_copies(
    queue: &Queue,
    order: &mut Vec<JobId>,
    shared: &mut Vec<u32>,
) -> Vec<(JobId, JobId)> {
    if !queue.has_identities() {
        return Vec::new();
    }
    let mut originals = BTreeMap::new();
    for job in &*order {
        if let Some(identity) = queue.identity(*job) {
            let original = originals.entry(identity).or_insert(*job);
            *original = (*original).min(*job);
        }
    }
    let mut copies = Vec::new();
    let mut kept = 0;
    let mut least = u32::MAX;
    for position in 0..order.len() {
        let job = order[position];
        // In a sorted order, two requests share the minimum of what the neighbours between them
        // share.
        least = least.min(shared[position]);
        match queue.identity(job).map_or(job, |identity| originals[&identity]) {
            original if original == job => {
                order[kept] = job;
                shared[kept] = least;
                kept += 1;
                least = u32::MAX;
            }
            original => copies.push((job, original)),
        }
    }
    order.truncate(kept);
    shared.truncate(kept);
    copies
}
