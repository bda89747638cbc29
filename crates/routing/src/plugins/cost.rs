//! Cost of a placement, in milliseconds, from an engine's speed and a pod's load.
//!
//! The model assumes that the engine schedules as vLLM does: in steps that give one token to every
//! decoding request and fill the rest of a token budget with prompts, first come, first served.
//! [`EngineSpeed`] has the time of a step.
//!
//! The predicted time to first token is the sum of [`CostTerms::queued`], [`CostTerms::held`],
//! [`CostTerms::own`], [`CostTerms::steps`] and [`CostTerms::loading`]. The other terms are prices: what the placement costs
//! other requests. They count the same milliseconds, each as often as it delays a request.

use super::engine_speed::{EngineSpeed, Slowdown};

/// A cache with free space holds another copy of a prefix at the expense of no other, so the price
/// of an eviction is in proportion to how full it is. This share is the least: it keeps requests
/// together that come with one new prefix at once.
const LEAST_EVICTED_SHARE: f64 = 0.1;

/// Tokens that the request would bring to the pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) prompt: f64,
    /// Prompt tokens that the pod must compute.
    pub(crate) new: f64,
    /// Expected output tokens.
    pub(crate) output: f64,
    /// Milliseconds to load cached tokens from slower tiers.
    pub(crate) loading: f64,
}

/// The pod's load before the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodLoad {
    /// Prompt tokens sent and not yet computed.
    pub(crate) pending: f64,
    /// Milliseconds that the pending prompt tokens still take.
    pub(crate) queued: f64,
    /// Milliseconds of prefill of requests that wait in the router for this pod.
    pub(crate) held: f64,
    /// Tokens that these add to the KV cache.
    pub(crate) held_tokens: f64,
    /// The share of the KV cache that holds prompts, in use or not; 1 if unknown.
    pub(crate) cached_share: f64,
    pub(crate) slowdown: Slowdown,
    /// Requests in flight whose prompt is not computed yet.
    pub(crate) waiting: f64,
    /// Requests in flight that already decode.
    pub(crate) decoding: f64,
    /// Tokens in the contexts of the decoding requests.
    pub(crate) contexts: f64,
    /// Tokens of KV cache in use, as the engine reports; zero without a report.
    pub(crate) reported: f64,
    /// Size of the KV cache in tokens.
    pub(crate) kv_tokens: f64,
}

/// Weights of the terms that price the effect on other requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Prices {
    /// What a millisecond counts by which a waiting request is delayed.
    pub(crate) waiting: f64,
    /// What a millisecond counts by which a decoding request is delayed.
    pub(crate) decoding: f64,
    /// The probability that an evicted token must be computed again.
    pub(crate) eviction: f64,
    /// The price of a full KV cache, in milliseconds.
    pub(crate) pressure: f64,
}

/// The cost of a placement, term by term, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct CostTerms {
    /// Prefill of the prompts that were sent before.
    pub(crate) queued: f64,
    /// Prefill of the prompts that wait in the router for the same pod.
    pub(crate) held: f64,
    /// Prefill of this prompt's uncached tokens.
    pub(crate) own: f64,
    /// The rest of the steps' time, decoding included.
    pub(crate) steps: f64,
    /// Loading of cached blocks from slower tiers.
    pub(crate) loading: f64,
    /// Delay of the requests that will wait behind this one.
    pub(crate) waiting: f64,
    /// Delay of the requests that decode.
    pub(crate) decoding: f64,
    /// Recomputation of what the placement evicts.
    pub(crate) eviction: f64,
    /// The rise in KV cache pressure.
    pub(crate) pressure: f64,
}

impl CostTerms {
    /// The predicted time to first token.
    pub(crate) fn first_token(&self) -> f64 {
        self.queued + self.held + self.own + self.steps + self.loading
    }

    #[inline]
    pub(crate) fn total(&self) -> f64 {
        self.queued
            + self.held
            + self.own
            + self.steps
            + self.loading
            + self.waiting
            + self.decoding
            + self.eviction
            + self.pressure
    }
}

/// The cost of placing the request on a pod with this speed and load.
#[inline]
pub(crate) fn terms(
    speed: &EngineSpeed,
    prices: &Prices,
    placement: Placement,
    load: PodLoad,
) -> CostTerms {
    let Placement { prompt, new, output, loading } = placement;
    let cached = prompt - new;
    let work = speed.prefill(new, new * (new + 2.0 * cached));
    let steps = rounded_up((load.pending + new) / speed.step_tokens).max(1.0);
    let step = speed.base + speed.sequence * load.decoding + speed.context * load.contexts;

    let kv = load.kv_tokens.max(1.0);
    // Contexts often share a prefix, whose blocks exist once. The engine's report accounts for
    // that, and the sum of the contexts does not. For the same reason this prompt's cached tokens
    // add nothing.
    let running = if load.reported > 0.0 { load.reported } else { load.contexts };
    let used = (running + load.pending + load.held_tokens) / kv;
    let after = used + (new + output) / kv;
    // Prices count work, not the pod's own time: if the slowdown counted here too, a slow pod would
    // get no requests, and the KV caches of the other pods could not hold everything.
    CostTerms {
        queued: load.queued,
        held: load.held,
        own: load.slowdown.prefill * work,
        steps: load.slowdown.steps * steps * step,
        loading,
        // By Little's law as many requests come while the pod works off its queue as wait in it
        // now, and each of them waits longer by this prompt's work.
        waiting: prices.waiting * load.waiting * work,
        decoding: prices.decoding * load.decoding * work,
        // An engine keeps blocks until it needs the space, so a full cache evicts as much as is
        // computed.
        eviction: prices.eviction * load.cached_share.clamp(LEAST_EVICTED_SHARE, 1.0) * work,
        // The twelfth power is near zero at half and one when full (found on replayed traces).
        pressure: prices.pressure * (after.powi(12) - used.powi(12)),
    }
}

