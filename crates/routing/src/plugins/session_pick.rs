//! `session`: the pod that the session was last sent to; another picker for new sessions and for those
//! whose pod cannot take them.

use wornpath_yaml::Parameter;

use super::sessions::{CAPACITY, LastPods, TTL};
use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, PICKER, Plugin};
use crate::rng::Rng;
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "session",
    summary: "The pod that the session was last sent to. A new session, and one whose pod is gone or was filtered \
              out, is picked by another picker and stays where that put it.",
    parameters: &[
        TTL,
        CAPACITY,
        Parameter::with_default("otherwise", PICKER, "max_score", "Who picks for a new session."),
    ],
    needs: &[],
    conflicts: &[],
    example: "session: {ttl: 30m, otherwise: power_of_two}",
    make: Make::Pick(make),
};

struct SessionPick {
    last: LastPods,
    otherwise: Box<dyn Pick>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused> {
    Ok(Box::new(SessionPick {
        last: LastPods::new(assembly),
        otherwise: assembly.picker("otherwise")?,
    }))
}

impl Pick for SessionPick {
    fn pick(&self, scene: &Decision<'_>, slate: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let Some(last) = self.last.find(scene) else {
            return self.otherwise.pick(scene, slate, rng);
        };
        if let Some(at) = scene.position(slate.candidates, last) {
            return at.into();
        }
        let mark = Some("the session moves, because its pod is gone or cannot take it");
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
        self.last.remember(scene, pod);
        self.otherwise.chosen(scene, pod);
    }

    fn passed_over(&self, scene: &Decision<'_>, pod: Candidate) {
        if self.last.find(scene) != Some(scene.pod(pod).id()) {
            self.otherwise.passed_over(scene, pod);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::plugins::harness::Harness;
    use crate::rng::Rng;
    use crate::stage::Stage;

    const PREPARE: [&str; 1] = ["session_key: {header: s}"];
    const BEST_IS_TWO: [(usize, f64); 3] = [(0, 0.1), (1, 0.2), (2, 0.9)];

    fn rehearsal() -> Harness {
        let mut rehearsal = Harness::of(3);
        rehearsal.request.headers = vec![("s".into(), "one".into())];
        rehearsal
    }

    #[test]
    fn a_session_stays_and_a_new_one_goes_to_the_best() {
        let rehearsal = rehearsal();
        let played = rehearsal.play(&PREPARE, Stage::Pick, "session");
        let rng = &mut Rng::new(1);
        assert_eq!(played.pick(&BEST_IS_TWO, rng).0, 2);
        played.chosen(1);
        let (pod, choice) = played.pick(&BEST_IS_TWO, rng);
        assert_eq!((pod, choice.mark), (1, None));
    }

    #[test]
    fn a_session_whose_pod_is_filtered_out_moves_and_says_so() {
        let rehearsal = rehearsal();
        let played = rehearsal.play(&PREPARE, Stage::Pick, "session");
        played.chosen(1);
        let (pod, choice) = played.pick(&[(0, 0.1), (2, 0.9)], &mut Rng::new(1));
        assert_eq!(pod, 2);
        let mark = "the session moves, because its pod is gone or cannot take it";
        assert_eq!(choice.mark, Some(mark));
    }

    #[test]
    fn an_idle_session_is_forgotten() {
        let rehearsal = rehearsal();
        let played = rehearsal.play(&PREPARE, Stage::Pick, "session: {ttl: 5s}");
        played.chosen(1);
        let played = played.at(rehearsal.now + Duration::from_secs(4));
        assert_eq!(played.pick(&BEST_IS_TWO, &mut Rng::new(1)).0, 1);
        let played = played.at(rehearsal.now + Duration::from_secs(5));
        assert_eq!(played.pick(&BEST_IS_TWO, &mut Rng::new(1)).0, 2);
    }
}
