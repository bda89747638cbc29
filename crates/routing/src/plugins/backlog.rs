//! `backlog`: keeps pods whose pending prefill is below a limit.
//!
//! A request that waits in an engine's queue can neither move to another pod nor be overtaken; one
//! that waits in the router can do both. Under `hold: {unless: ...}` this filter keeps requests in
//! the router until a pod is about to be free. The limit is in milliseconds, so that it means the
//! same for every engine and every prompt length. It is a prediction of the [engine's
//! speed](super::engine_speed); a pod whose speed is neither given nor measured passes, because a
//! limit by a guess would throttle an engine that is faster.

use std::time::Duration;

use wornpath_yaml::{Parameter, Takes};

use super::engine_speed::{ENGINE, PodSpeeds, RATES, SPEED, speeds};
use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, HeldDepth, Rejection, WhenEmpty};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "backlog",
    summary: "Keeps pods whose pending prefill takes at most `at_most_ms`, and whose engine queue and KV cache are \
              within the limits given. Holds the request if no pod passes.",
    parameters: &[
        Parameter::with_default(
            "at_most_ms",
            Takes::Number(0.0, 1e9),
            "50",
            "Limit on the milliseconds of prefill that the pod has pending. Pods whose speed is neither given nor \
             measured pass.",
        ),
        Parameter::optional(
            "at_most_steps",
            Takes::Number(0.0, 1000.0),
            "The same limit in engine steps full of prompts: with `1`, the next step is already there while one is computed, \
             on engines of any speed. The higher of the two limits applies.",
        ),
        Parameter::optional(
            "waiting",
            Takes::Whole(0, 4_294_967_295),
            "Limit on the requests queued inside the engine, as it reports them.",
        ),
        Parameter::optional(
            "room",
            Takes::Number(0.0, 1.0),
            "Limit on the share of the KV cache in use with the request added, where the pod's `kv_tokens` is known. An \
             idle pod always passes.",
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
    max_pending_ms: f64,
    max_pending_steps: f64,
    max_queued: u32,
    max_kv_usage: Option<f64>,
    held: Option<HeldDepth>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    Ok(Box::new(Backlog {
        speeds: speeds(assembly)?,
        max_pending_ms: assembly.get("at_most_ms"),
        max_pending_steps: assembly.maybe("at_most_steps").unwrap_or(0.0),
        max_queued: assembly.maybe("waiting").unwrap_or(u32::MAX),
        max_kv_usage: assembly.maybe("room"),
        held: assembly.blueprint.reads_if_written().map(|blocks| HeldDepth { blocks }),
    }))
}

impl Backlog {
    /// The milliseconds of prefill that the pod has pending, and their limit.
    #[inline]
    fn pending_ms(&self, decision: &Decision<'_>, pod: &FleetPod) -> (f64, f64) {
        let speed = self.speeds.of(pod.facts().engine.as_ref());
        let slowdown = self.speeds.slowdown(pod, speed);
        let step = slowdown.prefill * speed.prefill(speed.step_tokens, 0.0);
        let limit = self.max_pending_ms.max(self.max_pending_steps * step);
        (speed.backlog(pod, slowdown, decision.now()), limit)
    }

    /// The share of the pod's KV cache that will be in use: its report, its pending prefill and
    /// this request.
    #[inline]
    fn kv_usage_with(&self, decision: &Decision<'_>, pod: &FleetPod) -> f64 {
        let pod_state = pod.state();
        let request = decision.request();
        let Some(size) = pod.facts().kv_tokens else { return pod_state.kv_usage() };
        let held = self.held.as_ref().and_then(|handle| decision.held(handle));
        let new = held.map_or_else(|| request.estimated_tokens(), |held| held.uncached_tokens(pod));
        let allowed = request.output_tokens.map_or(f64::INFINITY, f64::from);
        let output = pod_state.answer_tokens().unwrap_or(0.0).min(allowed);
        let coming = (pod_state.prefill_tokens() + new) as f64 + output;
        pod_state.kv_usage() + coming / size.max(1) as f64
    }
}

impl Filter for Backlog {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            let pod = decision.pod(*candidate);
            let queues = pod.state().waiting() > self.max_queued;
            let fits = self.max_kv_usage.is_none_or(|limit| {
                pod.state().requests() == 0 || self.kv_usage_with(decision, pod) <= limit
            });
            let is_soon = || {
                let (pending, limit) = self.pending_ms(decision, pod);
                !self.speeds.is_known(pod) || pending <= limit
            };
            *keep = !queues && fits && is_soon();
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let pod = decision.pod(candidate);
        let (pending, limit) = self.pending_ms(decision, pod);
        let queued = pod.state().waiting();
        let usage = 100.0 * self.kv_usage_with(decision, pod);
        format!(
            "{pending:.0} ms of prefill pending (limit {limit:.0} ms), {queued} requests queued in the engine, \
             KV cache would be {usage:.0}% full"
        )
    }

    fn prefill_time(&self, decision: &Decision<'_>, candidate: Candidate) -> Option<Duration> {
        let pod = decision.pod(candidate);
        let speed = self.speeds.of(pod.facts().engine.as_ref());
        let held = self.held.as_ref().and_then(|handle| decision.held(handle))?;
        let new = held.uncached_tokens(pod) as f64;
        let prompt = held.prompt().prompt_tokens as f64;
        let work = speed.prefill(new, new * (2.0 * prompt - new));
        let slowdown = self.speeds.slowdown(pod, speed).prefill;
        Duration::try_from_secs_f64(slowdown * work / 1e3).ok()
    }

    fn when_empty(&self) -> WhenEmpty {
        WhenEmpty::Hold
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::busy("all pods are over their backlog limit; retry later")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fleet::{PodFacts, Reservation};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn the_limit_is_in_time_so_one_long_prompt_counts_more_than_many_short_ones() {
        let harness = Harness::of(2);
        let _short: Vec<_> =
            (0..20).map(|_| Reservation::new(harness.pod_state(0), 1_000, 1_000)).collect();
        let _long = Reservation::new(harness.pod_state(1), 20_000, 20_000);
        let kept = |ms: u32| {
            let yaml = format!("backlog: {{at_most_ms: {ms}, engine: 8b-h200}}");
            harness.run(&[], Stage::Filter, &yaml).kept()
        };
        // 20,000 tokens take 319 ms, their squares 7 ms or 150 ms.
        assert_eq!((kept(300), kept(330), kept(470)), (vec![], vec![0], vec![0, 1]));
    }

    #[test]
    fn a_limit_in_steps_is_as_many_tokens_on_a_slow_engine_as_on_a_fast_one() {
        let engine = |engine: &str| PodFacts {
            engine: Some(engine.into()),
            ..PodFacts::serving(engine, "m")
        };
        let harness = Harness::with(vec![engine("8b-h200"), engine("70b-h100x4")]);
        let send =
            |tokens| [0, 1].map(|pod| Reservation::new(harness.pod_state(pod), tokens, tokens));
        let _pending = send(7000);
        let kept = |yaml| harness.run(&[], Stage::Filter, yaml).kept();
        assert_eq!(kept("backlog: {at_most_ms: 150}"), [0], "it takes 130 ms or 806 ms");
        assert_eq!(kept("backlog: {at_most_steps: 1}"), [0, 1]);
        let _more = send(3000);
        assert_eq!(kept("backlog: {at_most_steps: 1}"), [0_usize; 0]);
        assert_eq!(kept("backlog: {at_most_steps: 2}"), [0, 1]);
    }

    #[test]
    fn a_pod_of_unknown_speed_is_kept_until_its_speed_is_measured() {
        let harness = Harness::of(1);
        let time = |milliseconds| harness.now + Duration::from_millis(milliseconds);
        let kept = || harness.run(&[], Stage::Filter, "backlog: {at_most_ms: 50}").kept();
        {
            let _pending = Reservation::new(harness.pod_state(0), 20_000, 20_000);
            assert_eq!(kept(), [0], "a guess would say 500 ms");
        }
        for at in (0..10).map(|number| 1_000 * number) {
            let mut request = Reservation::new(harness.pod_state(0), 8000, 8000).sent_at(time(at));
            request.first_token_at(time(at + 200));
        }
        let _pending = Reservation::new(harness.pod_state(0), 20_000, 20_000);
        assert_eq!(kept(), [0; 0], "it computes 8,000 tokens in 200 ms");
    }

    #[test]
    fn a_pod_whose_engine_queues_too_many_requests_is_dropped() {
        let harness = Harness::of(2);
        harness.pod_state(0).report(3, 0.5);
        let run = harness.run(&[], Stage::Filter, "backlog: {waiting: 2}");
        assert_eq!(run.kept(), [1]);
        assert_eq!(
            run.why(0),
            "0 ms of prefill pending (limit 50 ms), 3 requests queued in the engine, \
             KV cache would be 50% full"
        );
    }

    #[test]
    fn a_pod_is_kept_if_the_request_fits_into_its_free_kv_cache() {
        let size = |name: &str| PodFacts { kv_tokens: Some(1000), ..PodFacts::serving(name, "m") };
        let harness = Harness::with(vec![size("a"), size("b")]).prompt(&[7; 100]).holding(1, 40);
        let running: Vec<_> =
            (0..2).map(|pod| Reservation::new(harness.pod_state(pod), 10, 0)).collect();
        (0..2).for_each(|pod| harness.pod_state(pod).report(0, 0.95));
        let prepare = ["tokenize", "block_hash"];
        let kept = |yaml| harness.run(&prepare, Stage::Filter, yaml).kept();
        assert_eq!(kept("backlog: {room: 1}"), [1], "80 of the 100 prompt tokens are cached there");
        assert_eq!(kept("backlog: {room: 0.96}"), [0_usize; 0]);
        drop(running);
        assert_eq!(kept("backlog: {room: 0.96}"), [0, 1], "an idle pod takes any request");
    }
}
