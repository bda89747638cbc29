//! How fast a pod really is, learnt from the requests that it answered.
//!
//! A model says how long work takes on an engine. A pod may take longer: its GPU is another one, is
//! shared or is hot, or other routers send it work that this one does not see. What a router sees
//! is enough to tell. Between two moments of a request the pod has computed so many tokens of
//! prompts and made so many steps; the time that passed over the time that the model gives for this
//! work is the pod's pace. There are two: of prompts, from the times to the first token, and of
//! steps, from the times between tokens.
//!
//! The sums are kept and not the ratio, because the model's numbers belong to the profile that
//! asks. Old requests are forgotten, so a pod that gets faster or slower is noticed within some
//! dozen requests.
//!
//! Limits: a step that is half done counts whole or not at all, and what an engine does beside its
//! steps counts as slowness; so only prompts with enough to compute are learnt from, and a pace is
//! believed in steps of the square root of two. Finer differences between equal pods are noise, and
//! following them cost more than it brought: prefixes moved to pods that only seemed faster.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Uncached tokens below which a first token tells more about the engine's rhythm than about its
/// speed.
pub(super) const LEAST_TOKENS: u64 = 2048;
/// Answers shorter than this tell little about steps.
pub(super) const LEAST_STEPS: u64 = 16;
/// Tokens of prompts that engines usually compute in a step.
const STEP_TOKENS: f64 = 8192.0;
/// What the model is trusted before anything was seen, in milliseconds of work.
const PRIOR: f64 = 500.0;
/// What is left of older requests when a newer one is added.
const KEPT: f64 = 63.0 / 64.0;
/// The paces that are believed. No pod is more than eight times faster or slower than its engine's
/// profile: a pod that seems so has another problem.
const PACES: [f64; 13] = {
    use std::f64::consts::SQRT_2;
    let half = SQRT_2 / 2.0;
    [
        0.125,
        half / 4.0,
        0.25,
        half / 2.0,
        0.5,
        half,
        1.0,
        SQRT_2,
        2.0,
        2.0 * SQRT_2,
        4.0,
        4.0 * SQRT_2,
        8.0,
    ]
};

/// Work of an engine, for a model to price.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct PrefillWork {
    /// Tokens of prompts.
    pub(crate) tokens: f64,
    /// Twice the pairs that these attended to.
    pub(crate) pairs: f64,
    /// Steps, the decoding requests of all steps, and the tokens of their contexts.
    pub(crate) steps: f64,
    pub(crate) sequences: f64,
    pub(crate) contexts: f64,
}

/// The kind of work whose pace is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MeasuredPrefill {
    /// Computing prompts.
    Prefill,
    /// Steps that give every request a token.
    Steps,
}

/// What was seen of a pod. One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct LearntRates {
    prefill: RateSums,
    steps: RateSums,
    computed_tokens: AtomicU64,
    computed_pairs: AtomicU64,
}

/// Decaying sums, each as the bits of an `f32`. Two requests that end at the same moment may count
/// as one.
#[derive(Debug, Default)]
struct RateSums {
    milliseconds: AtomicU32,
    work: [AtomicU32; 5],
}

/// A sample of a pod's counters at one moment of a request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct LearntRate {
    pub(super) milliseconds: f64,
    pub(super) tokens: u64,
    pub(super) pairs: u64,
    pub(super) decoding: f64,
    pub(super) contexts: f64,
}

impl LearntRate {
    /// What was done since an earlier glimpse in so many steps.
    fn since(&self, earlier: &Self, steps: f64) -> PrefillWork {
        PrefillWork {
            tokens: self.tokens.wrapping_sub(earlier.tokens) as f64,
            pairs: self.pairs.wrapping_sub(earlier.pairs) as f64,
            steps,
            sequences: steps * (self.decoding + earlier.decoding) / 2.0,
            contexts: steps * (self.contexts + earlier.contexts) / 2.0,
        }
    }
}

