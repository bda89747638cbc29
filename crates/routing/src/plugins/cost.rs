//! What a placement costs, in milliseconds, from an engine's speed and a pod's load.
//!
//! The engine is taken to work as vLLM does: in steps that give one token to every decoding request
//! and fill what is left of a token budget with prompts, first come first served. A step takes
//! `base + token * new + pair * (new² + 2 * new * cached) + sequence * decoding + context * contexts`.
//!
//! The prediction of the time to the first token is the sum of [`Terms::queued`], [`Terms::own`] and
//! [`Terms::steps`]. The other terms are prices: what the placement costs requests that come later.

use wornpath_index::Moment;

use crate::fleet::{FleetPod, MeasuredPrefill, PrefillWork};
use crate::name::Name;

/// An engine's speed. Times in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct EngineSpeed {
    /// For any step.
    pub(crate) base: f64,
    /// For each token of a prompt.
    pub(crate) token: f64,
    /// For each pair of a prompt's token and one that it attends to, half of each square.
    pub(crate) pair: f64,
    /// For each decoding request in a step.
    pub(crate) sequence: f64,
    /// For each token of the contexts that decode in a step.
    pub(crate) context: f64,
    /// Tokens that the KV cache holds, for pods that do not say.
    pub(crate) kv_tokens: f64,
    /// Tokens that a step computes at most.
    pub(crate) step_tokens: f64,
}

/// Speeds fitted to published figures, by the name that a pod's `engine` may have.
pub(crate) const PUBLISHED: [(&str, EngineSpeed); 3] = [
    // Dynamo's profile of Llama-3.1-8B-FP8 on an H200.
    ("8b-h200", speed([4.4, 0.01594, 3.74e-7, 0.045, 3.1e-5], 945_029.0)),
    // Qwen3-32B on two H100: peak rate and KV size published by llm-d.
    ("32b-h100x2", speed([15.0, 0.0417, 8.7e-7, 0.05, 5.6e-5], 307_328.0)),
    // Llama-2-70B on four H100: the tables of Splitwise.
    ("70b-h100x4", speed([29.0, 0.1105, 6.6e-7, 0.25, 3.5e-5], 448_000.0)),
];

/// The names of these speeds.
pub const SPEEDS: [&str; 3] = [PUBLISHED[0].0, PUBLISHED[1].0, PUBLISHED[2].0];

const fn speed([base, token, pair, sequence, context]: [f64; 5], kv_tokens: f64) -> EngineSpeed {
    EngineSpeed { base, token, pair, sequence, context, kv_tokens, step_tokens: 8192.0 }
}

impl EngineSpeed {
    /// The field of that name, for a profile to set.
    pub(crate) fn field(&mut self, name: &str) -> Option<&mut f64> {
        Some(match name {
            "base" => &mut self.base,
            "token" => &mut self.token,
            "pair" => &mut self.pair,
            "sequence" => &mut self.sequence,
            "context" => &mut self.context,
            "kv_tokens" => &mut self.kv_tokens,
            "step_tokens" => &mut self.step_tokens,
            _ => return None,
        })
    }

    /// Milliseconds to compute so many tokens of prompts, which attend to half as many pairs.
    #[inline]
    pub(crate) fn prefill(&self, tokens: f64, pairs: f64) -> f64 {
        self.token * tokens + self.pair * pairs
    }

    /// Milliseconds for work that was done.
    #[inline]
    fn time(&self, work: &PrefillWork) -> f64 {
        self.prefill(work.tokens, work.pairs)
            + self.base * work.steps
            + self.sequence * work.sequences
            + self.context * work.contexts
    }

