//! The requests to plan, in columns.
//!
//! A million requests of 64 blocks have half a gigabyte of hashes, so one array stores all hashes
//! and nothing is copied: every other structure refers to a request by its number.
//!
//! A caller that keeps the sorted chains elsewhere ([`Forest::merge`](crate::Forest::merge)) can
//! drop them here: only ordering and matching read chains, the rest needs lengths.
//!
//! The owner of a request plays no part in what it shares. A chain starts from a root that contains
//! model, adapter and salt, so requests of two tenants share a prefix exactly when their salts allow
//! it. Deadlines decide which of the prefixes come first.

use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_blocks::BlockHash;

/// A request's number: its position in the [`Queue`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct JobId(pub u32);

impl JobId {
    /// The number as an array index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A hash of everything that determines an answer: requests with equal keys are computed once.
///
/// Set it only for a request with a deterministic answer (temperature zero, or a seed), and only if
/// its owner opted in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DedupKey(pub u128);

/// A request to plan.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The hashes of the prompt's full blocks.
    pub chain: &'a [BlockHash],
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Expected tokens of the answer.
    pub output_tokens: usize,
    /// Set if the request may take the answer of an equal one.
    pub identity: Option<DedupKey>,
}

/// A request that cannot be planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueError {
    /// There is nothing to compute.
    #[error("empty prompt; a prompt needs at least one token")]
    EmptyPrompt,
    /// Lengths are kept in 32 bits.
    #[error("request too long: {tokens} tokens (limit {})", u32::MAX)]
    TooLong {
        /// Tokens of the prompt or of the output.
        tokens: usize,
    },
    /// The chain belongs to another prompt.
    #[error(
        "chain too long: {blocks} blocks of {block_size} tokens exceed a prompt of {tokens} tokens"
    )]
    TooManyBlocks {
        /// Length of the chain.
        blocks: usize,
        /// Tokens per block.
        block_size: NonZeroUsize,
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// Request numbers have 32 bits.
    #[error("queue full: {} requests; split the batch", u32::MAX)]
    Full,
}

/// Requests that wait to be planned.
#[derive(Clone, Debug)]
pub struct Queue {
    block_size: NonZeroUsize,
    /// How many requests, from the first on, have had their chains dropped.
    dropped: usize,
    hashes: Vec<BlockHash>,
    /// Where each of the other chains ends in `hashes`.
    ends: Vec<usize>,
    prompts: Vec<u32>,
    outputs: Vec<u32>,
    /// Ends with the last request that has an identity.
    identities: Vec<Option<DedupKey>>,
    /// The first request of each run with the same deadline; requests before it have none.
    deadlines: Vec<(u32, Option<Duration>)>,
}

impl Queue {
    /// An empty queue of prompts in blocks of `block_size` tokens.
    #[must_use]
    pub const fn new(block_size: NonZeroUsize) -> Self {
        Self {
            block_size,
            dropped: 0,
            hashes: Vec::new(),
            ends: Vec::new(),
            prompts: Vec::new(),
            outputs: Vec::new(),
            identities: Vec::new(),
            deadlines: Vec::new(),
        }
    }

    /// Reserves memory, so that a large queue is not copied while it grows.
    pub fn reserve(&mut self, jobs: usize, blocks: usize) {
        self.hashes.reserve_exact(blocks);
        self.ends.reserve_exact(jobs);
        self.prompts.reserve_exact(jobs);
        self.outputs.reserve_exact(jobs);
    }

    /// Adds a request.
    ///
    /// # Errors
    /// If its lengths contradict each other, or the queue is full.
    pub fn push(&mut self, job: &Job<'_>) -> Result<JobId, QueueError> {
        let tokens = job.prompt_tokens;
        if tokens == 0 {
            return Err(QueueError::EmptyPrompt);
        }
        if job.chain.len() > tokens / self.block_size {
            let blocks = job.chain.len();
            return Err(QueueError::TooManyBlocks { blocks, block_size: self.block_size, tokens });
        }
        let length =
            |tokens: usize| u32::try_from(tokens).map_err(|_| QueueError::TooLong { tokens });
        let prompt = length(tokens)?;
        let output = length(job.output_tokens)?;
        let number = u32::try_from(self.len()).map_err(|_| QueueError::Full)?;
        if number == u32::MAX {
            return Err(QueueError::Full);
        }
        set_last(&mut self.identities, self.prompts.len(), job.identity);
        self.hashes.extend_from_slice(job.chain);
        self.ends.push(self.hashes.len());
        self.prompts.push(prompt);
        self.outputs.push(output);
        Ok(JobId(number))
    }

    /// Sets when requests that are added from now on must be finished, from the start of the plan;
    /// none if they can wait.
    pub fn set_deadline(&mut self, deadline: Option<Duration>) {
        let last = self.deadlines.last().and_then(|(_, last)| *last);
        if last != deadline {
            let first = self.len() as u32;
            self.deadlines.pop_if(|(start, _)| *start == first);
            self.deadlines.push((first, deadline));
        }
    }

