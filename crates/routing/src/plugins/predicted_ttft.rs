//! `predicted_ttft`: the time to first token (TTFT) if the request went to the pod, plus what the
//! placement costs other requests.
//!
//! The cost model is in [`cost`](super::cost). It is as good as the engine's speed is known:
//! `engine` and `speed` set it, and `rates: learnt` corrects it from measured requests.

use std::time::Duration;

use wornpath_index::Moment;
use wornpath_yaml::{Parameter, Takes};

use super::cost::{CostTerms, Placement, PodLoad, Prices, terms};
use super::engine_speed::{ENGINE, EngineSpeed, PodSpeeds, RATES, SPEED, Slowdown, speeds};
use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, HeldBlocks, HeldDepth, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "predicted_ttft",
    summary: "Predicted time to first token in milliseconds: the pod's pending prefill, the request's uncached tokens \
              and the engine steps with their decoding requests; plus what the request costs others, in the same \
              milliseconds. Less is better.",
    parameters: &[
        ENGINE,
        SPEED,
        RATES,
        Parameter::with_default(
            "output_tokens",
            Takes::Whole(0, 4_294_967_295),
            "256",
            "Expected output tokens until the pod's own responses give an average, unless the request allows fewer.",
        ),
        Parameter::with_default(
            "waiting",
            Takes::Number(0.0, 100.0),
            "1",
            "What a millisecond counts by which the request's prefill delays another that waits: as many requests as the \
             pod has waiting now.",
        ),
        Parameter::with_default(
            "decoding",
            Takes::Number(0.0, 100.0),
            "0.02",
            "What a millisecond counts by which the request's prefill delays a request that decodes.",
        ),
        Parameter::with_default(
            "eviction",
            Takes::Number(0.0, 100.0),
            "1",
            "How many tokens must be computed again for each token that the pod computes and that evicts another; in \
             proportion to how full its KV cache is.",
        ),
        Parameter::with_default(
            "pressure_ms",
            Takes::Number(0.0, 1e9),
            "10000",
            "Milliseconds that a KV cache full of running requests costs; a half-full one costs nearly nothing.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "predicted_ttft: {engine: 70b-h100x4, decoding: 0.05}",
    make: Make::Score(make),
};

struct PredictedTtft {
    held: HeldDepth,
    speeds: PodSpeeds,
    prices: Prices,
    output_tokens: f64,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let speeds = speeds(assembly)?;
    let prices = Prices {
        waiting: assembly.get("waiting"),
        decoding: assembly.get("decoding"),
        eviction: assembly.get("eviction"),
        pressure: assembly.get("pressure_ms"),
    };
    Ok(Box::new(PredictedTtft {
        held: assembly.held(),
        speeds,
        prices,
        output_tokens: f64::from(assembly.get::<u32>("output_tokens")),
    }))
}

#[inline]
fn pod_load(pod: &FleetPod, speed: &EngineSpeed, slowdown: Slowdown, now: Moment) -> PodLoad {
    let pod_state = pod.state();
    let [requests, decoding] = [pod_state.requests(), pod_state.decoding()];
    let kv_tokens = pod.facts().kv_tokens.map_or(speed.kv_tokens, |tokens| tokens as f64);
    PodLoad {
        pending: pod_state.prefill_tokens() as f64,
        queued: speed.backlog(pod, slowdown, now),
        held: slowdown.prefill
            * speed.prefill(pod_state.held_tokens() as f64, pod_state.held_pairs() as f64),
        held_tokens: pod_state.held_tokens() as f64,
        cached_share: pod_state.cached_tokens().map_or(1.0, |tokens| tokens as f64 / kv_tokens),
        slowdown,
        waiting: f64::from(requests.saturating_sub(decoding)),
        decoding: f64::from(decoding),
        contexts: pod_state.decode_tokens() as f64,
        reported: pod_state.kv_usage() * kv_tokens,
        kv_tokens,
    }
}

impl Score for PredictedTtft {
    fn scale(&self) -> Scale {
        Scale::Milliseconds
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let prompt = PromptWork::of(self, decision);
        for (candidate, score) in candidates.iter().zip(scores) {
            *score = self.terms(decision, &prompt, *candidate).total();
        }
    }

    fn first_token(&self, decision: &Decision<'_>, candidate: Candidate) -> Option<Duration> {
        let prompt = PromptWork::of(self, decision);
        let millis = self.terms(decision, &prompt, candidate).first_token();
        Duration::try_from_secs_f64(millis / 1e3).ok()
    }
}

/// What a request brings, whatever the pod.
struct PromptWork<'a> {
    held: Option<HeldBlocks<'a>>,
    tokens: u64,
    /// The limit of generated tokens.
    allowed: f64,
}

impl<'a> PromptWork<'a> {
    fn of(scorer: &PredictedTtft, decision: &Decision<'a>) -> Self {
        let request = decision.request();
        let held = decision.held(&scorer.held);
        let tokens = match held {
            Some(held) => held.prompt().prompt_tokens as u64,
            None => request.estimated_tokens(),
        };
        let allowed = request.output_tokens.map_or(f64::INFINITY, f64::from);
        Self { held, tokens, allowed }
    }
}

