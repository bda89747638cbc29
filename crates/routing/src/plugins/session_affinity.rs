//! `session_affinity`: the pod that a session was last sent to is better than the others.

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

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let last = self.0.find(scene);
        if let Some(at) = last.and_then(|pod| scene.position(candidates, pod)) {
            scores[at] = 1.0;
        }
    }

    fn chosen(&self, scene: &Decision<'_>, pod: Candidate) {
        self.0.remember(scene, pod);
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn a_session_prefers_where_it_was_and_others_do_not() {
        let mut rehearsal = Harness::of(3);
        rehearsal.request.headers = vec![("s".into(), "one".into())];
        let prepare = ["session_key: {header: s}"];
        let played = rehearsal.play(&prepare, Stage::Score, "session_affinity");
        assert_eq!(played.scores(), [0.0, 0.0, 0.0]);
        played.chosen(2);
        assert_eq!(played.scores(), [0.0, 0.0, 1.0]);
        played.chosen(0);
        assert_eq!(played.scores(), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_request_without_session_is_neither_preferred_nor_remembered() {
        let rehearsal = Harness::of(2);
        let prepare = ["session_key: {header: s}"];
        let played = rehearsal.play(&prepare, Stage::Score, "session_affinity");
        played.chosen(1);
        assert_eq!(played.scores(), [0.0, 0.0]);
    }
}
