//! `planned`: the pod that an offline plan assigned, if it is a candidate; else another picker.
//!
//! A plan can be older than the fleet: the assigned pod may have left, restarted or failed a
//! filter.

use wornpath_yaml::Parameter;

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, PICKER, Plugin};
use crate::rng::Rng;
use crate::slot::{PlanHint, Reads};
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "planned",
    summary: "The pod that an offline plan assigned, if it is a candidate; else another picker decides, and the plan is \
              marked.",
    parameters: &[Parameter::with_default(
        "otherwise",
        PICKER,
        "max_score",
        "The picker for requests without a plan, or whose planned pod is not a candidate.",
    )],
    needs: &[],
    conflicts: &[],
    example: "planned: {otherwise: max_score}",
    make: Make::Pick(make),
};

struct Planned {
    hint: Reads<PlanHint>,
    otherwise: Box<dyn Pick>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused> {
    let hint = assembly.reads();
    Ok(Box::new(Planned { hint, otherwise: assembly.picker("otherwise")? }))
}

impl Pick for Planned {
    fn pick(&self, decision: &Decision<'_>, set: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let Some(planned) = decision.read(&self.hint).and_then(|hint| hint.0) else {
            return self.otherwise.pick(decision, set, rng);
        };
        if let Some(at) = decision.position(set.candidates, planned) {
            return Choice { at, mark: Some("as planned") };
        }
        let mark = Some("not as planned: the planned pod was removed or filtered out");
        Choice { mark, ..self.otherwise.pick(decision, set, rng) }
    }

    fn fallbacks(
        &self,
        decision: &Decision<'_>,
        set: CandidateSet<'_>,
        chosen: usize,
        fallbacks: &mut Fallbacks<'_>,
    ) {
        self.otherwise.fallbacks(decision, set, chosen, fallbacks);
    }

    fn chosen(&self, decision: &Decision<'_>, pod: Candidate) {
        self.otherwise.chosen(decision, pod);
    }

    fn not_used(&self, decision: &Decision<'_>, pod: Candidate) {
        let planned = decision.read(&self.hint).and_then(|hint| hint.0);
        if planned != Some(decision.pod(pod).id()) {
            self.otherwise.not_used(decision, pod);
        }
    }

    fn ignores_scores(&self) -> Option<&'static str> {
        self.otherwise.ignores_scores()
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::rng::Rng;
    use crate::stage::Stage;

    const BEST_IS_TWO: [(usize, f64); 3] = [(0, 0.1), (1, 0.2), (2, 0.9)];

    #[test]
    fn the_planned_pod_is_picked_if_it_is_a_candidate() {
        let mut harness = Harness::of(3);
        let rng = &mut Rng::new(1);
        let unplanned = harness.run(&["plan_hint"], Stage::Pick, "planned");
        let (pod, choice) = unplanned.pick(&BEST_IS_TWO, rng);
        assert_eq!((pod, choice.mark), (2, None));
        drop(unplanned);
        harness.request.planned = Some(harness.fleet.pods()[1].id());
        let planned = harness.run(&["plan_hint"], Stage::Pick, "planned");
        let (pod, choice) = planned.pick(&BEST_IS_TWO, rng);
        assert_eq!((pod, choice.mark), (1, Some("as planned")));
        let (pod, choice) = planned.pick(&[(0, 0.1), (2, 0.9)], rng);
        let mark = "not as planned: the planned pod was removed or filtered out";
        assert_eq!((pod, choice.mark), (2, Some(mark)));
    }

    #[test]
    fn a_plan_for_an_earlier_incarnation_of_the_pod_is_ignored() {
        let mut harness = Harness::of(2);
        let gone = harness.index.add_pod().unwrap();
        harness.request.planned = Some(gone);
        let planned = harness.run(&["plan_hint"], Stage::Pick, "planned");
        assert_eq!(planned.pick(&[(0, 0.1), (1, 0.9)], &mut Rng::new(1)).0, 1);
    }
}
