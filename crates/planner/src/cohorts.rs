//! What requests that decode together could share.
//!
//! Requests that decode at the same time read their contexts in every step. Where they share a
//! prefix, an engine with shared-prefix attention reads it once. A planned order puts such requests
//! side by side, so the gain can be computed in advance: over every batch of neighbours, the tokens
//! read per decode step with and without sharing, and the share of batches that qualify for vLLM's
//! cascade attention, which needs 256 tokens shared by all of at least 8 requests.

use crate::plan::Plan;
use crate::queue::Queue;
use std::collections::VecDeque;
use std::ops::Range;

/// Tokens that all requests of a batch must share for vLLM's cascade attention.
const CASCADE_TOKENS: usize = 256;

/// Requests that a batch needs for vLLM's cascade attention.
const CASCADE_REQUESTS: usize = 8;

/// Averages over all batches of neighbours.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cohorts {
    /// Context tokens read per decode step if each request reads its whole context.
    pub tokens_read: f64,
    /// Context tokens read per decode step if every shared prefix is read once.
    pub tokens_read_shared: f64,
    /// The share of decode steps in which vLLM could use cascade attention, were it switched on.
    pub cascade_share: f64,
}

impl Cohorts {
    /// What the batches of a plan share; a batch has at most `sequences` requests and `kv_tokens`
    /// tokens.
    #[must_use]
    pub fn of(queue: &Queue, plan: &Plan, sequences: usize, kv_tokens: usize) -> Self {
        let limits = BatchLimits { sequences: sequences.max(1), kv_tokens: kv_tokens as u64 };
        let mut sums = CohortSums::default();
        for segment in plan.segments() {
            sums.add_segment(queue, plan, segment.stops.clone(), limits);
        }
        let batches = sums.batches.max(1) as f64;
        Self {
            tokens_read: sums.read as f64 / batches,
            tokens_read_shared: sums.read_shared as f64 / batches,
            cascade_share: sums.cascade as f64 / batches,
        }
    }
}

#[derive(Clone, Copy)]
struct BatchLimits {
    sequences: usize,
    kv_tokens: u64,
}

#[derive(Default)]
struct CohortSums {
    batches: u64,
    read: u64,
    read_shared: u64,
    cascade: u64,
}

impl CohortSums {
    /// One batch ends with each stop of the segment.
    fn add_segment(
        &mut self,
        queue: &Queue,
        plan: &Plan,
        range: Range<usize>,
        limits: BatchLimits,
    ) {
        let stops = plan.route().stops();
        let block = queue.block_size().get();
        let mut first = range.start;
        let mut read = 0_u64;
        let mut unique = 0_u64;
        // What neighbours inside the batch share, ascending: the front is the minimum.
        let mut least: VecDeque<(usize, u32)> = VecDeque::new();
        for last in range {
            let prompt = queue.prompt_tokens(stops[last].job);
            let shared = stops[last].shared;
            read += prompt as u64;
            unique += (prompt - (shared as usize * block).min(prompt)) as u64;
            while least.pop_back_if(|(_, other)| *other >= shared).is_some() {}
            least.push_back((last, shared));
            let shared_with_previous =
                |position: usize| (stops[position].shared as usize * block) as u64;
            while first < last
                && (last - first >= limits.sequences
                    || unique + shared_with_previous(first) > limits.kv_tokens)
            {
                let tokens = queue.prompt_tokens(stops[first].job) as u64;
                read -= tokens;
                unique -= tokens - shared_with_previous(first).min(tokens);
                first += 1;
            }
            while least.pop_front_if(|(position, _)| *position <= first).is_some() {}
            self.batches += 1;
            self.read += read;
            self.read_shared += unique + shared_with_previous(first);
            let common = least.front().map_or(0, |(_, shared)| *shared as usize * block);
            self.cascade +=
                u64::from(common >= CASCADE_TOKENS && last - first + 1 >= CASCADE_REQUESTS);
        }
    }
}
