//! `hash_ring`: consistent hashing. Requests with one key go to one pod, and few keys move when
//! pods join or leave.
//!
//! It uses rendezvous hashing instead of points on a ring; [`rendezvous`](super::rendezvous) says
//! why.

use wornpath_yaml::{Parameter, Takes};

use super::rendezvous::{LoadBound, affinity};
use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, PICKER, Plugin};
use crate::rng::Rng;
use crate::slot::{Reads, RingKey};
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "hash_ring",
    summary: "Consistent hashing: requests with one key go to one pod. With `load_factor`, a pod over its share of the \
              load is passed over for the key's next pod. With `candidates`, scores choose among the key's first pods.",
    parameters: &[
        Parameter::optional(
            "load_factor",
            Takes::Number(1.01, 1000.0),
            "Limit on a pod's requests in flight, as a multiple of its fair share; 1.25 is usual.",
        ),
        Parameter::optional(
            "candidates",
            Takes::Whole(1, MOST_CANDIDATES as u64),
            "How many of the key's first pods the scores choose among. 1: scores count only for requests without a key. \
             Required beside scorers.",
        ),
        Parameter::with_default(
            "otherwise",
            PICKER,
            "max_score",
            "The picker for requests without a key.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "hash_ring: {load_factor: 1.25}",
    make: Make::Pick(make),
};

/// The key's first pods are found one after the other.
const MOST_CANDIDATES: usize = 16;

struct HashRing {
    key: Reads<RingKey>,
    bound: Option<LoadBound>,
    /// None if not given.
    candidates: Option<usize>,
    otherwise: Box<dyn Pick>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused> {
    Ok(Box::new(HashRing {
        key: assembly.reads(),
        bound: assembly.maybe("load_factor").and_then(LoadBound::new),
        candidates: assembly.maybe("candidates"),
        otherwise: assembly.picker("otherwise")?,
    }))
}

/// Hashes the pod's name, which is the same in every router, not its position in this router's
/// fleet.
#[inline]
fn rank(key: u64, pod: &FleetPod) -> u64 {
    affinity(key, pod.facts().name.key())
}

impl Pick for HashRing {
    fn pick(&self, decision: &Decision<'_>, set: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let Some(RingKey(key)) = decision.read(&self.key).copied() else {
            return self.otherwise.pick(decision, set, rng);
        };
        let requests =
            |candidate: &Candidate| u64::from(decision.pod(*candidate).state().requests());
        let limit = self.bound.map_or(u64::MAX, |bound| {
            bound.limit(set.candidates.iter().map(requests).sum(), set.candidates.len())
        });
        // Both as (rank, position), to be compared by rank.
        let mut home = (0, 0);
        let mut below_limit = None::<(u64, usize)>;
        for (at, candidate) in set.candidates.iter().enumerate() {
            let ranked = (rank(key, decision.pod(*candidate)), at);
            home = home.max(ranked);
            if requests(candidate) < limit {
                below_limit = below_limit.max(Some(ranked));
            }
        }
        let first = below_limit.unwrap_or(home);
        let ranked = |at: usize, candidate: &Candidate| {
            (requests(candidate) < limit).then(|| (rank(key, decision.pod(*candidate)), at))
        };
        if let Some(better) = self.better_scored(set, first, ranked) {
            return Choice {
                at: better,
                mark: Some("another of the key's pods has a better score"),
            };
        }
        let is_moved = first.1 != home.1;
        let mark = is_moved.then_some("the key's first pod is over its load bound");
        Choice { at: first.1, mark }
    }

    fn fallbacks(
        &self,
        decision: &Decision<'_>,
        set: CandidateSet<'_>,
        chosen: usize,
        fallbacks: &mut Fallbacks<'_>,
    ) {
        let Some(RingKey(key)) = decision.read(&self.key).copied() else {
            return self.otherwise.fallbacks(decision, set, chosen, fallbacks);
        };
        // One pass per fallback, in the order of rank: a plan wants only a few.
        let mut last = (u64::MAX, usize::MAX);
        while !fallbacks.is_full() {
            let others = set.candidates.iter().enumerate().filter(|(at, _)| *at != chosen);
            let ranked = others.map(|(at, candidate)| (rank(key, decision.pod(*candidate)), at));
            let Some(next) = ranked.filter(|rank| *rank < last).max() else { return };
            fallbacks.push(next.1);
            last = next;
        }
    }

    fn chosen(&self, decision: &Decision<'_>, pod: Candidate) {
        self.otherwise.chosen(decision, pod);
    }

    fn not_used(&self, decision: &Decision<'_>, pod: Candidate) {
        if decision.read(&self.key).is_none() {
            self.otherwise.not_used(decision, pod);
        }
    }

    fn ignores_scores(&self) -> Option<&'static str> {
        self.candidates.is_none().then_some(
            "give `candidates`: 2 or more, and scores choose among so many of the key's first pods; 1, and they count \
             only for requests without a key",
        )
    }
}

