//! `round_robin` as a picker: every candidate in turn, without regard to scores.
//!
//! The state is the position of the pod that was chosen last, not a counter, so that the turns stay
//! fair while filters drop and readmit pods.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::rng::Rng;
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "round_robin",
    summary: "Every candidate in turn, in the order of the fleet. Ignores scores.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "round_robin",
    make: Make::Pick(make),
};

struct RoundRobinPick {
    /// One more than the position in the fleet of the pod that was chosen last.
    next: AtomicUsize,
}

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused> {
    Ok(Box::new(RoundRobinPick { next: AtomicUsize::new(0) }))
}

impl Pick for RoundRobinPick {
    /// Advances the turn together with the pick, so that no other thread picks the same turn.
    fn pick(&self, _: &Decision<'_>, set: CandidateSet<'_>, _: &mut Rng) -> Choice {
        let at_or_after = |next| {
            let at = set.candidates.partition_point(|candidate| candidate.position() < next);
            if at == set.candidates.len() { 0 } else { at }
        };
        let after = |next| Some(set.candidates[at_or_after(next)].position() + 1);
        let (Ok(next) | Err(next)) = self.next.fetch_update(Relaxed, Relaxed, after);
        at_or_after(next).into()
    }

    fn fallbacks(
        &self,
        _: &Decision<'_>,
        set: CandidateSet<'_>,
        chosen: usize,
        fallbacks: &mut Fallbacks<'_>,
    ) {
        for at in (chosen + 1..set.candidates.len()).chain(0..chosen) {
            fallbacks.push(at);
        }
    }

    fn ignores_scores(&self) -> Option<&'static str> {
        Some("remove `score`, or use a picker that reads scores, such as `max_score`")
    }

    /// Gives the turn back when the request is held, unless another request has taken the next one.
    fn not_used(&self, _: &Decision<'_>, pod: Candidate) {
        let advanced = pod.position() + 1;
        let _ = self.next.compare_exchange(advanced, pod.position(), Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::rng::Rng;
    use crate::stage::Stage;

    #[test]
    fn every_candidate_has_a_turn_and_filtered_out_pods_are_passed_over() {
        let harness = Harness::of(4);
        let run = harness.run(&[], Stage::Pick, "round_robin");
        let turn = |pods: &[usize]| {
            let set: Vec<_> = pods.iter().map(|pod| (*pod, 0.0)).collect();
            run.pick(&set, &mut Rng::new(1)).0
        };
        let all = [0, 1, 2, 3];
        assert_eq!([turn(&all), turn(&all)], [0, 1]);
        assert_eq!([turn(&[0, 1, 3]), turn(&[0, 1, 3])], [3, 0]);
        assert_eq!([turn(&all), turn(&all), turn(&[0])], [1, 2, 0]);
    }

    #[test]
    fn a_pick_without_a_plan_uses_up_no_turn() {
        let harness = Harness::of(2);
        let run = harness.run(&[], Stage::Pick, "round_robin");
        let set = [(0, 0.0), (1, 0.0)];
        let pick = || run.pick(&set, &mut Rng::new(1)).0;
        assert_eq!(pick(), 0);
        run.not_used(0);
        assert_eq!(pick(), 0);
        assert_eq!(run.fallbacks(1, 5), [0]);
    }

    #[test]
    fn two_picks_before_either_plan_get_different_turns() {
        let harness = Harness::of(3);
        let run = harness.run(&[], Stage::Pick, "round_robin");
        let set = [(0, 0.0), (1, 0.0), (2, 0.0)];
        let pick = || run.pick(&set, &mut Rng::new(1)).0;
        assert_eq!([pick(), pick()], [0, 1]);
        run.chosen(1);
        run.not_used(0);
        assert_eq!(pick(), 2, "the next turn was taken already");
    }
}
