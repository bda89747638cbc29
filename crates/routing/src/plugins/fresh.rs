//! `fresh`: keeps pods whose cache events are up to date.
//!
//! Routing by prefix is only as good as the index. When a pod's event stream has a gap or goes
//! silent, the index may be wrong about that pod. Pods without an event source cannot be stale;
//! `guessed` says whether they pass.

use std::time::Duration;
use wornpath_index::Moment;

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, EventTrust, PodState};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, Rejection, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "fresh",
    summary: "Keeps pods whose event stream is live and complete. Skips itself if no pod passes, and marks the plan.",
    parameters: &[
        Parameter::with_default(
            "max_age",
            Takes::Time,
            "5s",
            "Maximum age of the last event, heartbeat or matching digest.",
        ),
        Parameter::with_default(
            "guessed",
            Takes::OneOf(&["keep", "drop"]),
            "keep",
            "Whether to keep or drop pods whose engine sends no events.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "fresh: {max_age: 2s}",
    make: Make::Filter(make),
};

struct Fresh {
    max_age: Duration,
    eventless: EventlessPods,
}

/// What to do with pods whose engine sends no events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EventlessPods {
    Keep,
    Drop,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    let eventless = if assembly.get::<&str>("guessed") == "keep" {
        EventlessPods::Keep
    } else {
        EventlessPods::Drop
    };
    Ok(Box::new(Fresh { max_age: assembly.get("max_age"), eventless }))
}

impl Fresh {
    /// Why the pod's events are not up to date, if they are not.
    #[inline]
    fn stale_reason(&self, pod_state: &PodState, now: Moment) -> Option<&'static str> {
        match (pod_state.trust(), pod_state.silence(now)) {
            (EventTrust::Guessed, _) if self.eventless == EventlessPods::Keep => None,
            (EventTrust::Guessed, _) => Some("engine sends no cache events"),
            (EventTrust::Unsure, _) => Some("gap in the cache event stream"),
            (_, None) => Some("no cache event received yet"),
            (_, Some(silence)) => {
                (silence > self.max_age).then_some("cache events are older than `max_age`")
            }
        }
    }
}

impl Filter for Fresh {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            *keep = self.stale_reason(decision.pod(*candidate).state(), decision.now()).is_none();
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let pod_state = decision.pod(candidate).state();
        self.stale_reason(pod_state, decision.now()).unwrap_or("fresh").to_owned()
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Skip
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::unavailable("no pod has up-to-date cache events; retry later")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn stale_gapped_and_absent_event_streams_have_different_reasons() {
        let harness = Harness::of(5);
        let ago = |seconds| harness.now - Duration::from_secs(seconds);
        harness.pod_state(0).heard_at(ago(1));
        harness.pod_state(1).heard_at(ago(6));
        harness.pod_state(2).heard_at(ago(0));
        harness.pod_state(2).set_trust(EventTrust::Unsure);
        harness.pod_state(3).set_trust(EventTrust::Guessed);
        let run = harness.run(&[], Stage::Filter, "fresh");
        assert_eq!(run.kept(), [0, 3]);
        let why: Vec<_> = [1, 2, 4].iter().map(|pod| run.why(*pod)).collect();
        assert_eq!(
            why,
            [
                "cache events are older than `max_age`",
                "gap in the cache event stream",
                "no cache event received yet"
            ]
        );
        let strict = harness.run(&[], Stage::Filter, "fresh: {guessed: drop, max_age: 10s}");
        assert_eq!(strict.kept(), [0, 1]);
        assert_eq!(strict.why(3), "engine sends no cache events");
    }
}