/// `ceil` of a number of steps. Without an instruction for it, `f64::ceil` is a call that makes the
/// loop over the pods spill its registers.
#[inline]
fn rounded_up(steps: f64) -> f64 {
    let whole = steps as i64 as f64;
    if whole < steps { whole + 1.0 } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::engine_speed::PUBLISHED;

    #[test]
    fn steps_are_rounded_up_as_ceil_does() {
        for tokens in (0..100_000_u64).chain([1 << 40, (1 << 53) - 1]) {
            let steps = tokens as f64 / 8192.0;
            assert_eq!(rounded_up(steps), steps.ceil(), "{tokens}");
        }
    }

    const FREE: Prices = Prices { waiting: 0.0, decoding: 0.0, eviction: 0.0, pressure: 0.0 };
    const IDLE: PodLoad = PodLoad {
        pending: 0.0,
        queued: 0.0,
        held: 0.0,
        held_tokens: 0.0,
        cached_share: 1.0,
        slowdown: Slowdown { prefill: 1.0, steps: 1.0 },
        waiting: 0.0,
        decoding: 0.0,
        contexts: 0.0,
        reported: 0.0,
        kv_tokens: 945_029.0,
    };

    fn cost(prices: &Prices, new: f64, load: PodLoad) -> CostTerms {
        terms(
            &PUBLISHED[0].1,
            prices,
            Placement { prompt: 8000.0, new, output: 0.0, loading: 0.0 },
            load,
        )
    }

    #[test]
    fn an_idle_pod_costs_one_step_and_the_requests_own_prefill() {
        let cold = cost(&FREE, 8000.0, IDLE);
        let expected = 4.4 + 0.01594 * 8000.0 + 3.74e-7 * 8000.0 * 8000.0;
        assert!((cold.total() - expected).abs() < 1e-9);
        let warm = cost(&FREE, 1000.0, IDLE);
        // The last thousand tokens attend to seven thousand cached ones and to each other.
        let expected = 4.4 + 0.01594 * 1000.0 + 3.74e-7 * (1000.0 * 1000.0 + 2.0 * 7e6);
        assert!((warm.total() - expected).abs() < 1e-9);
    }

    #[test]
    fn computing_a_prompt_in_two_parts_costs_what_it_costs_in_one() {
        let speed = &PUBLISHED[1].1;
        let own = |prompt, new| {
            terms(speed, &FREE, Placement { prompt, new, output: 0.0, loading: 0.0 }, IDLE).own
        };
        assert!((own(3000.0, 3000.0) + own(8000.0, 5000.0) - own(8000.0, 8000.0)).abs() < 1e-6);
    }

    #[test]
    fn pending_prefill_and_decoding_delay_the_first_token() {
        let pending = PodLoad { pending: 20_000.0, queued: 468.0, ..IDLE };
        let terms = cost(&FREE, 1000.0, PodLoad { decoding: 10.0, contexts: 50_000.0, ..pending });
        assert_eq!(terms.queued, 468.0);
        // 21,000 tokens need three steps of 8,192.
        assert!((terms.steps - 3.0 * (4.4 + 0.45 + 1.55)).abs() < 1e-9);
    }

    #[test]
    fn prices_count_only_if_set_and_grow_with_misses_evictions_and_load() {
        let prices = Prices { waiting: 1.0, decoding: 0.02, eviction: 1.0, pressure: 10_000.0 };
        let busy = PodLoad { waiting: 3.0, decoding: 20.0, ..IDLE };
        let half = PodLoad { reported: 470_000.0, cached_share: 0.5, ..busy };
        let full = PodLoad { reported: 930_000.0, ..busy };
        let at_half = cost(&prices, 8000.0, half);
        let at_full = cost(&prices, 8000.0, full);
        assert!((at_half.waiting - 3.0 * at_half.own).abs() < 1e-9, "three wait longer by it");
        assert!((at_half.decoding - 0.02 * 20.0 * at_half.own).abs() < 1e-9);
        assert!((at_half.eviction - 0.5 * at_half.own).abs() < 1e-9);
        assert!((at_full.eviction - at_full.own).abs() < 1e-9);
        assert!(at_half.pressure < 25.0 && at_full.pressure > 800.0, "{at_half:?} {at_full:?}");
        assert!(at_half.waiting > cost(&prices, 100.0, half).waiting);
        let free = cost(&FREE, 8000.0, full);
        assert_eq!(free.total(), free.queued + free.own + free.steps);
    }

    #[test]
    fn a_slow_pod_takes_longer_but_its_prices_are_those_of_a_fast_one() {
        let prices = Prices { waiting: 1.0, decoding: 0.02, eviction: 1.0, ..FREE };
        let busy = PodLoad { waiting: 2.0, decoding: 20.0, ..IDLE };
        let slow = PodLoad { slowdown: Slowdown { prefill: 2.0, steps: 4.0 }, ..busy };
        let fast = cost(&prices, 5000.0, busy);
        let slow = cost(&prices, 5000.0, slow);
        assert_eq!((slow.own, slow.steps), (2.0 * fast.own, 4.0 * fast.steps));
        assert_eq!((slow.waiting, slow.decoding), (fast.waiting, fast.decoding));
        assert_eq!(slow.eviction, fast.eviction);
    }
}
