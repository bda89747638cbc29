//! Rendezvous hashing: each pair of key and pod has a hash, and the pod with the largest one wins.
//!
//! It gives what a hash ring gives: when a pod leaves, only its keys move, and when one joins, keys
//! move only to it. It does so for any subset of the fleet, without a walk past the points of
//! filtered-out pods; it spreads a lost pod's keys over all others; and there is no ring to rebuild
//! or to size. A ring is faster in large fleets (logarithmic), but the stages before it look at
//! every pod anyway.
//!
//! With bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018) a pod that has more than `factor`
//! times its fair share of the requests is passed over, so a popular key spills to its next pod.

/// The multiple of its fair share of requests that a pod may have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct LoadBound(f64);

impl LoadBound {
    /// A bound, if `factor` is above one: at one, only the least loaded pod would be below it.
    pub(crate) fn new(factor: f64) -> Option<Self> {
        (factor > 1.0 && factor.is_finite()).then_some(Self(factor))
    }

    /// The most requests that a pod may have, with the new one included.
    pub(crate) fn limit(self, requests_in_flight: u64, pods: usize) -> u64 {
        let share = (requests_in_flight + 1) as f64 / pods.max(1) as f64;
        (share * self.0).ceil() as u64
    }
}

/// The hash of a key and a pod: uniform over pairs, and the same in every process.
#[inline]
pub(crate) fn affinity(key: u64, pod: u64) -> u64 {
    // The finalizer of SplitMix64; the odd factor keeps `key == pod` from cancelling.
    let mut mixed = key ^ pod.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(key: u64, pods: &[u64]) -> u64 {
        *pods.iter().max_by_key(|pod| affinity(key, **pod)).unwrap()
    }

    /// Names that differ in few bits, as hashes of `pod-1`, `pod-2` might.
    fn pods(count: u64) -> Vec<u64> {
        (0..count).collect()
    }

    #[test]
    fn keys_are_spread_evenly() {
        let pods = pods(16);
        let mut owned = [0_u32; 16];
        for key in 0..16_000 {
            owned[owner(key, &pods) as usize] += 1;
        }
        assert!(owned.iter().all(|count| (850..1150).contains(count)), "{owned:?}");
    }

    #[test]
    fn only_the_keys_of_a_pod_that_leaves_move_and_they_spread_evenly() {
        let before = pods(8);
        let after = pods(7);
        let mut moved_to = [0_u32; 7];
        for key in 0..8_000 {
            let old = owner(key, &before);
            let new = owner(key, &after);
            if old == 7 {
                moved_to[new as usize] += 1;
            } else {
                assert_eq!(old, new, "key {key}");
            }
        }
        assert!(moved_to.iter().all(|count| (100..200).contains(count)), "{moved_to:?}");
    }

    #[test]
    fn at_least_one_pod_is_always_below_the_bound() {
        let bound = LoadBound::new(1.25).unwrap();
        assert_eq!(bound.limit(0, 10), 1);
        assert_eq!(bound.limit(99, 10), 13);
        for requests in 0..200 {
            for pods in 1..20 {
                // All pods at their limit would need more requests than there are.
                assert!(bound.limit(requests, pods) * pods as u64 > requests);
            }
        }
        assert_eq!((LoadBound::new(1.0), LoadBound::new(f64::NAN)), (None, None));
    }

    /// Routers of different versions must agree: these values must never change.
    #[test]
    fn affinities_are_stable_across_releases() {
        assert_eq!(affinity(1, 2), 12_221_195_284_843_978_923);
    }
}
