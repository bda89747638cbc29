//! `session_affinity`: the pod that a session was last sent to is better than the others.

use std::sync::{Mutex, PoisonError};

use super::sessions::Sessions;
use crate::assembly::{Assembly, Refused};
use crate::fleet::Candidate;
use crate::parameter::{Parameter, Takes};
use crate::plugin::{Make, Plugin};
use crate::slot::Reads;
use crate::stage::{Decision, Scale, Score};
use crate::values::SessionKey;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "session_affinity",
    summary: "1 for the pod that the session was last sent to, 0 for all others.",
    parameters: &[
        Parameter::with_default(
            "ttl",
            Takes::Time,
            "10m",
            "How long an idle session is remembered.",
        ),
        Parameter::with_default(
            "capacity",
            Takes::Whole(1, 100_000_000),
            "100000",
            "How many sessions are remembered.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "session_affinity: {ttl: 30m}",
    make: Make::Score(make),
};

struct SessionAffinity {
    session: Reads<SessionKey>,
    sessions: Mutex<Sessions>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, Refused> {
    let sessions = Sessions::new(assembly.get("capacity"), assembly.get("ttl"));
    Ok(Box::new(SessionAffinity { session: assembly.reads(), sessions: Mutex::new(sessions) }))
}

impl Score for SessionAffinity {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let Some(session) = scene.read(&self.session) else { return };
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let last = sessions.find(session.0, scene.now());
        drop(sessions);
        let Some(last) = last.and_then(|pod| scene.fleet().find(pod)) else { return };
        // Candidates are in the order of the fleet.
        if let Ok(at) = candidates.binary_search(&last) {
            scores[at] = 1.0;
        }
    }

    fn chosen(&self, scene: &Decision<'_>, pod: Candidate) {
        let Some(session) = scene.read(&self.session) else { return };
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remember(session.0, scene.pod(pod).id(), scene.now());
    }
}

#[cfg(test)]
mod tests {
    use crate::plugin::Stage;
    use crate::plugins::rehearsal::Rehearsal;

    #[test]
    fn a_session_prefers_where_it_was_and_others_do_not() {
        let mut rehearsal = Rehearsal::of(3);
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
        let rehearsal = Rehearsal::of(2);
        let prepare = ["session_key: {header: s}"];
        let played = rehearsal.play(&prepare, Stage::Score, "session_affinity");
        played.chosen(1);
        assert_eq!(played.scores(), [0.0, 0.0]);
    }
}
