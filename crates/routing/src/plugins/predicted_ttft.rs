//! `predicted_ttft`: the milliseconds until the first token if the request went to the pod, plus what
//! the placement costs others. The model is in [`cost`](super::cost).

use wornpath_index::Moment;
use wornpath_yaml::{Parameter, Takes};

use super::cost::{
    Burden, EngineRates, EngineSpeed, PUBLISHED, Paces, Placement, PodSpeeds, Prices, terms,
};
use crate::fleet::{Candidate, FleetPod};
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, HeldDepth, Scale, Score};

/// Which speed pods have that do not say it themselves.
pub(super) const ENGINE: Parameter = Parameter::with_default(
    "engine",
    Takes::OneOf(&["8b-h200", "32b-h100x2", "70b-h100x4"]),
    "8b-h200",
    "The speed of pods whose own `engine` is none of these.",
);

/// What is different about it.
pub(super) const SPEED: Parameter = Parameter::optional(
    "speed",
    Takes::Numbers,
    "Changes to that speed: `base`, `token`, `pair`, `sequence`, `context` in milliseconds, \
     `kv_tokens`, `step_tokens`.",
);

/// Whether to believe it.
pub(super) const RATES: Parameter = Parameter::with_default(
    "rates",
    Takes::OneOf(&["learnt", "fixed"]),
    "learnt",
    "`learnt`: each pod's speed is corrected by what its requests took so far. `fixed`: it is not.",
);

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "predicted_ttft",
    summary: "Milliseconds until the first token: the pod's pending prefill, the request's uncached tokens and \
              the steps of those who decode; plus prices for misses, evictions, a full KV cache and slowed \
              neighbours. Less is better.",
    parameters: &[
        ENGINE,
        SPEED,
        RATES,
        Parameter::with_default(
            "output_tokens",
            Takes::Whole(0, 4_294_967_295),
            "256",
            "How many tokens are expected to be generated, until a pod's own answers tell, unless the request \
             allows fewer.",
        ),
        Parameter::with_default(
            "miss",
            Takes::Number(0.0, 100.0),
            "0",
            "How often the request's own prefill counts again, because others wait for it.",
        ),
        Parameter::with_default(
            "eviction",
            Takes::Number(0.0, 1.0),
            "0.5",
            "The chance that what is evicted must be computed again.",
        ),
        Parameter::with_default(
            "pressure_ms",
            Takes::Number(0.0, 1e9),
            "10000",
            "What a full KV cache costs; half full costs nearly nothing.",
        ),
        Parameter::with_default(
            "interference",
            Takes::Number(0.0, 1.0),
            "0",
            "The share of the request's own time that counts for every request that the pod has.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "predicted_ttft: {engine: 70b-h100x4, miss: 1, interference: 0.006}",
    make: Make::Score(make),
};

struct PredictedTtft {
    held: HeldDepth,
    speeds: PodSpeeds,
    prices: Prices,
    output_tokens: f64,
}

/// The speeds that `engine` and `speed` ask for.
pub(super) fn speeds(assembly: &mut Assembly<'_>) -> Result<PodSpeeds, AssemblyRefused> {
    let engine: &str = assembly.get("engine");
    let published = PUBLISHED.iter().find(|(name, _)| *name == engine);
    let mut speed = published.map_or(PUBLISHED[0].1, |(_, speed)| *speed);
    for (name, value) in assembly.maybe::<Vec<(String, f64)>>("speed").unwrap_or_default() {
        let Some(field) = speed.field(&name) else {
            let cure = format!("use {}", EngineSpeed::FIELDS.join(", "));
            return Err(assembly.refuse("speed", &format!("there is no `{name}`"), &cure));
        };
        *field = value;
    }
    if speed.step_tokens < 1.0 {
        let message = format!("`step_tokens` is {}", speed.step_tokens);
        return Err(assembly.refuse("speed", &message, "give at least 1"));
    }
    let rates = match assembly.get::<&str>("rates") {
        "fixed" => EngineRates::Fixed,
        _ => EngineRates::Learnt,
    };
    Ok(PodSpeeds::new(speed, rates))
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let speeds = speeds(assembly)?;
    let prices = Prices {
        miss: assembly.get("miss"),
        eviction: assembly.get("eviction"),
        pressure: assembly.get("pressure_ms"),
        interference: assembly.get("interference"),
    };
    Ok(Box::new(PredictedTtft {
        held: assembly.held(),
        speeds,
        prices,
        output_tokens: f64::from(assembly.get::<u32>("output_tokens")),
    }))
}

#[inline]
fn burden(pod: &FleetPod, speed: &EngineSpeed, paces: Paces, now: Moment) -> Burden {
    let vitals = pod.vitals();
    let kv_tokens = pod.facts().kv_tokens.map_or(speed.kv_tokens, |tokens| tokens as f64);
    Burden {
        pending: vitals.prefill_tokens() as f64,
        queued: speed.backlog(pod, paces, now),
        paces,
        requests: f64::from(vitals.requests()),
        decoding: f64::from(vitals.decoding()),
        contexts: vitals.decode_tokens() as f64,
        reported: vitals.kv_usage() * kv_tokens,
        kv_tokens,
    }
}

impl Score for PredictedTtft {
    fn scale(&self) -> Scale {
        Scale::Milliseconds
    }

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let request = scene.request();
        let held = scene.held(&self.held);
        let prompt = match held {
            Some(held) => held.prompt().prompt_tokens as u64,
            None => request.estimated_tokens(),
        };
        let allowed = request.output_tokens.map_or(f64::INFINITY, f64::from);
        for (candidate, score) in candidates.iter().zip(scores) {
            let pod = scene.pod(*candidate);
            let speed = self.speeds.of(pod.facts().engine.as_ref());
            let load = burden(pod, speed, self.speeds.paces(pod, speed), scene.now());
            let new = held.map_or(prompt, |held| held.uncached_tokens(pod));
            let output = pod.vitals().answer_tokens().unwrap_or(self.output_tokens).min(allowed);
            let placement = Placement { prompt: prompt as f64, new: new as f64, output };
            *score = terms(speed, &self.prices, placement, load).total();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fleet::{PodFacts, Reservation};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    const PREPARE: [&str; 2] = ["tokenize", "block_hash"];
    const PLAIN: &str = "predicted_ttft: {eviction: 0, pressure_ms: 0}";

    #[test]
    fn what_is_cached_and_what_waits_decide_between_equal_pods() {
        let rehearsal = Harness::of(3).prompt(&[7; 2000]).holding(1, 500);
        let played = rehearsal.play(&PREPARE, Stage::Score, PLAIN);
        let idle = played.scores();
        assert!((idle[0] - (4.4 + 0.01594 * 2000.0 + 3.74e-7 * 4e6)).abs() < 1e-9);
        assert!(idle[1] < idle[0] && idle[0] == idle[2]);
        let _sent = Reservation::new(rehearsal.vitals(1), 2000, 2000);
        let busy = played.scores();
        assert!((busy[1] - idle[1] - 0.01594 * 2000.0 - 3.74e-7 * 4e6).abs() < 1e-9);
        assert!(busy[1] > busy[0], "half a prompt cached does not make up for a whole one waiting");
    }

    #[test]
    fn what_waits_shrinks_with_time_but_not_to_nothing() {
        let rehearsal = Harness::of(2).prompt(&[7; 2000]);
        let _sent = Reservation::new(rehearsal.vitals(0), 20_000, 20_000).sent_at(rehearsal.now);
        let excess = |later: u64| {
            let played = rehearsal.play(&PREPARE, Stage::Score, PLAIN);
            let scores = played.at(rehearsal.now + Duration::from_millis(later)).scores();
            scores[0] - scores[1]
        };
        assert!((excess(0) - excess(100) - 80.0).abs() < 1e-6, "{} {}", excess(0), excess(100));
        assert!(excess(100_000) > 0.3 * 400.0, "it would have told");
    }

    #[test]
    fn a_pod_that_was_seen_to_be_slow_is_predicted_to_be_slow_unless_rates_are_fixed() {
        let rehearsal = Harness::of(2).prompt(&[7; 2000]);
        let time = Duration::from_millis;
        for at in (0..100).map(|number| 10_000 * number) {
            let mut load = Reservation::new(rehearsal.vitals(0), 8000, 8000).sent_at(time(at));
            load.first_token_at(time(at + 400));
        }
        let scores = |yaml| rehearsal.play(&PREPARE, Stage::Score, yaml).scores();
        let learnt = scores(PLAIN);
        assert!(learnt[0] > 1.7 * learnt[1], "{learnt:?}");
        let fixed = scores("predicted_ttft: {eviction: 0, pressure_ms: 0, rates: fixed}");
        assert_eq!(fixed[0], fixed[1]);
    }

    #[test]
    fn a_pod_is_as_fast_as_its_own_engine() {
        let slow = PodFacts { engine: Some("70b-h100x4".into()), ..PodFacts::serving("b", "m") };
        let pods = vec![PodFacts::serving("a", "m"), slow];
        let rehearsal = Harness::with(pods).prompt(&[7; 1000]);
        let scores = rehearsal.play(&PREPARE, Stage::Score, PLAIN).scores();
        assert!(scores[1] > 5.0 * scores[0]);
    }

    #[test]
    fn a_full_cache_costs_more_than_a_miss() {
        let rehearsal = Harness::of(2).prompt(&[7; 2000]).holding(0, 1000);
        rehearsal.vitals(0).report(0, 0.99);
        let yaml = "predicted_ttft: {output_tokens: 1000}";
        let scores = rehearsal.play(&PREPARE, Stage::Score, yaml).scores();
        assert!(scores[0] > scores[1], "{scores:?}");
    }

    #[test]
    fn speeds_that_do_not_exist_or_cannot_be_are_refused() {
        let complaint = |yaml| Harness::complaint(Stage::Score, yaml);
        assert_eq!(
            complaint("predicted_ttft: {speed: {tokens: 1}}"),
            "`speed` of `predicted_ttft`: there is no `tokens`"
        );
        assert_eq!(
            complaint("predicted_ttft: {speed: {step_tokens: 0}}"),
            "`speed` of `predicted_ttft`: `step_tokens` is 0"
        );
    }
}
