//! What requests cost an engine, in milliseconds of its time.
//!
//! A batching engine spends its time on prefill tokens, on their attention to what stands before them, and on
//! decoding, where a step serves a whole batch and each request pays its share of it. The shares add up, so
//! the cost of a run of requests is the sum of theirs, and that is all that cutting needs.

use crate::queue::{JobId, Queue};

/// Milliseconds of an engine of speed one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlannerRates {
    /// Every prompt token that is computed.
    pub per_prefill_token: f64,
    /// Every pair of a computed prompt token and a token before it.
    pub per_pair: f64,
    /// Every output token, without reading its context.
    pub per_output_token: f64,
    /// Every token of context of every output token.
    pub per_context_token: f64,
}

impl PlannerRates {
    /// Tokens alone, prefill and decoding at so many milliseconds each: for engines nobody has measured.
    #[must_use]
    pub const fn flat(per_prefill_token: f64, per_output_token: f64) -> Self {
        Self { per_prefill_token, per_pair: 0.0, per_output_token, per_context_token: 0.0 }
    }

    /// Prefill of a prompt of which the first `cached` tokens are cached.
    #[must_use]
    pub fn prefill(&self, cached: usize, prompt: usize) -> f64 {
        let (cached, prompt) = (cached as f64, prompt as f64);
        let pairs = (prompt * prompt - cached * cached) / 2.0;
        self.per_prefill_token * (prompt - cached) + self.per_pair * pairs
    }

    /// Decoding of all tokens but the first, which the prefill brings.
    #[must_use]
    pub fn decode(&self, prompt: usize, output: usize) -> f64 {
        let steps = output.saturating_sub(1) as f64;
        let context = prompt as f64 + steps / 2.0;
        steps * (self.per_output_token + self.per_context_token * context)
    }

    /// A whole request of which the first `cached` blocks are cached.
    #[must_use]
    pub fn request(&self, queue: &Queue, job: JobId, cached: usize) -> f64 {
        let prompt = queue.prompt_tokens(job);
        let found = cached.min(queue.reusable_blocks(job)) * queue.block_size().get();
        self.prefill(found, prompt) + self.decode(prompt, queue.output_tokens(job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_costs_the_same_in_two_parts() {
        let rates = PlannerRates { per_pair: 0.25, ..PlannerRates::flat(2.0, 3.0) };
        let whole = rates.prefill(0, 100);
        assert!((rates.prefill(0, 40) + rates.prefill(40, 100) - whole).abs() < 1e-9);
        assert!((whole - (200.0 + 0.25 * 5_000.0)).abs() < 1e-9);
        assert!((rates.decode(10, 1)).abs() < 1e-9, "prefill brings the first token");
        assert!((rates.decode(10, 5) - 12.0).abs() < 1e-9);
    }
}
