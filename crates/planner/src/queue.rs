//! The requests to be planned, in columns.
//!
//! A million requests of 64 blocks are half a gigabyte of hashes, so there is one array for all hashes and
//! nothing is copied: everything else refers to a request by its number.
//!
//! Chains can be let go when somebody else keeps them, sorted ([`Forest::merge`](crate::Forest::merge)): all but
//! ordering and matching needs only lengths.
//!
//! Whose request it is does not matter here. A chain starts from a root that holds model, adapter and
//! salt, so the requests of two owners share a prefix exactly when their salts allow it.

use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_blocks::BlockHash;

/// A request's number: its place in the [`Queue`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct JobId(pub u32);

impl JobId {
    /// As an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A hash of everything that decides an answer: requests with equal ones are computed once.
///
/// Give one only to a request whose answer is deterministic, such as at temperature zero or with a seed, and
/// only if its owner asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DedupKey(pub u128);

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The hashes of its full blocks.
    pub chain: &'a [BlockHash],
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens that its answer is expected to have.
    pub output_tokens: usize,
    /// When it has to be done, from the start of the run.
    pub deadline: Option<Duration>,
    /// Set if it need not be computed again when an equal one has been.
    pub identity: Option<DedupKey>,
}

/// A request that cannot be planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueError {
    /// Nothing to compute.
    #[error("the prompt has no tokens; it must have at least one")]
    EmptyPrompt,
    /// Lengths are kept in 32 bits.
    #[error("{tokens} tokens are more than a request can have, which is {}", u32::MAX)]
    TooLong {
        /// Of prompt or output.
        tokens: usize,
    },
    /// Hashes that are not of this prompt.
    #[error("{blocks} blocks of {block_size} tokens do not fit into a prompt of {tokens} tokens")]
    TooManyBlocks {
        /// Hashes given.
        blocks: usize,
        /// Tokens per block.
        block_size: NonZeroUsize,
        /// Of the prompt.
        tokens: usize,
    },
    /// Numbers are 32 bits.
    #[error("the queue is full with {} requests; split the work", u32::MAX)]
    Full,
}

/// Requests that wait to be planned.
#[derive(Clone, Debug)]
pub struct Queue {
    block_size: NonZeroUsize,
    /// So many requests, the first ones, have no chains here any more.
    gone: usize,
    hashes: Vec<BlockHash>,
    /// Where each of the other chains ends among the hashes.
    ends: Vec<usize>,
    prompts: Vec<u32>,
    outputs: Vec<u32>,
    /// As long as the last request that has one.
    deadlines: Vec<Option<Duration>>,
    identities: Vec<Option<DedupKey>>,
}

impl Queue {
    /// An empty queue of prompts in blocks of `block_size` tokens.
    #[must_use]
    pub const fn new(block_size: NonZeroUsize) -> Self {
        Self {
            block_size,
            gone: 0,
            hashes: Vec::new(),
            ends: Vec::new(),
            prompts: Vec::new(),
            outputs: Vec::new(),
            deadlines: Vec::new(),
            identities: Vec::new(),
        }
    }

    /// Makes room, so that a large queue is not copied while it grows.
    pub fn reserve(&mut self, jobs: usize, blocks: usize) {
        self.hashes.reserve_exact(blocks);
        self.ends.reserve_exact(jobs);
        self.prompts.reserve_exact(jobs);
        self.outputs.reserve_exact(jobs);
    }

    /// Adds a request.
    ///
    /// # Errors
    /// If its lengths contradict each other or there are too many.
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
        let (prompt, output) = (length(tokens)?, length(job.output_tokens)?);
        let number = u32::try_from(self.len()).map_err(|_| QueueError::Full)?;
        if number == u32::MAX {
            return Err(QueueError::Full);
        }
        set_last(&mut self.deadlines, self.prompts.len(), job.deadline);
        set_last(&mut self.identities, self.prompts.len(), job.identity);
        self.hashes.extend_from_slice(job.chain);
        self.ends.push(self.hashes.len());
        self.prompts.push(prompt);
        self.outputs.push(output);
        Ok(JobId(number))
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> NonZeroUsize {
        self.block_size
    }

    /// How many requests there are.
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

