//! `fresh`: keeps pods whose cache events are up to date.

use std::time::Duration;

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, EventTrust, Vitals};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, Rejection, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "fresh",
    summary: "Keeps pods whose event stream gave a sign of life lately and misses nothing. \
              If there is none the filter does not count, and the plan says so.",
    parameters: &[
        Parameter::with_default(
            "max_age",
            Takes::Time,
            "5s",
            "How long ago the last event, heartbeat or matching digest may be.",
        ),
        Parameter::with_default(
            "guessed",
            Takes::OneOf(&["keep", "drop"]),
            "keep",
            "What happens to pods whose engine sends no events, so that they cannot be late.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "fresh: {max_age: 2s}",
    make: Make::Filter(make),
};

struct Fresh {
    max_age: Duration,
    guessed: ApproximateDepths,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ApproximateDepths {
    Keep,
    Drop,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    let guessed = if assembly.get::<&str>("guessed") == "keep" {
        ApproximateDepths::Keep
    } else {
        ApproximateDepths::Drop
    };
    Ok(Box::new(Fresh { max_age: assembly.get("max_age"), guessed }))
}

impl Fresh {
    #[inline]
    fn stale(&self, vitals: &Vitals, now: Duration) -> Option<&'static str> {
        match (vitals.trust(), vitals.silence(now)) {
            (EventTrust::Guessed, _) if self.guessed == ApproximateDepths::Keep => None,
            (EventTrust::Guessed, _) => Some("its engine sends no events"),
            (EventTrust::Unsure, _) => Some("an event is missing"),
            (_, None) => Some("no event has come yet"),
            (_, Some(silence)) => (silence > self.max_age).then_some("silent for too long"),
        }
    }
}

impl Filter for Fresh {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            *keep = self.stale(scene.pod(*candidate).vitals(), scene.now()).is_none();
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let vitals = scene.pod(candidate).vitals();
        self.stale(vitals, scene.now()).unwrap_or("fresh").to_owned()
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Skip
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::unavailable("what pods hold is not known well enough")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn silence_gaps_and_missing_streams_are_told_apart() {
        let rehearsal = Harness::of(5);
        let ago = |seconds| rehearsal.now - Duration::from_secs(seconds);
        rehearsal.vitals(0).heard_at(ago(1));
        rehearsal.vitals(1).heard_at(ago(6));
        rehearsal.vitals(2).heard_at(ago(0));
        rehearsal.vitals(2).set_trust(EventTrust::Unsure);
        rehearsal.vitals(3).set_trust(EventTrust::Guessed);
        let played = rehearsal.play(&[], Stage::Filter, "fresh");
        assert_eq!(played.kept(), [0, 3]);
        let why: Vec<_> = [1, 2, 4].iter().map(|pod| played.why(*pod)).collect();
        assert_eq!(why, ["silent for too long", "an event is missing", "no event has come yet"]);
        let strict = rehearsal.play(&[], Stage::Filter, "fresh: {guessed: drop, max_age: 10s}");
        assert_eq!(strict.kept(), [0, 1]);
        assert_eq!(strict.why(3), "its engine sends no events");
    }
}