impl LearntRates {
    /// So much of prompts was computed; the counts only grow.
    pub(super) fn computed(&self, tokens: u64, pairs: u64) {
        self.computed_tokens.fetch_add(tokens, Relaxed);
        self.computed_pairs.fetch_add(pairs, Relaxed);
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.computed_tokens.load(Relaxed), self.computed_pairs.load(Relaxed))
    }

    /// A request got its first token.
    pub(super) fn first_token(&self, sent: &LearntRate, now: &LearntRate) {
        let tokens = now.tokens.wrapping_sub(sent.tokens);
        if tokens >= LEAST_TOKENS {
            // A request comes in the middle of a step, on average.
            let steps = 1.5 + tokens as f64 / STEP_TOKENS;
            self.prefill.add(now.milliseconds - sent.milliseconds, &now.since(sent, steps));
        }
    }

    /// A request got so many more tokens after its first.
    pub(super) fn decoded(&self, first: &LearntRate, now: &LearntRate, tokens: u64) {
        if tokens >= LEAST_STEPS {
            let work = now.since(first, tokens as f64);
            self.steps.add(now.milliseconds - first.milliseconds, &work);
        }
    }

    /// Whether enough prefill was measured to outweigh what was assumed before.
    #[inline]
    pub(super) fn is_measured(&self) -> bool {
        self.prefill.read().0 > PRIOR
    }

    /// How many times longer the pod takes than `model` says, if `told` is what is known from
    /// elsewhere.
    #[inline]
    pub(super) fn pace(
        &self,
        paced: MeasuredPrefill,
        told: f64,
        model: impl Fn(&PrefillWork) -> f64,
    ) -> f64 {
        let sums = match paced {
            MeasuredPrefill::Prefill => &self.prefill,
            MeasuredPrefill::Steps => &self.steps,
        };
        let (seen, work) = sums.read();
        believed((PRIOR * told + seen) / (PRIOR + model(&work)))
    }
}

/// The nearest of [`PACES`], by ratio.
#[inline]
fn believed(pace: f64) -> f64 {
    // The exponent of the square counts steps of the root; the factor makes it round to the
    // nearest. No logarithm.
    let scaled = pace * pace * std::f64::consts::SQRT_2;
    let exponent = ((scaled.to_bits() >> 52) & 0x7ff) as i64 - 1023;
    PACES[(exponent + 6).clamp(0, 12) as usize]
}

impl RateSums {
    fn add(&self, milliseconds: f64, work: &PrefillWork) {
        let PrefillWork { tokens, pairs, steps, sequences, contexts } = *work;
        let news = [milliseconds.max(0.0), tokens, pairs, steps, sequences, contexts];
        for (sum, new) in std::iter::once(&self.milliseconds).chain(&self.work).zip(news) {
            let kept = f64::from(f32::from_bits(sum.load(Relaxed))) * KEPT;
            sum.store(((kept + new) as f32).to_bits(), Relaxed);
        }
    }

    #[inline]
    fn read(&self) -> (f64, PrefillWork) {
        let value = |sum: &AtomicU32| f64::from(f32::from_bits(sum.load(Relaxed)));
        let [tokens, pairs, steps, sequences, contexts] = &self.work;
        let work = PrefillWork {
            tokens: value(tokens),
            pairs: value(pairs),
            steps: value(steps),
            sequences: value(sequences),
            contexts: value(contexts),
        };
        (value(&self.milliseconds), work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_pace_is_believed() {
        let nearest = |pace: f64| {
            let off = |known: &f64| (known / pace).ln().abs();
            PACES.into_iter().min_by(|a, b| off(a).total_cmp(&off(b))).unwrap()
        };
        for pace in (1..2000).map(|number| 0.01 * f64::from(number) + 1e-6) {
            assert_eq!(believed(pace), nearest(pace), "{pace}");
        }
        assert_eq!((believed(0.0), believed(f64::INFINITY)), (0.125, 8.0));
    }
}