    /// When a request must be finished; none if it can wait.
    #[must_use]
    pub fn deadline(&self, job: JobId) -> Option<Duration> {
        let run = self.deadlines.partition_point(|(first, _)| *first <= job.0);
        run.checked_sub(1).and_then(|run| self.deadlines[run].1)
    }

    /// Whether any request has a deadline.
    #[must_use]
    pub fn has_deadlines(&self) -> bool {
        self.deadlines.iter().any(|(_, deadline)| deadline.is_some())
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> NonZeroUsize {
        self.block_size
    }

    /// The number of requests.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.prompts.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }

    /// All requests.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> + use<> {
        (0..self.prompts.len() as u32).map(JobId)
    }

    /// The hashes of a request's full blocks; empty if its chain was dropped.
    #[inline]
    #[must_use]
    pub fn chain(&self, job: JobId) -> &[BlockHash] {
        let Some(index) = job.index().checked_sub(self.dropped) else { return &[] };
        let start = match index {
            0 => 0,
            index => self.ends[index - 1],
        };
        &self.hashes[start..self.ends[index]]
    }

    /// The requests whose chains have not been dropped: the last ones.
    pub fn jobs_with_chains(&self) -> impl Iterator<Item = JobId> + use<> {
        (self.dropped as u32..self.prompts.len() as u32).map(JobId)
    }

    /// Bytes of the chains that have not been dropped.
    #[must_use]
    pub const fn chain_bytes(&self) -> usize {
        size_of::<BlockHash>() * self.hashes.len() + size_of::<usize>() * self.ends.len()
    }

    /// Drops all chains; later requests reuse their memory.
    pub fn drop_chains(&mut self) {
        self.dropped = self.prompts.len();
        self.hashes.clear();
        self.ends.clear();
    }

    /// Releases memory that no request uses.
    pub fn shrink(&mut self) {
        self.hashes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Tokens of a request's prompt.
    #[must_use]
    pub fn prompt_tokens(&self, job: JobId) -> usize {
        self.prompts[job.index()] as usize
    }

    /// Expected tokens of a request's answer.
    #[must_use]
    pub fn output_tokens(&self, job: JobId) -> usize {
        self.outputs[job.index()] as usize
    }

    /// A request's key for deduplication, if it has one.
    #[must_use]
    pub fn identity(&self, job: JobId) -> Option<DedupKey> {
        self.identities.get(job.index()).copied().flatten()
    }

    /// Whether any request may take the answer of another.
    #[must_use]
    pub const fn has_identities(&self) -> bool {
        !self.identities.is_empty()
    }

    /// Blocks of a prompt that a cache can provide: the last token is always computed.
    #[must_use]
    pub fn reusable_blocks(&self, job: JobId) -> usize {
        (self.prompt_tokens(job) - 1) / self.block_size
    }

    /// Leading blocks that two requests share.
    #[must_use]
    pub fn shared_blocks(&self, one: JobId, other: JobId) -> usize {
        shared(self.chain(one), self.chain(other), 0)
    }
}

/// Grows a column, which most queues do not need, only when a request has a value for it.
fn set_last<T: Clone>(column: &mut Vec<Option<T>>, index: usize, value: Option<T>) {
    if value.is_some() {
        column.resize(index, None);
        column.push(value);
    }
}

/// Leading blocks that two chains share; the first `known` of them are equal.
///
/// Equal hashes mean equal prefixes, so a binary search suffices.
pub(crate) fn shared(one: &[BlockHash], other: &[BlockHash], known: usize) -> usize {
    let mut low = known;
    let mut high = one.len().min(other.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        if one[middle - 1] == other[middle - 1] {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();

    fn job(chain: &[BlockHash], prompt_tokens: usize) -> Job<'_> {
        Job { chain, prompt_tokens, output_tokens: 1, identity: None }
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let mut queue = Queue::new(FOUR);
        let chain = [BlockHash(1), BlockHash(2)];
        assert_eq!(queue.push(&job(&[], 0)), Err(QueueError::EmptyPrompt));
        let error = queue.push(&job(&chain, 7)).unwrap_err().to_string();
        assert_eq!(error, "chain too long: 2 blocks of 4 tokens exceed a prompt of 7 tokens");
        assert_eq!(queue.push(&job(&chain, 8)), Ok(JobId(0)));
        assert!(!queue.has_identities());
    }

    #[test]
    fn an_identity_leaves_earlier_and_later_requests_without_one() {
        let mut queue = Queue::new(FOUR);
        let identity = Some(DedupKey(9));
        queue.push(&job(&[], 1)).unwrap();
        queue.push(&Job { identity, ..job(&[], 1) }).unwrap();
        queue.push(&job(&[], 1)).unwrap();
        let all: Vec<_> = queue.jobs().map(|job| queue.identity(job)).collect();
        assert_eq!(all, [None, identity, None]);
    }

    #[test]
    fn the_last_token_of_a_prompt_is_never_reusable() {
        let mut queue = Queue::new(FOUR);
        let jobs: Vec<_> = [4, 5, 8].map(|tokens| queue.push(&job(&[], tokens)).unwrap()).into();
        let blocks: Vec<_> = jobs.iter().map(|job| queue.reusable_blocks(*job)).collect();
        assert_eq!(blocks, [0, 1, 1]);
    }
}
