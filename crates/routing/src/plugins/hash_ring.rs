//! `hash_ring`: requests with one key go to one pod, and few keys move when pods come and go.
//!
//! By rendezvous instead of points on a circle; why is told in [`rendezvous`](super::rendezvous).

use wornpath_yaml::{Parameter, Takes};

use super::rendezvous::{LoadBound, affinity};
use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, PICKER, Plugin};
use crate::rng::Rng;
use crate::slot::Reads;
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Pick};
use crate::values::RingKey;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "hash_ring",
    summary: "Consistent hashing: requests with one key go to one pod. With `load_factor`, a pod that has more \
              than its share is passed over for the key's next one.",
    parameters: &[
        Parameter::optional(
            "load_factor",
            Takes::Number(1.01, 1000.0),
            "How many times its fair share of the requests in flight a pod may have; 1.25 is usual.",
        ),
        Parameter::with_default(
            "otherwise",
            PICKER,
            "max_score",
            "Who picks for a request without key.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "hash_ring: {load_factor: 1.25}",
    make: Make::Pick(make),
};

struct HashRing {
    key: Reads<RingKey>,
    bound: Option<LoadBound>,
    otherwise: Box<dyn Pick>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused> {
    Ok(Box::new(HashRing {
        key: assembly.reads(),
        bound: assembly.maybe("load_factor").and_then(LoadBound::new),
        otherwise: assembly.picker("otherwise")?,
    }))
}

/// Pods are told apart by name, which every router knows alike, not by their place in this one's fleet.
#[inline]
fn wish(key: u64, pod: &FleetPod) -> u64 {
    affinity(key, pod.facts().name.key())
}

impl Pick for HashRing {
    fn pick(&self, scene: &Decision<'_>, slate: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let Some(RingKey(key)) = scene.read(&self.key).copied() else {
            return self.otherwise.pick(scene, slate, rng);
        };
        let requests = |candidate: &Candidate| u64::from(scene.pod(*candidate).vitals().requests());
        let most = self.bound.map_or(u64::MAX, |bound| {
            bound.most(slate.candidates.iter().map(requests).sum(), slate.candidates.len())
        });
        let (mut first, mut free) = ((0, 0), None::<(u64, usize)>);
        for (at, candidate) in slate.candidates.iter().enumerate() {
            let wish = (wish(key, scene.pod(*candidate)), at);
            first = first.max(wish);
            if requests(candidate) < most {
                free = free.max(Some(wish));
            }
        }
        let (_, at) = free.unwrap_or(first);
        let passed_over = at != first.1;
        Choice { at, mark: passed_over.then_some("the key's own pod has more than its share") }
    }

    fn fallbacks(
        &self,
        scene: &Decision<'_>,
        slate: CandidateSet<'_>,
        chosen: usize,
        fallbacks: &mut Fallbacks<'_>,
    ) {
        let Some(RingKey(key)) = scene.read(&self.key).copied() else {
            return self.otherwise.fallbacks(scene, slate, chosen, fallbacks);
        };
        // The key's next choices in order, each found by a pass: only a few are ever wanted.
        let mut last = (u64::MAX, usize::MAX);
        while !fallbacks.is_full() {
            let wishes = slate.candidates.iter().enumerate().filter(|(at, _)| *at != chosen);
            let wishes = wishes.map(|(at, candidate)| (wish(key, scene.pod(*candidate)), at));
            let Some(next) = wishes.filter(|wish| *wish < last).max() else { return };
            fallbacks.push(next.1);
            last = next;
        }
    }

    fn chosen(&self, scene: &Decision<'_>, pod: Candidate) {
        self.otherwise.chosen(scene, pod);
    }

    fn passed_over(&self, scene: &Decision<'_>, pod: Candidate) {
        if scene.read(&self.key).is_none() {
            self.otherwise.passed_over(scene, pod);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Reservation;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    const PREPARE: [&str; 1] = ["hash_key: {header: k}"];

    fn rehearsal(key: &str) -> Harness {
        let mut rehearsal = Harness::of(6);
        rehearsal.request.headers = vec![("k".into(), key.into())];
        rehearsal
    }

    fn without(gone: usize) -> Vec<(usize, f64)> {
        (0..6).filter(|pod| *pod != gone).map(|pod| (pod, 0.0)).collect()
    }

    #[test]
    fn a_key_keeps_its_pod_while_that_is_there_and_returns_to_it() {
        for key in ["a", "b", "c", "d"] {
            let rehearsal = rehearsal(key);
            let played = rehearsal.play(&PREPARE, Stage::Pick, "hash_ring");
            let rng = &mut Rng::new(1);
            let (home, _) = played.pick(&without(6), rng);
            for gone in (0..6).filter(|gone| *gone != home) {
                assert_eq!(played.pick(&without(gone), rng).0, home);
            }
            let (second, _) = played.pick(&without(home), rng);
            assert_ne!(second, home);
            assert_eq!(
                played.fallbacks(home, 2)[0],
                second,
                "the first fallback is the next choice"
            );
            assert_eq!(played.fallbacks(home, 9).len(), 5);
        }
    }

    #[test]
    fn a_pod_with_more_than_its_share_is_passed_over() {
        let rehearsal = rehearsal("popular");
        let played = rehearsal.play(&PREPARE, Stage::Pick, "hash_ring: {load_factor: 1.25}");
        let mut sent = [0_u32; 6];
        let mut reservations = vec![];
        let mut marked = 0;
        for _ in 0..60 {
            let (pod, choice) = played.pick(&without(6), &mut Rng::new(1));
            reservations.push(Reservation::new(rehearsal.vitals(pod), 1, 1));
            sent[pod] += 1;
            marked += u32::from(choice.mark.is_some());
        }
        assert!(sent.iter().all(|count| *count <= 13), "60 / 6 * 1.25 = 12.5: {sent:?}");
        let own = sent.iter().max().unwrap();
        assert!(*own >= 12 && marked == 60 - own, "{sent:?} {marked}");
    }

    #[test]
    fn a_request_without_key_is_picked_otherwise() {
        let mut rehearsal = rehearsal("a");
        rehearsal.request.headers.clear();
        let played = rehearsal.play(&PREPARE, Stage::Pick, "hash_ring");
        assert_eq!(played.pick(&[(0, 0.1), (3, 0.9), (4, 0.5)], &mut Rng::new(1)).0, 3);
    }
}
