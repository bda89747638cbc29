//! `session`: sticky sessions. Picks the pod that the session was last sent to; another picker
//! decides for new sessions and for those whose pod is not a candidate.
//!
//! The table is in this router's memory: another router, or this one after a restart, starts
//! without it.

use wornpath_yaml::Parameter;

use super::sessions::{CAPACITY, LastPods, TTL};
use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, PICKER, Plugin};
use crate::rng::Rng;
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Pick};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "session",
    summary: "The pod that the session was last sent to. Another picker decides for a new session, and for one whose pod \
              was removed or filtered out; the session stays on that pod from then on.",
    parameters: &[
        TTL,
        CAPACITY,
        Parameter::with_default("otherwise", PICKER, "max_score", "The picker for new sessions."),
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
    fn pick(&self, decision: &Decision<'_>, set: CandidateSet<'_>, rng: &mut Rng) -> Choice {
        let Some(last) = self.last.find(decision) else {
            return self.otherwise.pick(decision, set, rng);
        };
        if let Some(at) = decision.position(set.candidates, last) {
            return at.into();
        }
        let mark = Some("session moved: its pod was removed or filtered out");
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
        self.last.remember(decision, pod);
        self.otherwise.chosen(decision, pod);
    }

    fn not_used(&self, decision: &Decision<'_>, pod: Candidate) {
        if self.last.find(decision) != Some(decision.pod(pod).id()) {
            self.otherwise.not_used(decision, pod);
        }
    }

    fn ignores_scores(&self) -> Option<&'static str> {
        self.otherwise.ignores_scores()
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

    fn harness() -> Harness {
        let mut harness = Harness::of(3);
        harness.request.headers = vec![("s".into(), "one".into())];
        harness
    }

    #[test]
    fn a_session_stays_on_its_pod_and_a_new_one_goes_to_the_best() {
        let harness = harness();
        let run = harness.run(&PREPARE, Stage::Pick, "session");
        let rng = &mut Rng::new(1);
        assert_eq!(run.pick(&BEST_IS_TWO, rng).0, 2);
        run.chosen(1);
        let (pod, choice) = run.pick(&BEST_IS_TWO, rng);
        assert_eq!((pod, choice.mark), (1, None));
    }

    #[test]
    fn a_session_whose_pod_is_filtered_out_moves_and_marks_the_plan() {
        let harness = harness();
        let run = harness.run(&PREPARE, Stage::Pick, "session");
        run.chosen(1);
        let (pod, choice) = run.pick(&[(0, 0.1), (2, 0.9)], &mut Rng::new(1));
        assert_eq!(pod, 2);
        let mark = "session moved: its pod was removed or filtered out";
        assert_eq!(choice.mark, Some(mark));
    }

    #[test]
    fn an_idle_session_expires() {
        let harness = harness();
        let run = harness.run(&PREPARE, Stage::Pick, "session: {ttl: 5s}");
        run.chosen(1);
        let run = run.at(harness.now + Duration::from_secs(4));
        assert_eq!(run.pick(&BEST_IS_TWO, &mut Rng::new(1)).0, 1);
        let run = run.at(harness.now + Duration::from_secs(5));
        assert_eq!(run.pick(&BEST_IS_TWO, &mut Rng::new(1)).0, 2);
    }
}
