//! `planned`: the pod that an offline plan names, if it survived the filters; else another picker.

use wornpath_yaml::Parameter;

use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, PICKER, Plugin};
use crate::rng::Rng;
use crate::slot::Reads;
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Pick};
use crate::values::PlanHint;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "planned",
    summary: "The pod that an offline plan put the request on, if it is among the candidates; else another \
              picker, and the plan says so.",
    parameters: &[Parameter::with_default(
        "otherwise",
        PICKER,
        "max_score",
        "Who picks for a request without plan, or whose planned pod cannot take it.",
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
    fn pick(&self, scene: &Decision<'_>, slate: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let Some(planned) = scene.read(&self.hint).and_then(|hint| hint.0) else {
            return self.otherwise.pick(scene, slate, rng);
        };
        if let Some(at) = scene.position(slate.candidates, planned) {
            return Choice { at, mark: Some("as planned") };
        }
        let mark = Some("not as planned: the planned pod is gone or was filtered out");
        Choice { mark, ..self.otherwise.pick(scene, slate, rng) }
    }

    fn fallbacks(
        &self,
        scene: &Decision<'_>,
        slate: CandidateSet<'_>,
        chosen: usize,
        fallbacks: &mut Fallbacks<'_>,
    ) {
        self.otherwise.fallbacks(scene, slate, chosen, fallbacks);
    }

    fn chosen(&self, scene: &Decision<'_>, pod: Candidate) {
        self.otherwise.chosen(scene, pod);
    }

    fn passed_over(&self, scene: &Decision<'_>, pod: Candidate) {
        let planned = scene.read(&self.hint).and_then(|hint| hint.0);
        if planned != Some(scene.pod(pod).id()) {
            self.otherwise.passed_over(scene, pod);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::rng::Rng;
    use crate::stage::Stage;

    const BEST_IS_TWO: [(usize, f64); 3] = [(0, 0.1), (1, 0.2), (2, 0.9)];

    #[test]
    fn the_plan_counts_if_its_pod_can_take_the_request() {
        let mut rehearsal = Harness::of(3);
        let rng = &mut Rng::new(1);
        let unplanned = rehearsal.play(&["plan_hint"], Stage::Pick, "planned");
        let (pod, choice) = unplanned.pick(&BEST_IS_TWO, rng);
        assert_eq!((pod, choice.mark), (2, None));
        drop(unplanned);
        rehearsal.request.planned = Some(rehearsal.fleet.pods()[1].id());
        let planned = rehearsal.play(&["plan_hint"], Stage::Pick, "planned");
        let (pod, choice) = planned.pick(&BEST_IS_TWO, rng);
        assert_eq!((pod, choice.mark), (1, Some("as planned")));
        let (pod, choice) = planned.pick(&[(0, 0.1), (2, 0.9)], rng);
        let mark = "not as planned: the planned pod is gone or was filtered out";
        assert_eq!((pod, choice.mark), (2, Some(mark)));
    }

    #[test]
    fn a_plan_for_an_earlier_incarnation_of_the_pod_is_void() {
        let mut rehearsal = Harness::of(2);
        let gone = rehearsal.index.add_pod().unwrap();
        rehearsal.request.planned = Some(gone);
        let planned = rehearsal.play(&["plan_hint"], Stage::Pick, "planned");
        assert_eq!(planned.pick(&[(0, 0.1), (1, 0.9)], &mut Rng::new(1)).0, 1);
    }
}
