//! `round_robin` as a picker: every candidate in turn, whatever the scores.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::rng::Rng;
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "round_robin",
    summary: "Every candidate in turn, in the order of the fleet. Scores do not matter.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "round_robin",
    make: Make::Pick(make),
};

struct RoundRobinPick {
    /// One more than the position in the fleet of the pod that was chosen last. Remembering who was
    /// last, not how many there were, keeps the turns fair while filters come and go.
    next: AtomicUsize,
}

fn make(_: &mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused> {
    Ok(Box::new(RoundRobinPick { next: AtomicUsize::new(0) }))
}

impl Pick for RoundRobinPick {
    /// Takes the turn with the pick, so that no other thread takes it too.
    fn pick(&self, _: &Decision<'_>, slate: CandidateSet<'_>, _: &mut Rng) -> Choice {
        let whose = |next| {
            let at = slate.candidates.partition_point(|candidate| candidate.position() < next);
            if at == slate.candidates.len() { 0 } else { at }
        };
        let after = |next| Some(slate.candidates[whose(next)].position() + 1);
        let (Ok(next) | Err(next)) = self.next.fetch_update(Relaxed, Relaxed, after);
        whose(next).into()
    }

    fn fallbacks(
        &self,
        _: &Decision<'_>,
        slate: CandidateSet<'_>,
        chosen: usize,
        fallbacks: &mut Fallbacks<'_>,
    ) {
        for at in (chosen + 1..slate.candidates.len()).chain(0..chosen) {
            fallbacks.push(at);
        }
    }

    /// A request that is held after all uses up no turn, unless somebody has had the next one already.
    fn passed_over(&self, _: &Decision<'_>, pod: Candidate) {
        let taken = pod.position() + 1;
        let _ = self.next.compare_exchange(taken, pod.position(), Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::rng::Rng;
    use crate::stage::Stage;

    #[test]
    fn everybody_has_a_turn_and_those_filtered_out_are_passed_over() {
        let rehearsal = Harness::of(4);
        let played = rehearsal.play(&[], Stage::Pick, "round_robin");
        let turn = |pods: &[usize]| {
            let slate: Vec<_> = pods.iter().map(|pod| (*pod, 0.0)).collect();
            played.pick(&slate, &mut Rng::new(1)).0
        };
        let all = [0, 1, 2, 3];
        assert_eq!([turn(&all), turn(&all)], [0, 1]);
        assert_eq!([turn(&[0, 1, 3]), turn(&[0, 1, 3])], [3, 0]);
        assert_eq!([turn(&all), turn(&all), turn(&[0])], [1, 2, 0]);
    }

    #[test]
    fn a_pick_that_comes_to_nothing_uses_up_no_turn() {
        let rehearsal = Harness::of(2);
        let played = rehearsal.play(&[], Stage::Pick, "round_robin");
        let slate = [(0, 0.0), (1, 0.0)];
        let pick = || played.pick(&slate, &mut Rng::new(1)).0;
        assert_eq!(pick(), 0);
        played.passed_over(0);
        assert_eq!(pick(), 0);
        assert_eq!(played.fallbacks(1, 5), [0]);
    }

    #[test]
    fn two_that_pick_before_either_has_its_plan_have_different_turns() {
        let rehearsal = Harness::of(3);
        let played = rehearsal.play(&[], Stage::Pick, "round_robin");
        let slate = [(0, 0.0), (1, 0.0), (2, 0.0)];
        let pick = || played.pick(&slate, &mut Rng::new(1)).0;
        assert_eq!([pick(), pick()], [0, 1]);
        played.chosen(1);
        played.passed_over(0);
        assert_eq!(pick(), 2, "the turn after it was taken already");
    }
}
