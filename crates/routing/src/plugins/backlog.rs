//! `backlog`: keeps pods that will soon have computed what they were sent.
//!
//! Under `hold: {unless: ...}` this binds a request late. What waits in an engine can neither be sent
//! elsewhere nor be overtaken; what waits in the router can, until a pod is about to have time for it. The cap is in
//! milliseconds, so that it means the same for every engine and every length of prompt.

use super::cost::Speeds;
use super::predicted_ttft::{ENGINE, SPEED, speeds};
use crate::assembly::{Assembly, Refused};
use crate::fleet::{Candidate, Pod};
use crate::parameter::{Parameter, Takes};
use crate::plugin::{Make, Plugin};
use crate::stage::{Decision, Filter, Rejection, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "backlog",
    summary: "Keeps pods that take at most so long for the prompts they were sent. The request waits if there \
              is none.",
    parameters: &[
        Parameter::with_default(
            "at_most_ms",
            Takes::Number(0.0, 1e9),
            "50",
            "Milliseconds of prefill sent and not computed yet.",
        ),
        Parameter::optional(
            "waiting",
            Takes::Whole(0, 4_294_967_295),
            "Requests that wait inside the engine, as it reports.",
        ),
        ENGINE,
        SPEED,
    ],
    needs: &[],
    conflicts: &[],
    example: "backlog: {at_most_ms: 50}",
    make: Make::Filter(make),
};

struct Backlog {
    speeds: Speeds,
    at_most: f64,
    waiting: u32,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, Refused> {
    Ok(Box::new(Backlog {
        speeds: speeds(assembly)?,
        at_most: assembly.get("at_most_ms"),
        waiting: assembly.maybe("waiting").unwrap_or(u32::MAX),
    }))
}

impl Backlog {
    #[inline]
    fn milliseconds(&self, pod: &Pod) -> f64 {
        let (speed, vitals) = (self.speeds.of(pod.facts().engine.as_ref()), pod.vitals());
        speed.prefill(vitals.prefill_tokens() as f64, vitals.prefill_pairs() as f64)
    }
}

impl Filter for Backlog {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            let pod = scene.pod(*candidate);
            let waits = pod.vitals().waiting() > self.waiting;
            *keep = !waits && self.milliseconds(pod) <= self.at_most;
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let pod = scene.pod(candidate);
        let (has, waiting) = (self.milliseconds(pod), pod.vitals().waiting());
        format!("{has:.0} ms of prefill, {:.0} are allowed; {waiting} wait in it", self.at_most)
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Hold
    }

    fn rejection(&self) -> Rejection {
        Rejection::busy("every pod has as many prompts to compute as it may")
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::Reservation;
    use crate::plugin::Stage;
    use crate::plugins::rehearsal::Rehearsal;

    #[test]
    fn the_cap_is_in_time_so_one_long_prompt_counts_more_than_many_short_ones() {
        let rehearsal = Rehearsal::of(2);
        let _short: Vec<_> =
            (0..20).map(|_| Reservation::new(rehearsal.vitals(0), 1_000, 1_000)).collect();
        let _long = Reservation::new(rehearsal.vitals(1), 20_000, 20_000);
        let kept = |ms: u32| {
            let yaml = format!("backlog: {{at_most_ms: {ms}}}");
            rehearsal.play(&[], Stage::Filter, &yaml).kept()
        };
        // 20,000 tokens take 319 ms, their squares 7 ms or 150 ms.
        assert_eq!((kept(300), kept(330), kept(470)), (vec![], vec![0], vec![0, 1]));
    }

    #[test]
    fn a_pod_whose_engine_queues_gets_nothing() {
        let rehearsal = Rehearsal::of(2);
        rehearsal.vitals(0).report(3, 0.5);
        let played = rehearsal.play(&[], Stage::Filter, "backlog: {waiting: 2}");
        assert_eq!(played.kept(), [1]);
        assert_eq!(played.why(0), "0 ms of prefill, 50 are allowed; 3 wait in it");
    }
}
