//! The cost of requests, in milliseconds of an engine's time.
//!
//! A batching engine spends its time on prefill tokens, on their attention to the tokens before
//! them, and on decoding, where a step serves a whole batch and each request pays its share. The
//! shares add up, so a run of requests costs the sum of its requests, and cutting needs nothing
//! else.

use crate::decode::DecodeRates;
use crate::queue::{JobId, Queue};

/// Milliseconds of an engine of speed one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlannerRates {
    /// Per computed prompt token.
    pub per_prefill_token: f64,
    /// Per pair of a computed prompt token and a token before it.
    pub per_pair: f64,
    /// Per prompt token that is found in the cache.
    pub per_cached_token: f64,
    /// Per output token, without reading its context.
    pub per_output_token: f64,
    /// Per context token of each output token.
    pub per_context_token: f64,
    /// The times of decode steps, to decide which requests decode together; none if a step costs
    /// its sequences nothing but their own parts.
    pub decode_rates: Option<DecodeRates>,
}

impl PlannerRates {
    /// A fixed time per prefill token and per output token: for engines that were never measured.
    #[must_use]
    pub const fn flat(per_prefill_token: f64, per_output_token: f64) -> Self {
        Self {
            per_prefill_token,
            per_pair: 0.0,
            per_cached_token: 0.0,
            per_output_token,
            per_context_token: 0.0,
            decode_rates: None,
        }
    }

    /// The cost of prefill if the first `cached` tokens of the prompt are cached.
    #[must_use]
    pub fn prefill(&self, cached: usize, prompt: usize) -> f64 {
        let cached = cached as f64;
        let prompt = prompt as f64;
        let pairs = (prompt * prompt - cached * cached) / 2.0;
        self.per_prefill_token * (prompt - cached)
            + self.per_pair * pairs
            + self.per_cached_token * cached
    }

    /// The cost of decoding all tokens but the first, which the prefill produces.
    #[must_use]
    pub fn decode(&self, prompt: usize, output: usize) -> f64 {
        let steps = output.saturating_sub(1) as f64;
        let context = prompt as f64 + steps / 2.0;
        steps * (self.per_output_token + self.per_context_token * context)
    }

    /// The cost of a whole request among others if its first `cached` blocks are cached.
    #[must_use]
    pub fn request(&self, queue: &Queue, job: JobId, cached: usize) -> f64 {
        let prompt = queue.prompt_tokens(job);
        let found = cached.min(queue.reusable_blocks(job)) * queue.block_size().get();
        self.prefill(found, prompt) + self.decode(prompt, queue.output_tokens(job))
    }
}

/// The speeds of a fleet: at least one pod, each of a speed above zero.
#[derive(Clone, PartialEq, Debug)]
pub struct Speeds(Vec<f64>);

/// Speeds that no fleet can have.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum SpeedsError {
    /// The fleet is empty.
    #[error("no pods; a plan needs at least one")]
    NoPods,
    /// A speed is zero, negative, infinite or not a number.
    #[error("speed of pod {pod} is {speed}; speeds must be above zero, 1 for a typical pod")]
    NoSpeed {
        /// The pod, counted from 0.
        pod: usize,
        /// The speed as given.
        speed: f64,
    },
}

impl Speeds {
    /// A fleet with these speeds.
    ///
    /// # Errors
    /// If there are none, or one is not above zero.
    pub fn new(speeds: Vec<f64>) -> Result<Self, SpeedsError> {
        if speeds.is_empty() {
            return Err(SpeedsError::NoPods);
        }
        match speeds.iter().position(|speed| !(speed.is_finite() && *speed > 0.0)) {
            Some(pod) => Err(SpeedsError::NoSpeed { pod, speed: speeds[pod] }),
            None => Ok(Self(speeds)),
        }
    }

    /// A fleet of `pods` pods of speed one.
    ///
    /// # Errors
    /// If there are none.
    pub fn equal(pods: usize) -> Result<Self, SpeedsError> {
        Self::new(vec![1.0; pods])
    }

    /// The speed of each pod.
    #[must_use]
    pub fn all(&self) -> &[f64] {
        &self.0
    }

    /// The number of pods.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.0.len()
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
        assert!((rates.decode(10, 1)).abs() < 1e-9, "prefill produces the first token");
        assert!((rates.decode(10, 5) - 12.0).abs() < 1e-9);
    }
}
