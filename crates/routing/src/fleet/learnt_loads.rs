//! How long a pod takes to load cached blocks from slower tiers, learnt from the requests that found
//! them there.
//!
//! A data sheet does not tell how fast a host's memory or a shared disk is under load, and no engine
//! reports it. But the time to the first token can be predicted for a prompt that is cached on the
//! GPU; what a request with blocks on another tier takes beyond that is the time of loading. What
//! requests without such blocks take beyond their prediction is no loading, so it is learnt too and
//! taken off. Old requests are forgotten.
//!
//! Limits: a request that finds blocks on several slower tiers teaches nothing unless nearly all are
//! on one. A load that an engine hides behind the computation of other requests seems shorter than
//! it is, which is what the next request can expect there too.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use wornpath_index::Tier;

/// Tokens that the assumed rate counts for before anything was measured.
const PRIOR: f64 = 2048.0;
/// What is left of older requests when a newer one is added.
const KEPT: f64 = 15.0 / 16.0;
/// A load of fewer tokens tells more about the engine's rhythm than about the tier.
const LEAST_TOKENS: u64 = 512;
/// The share of the loaded tokens that must lie on one tier.
const LEAST_SHARE: f64 = 0.9;
/// A request whose prompt has more tokens to compute tells more about prefill than about overhead.
const MOST_UNCACHED: u64 = 2048;

/// Tokens that a request has to load, by tier.
pub(crate) type LoadedTokens = [u64; Tier::ALL.len()];

/// What was seen of a pod. One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct LearntLoads {
    tiers: [LoadSums; Tier::ALL.len()],
    /// Of requests without loads, by request.
    overhead: LoadSums,
}

/// Decaying sums, each as the bits of an `f32`. Two requests at the same moment may count as one.
#[derive(Debug, Default)]
struct LoadSums {
    milliseconds: AtomicU32,
    units: AtomicU32,
}

impl LoadSums {
    fn add(&self, milliseconds: f64, units: f64) {
        for (sum, new) in [(&self.milliseconds, milliseconds), (&self.units, units)] {
            let kept = f64::from(f32::from_bits(sum.load(Relaxed))) * KEPT;
            sum.store(((kept + new) as f32).to_bits(), Relaxed);
        }
    }

    fn read(&self) -> (f64, f64) {
        let value = |sum: &AtomicU32| f64::from(f32::from_bits(sum.load(Relaxed)));
        (value(&self.milliseconds), value(&self.units))
    }
}

impl LearntLoads {
    /// A request with `uncached` tokens to compute took so many milliseconds more to its first
    /// token than was predicted with all its cached blocks on the GPU.
    pub(super) fn first_token(&self, excess: f64, uncached: u64, loaded: &LoadedTokens) {
        let slower = &loaded[1..];
        let all: u64 = slower.iter().sum();
        if all == 0 {
            if uncached <= MOST_UNCACHED {
                self.overhead.add(excess.max(0.0), 1.0);
            }
            return;
        }
        let most = slower.iter().copied().max().unwrap_or(0);
        let Some(tier) = loaded.iter().rposition(|tokens| *tokens == most && most > 0) else {
            return;
        };
        if all >= LEAST_TOKENS && most as f64 >= LEAST_SHARE * all as f64 {
            self.tiers[tier].add((excess - self.overhead()).max(0.0), all as f64);
        }
    }

    fn overhead(&self) -> f64 {
        let (milliseconds, requests) = self.overhead.read();
        if requests > 0.0 { milliseconds / requests } else { 0.0 }
    }

    /// Milliseconds to load a token from a tier, if `assumed` is what is known from elsewhere.
    #[inline]
    pub(super) fn rate(&self, tier: Tier, assumed: f64) -> f64 {
        let (milliseconds, tokens) = self.tiers[tier as usize].read();
        (PRIOR * assumed + milliseconds) / (PRIOR + tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: LoadedTokens = [64, 0, 2000, 0];

    #[test]
    fn the_rate_of_a_tier_is_what_loading_took_beyond_the_usual_overhead() {
        let loads = LearntLoads::default();
        assert_eq!(loads.rate(Tier::Disk, 0.02), 0.02, "assumed, as long as nothing was seen");
        (0..50).for_each(|_| loads.first_token(10.0, 500, &[3000, 0, 0, 0]));
        (0..50).for_each(|_| loads.first_token(10.0 + 100.0, 500, &DISK));
        let rate = loads.rate(Tier::Disk, 0.02);
        assert!((0.045..0.05).contains(&rate), "100 ms for 2,000 tokens: {rate}");
        assert_eq!(loads.rate(Tier::Host, 0.02), 0.02);
    }

    #[test]
    fn a_tier_that_gets_faster_is_noticed_within_some_dozen_requests() {
        let loads = LearntLoads::default();
        (0..100).for_each(|_| loads.first_token(400.0, 0, &DISK));
        (0..60).for_each(|_| loads.first_token(20.0, 0, &DISK));
        let rate = loads.rate(Tier::Disk, 0.02);
        assert!((0.009..0.02).contains(&rate), "20 ms for 2,000 tokens: {rate}");
    }

    #[test]
    fn small_and_mixed_loads_and_long_prompts_teach_nothing() {
        let loads = LearntLoads::default();
        loads.first_token(500.0, 0, &[0, 0, 300, 0]);
        loads.first_token(500.0, 0, &[0, 1000, 1000, 0]);
        loads.first_token(500.0, 9000, &[4000, 0, 0, 0]);
        assert_eq!(loads.rate(Tier::Disk, 0.02), 0.02);
        assert_eq!(loads.rate(Tier::Host, 0.002), 0.002);
        assert_eq!(loads.overhead(), 0.0);
    }
}