impl PredictedTtft {
    #[inline]
    fn terms(
        &self,
        decision: &Decision<'_>,
        prompt: &PromptWork<'_>,
        candidate: Candidate,
    ) -> CostTerms {
        let pod = decision.pod(candidate);
        let speed = self.speeds.of(pod.facts().engine.as_ref());
        let load = pod_load(pod, speed, self.speeds.slowdown(pod, speed), decision.now());
        let new = prompt.held.map_or(prompt.tokens, |held| held.uncached_tokens(pod));
        let output = pod.state().answer_tokens().unwrap_or(self.output_tokens).min(prompt.allowed);
        let placement = Placement { prompt: prompt.tokens as f64, new: new as f64, output };
        terms(speed, &self.prices, placement, load)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fleet::{PodFacts, Reservation};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;
    use wornpath_index::Moment;

    const PREPARE: [&str; 2] = ["tokenize", "block_hash"];
    const PLAIN: &str = "predicted_ttft: {waiting: 0, decoding: 0, eviction: 0, pressure_ms: 0}";

    #[test]
    fn cached_tokens_and_pending_prefill_decide_between_equal_pods() {
        let harness = Harness::of(3).prompt(&[7; 2000]).holding(1, 500);
        let run = harness.run(&PREPARE, Stage::Score, PLAIN);
        let idle = run.scores();
        assert!((idle[0] - (4.4 + 0.01594 * 2000.0 + 3.74e-7 * 4e6)).abs() < 1e-9);
        assert!(idle[1] < idle[0] && idle[0] == idle[2]);
        let _sent = Reservation::new(harness.pod_state(1), 2000, 2000);
        let busy = run.scores();
        assert!((busy[1] - idle[1] - 0.01594 * 2000.0 - 3.74e-7 * 4e6).abs() < 1e-9);
        assert!(busy[1] > busy[0], "half a cached prompt does not outweigh a whole pending one");
    }

    #[test]
    fn pending_prefill_shrinks_with_time_but_not_to_zero() {
        let harness = Harness::of(2).prompt(&[7; 2000]);
        let _sent = Reservation::new(harness.pod_state(0), 20_000, 20_000).sent_at(harness.now);
        let excess = |later: u64| {
            let run = harness.run(&PREPARE, Stage::Score, PLAIN);
            let scores = run.at(harness.now + Duration::from_millis(later)).scores();
            scores[0] - scores[1]
        };
        assert!((excess(0) - excess(100) - 80.0).abs() < 1e-6, "{} {}", excess(0), excess(100));
        assert!(
            excess(100_000) > 0.3 * 400.0,
            "an engine that had finished would have reported it"
        );
    }

    #[test]
    fn a_pod_that_was_measured_slow_is_predicted_slow_unless_its_rates_are_given_and_fixed() {
        let harness = Harness::of(2).prompt(&[7; 2000]);
        let time = Moment::from_millis;
        for at in (0..100).map(|number| 10_000 * number) {
            let mut load = Reservation::new(harness.pod_state(0), 8000, 8000).sent_at(time(at));
            load.first_token_at(time(at + 400));
        }
        let scores = |yaml| harness.run(&PREPARE, Stage::Score, yaml).scores();
        let learnt = scores(PLAIN);
        assert!(learnt[0] > 1.7 * learnt[1], "{learnt:?}");
        let fixed =
            scores("predicted_ttft: {waiting: 0, eviction: 0, rates: fixed, engine: 8b-h200}");
        assert_eq!(fixed[0], fixed[1]);
    }

    #[test]
    fn a_miss_costs_more_than_its_own_time_as_far_as_it_evicts_others() {
        let facts = |name| PodFacts { kv_tokens: Some(10_000), ..PodFacts::serving(name, "m") };
        let harness = Harness::with(vec![facts("a"), facts("b")]).prompt(&[7; 2000]);
        harness.pod_state(0).set_cached_tokens(1_000);
        harness.pod_state(1).set_cached_tokens(6_000);
        let extra = |yaml| {
            let scores = harness.run(&PREPARE, Stage::Score, yaml).scores();
            scores[1] - scores[0]
        };
        let work = 0.01594 * 2000.0 + 3.74e-7 * 4e6;
        let yaml = "predicted_ttft: {pressure_ms: 0}";
        assert!((extra(yaml) - 0.5 * work).abs() < 1e-9, "{}", extra(yaml));
        assert_eq!(extra(PLAIN), 0.0);
    }

    #[test]
    fn a_pod_has_the_speed_of_its_own_engine() {
        let slow = PodFacts { engine: Some("70b-h100x4".into()), ..PodFacts::serving("b", "m") };
        let pods = vec![PodFacts::serving("a", "m"), slow];
        let harness = Harness::with(pods).prompt(&[7; 1000]);
        let scores = harness.run(&PREPARE, Stage::Score, PLAIN).scores();
        assert!(scores[1] > 5.0 * scores[0]);
    }

    #[test]
    fn a_full_cache_costs_more_than_a_miss() {
        let harness = Harness::of(2).prompt(&[7; 2000]).holding(0, 1000);
        harness.pod_state(0).report(0, 0.99);
        let yaml = "predicted_ttft: {output_tokens: 1000}";
        let scores = harness.run(&PREPARE, Stage::Score, yaml).scores();
        assert!(scores[0] > scores[1], "{scores:?}");
    }

    #[test]
    fn unknown_speed_figures_and_impossible_values_are_refused() {
        let error = |yaml| Harness::assembly_error(Stage::Score, yaml);
        assert_eq!(
            error("predicted_ttft: {speed: {tokens: 1}}"),
            "`speed` of `predicted_ttft`: unknown speed figure `tokens`"
        );
        assert_eq!(
            error("predicted_ttft: {speed: {step_tokens: 0}}"),
            "`speed` of `predicted_ttft`: `step_tokens` is 0, below 1"
        );
    }
}
