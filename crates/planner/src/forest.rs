//! The prefix forest of a queue, as a sorted order and what neighbours share.
//!
//! An engine computes a block once if everything that needs it comes while the block is cached. In depth-first
//! order everything that needs a block comes in one run, and the cache must hold no more than one path.
//! So the order together with the blocks that neighbours share is the whole forest: nodes, the least
//! work, and what a cut between two neighbours costs can all be read off it.

use crate::dedup;
use crate::queue::{JobId, Queue};
use crate::sorting;

/// Requests in depth-first order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forest {
    order: Vec<JobId>,
    /// Blocks that each shares with the one before it.
    shared: Vec<u32>,
    /// Requests that take the answer of another: the copy and the one that is computed.
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

    /// The same, but copies stay in the order: for a part of a queue, as what they are copies of may be in another.
    #[must_use]
    pub fn with_copies(queue: &Queue, mut order: Vec<JobId>) -> Self {
        sorting::depth_first(queue, &mut order);
        let pairs = order.windows(2).map(|pair| queue.shared_blocks(pair[0], pair[1]) as u32);
        let shared = order.first().map(|_| 0).into_iter().chain(pairs).collect();
        Self { order, shared, copies: Vec::new() }
    }

    /// The forest of requests in depth-first order, each with the blocks that it shares with the one before it.
    pub(crate) fn sorted(queue: &Queue, mut order: Vec<JobId>, mut shared: Vec<u32>) -> Self {
        let copies = dedup::take_out(queue, &mut order, &mut shared);
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

    /// Requests that take the answer of another: the copy and the one that is computed.
    #[must_use]
    pub fn copies(&self) -> &[(JobId, JobId)] {
        &self.copies
    }

    pub(crate) fn into_copies(self) -> Vec<(JobId, JobId)> {
        self.copies
    }

    /// The fewest prompt tokens that can be computed: each block once, what is behind the last full block
    /// of a prompt every time, and the last token of every prompt.
    #[must_use]
    pub fn least_tokens(&self, queue: &Queue) -> u64 {
        let pairs = self.order.iter().zip(&self.shared);
        pairs.map(|(job, shared)| fresh_tokens(queue, *job, *shared as usize) as u64).sum()
    }

    /// Tokens of all prompts that are to be computed, cached or not.
    #[must_use]
    pub fn prompt_tokens(&self, queue: &Queue) -> u64 {
        self.order.iter().map(|job| queue.prompt_tokens(*job) as u64).sum()
    }

    /// Tokens of the longest prompt with its answer: a cache that holds less cannot keep a path.
    #[must_use]
    pub fn longest_tokens(&self, queue: &Queue) -> usize {
        let all =
            self.order.iter().map(|job| queue.prompt_tokens(*job) + queue.output_tokens(*job));
        all.max().unwrap_or(0)
    }
}

/// Prompt tokens of a request to compute where its first `cached` blocks are cached.
pub(crate) fn fresh_tokens(queue: &Queue, job: JobId, cached: usize) -> usize {
    let found = cached.min(queue.reusable_blocks(job));
    queue.prompt_tokens(job) - found * queue.block_size().get()
}
