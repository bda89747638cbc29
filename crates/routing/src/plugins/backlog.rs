//! `backlog`: keeps pods that will soon have computed what they were sent.
//!
//! Under `hold: {unless: ...}` this binds a request late. What waits in an engine can neither be sent
//! elsewhere nor be overtaken; what waits in the router can, until a pod is about to have time for it. The cap is in
//! milliseconds, so that it means the same for every engine and every length of prompt.

use wornpath_yaml::{Parameter, Takes};

use super::cost::PodSpeeds;
use super::predicted_ttft::{ENGINE, RATES, SPEED, speeds};
use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, HeldDepth, Rejection, WhenEmpty};

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
        Parameter::optional(
            "room",
            Takes::Number(0.0, 1.0),
            "The share of the KV cache that may be in use once the request is in it, as far as the pod tells. An idle \
             pod always has room.",
        ),
        ENGINE,
        SPEED,
        RATES,
    ],
    needs: &[],
    conflicts: &[],
    example: "backlog: {at_most_ms: 50}",
    make: Make::Filter(make),
};

struct Backlog {
    speeds: PodSpeeds,
    at_most: f64,
    waiting: u32,
    room: Option<f64>,
    held: Option<HeldDepth>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    Ok(Box::new(Backlog {
        speeds: speeds(assembly)?,
        at_most: assembly.get("at_most_ms"),
        waiting: assembly.maybe("waiting").unwrap_or(u32::MAX),
        room: assembly.maybe("room"),
        held: assembly.blueprint.reads_if_written().map(|blocks| HeldDepth { blocks }),
    }))
}

impl Backlog {
    #[inline]
    fn milliseconds(&self, scene: &Decision<'_>, pod: &FleetPod) -> f64 {
        let speed = self.speeds.of(pod.facts().engine.as_ref());
        speed.backlog(pod, self.speeds.paces(pod, speed), scene.now())
    }

    /// The share of the pod's KV cache that will be in use: what it reports, what is on its way and this request.
    #[inline]
    fn usage(&self, scene: &Decision<'_>, pod: &FleetPod) -> f64 {
        let (vitals, request) = (pod.vitals(), scene.request());
        let Some(size) = pod.facts().kv_tokens else { return vitals.kv_usage() };
        let held = self.held.as_ref().and_then(|handle| scene.held(handle));
        let new = held.map_or_else(|| request.estimated_tokens(), |held| held.uncached_tokens(pod));
        let allowed = request.output_tokens.map_or(f64::INFINITY, f64::from);
        let output = vitals.answer_tokens().unwrap_or(0.0).min(allowed);
        let coming = (vitals.prefill_tokens() + new) as f64 + output;
        vitals.kv_usage() + coming / size.max(1) as f64
    }
}

impl Filter for Backlog {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            let pod = scene.pod(*candidate);
            let waits = pod.vitals().waiting() > self.waiting;
            let fits = self
                .room
                .is_none_or(|room| pod.vitals().requests() == 0 || self.usage(scene, pod) <= room);
            *keep = !waits && fits && self.milliseconds(scene, pod) <= self.at_most;
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let pod = scene.pod(candidate);
        let (has, waiting) = (self.milliseconds(scene, pod), pod.vitals().waiting());
        let usage = 100.0 * self.usage(scene, pod);
        format!(
            "{has:.0} ms of prefill, {:.0} are allowed; {waiting} wait in it; {usage:.0}% of its KV cache would be in use",
            self.at_most
        )
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Hold
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::busy("every pod has as many prompts to compute as it may")
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::{PodFacts, Reservation};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn the_cap_is_in_time_so_one_long_prompt_counts_more_than_many_short_ones() {
        let rehearsal = Harness::of(2);
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
        let rehearsal = Harness::of(2);
        rehearsal.vitals(0).report(3, 0.5);
        let played = rehearsal.play(&[], Stage::Filter, "backlog: {waiting: 2}");
        assert_eq!(played.kept(), [1]);
        assert_eq!(
            played.why(0),
            "0 ms of prefill, 50 are allowed; 3 wait in it; 50% of its KV cache would be in use"
        );
    }

    #[test]
    fn a_pod_has_room_if_the_request_fits_into_what_it_says_is_free() {
        let size = |name: &str| PodFacts { kv_tokens: Some(1000), ..PodFacts::serving(name, "m") };
        let rehearsal = Harness::with(vec![size("a"), size("b")]).prompt(&[7; 100]).holding(1, 40);
        let running: Vec<_> =
            (0..2).map(|pod| Reservation::new(rehearsal.vitals(pod), 10, 0)).collect();
        (0..2).for_each(|pod| rehearsal.vitals(pod).report(0, 0.95));
        let prepare = ["tokenize", "block_hash"];
        let kept = |yaml| rehearsal.play(&prepare, Stage::Filter, yaml).kept();
        assert_eq!(kept("backlog: {room: 1}"), [1], "of its 100 tokens, 80 are there already");
        assert_eq!(kept("backlog: {room: 0.96}"), [0_usize; 0]);
        drop(running);
        assert_eq!(kept("backlog: {room: 0.96}"), [0, 1], "who has nothing to do takes anything");
    }
}