impl HashRing {
    /// Which of the key's pods after `first` has the best score, if that is better than the first
    /// one's. `ranked` is none for a pod over the limit.
    fn better_scored(
        &self,
        set: CandidateSet<'_>,
        first: (u64, usize),
        ranked: impl Fn(usize, &Candidate) -> Option<(u64, usize)>,
    ) -> Option<usize> {
        let mut best = first;
        let mut last = first;
        for _ in 1..self.candidates.unwrap_or(1) {
            let all = set.candidates.iter().enumerate();
            let others = all.filter_map(|(at, candidate)| ranked(at, candidate));
            let Some(next) = others.filter(|rank| *rank < last).max() else { break };
            if set.totals[next.1] > set.totals[best.1] {
                best = next;
            }
            last = next;
        }
        (best != first).then_some(best.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Reservation;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    const PREPARE: [&str; 1] = ["hash_key: {header: k}"];

    fn harness(key: &str) -> Harness {
        let mut harness = Harness::of(6);
        harness.request.headers = vec![("k".into(), key.into())];
        harness
    }

    fn all_but(gone: usize) -> Vec<(usize, f64)> {
        (0..6).filter(|pod| *pod != gone).map(|pod| (pod, 0.0)).collect()
    }

    #[test]
    fn a_key_stays_on_its_pod_while_that_is_a_candidate() {
        for key in ["a", "b", "c", "d"] {
            let harness = harness(key);
            let run = harness.run(&PREPARE, Stage::Pick, "hash_ring");
            let rng = &mut Rng::new(1);
            let (home, _) = run.pick(&all_but(6), rng);
            for gone in (0..6).filter(|gone| *gone != home) {
                assert_eq!(run.pick(&all_but(gone), rng).0, home);
            }
            let (second, _) = run.pick(&all_but(home), rng);
            assert_ne!(second, home);
            assert_eq!(
                run.fallbacks(home, 2)[0],
                second,
                "the first fallback is the key's next pod"
            );
            assert_eq!(run.fallbacks(home, 9).len(), 5);
        }
    }

    #[test]
    fn a_pod_over_its_load_bound_is_passed_over() {
        let harness = harness("popular");
        let run = harness.run(&PREPARE, Stage::Pick, "hash_ring: {load_factor: 1.25}");
        let mut sent = [0_u32; 6];
        let mut reservations = vec![];
        let mut marked = 0;
        for _ in 0..60 {
            let (pod, choice) = run.pick(&all_but(6), &mut Rng::new(1));
            reservations.push(Reservation::new(harness.pod_state(pod), 1, 1));
            sent[pod] += 1;
            marked += u32::from(choice.mark.is_some());
        }
        assert!(sent.iter().all(|count| *count <= 13), "60 / 6 * 1.25 = 12.5: {sent:?}");
        let own = sent.iter().max().unwrap();
        assert!(*own >= 12 && marked == 60 - own, "{sent:?} {marked}");
    }

    #[test]
    fn a_request_without_a_key_goes_to_the_other_picker() {
        let mut harness = harness("a");
        harness.request.headers.clear();
        let run = harness.run(&PREPARE, Stage::Pick, "hash_ring");
        assert_eq!(run.pick(&[(0, 0.1), (3, 0.9), (4, 0.5)], &mut Rng::new(1)).0, 3);
    }

    #[test]
    fn the_best_score_counts_among_the_keys_first_pods_and_not_beyond() {
        for key in ["a", "b", "c", "d"] {
            let harness = harness(key);
            let rng = &mut Rng::new(1);
            let order: Vec<usize> = {
                let run = harness.run(&PREPARE, Stage::Pick, "hash_ring");
                let (home, _) = run.pick(&all_but(6), rng);
                std::iter::once(home).chain(run.fallbacks(home, 5)).collect()
            };
            let scored = |best: usize| -> Vec<(usize, f64)> {
                (0..6).map(|pod| (pod, if pod == best { 1.0 } else { 0.0 })).collect()
            };
            let run = harness.run(&PREPARE, Stage::Pick, "hash_ring: {candidates: 3}");
            for (place, pod) in order.iter().enumerate() {
                let expected = if place < 3 { *pod } else { order[0] };
                assert_eq!(run.pick(&scored(*pod), rng).0, expected, "{key}, place {place}");
            }
            let run = harness.run(&PREPARE, Stage::Pick, "hash_ring: {candidates: 1}");
            assert_eq!(run.pick(&scored(order[1]), rng).0, order[0]);
        }
    }

    #[test]
    fn a_pod_over_its_load_bound_is_not_chosen_for_its_score() {
        let harness = harness("a");
        let rng = &mut Rng::new(1);
        let run =
            harness.run(&PREPARE, Stage::Pick, "hash_ring: {candidates: 2, load_factor: 1.5}");
        let (home, _) = run.pick(&all_but(6), rng);
        let scored = |best: usize| -> Vec<(usize, f64)> {
            (0..6).map(|pod| (pod, if pod == best { 1.0 } else { 0.0 })).collect()
        };
        let second = (0..6).find(|pod| *pod != home && run.pick(&scored(*pod), rng).0 == *pod);
        let second = second.expect("the second of the key's pods can win by its score");
        let state = harness.pod_state(second);
        let busy: Vec<_> = (0..9).map(|_| Reservation::new(state, 1, 1)).collect();
        assert_ne!(run.pick(&scored(second), rng).0, second);
        drop(busy);
        assert_eq!(run.pick(&scored(second), rng).0, second);
    }
}
