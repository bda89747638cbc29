//! `session_affinity`: prefers the pod that the session was last sent to.
//!
//! A preference that other scorers can outweigh; the picker `session` makes it a rule.

use super::sessions::{CAPACITY, LastPods, TTL};
use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "session_affinity",
    summary: "1 for the pod that the session was last sent to, 0 for all others.",
    parameters: &[TTL, CAPACITY],
    needs: &[],
    conflicts: &[],
    example: "session_affinity: {ttl: 30m}",
    make: Make::Score(make),
};

struct SessionAffinity(LastPods);

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    Ok(Box::new(SessionAffinity(LastPods::new(assembly))))
}

impl Score for SessionAffinity {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let last = self.0.find(decision);
        if let Some(at) = last.and_then(|pod| decision.position(candidates, pod)) {
            scores[at] = 1.0;
        }
    }

    fn chosen(&self, decision: &Decision<'_>, pod: Candidate) {
        self.0.remember(decision, pod);
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn the_last_pod_of_the_session_scores_one() {
        let mut harness = Harness::of(3);
        harness.request.headers = vec![("s".into(), "one".into())];
        let prepare = ["session_key: {header: s}"];
        let run = harness.run(&prepare, Stage::Score, "session_affinity");
        assert_eq!(run.scores(), [0.0, 0.0, 0.0]);
        run.chosen(2);
        assert_eq!(run.scores(), [0.0, 0.0, 1.0]);
        run.chosen(0);
        assert_eq!(run.scores(), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_request_without_a_session_scores_zero_and_is_not_recorded() {
        let harness = Harness::of(2);
        let prepare = ["session_key: {header: s}"];
        let run = harness.run(&prepare, Stage::Score, "session_affinity");
        run.chosen(1);
        assert_eq!(run.scores(), [0.0, 0.0]);
    }
}