    /// The hashes of a request's full blocks; none if its chain was let go.
    #[inline]
    #[must_use]
    pub fn chain(&self, job: JobId) -> &[BlockHash] {
        let Some(index) = job.index().checked_sub(self.gone) else { return &[] };
        let start = match index {
            0 => 0,
            index => self.ends[index - 1],
        };
        &self.hashes[start..self.ends[index]]
    }

    /// Requests whose chains are here, the last ones.
    pub fn jobs_with_chains(&self) -> impl Iterator<Item = JobId> + use<> {
        (self.gone as u32..self.prompts.len() as u32).map(JobId)
    }

    /// Bytes that the chains take which are here.
    #[must_use]
    pub const fn chain_bytes(&self) -> usize {
        size_of::<BlockHash>() * self.hashes.len() + size_of::<usize>() * self.ends.len()
    }

    /// Lets all chains go; those of later requests take their room.
    pub fn let_chains_go(&mut self) {
        self.gone = self.prompts.len();
        self.hashes.clear();
        self.ends.clear();
    }

    /// Gives back the room that no request needs.
    pub fn shrink(&mut self) {
        self.hashes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Tokens of a request's prompt.
    #[must_use]
    pub fn prompt_tokens(&self, job: JobId) -> usize {
        self.prompts[job.index()] as usize
    }

    /// Tokens that a request's answer is expected to have.
    #[must_use]
    pub fn output_tokens(&self, job: JobId) -> usize {
        self.outputs[job.index()] as usize
    }

    /// When a request has to be done.
    #[must_use]
    pub fn deadline(&self, job: JobId) -> Option<Duration> {
        self.deadlines.get(job.index()).copied().flatten()
    }

    /// What makes a request equal to another.
    #[must_use]
    pub fn identity(&self, job: JobId) -> Option<DedupKey> {
        self.identities.get(job.index()).copied().flatten()
    }

    /// Whether any request has a deadline.
    #[must_use]
    pub const fn has_deadlines(&self) -> bool {
        !self.deadlines.is_empty()
    }

    /// Whether any request may share another's answer.
    #[must_use]
    pub const fn has_identities(&self) -> bool {
        !self.identities.is_empty()
    }

    /// Blocks of a prompt that can ever be found cached: its last token is always computed.
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

/// A column that most queues do not need grows only when a request has a value for it.
fn set_last<T: Clone>(column: &mut Vec<Option<T>>, index: usize, value: Option<T>) {
    if value.is_some() {
        column.resize(index, None);
        column.push(value);
    }
}

/// Leading blocks that two chains share, of which the first `known` are known to be equal.
///
/// Equal hashes mean equal prefixes, so a binary search will do.
pub(crate) fn shared(one: &[BlockHash], other: &[BlockHash], known: usize) -> usize {
    let (mut low, mut high) = (known, one.len().min(other.len()));
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
        Job { chain, prompt_tokens, output_tokens: 1, deadline: None, identity: None }
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let mut queue = Queue::new(FOUR);
        let chain = [BlockHash(1), BlockHash(2)];
        assert_eq!(queue.push(&job(&[], 0)), Err(QueueError::EmptyPrompt));
        let error = queue.push(&job(&chain, 7)).unwrap_err().to_string();
        assert_eq!(error, "2 blocks of 4 tokens do not fit into a prompt of 7 tokens");
        assert_eq!(queue.push(&job(&chain, 8)), Ok(JobId(0)));
        assert!(!queue.has_deadlines() && !queue.has_identities());
    }

    #[test]
    fn a_late_deadline_leaves_earlier_requests_without_one() {
        let mut queue = Queue::new(FOUR);
        let deadline = Some(Duration::from_secs(9));
        queue.push(&job(&[], 1)).unwrap();
        queue.push(&Job { deadline, ..job(&[], 1) }).unwrap();
        queue.push(&job(&[], 1)).unwrap();
        let all: Vec<_> = queue.jobs().map(|job| queue.deadline(job)).collect();
        assert_eq!(all, [None, deadline, None]);
    }

    #[test]
    fn the_last_token_of_a_prompt_is_never_reusable() {
        let mut queue = Queue::new(FOUR);
        let jobs: Vec<_> = [4, 5, 8].map(|tokens| queue.push(&job(&[], tokens)).unwrap()).into();
        let blocks: Vec<_> = jobs.iter().map(|job| queue.reusable_blocks(*job)).collect();
        assert_eq!(blocks, [0, 1, 1]);
    }
}
