//! What decoding together could share.
//!
//! Requests that decode at the same time read their contexts in every step. Where they share a prefix, an
//! engine with shared-prefix attention reads it once. A planned order puts such requests side by side, so
//! it can be said beforehand what that is worth: over every batch of neighbours, the tokens read per
//! decode step with and without, and how many batches share enough for cascade attention as vLLM
//! has it, which asks for 256 tokens shared by all of at least 8 requests.

use crate::plan::Plan;
use crate::queue::Queue;
use std::collections::VecDeque;
use std::ops::Range;

/// Tokens that all must share for vLLM's cascade attention, and how many requests that takes.
const CASCADE: (usize, usize) = (256, 8);

/// Averages over all batches of neighbours.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cohorts {
    /// Context tokens read per decode step, each request for itself.
    pub tokens_read: f64,
    /// Context tokens read per decode step if every shared prefix is read once.
    pub tokens_read_shared: f64,
    /// The share of decode steps in which vLLM could use cascade attention, were it switched on.
    pub cascade_share: f64,
}

impl Cohorts {
    /// What a plan's batches share, of at most `sequences` requests and `kv_tokens` tokens.
    #[must_use]
    pub fn of(queue: &Queue, plan: &Plan, sequences: usize, kv_tokens: usize) -> Self {
        let mut sums = CohortSums::default();
        for segment in plan.segments() {
            sums.add_segment(queue, plan, segment.stops.clone(), (sequences.max(1), kv_tokens));
        }
        let batches = sums.batches.max(1) as f64;
        Self {
            tokens_read: sums.read as f64 / batches,
            tokens_read_shared: sums.read_shared as f64 / batches,
            cascade_share: sums.cascade as f64 / batches,
        }
    }
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
        (sequences, kv_tokens): (usize, usize),
    ) {
        let stops = plan.route().stops();
        let block = queue.block_size().get();
        let (mut first, mut read, mut unique) = (range.start, 0_u64, 0_u64);
        // What neighbours inside the batch share, ascending: the front is the least.
        let mut least: VecDeque<(usize, u32)> = VecDeque::new();
        for last in range {
            let (prompt, shared) = (queue.prompt_tokens(stops[last].job), stops[last].shared);
            read += prompt as u64;
            unique += (prompt - (shared as usize * block).min(prompt)) as u64;
            while least.pop_back_if(|(_, other)| *other >= shared).is_some() {}
            least.push_back((last, shared));
            let alone = |place: usize| (stops[place].shared as usize * block) as u64;
            while first < last
                && (last - first >= sequences || unique + alone(first) > kv_tokens as u64)
            {
                let tokens = queue.prompt_tokens(stops[first].job) as u64;
                read -= tokens;
                unique -= tokens - alone(first).min(tokens);
                first += 1;
            }
            while least.pop_front_if(|(place, _)| *place <= first).is_some() {}
            self.batches += 1;
            self.read += read;
            self.read_shared += unique + alone(first);
            let common = least.front().map_or(0, |(_, shared)| *shared as usize * block);
            self.cascade += u64::from(common >= CASCADE.0 && last - first + 1 >= CASCADE.1);
        }
    }
}
