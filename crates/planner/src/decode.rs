//! How long decode steps take, and what requests that share a prefix gain from decoding apart.
//!
//! A decode step reads the context of every sequence in it. An engine with cascade attention reads
//! a prefix once for all of them, but only if every sequence of the step has it. So whether
//! requests should decode together is a question of time: among others they pay for their whole
//! contexts; apart, they read their prefix once and have the cost of every step to themselves, until
//! the last of them has finished.

use std::ops::Range;

/// Milliseconds of decode steps on an engine, and its limits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DecodeRates {
    /// Every step.
    pub step: f64,
    /// Every sequence of a step.
    pub per_sequence: f64,
    /// Every token of context that is read.
    pub per_context_token: f64,
    /// Every token of the longest context, if that takes longer than all contexts together.
    pub per_longest_token: f64,
    /// Reading a shared prefix once, if the engine can.
    pub cascade: Option<CascadeRates>,
    /// Sequences that decode at once at most.
    pub max_sequences: usize,
    /// Tokens that fit into the cache.
    pub kv_tokens: usize,
}

/// Milliseconds of reading a prefix once for all sequences of a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CascadeRates {
    /// Every step.
    pub step: f64,
    /// Every token of the prefix.
    pub per_shared_token: f64,
    /// Fewer sequences decode the plain way.
    pub least_sequences: usize,
    /// A shorter prefix is read the plain way.
    pub least_tokens: usize,
}

/// Sequences that decode in one step.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DecodeBatch {
    /// Their number.
    pub sequences: usize,
    /// Their contexts together, in tokens.
    pub context_tokens: usize,
    /// The longest of their contexts.
    pub longest_context: usize,
    /// The prefix that all of them share.
    pub shared_tokens: usize,
}

impl DecodeBatch {
    /// Both in one step; they share nothing with each other.
    #[must_use]
    pub fn beside(self, other: Self) -> Self {
        match (self.sequences, other.sequences) {
            (0, _) => other,
            (_, 0) => self,
            _ => Self {
                sequences: self.sequences + other.sequences,
                context_tokens: self.context_tokens + other.context_tokens,
                longest_context: self.longest_context.max(other.longest_context),
                shared_tokens: 0,
            },
        }
    }

    /// At most so many sequences of it.
    #[must_use]
    pub const fn at_most(self, sequences: usize) -> Self {
        if self.sequences <= sequences {
            return self;
        }
        let context_tokens = self.context_tokens / self.sequences * sequences;
        Self { sequences, context_tokens, ..self }
    }
}

/// How a step reads the contexts of its sequences.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ContextRead {
    /// The time that it takes.
    pub milliseconds: f64,
    /// Tokens that are read.
    pub tokens: usize,
    /// Whether the shared prefix is read once.
    pub is_cascade: bool,
}

/// Requests of one pod that decode together, apart from all others.
#[derive(Clone, PartialEq, Debug)]
pub struct DecodeGroup {
    /// Their stops on the route.
    pub stops: Range<usize>,
    /// The tokens that all of them share.
    pub shared_tokens: usize,
    /// Milliseconds of decoding, divided by those of decoding among others.
    pub(crate) share: f64,
}

/// Sums over requests that may decode together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct DecodeWork {
    pub(crate) requests: usize,
    /// Decode steps of all requests.
    pub(crate) steps: f64,
    /// Decode steps of the request that has the most.
    pub(crate) longest: f64,
    /// Context tokens, summed over all decode steps of all requests.
    pub(crate) context_steps: f64,
}

impl DecodeRates {
    /// The faster of the two ways to read the contexts of a step.
    #[must_use]
    pub fn read(&self, batch: &DecodeBatch) -> ContextRead {
        let plain = ContextRead {
            milliseconds: self.read_time(batch.context_tokens, batch.longest_context),
            tokens: batch.context_tokens,
            is_cascade: false,
        };
        let shared = batch.shared_tokens;
        match self.cascade {
            Some(cascade)
                if batch.sequences >= cascade.least_sequences && shared >= cascade.least_tokens =>
            {
                let own = batch.context_tokens.saturating_sub(batch.sequences * shared);
                let rest = self.read_time(own, batch.longest_context.saturating_sub(shared));
                let milliseconds = cascade.step + cascade.per_shared_token * shared as f64 + rest;
                match milliseconds < plain.milliseconds {
                    true => ContextRead { milliseconds, tokens: shared + own, is_cascade: true },
                    false => plain,
                }
            }
            _ => plain,
        }
    }

    /// Milliseconds of a step.
    #[must_use]
    pub fn step_time(&self, batch: &DecodeBatch) -> f64 {
        match batch.sequences {
            0 => 0.0,
            sequences => {
                self.step + self.per_sequence * sequences as f64 + self.read(batch).milliseconds
            }
        }
    }

    /// Whether two batches advance faster in the same steps than in turns.
    #[must_use]
    pub fn gains_together(&self, one: DecodeBatch, other: DecodeBatch) -> bool {
        self.step_time(&one.beside(other)) <= self.step_time(&one) + self.step_time(&other)
    }

    /// Milliseconds until requests that share `shared` tokens, and nothing else, have decoded; none
    /// if the engine could not read their prefix once.
    ///
    /// The lengths of answers are taken as spread evenly around their mean up to the longest. That
    /// tells for how many steps too few sequences are left for cascade attention.
    pub(crate) fn apart(&self, work: &DecodeWork, shared: usize) -> Option<f64> {
        let cascade = self.cascade?;
        let is_enough = work.requests >= cascade.least_sequences && shared >= cascade.least_tokens;
        if !is_enough || work.steps <= 0.0 {
            return None;
        }
        let prefix = shared as f64;
        let requests = work.requests as f64;
        let mean_context = work.context_steps / work.steps;
        let own = (mean_context - prefix).max(1.0);
        let room = (self.kv_tokens.saturating_sub(shared) as f64 / own).max(1.0);
        let batch = requests.min(self.max_sequences as f64).min(room);
        let steps = work.longest.max(work.steps / batch);
        let few = cascade.least_sequences.saturating_sub(1) as f64;
        let spread = 2.0 * (work.longest - work.steps / requests);
        let tail = (spread * few / requests).min(steps);
        let remaining = few / 2.0;
        let tail_read = (self.per_context_token * remaining).max(self.per_longest_token);
        Some(
            steps * self.step
                + work.steps * self.per_sequence
                + (steps - tail) * (cascade.step + cascade.per_shared_token * prefix)
                + (work.steps - tail * remaining).max(0.0) * self.per_context_token * own
                + tail * tail_read * mean_context,
        )
    }

    fn read_time(&self, all: usize, longest: usize) -> f64 {
        (self.per_context_token * all as f64).max(self.per_longest_token * longest as f64)
    }
}