    /// Milliseconds that a pod still needs for the prompts it was sent.
    ///
    /// Engines tell of a prompt when it is computed, or of its blocks, and seldom at once; meanwhile it goes on. So the
    /// time since the last news is taken off, less what decoding takes of it. But some is always left, or the pod
    /// would have told.
    #[inline]
    pub(crate) fn backlog(&self, pod: &FleetPod, paces: Paces, now: Moment) -> f64 {
        /// The share of an engine's time that prompts get, roughly.
        const PREFILL_SHARE: f64 = 0.8;
        /// What is left at least.
        const LEAST_LEFT: f64 = 0.3;
        let vitals = pod.vitals();
        let work = self.prefill(vitals.prefill_tokens() as f64, vitals.prefill_pairs() as f64);
        let sent = paces.prefill * work;
        let passed = vitals.computing(now).as_secs_f64() * 1e3;
        (sent - PREFILL_SHARE * passed).max(LEAST_LEFT * sent)
    }

    /// The names of the fields.
    pub(crate) const FIELDS: [&str; 7] =
        ["base", "token", "pair", "sequence", "context", "kv_tokens", "step_tokens"];
}

/// Whether pods are as fast as they are said to be, or as they are seen to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EngineRates {
    /// As said.
    Fixed,
    /// As seen.
    Learnt,
}

/// How many times longer a pod takes than its kind of engine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Paces {
    /// For prompts.
    pub(crate) prefill: f64,
    /// For what steps take besides.
    pub(crate) steps: f64,
}

/// The speed of each kind of engine, found by a pod's `engine`, and the pace of each pod.
#[derive(Clone, Debug)]
pub(crate) struct PodSpeeds {
    named: [(Name, EngineSpeed); 3],
    otherwise: EngineSpeed,
    rates: EngineRates,
}

impl PodSpeeds {
    /// The published speeds, and `otherwise` for pods that name none of them.
    pub(crate) fn new(otherwise: EngineSpeed, rates: EngineRates) -> Self {
        Self { named: PUBLISHED.map(|(name, speed)| (name.into(), speed)), otherwise, rates }
    }

    /// How much slower or faster a pod is than `speed`, as far as anybody knows.
    #[inline]
    pub(crate) fn paces(&self, pod: &FleetPod, speed: &EngineSpeed) -> Paces {
        let pace = |paced| match self.rates {
            EngineRates::Fixed => 1.0,
            EngineRates::Learnt => pod.vitals().slowness(paced, |work| speed.time(work)),
        };
        Paces { prefill: pace(MeasuredPrefill::Prefill), steps: pace(MeasuredPrefill::Steps) }
    }

    #[inline]
    pub(crate) fn of(&self, engine: Option<&Name>) -> &EngineSpeed {
        engine
            .and_then(|engine| self.named.iter().find(|(name, _)| name == engine))
            .map_or(&self.otherwise, |(_, speed)| speed)
    }
}

/// What the request would bring to the pod, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) prompt: f64,
    /// Of the prompt, what the pod must compute.
    pub(crate) new: f64,
    /// What will probably be generated.
    pub(crate) output: f64,
}

/// What the pod has to do already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burden {
    /// Prompt tokens sent and not computed.
    pub(crate) pending: f64,
    /// Milliseconds that these will still take.
    pub(crate) queued: f64,
    /// How much slower it is than its kind.
    pub(crate) paces: Paces,
    /// Requests that it has.
    pub(crate) requests: f64,
    /// Of those, who decodes already.
    pub(crate) decoding: f64,
    /// Tokens in their contexts.
    pub(crate) contexts: f64,
    /// Tokens of KV cache in use, as the engine reports.
    pub(crate) reported: f64,
    /// Tokens of KV cache there are.
    pub(crate) kv_tokens: f64,
}

/// How much the prices count.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Prices {
    /// For `own` once more: while a miss is computed, others wait.
    pub(crate) miss: f64,
    /// For computing evicted tokens again: the chance that somebody asks for them.
    pub(crate) eviction: f64,
    /// For a full KV cache, in milliseconds.
    pub(crate) pressure: f64,
    /// For every request there, of what the new one adds to its steps.
    pub(crate) interference: f64,
}

