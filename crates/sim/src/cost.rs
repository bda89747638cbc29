//! How long one engine step takes.
//!
//! A step reads the weights once (`base`), computes each prefill token (`per_prefill_token`) and
//! its attention to everything before it (`per_pair`), and for each decoding sequence reads its
//! whole context (`per_context_token`). The other terms are zero unless a profile's measurements
//! need them.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use wornpath_planner::{CascadeRates, ContextRead, DecodeBatch, DecodeRates};

/// Milliseconds per unit of work. Fields that a profile leaves out are zero.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StepCost {
    /// Every step.
    pub base: f64,
    /// Every step with prefill in it: such steps do not run from a captured graph.
    pub prefill: f64,
    /// Every prefill token beyond `free_prefill_tokens`.
    pub per_prefill_token: f64,
    /// Prefill tokens that are hidden behind the reading of the weights.
    pub free_prefill_tokens: f64,
    /// Every pair of a prefill token and a token it attends to.
    pub per_pair: f64,
    /// Every token that a prefill chunk finds cached before it.
    pub per_past_token: f64,
    /// Every decoding sequence.
    pub per_sequence: f64,
    /// Every token of context of every decoding sequence.
    pub per_context_token: f64,
    /// Every token of the longest context, when that takes longer than all contexts together: one
    /// sequence cannot use the whole memory bandwidth.
    pub per_longest_token: f64,
    /// Decoding that reads a shared prefix once, if the engine can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cascade: Option<Cascade>,
}

/// Decoding with cascade attention: the prefix that all sequences share is read once for all.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cascade {
    /// Milliseconds per step for the second pass and the merge.
    pub base: f64,
    /// Milliseconds per token of the shared prefix.
    pub per_shared_token: f64,
    /// Fewer sequences decode the plain way.
    pub least_sequences: usize,
    /// Shorter prefixes are read the plain way.
    pub least_tokens: usize,
}

/// The work of one step.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StepLoad {
    /// Tokens of all prefill chunks.
    pub prefill_tokens: usize,
    /// Pairs of a prefill token and a token it attends to.
    pub pairs: f64,
    /// Tokens that precede prefill chunks, summed over the chunks.
    pub past_tokens: usize,
    /// Sequences that decode a token.
    pub sequences: usize,
    /// Their contexts together.
    pub context_tokens: usize,
    /// The longest of their contexts.
    pub longest_context: usize,
    /// The prefix that all of them share.
    pub shared_prefix: usize,
}

impl StepLoad {
    /// Adds a chunk of `tokens` that follows `past` tokens of its prompt.
    pub fn add_chunk(&mut self, past: usize, tokens: usize) {
        let before = past as f64;
        let own = tokens as f64;
        self.prefill_tokens += tokens;
        self.past_tokens += past;
        self.pairs += own * before + own * own / 2.0;
    }
}

impl StepCost {
    /// The time of a step.
    #[must_use]
    pub fn of(&self, load: &StepLoad) -> Duration {
        Duration::from_secs_f64(self.milliseconds(load).max(0.0) / 1e3)
    }

    /// The time of a step in milliseconds.
    #[must_use]
    pub fn milliseconds(&self, load: &StepLoad) -> f64 {
        let mut time = self.base;
        if load.prefill_tokens > 0 {
            let paid = (load.prefill_tokens as f64 - self.free_prefill_tokens).max(0.0);
            time += self.prefill
                + self.per_prefill_token * paid
                + self.per_pair * load.pairs
                + self.per_past_token * load.past_tokens as f64;
        }
        if load.sequences > 0 {
            time += self.per_sequence * load.sequences as f64 + self.read(load).milliseconds;
        }
        time
    }

    /// How a step reads the contexts of its decoding sequences.
    #[must_use]
    pub fn read(&self, load: &StepLoad) -> ContextRead {
        // The limits of the engine play no part in a step that runs.
        self.decode_rates(usize::MAX, usize::MAX).read(&DecodeBatch {
            sequences: load.sequences,
            context_tokens: load.context_tokens,
            longest_context: load.longest_context,
            shared_tokens: load.shared_prefix,
        })
    }

    /// The times of decode steps for the planner, on an engine of this size.
    #[must_use]
    pub fn decode_rates(&self, max_sequences: usize, kv_tokens: usize) -> DecodeRates {
        DecodeRates {
            step: self.base,
            per_sequence: self.per_sequence,
            per_context_token: self.per_context_token,
            per_longest_token: self.per_longest_token,
            cascade: self.cascade.map(|cascade| CascadeRates {
                step: cascade.base,
                per_shared_token: cascade.per_shared_token,
                least_sequences: cascade.least_sequences,
                least_tokens: cascade.least_tokens,
            }),
            max_sequences,
            kv_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_prompt_attend_to_as_many_pairs_as_the_whole_prompt() {
        let mut whole = StepLoad::default();
        whole.add_chunk(0, 1_000);
        let mut parts = StepLoad::default();
        parts.add_chunk(0, 300);
        parts.add_chunk(300, 700);
        assert_eq!((whole.pairs, whole.prefill_tokens), (parts.pairs, parts.prefill_tokens));
    }

    #[test]
    fn cascade_is_used_only_where_it_is_enabled_and_faster() {
        let cascade =
            Cascade { base: 2.0, per_shared_token: 0.001, least_sequences: 8, least_tokens: 256 };
        let cost =
            StepCost { per_context_token: 0.001, cascade: Some(cascade), ..Default::default() };
        let load = |sequences: usize, shared_prefix: usize| StepLoad {
            sequences,
            context_tokens: sequences * (shared_prefix + 100),
            longest_context: shared_prefix + 100,
            shared_prefix,
            ..Default::default()
        };
        let time = |sequences, shared| cost.milliseconds(&load(sequences, shared));
        assert!((time(10, 1_000) - (2.0 + 1.0 + 1.0)).abs() < 1e-9, "one reading of the prefix");
        assert!((time(7, 1_000) - 7.7).abs() < 1e-9, "too few sequences");
        assert!((time(10, 200) - 3.0).abs() < 1e-9, "too short a prefix");
        assert!((time(8, 256) - 2.848).abs() < 1e-9, "plain is faster");
    }
}
