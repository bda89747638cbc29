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
use crate::fleet::{Candidate, FleetPod, LoadedTokens};
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
        for (candidate, score) in candidates.iter().zip(scores.iter_mut()) {
            *score = self.terms(decision, &prompt, *candidate, 0.0).total();
        }
        self.add_loads(decision, candidates, scores);
    }

    fn first_token(&self, decision: &Decision<'_>, candidate: Candidate) -> Option<Duration> {
        let prompt = PromptWork::of(self, decision);
        let loading = self.loading(decision, candidate);
        let millis = self.terms(decision, &prompt, candidate, loading).first_token();
        Duration::try_from_secs_f64(millis / 1e3).ok()
    }

    fn first_token_without_loads(
        &self,
        decision: &Decision<'_>,
        candidate: Candidate,
    ) -> Option<Duration> {
        let prompt = PromptWork::of(self, decision);
        let millis = self.terms(decision, &prompt, candidate, 0.0).first_token();
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

/// So many candidates are asked at most on which tiers they hold the prompt.
const MOST_ASKED: usize = 32;

impl PredictedTtft {
    /// Adds the time that cached blocks take to load from slower tiers.
    ///
    /// To ask a pod takes its lock, so only the cheapest candidate is asked, again and again until
    /// the cheapest is one that was asked: a load can only make a pod dearer. The candidates beyond
    /// the limit are taken to hold what they hold on their slowest tier.
    fn add_loads(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        if decision.held(&self.held).is_none() {
            return;
        }
        let mut asked = [usize::MAX; MOST_ASKED];
        for number in 0..MOST_ASKED {
            let best = (0..scores.len()).min_by(|a, b| scores[*a].total_cmp(&scores[*b]));
            let Some(best) = best.filter(|best| !asked[..number].contains(best)) else { return };
            let loading = self.loading(decision, candidates[best]);
            if loading == 0.0 {
                return;
            }
            asked[number] = best;
            scores[best] += loading;
        }
        for (at, candidate) in candidates.iter().enumerate() {
            if !asked.contains(&at) {
                scores[at] += self.slowest_loading(decision, *candidate);
            }
        }
    }

    /// Milliseconds to load what the pod holds of the prompt on slower tiers.
    fn loading(&self, decision: &Decision<'_>, candidate: Candidate) -> f64 {
        let pod = decision.pod(candidate);
        match decision.held(&self.held) {
            Some(held) if held.depth(pod) > 0 => {
                let tokens = decision.held_tokens_by_tier(&self.held, pod);
                self.speeds.of(pod.facts().engine.as_ref()).loading(pod, &tokens)
            }
            _ => 0.0,
        }
    }

    /// The same if all of it were on the slowest tier.
    fn slowest_loading(&self, decision: &Decision<'_>, candidate: Candidate) -> f64 {
        let pod = decision.pod(candidate);
        let Some(held) = decision.held(&self.held) else { return 0.0 };
        let tokens = u64::from(held.depth(pod)) * held.prompt().block_tokens as u64;
        let speed = self.speeds.of(pod.facts().engine.as_ref());
        let all_on = |tier: usize| {
            let mut on_tiers = LoadedTokens::default();
            on_tiers[tier] = tokens;
            speed.loading(pod, &on_tiers)
        };
        (1..LoadedTokens::default().len()).map(all_on).fold(0.0, f64::max)
    }

    #[inline]
    fn terms(
        &self,
        decision: &Decision<'_>,
        prompt: &PromptWork<'_>,
        candidate: Candidate,
        loading: f64,
    ) -> CostTerms {
        let pod = decision.pod(candidate);
        let speed = self.speeds.of(pod.facts().engine.as_ref());
        let load = pod_load(pod, speed, self.speeds.slowdown(pod, speed), decision.now());
        let new = prompt.held.map_or(prompt.tokens, |held| held.uncached_tokens(pod));
        let output = pod.state().answer_tokens().unwrap_or(self.output_tokens).min(prompt.allowed);
        let placement =
            Placement { prompt: prompt.tokens as f64, new: new as f64, output, loading };
        terms(speed, &self.prices, placement, load)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fleet::{PodFacts, Reservation};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;
    use wornpath_index::{Moment, Tier};

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
    fn blocks_on_a_disk_never_beat_the_same_on_a_gpu_with_one_request_in_flight() {
        for (tier, milliseconds) in [(Tier::Host, 4.7), (Tier::Disk, 37.4), (Tier::Other, 21.0)] {
            let harness = Harness::of(3).prompt(&[7; 2000]).holding_on(0, 1000, tier);
            let harness = harness.holding_on(1, 1000, Tier::Gpu);
            let scores = || harness.run(&PREPARE, Stage::Score, PLAIN).scores();
            let idle = scores();
            let loading = idle[0] - idle[1];
            assert!((loading / milliseconds - 1.0).abs() < 0.02, "{tier:?}: {loading}");
            if tier != Tier::Disk {
                continue;
            }
            let mut sent = Reservation::new(harness.pod_state(1), 2000, 2000);
            let default = include_str!("../../../../profiles/cache-aware.yaml");
            let default = default.lines().find(|line| line.starts_with("  - predicted_ttft"));
            let yaml = default.unwrap().trim_start_matches("  - ");
            for run in [PLAIN, yaml] {
                let busy = harness.run(&PREPARE, Stage::Score, run).scores();
                assert!(busy[1] < busy[0], "its prompt is computed: {busy:?}");
            }
            sent.first_token();
            for run in [PLAIN, yaml] {
                let busy = harness.run(&PREPARE, Stage::Score, run).scores();
                assert!(busy[1] < busy[0], "it decodes: {busy:?}");
            }
        }
    }

    #[test]
    fn the_cheapest_pod_is_found_whichever_pods_hold_the_prompt_on_slower_tiers() {
        let pods = 40;
        let mut harness = Harness::of(pods).prompt(&[7; 2000]);
        for pod in 0..pods - 1 {
            harness = harness.holding_on(pod, 500 - 5 * pod, Tier::Disk);
        }
        harness = harness.holding_on(pods - 1, 400, Tier::Gpu);
        let scores = harness.run(&PREPARE, Stage::Score, PLAIN).scores();
        let best = (0..pods).min_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        assert_eq!(best, Some(pods - 1), "{scores:?}");
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