/// The cost of a placement, term by term, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct CostTerms {
    /// Computing the prompts that were sent before.
    pub(crate) queued: f64,
    /// Computing this prompt's uncached tokens.
    pub(crate) own: f64,
    /// What steps take besides, decoding included.
    pub(crate) steps: f64,
    /// The wait that a miss means for others.
    pub(crate) miss: f64,
    /// Computing again what is evicted.
    pub(crate) eviction: f64,
    /// Coming nearer to a KV cache in which nothing fits.
    pub(crate) pressure: f64,
    /// Slowing those who are there.
    pub(crate) interference: f64,
}

impl CostTerms {
    #[inline]
    pub(crate) fn total(&self) -> f64 {
        self.queued
            + self.own
            + self.steps
            + self.miss
            + self.eviction
            + self.pressure
            + self.interference
    }
}

#[inline]
pub(crate) fn terms(
    speed: &EngineSpeed,
    prices: &Prices,
    placement: Placement,
    burden: Burden,
) -> CostTerms {
    let Placement { prompt, new, output } = placement;
    let cached = prompt - new;
    let work = speed.prefill(new, new * (new + 2.0 * cached));
    let (own, queued) = (burden.paces.prefill * work, burden.queued);
    let steps = rounded_up((burden.pending + new) / speed.step_tokens).max(1.0);
    let step = speed.base + speed.sequence * burden.decoding + speed.context * burden.contexts;

    let kv = burden.kv_tokens.max(1.0);
    // Contexts often share a prefix, whose blocks are there once: the engine's own figure knows that, and
    // the sum of the contexts does not. So too what is cached of this prompt takes no more room.
    let running = if burden.reported > 0.0 { burden.reported } else { burden.contexts };
    let used = (running + burden.pending) / kv;
    let after = used + (new + output) / kv;
    // An engine keeps what it computed until it needs the room, so a warm cache gives up as much as it
    // takes in; the more of it is in use, the fresher is what must go.
    let evicted = (new + output) * used.min(1.0);
    // Prices are by work and not by the pod's own time: with both, whoever is slow would get nothing, and the memory
    // of the others would not do for all.
    let delay = work + speed.sequence + speed.context * prompt;
    CostTerms {
        queued,
        own,
        steps: burden.paces.steps * steps * step,
        miss: prices.miss * work,
        eviction: prices.eviction * speed.token * evicted,
        // The twelfth power is nothing at half and everything when full (found on replayed traces).
        pressure: prices.pressure * (after.powi(12) - used.powi(12)),
        // Whoever is there decodes beside this prompt: those before it in the queue have been computed by then.
        interference: prices.interference * burden.requests * delay,
    }
}

/// `ceil` of a number of steps. On machines without an instruction for it, that is a call, before which everything
/// that the loop over the pods keeps in registers must be saved.
#[inline]
fn rounded_up(steps: f64) -> f64 {
    let whole = steps as i64 as f64;
    if whole < steps { whole + 1.0 } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_rounded_up_as_ceil_does() {
        for tokens in (0..100_000_u64).chain([1 << 40, (1 << 53) - 1]) {
            let steps = tokens as f64 / 8192.0;
            assert_eq!(rounded_up(steps), steps.ceil(), "{tokens}");
        }
    }

    const FREE: Prices = Prices { miss: 0.0, eviction: 0.0, pressure: 0.0, interference: 0.0 };
    const IDLE: Burden = Burden {
        pending: 0.0,
        queued: 0.0,
        paces: Paces { prefill: 1.0, steps: 1.0 },
        requests: 0.0,
        decoding: 0.0,
        contexts: 0.0,
        reported: 0.0,
        kv_tokens: 945_029.0,
    };

    fn of(prices: &Prices, new: f64, burden: Burden) -> CostTerms {
        terms(&PUBLISHED[0].1, prices, Placement { prompt: 8000.0, new, output: 0.0 }, burden)
    }

    #[test]
    fn an_idle_pod_takes_one_step_of_its_own_prefill() {
        let cold = of(&FREE, 8000.0, IDLE);
        let expected = 4.4 + 0.01594 * 8000.0 + 3.74e-7 * 8000.0 * 8000.0;
        assert!((cold.total() - expected).abs() < 1e-9);
        let warm = of(&FREE, 1000.0, IDLE);
        // The last thousand tokens attend to seven thousand cached ones and to each other.
        let expected = 4.4 + 0.01594 * 1000.0 + 3.74e-7 * (1000.0 * 1000.0 + 2.0 * 7e6);
        assert!((warm.total() - expected).abs() < 1e-9);
    }

    #[test]
    fn computing_a_prompt_in_two_parts_costs_what_it_costs_in_one() {
        let speed = &PUBLISHED[1].1;
        let part =
            |prompt, new| terms(speed, &FREE, Placement { prompt, new, output: 0.0 }, IDLE).own;
        assert!((part(3000.0, 3000.0) + part(8000.0, 5000.0) - part(8000.0, 8000.0)).abs() < 1e-6);
    }

    #[test]
    fn what_waits_and_what_decodes_delays_the_first_token() {
        let pending = Burden { pending: 20_000.0, queued: 468.0, ..IDLE };
        let terms = of(&FREE, 1000.0, Burden { decoding: 10.0, contexts: 50_000.0, ..pending });
        assert_eq!(terms.queued, 468.0);
        // 21,000 tokens need three steps of 8,192.
        assert!((terms.steps - 3.0 * (4.4 + 0.45 + 1.55)).abs() < 1e-9);
    }

    #[test]
    fn prices_count_only_if_they_are_set_and_grow_with_what_they_are_for() {
        let prices = Prices { miss: 1.0, eviction: 0.5, pressure: 10_000.0, interference: 0.006 };
        let half = Burden { reported: 470_000.0, requests: 20.0, ..IDLE };
        let full = Burden { reported: 930_000.0, requests: 20.0, ..IDLE };
        let (at_half, at_full) = (of(&prices, 8000.0, half), of(&prices, 8000.0, full));
        assert!((at_half.miss - at_half.own).abs() < 1e-9);
        assert!(at_half.pressure < 25.0 && at_full.pressure > 800.0, "{at_half:?} {at_full:?}");
        assert!(at_full.eviction > at_half.eviction && at_half.eviction > 0.0);
        assert!(at_half.interference > of(&prices, 100.0, half).interference);
        let free = of(&FREE, 8000.0, full);
        assert_eq!(free.total(), free.queued + free.own + free.steps);
    }

    #[test]
    fn a_slow_pod_takes_longer_and_costs_others_as_much_as_a_fast_one() {
        let prices = Prices { miss: 1.5, interference: 0.005, ..FREE };
        let busy = Burden { requests: 20.0, decoding: 20.0, ..IDLE };
        let slow = Burden { paces: Paces { prefill: 2.0, steps: 4.0 }, ..busy };
        let (fast, slow) = (of(&prices, 5000.0, busy), of(&prices, 5000.0, slow));
        assert_eq!((slow.own, slow.steps), (2.0 * fast.own, 4.0 * fast.steps));
        assert_eq!((slow.miss, slow.interference), (fast.miss, fast.interference));
    }

    #[test]
    fn a_pod_is_priced_by_its_own_engine() {
        let speeds = PodSpeeds::new(PUBLISHED[0].1, EngineRates::Learnt);
        assert_eq!(speeds.of(Some(&"70b-h100x4".into())), &PUBLISHED[2].1);
        assert_eq!(speeds.of(Some(&"unheard-of".into())), &PUBLISHED[0].1);
        assert_eq!(speeds.of(None), &PUBLISHED[0].1);
        let mut speed = PUBLISHED[0].1;
        assert!(EngineSpeed::FIELDS.iter().all(|field| speed.field(field).is_some()));
        assert!(speed.field("speed").is_none());
    }
}
