//! How fast each pod's engine computes: published speeds, overrides in YAML, and measured
//! corrections.
//!
//! A router that compares times must know speeds, and engines do not report theirs. A pod names its
//! engine profile, of which [`PUBLISHED`] has a few; a plugin's parameters name the one for all
//! other pods. Figures from a data sheet do not see a throttled GPU, so measured requests correct
//! them by a factor for prefill and one for steps per pod, unless `rates` is `fixed`.

use wornpath_index::{Moment, Tier};
use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{FleetPod, LoadedTokens, MeasuredPrefill, PrefillWork, PublishedSpeed};
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused};

/// The engine whose published speed applies to pods that name none.
pub(super) const ENGINE: Parameter = Parameter::optional(
    "engine",
    Takes::OneOf(&["8b-h200", "32b-h100x2", "70b-h100x4"]),
    "The engine profile of pods whose own `engine` is none of these. Without it, and without `speed`, their speed is \
     learnt from their requests, with `8b-h200` to begin with.",
);

/// Overrides of single figures of that speed.
pub(super) const SPEED: Parameter = Parameter::optional(
    "speed",
    Takes::Numbers,
    "Overrides of that engine profile: `base`, `token`, `pair`, `sequence`, `context` in milliseconds, \
     `host`, `disk`, `remote` in milliseconds per cached token that is loaded from that tier, `kv_tokens`, `step_tokens`.",
);

/// Whether measured requests correct that speed.
pub(super) const RATES: Parameter = Parameter::with_default(
    "rates",
    Takes::OneOf(&["learnt", "fixed"]),
    "learnt",
    "`learnt`: measured requests correct each pod's speed. `fixed`: only that of pods whose engine is unknown.",
);

/// The terms of an engine's step time, in milliseconds, and its sizes, in tokens. A step takes
///
/// ```text
/// base + token * new + pair * (new² + 2 * new * cached) + sequence * decoding + context * contexts
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct EngineSpeed {
    /// Of every step.
    pub(crate) base: f64,
    /// Per prompt token that the step computes.
    pub(crate) token: f64,
    /// For attention: a prompt of `n` tokens counts `n²`, twice its number of attended pairs.
    pub(crate) pair: f64,
    /// Per decoding request in the step.
    pub(crate) sequence: f64,
    /// Per token in the contexts that decode in the step.
    pub(crate) context: f64,
    /// Tokens that the KV cache holds, for pods without a `kv_tokens` of their own.
    pub(crate) kv_tokens: f64,
    /// Most tokens that one step computes.
    pub(crate) step_tokens: f64,
    /// Per cached token that is loaded from host memory, from disk, and from a remote store.
    pub(crate) host: f64,
    pub(crate) disk: f64,
    pub(crate) remote: f64,
}

/// Speeds fitted to published figures, by the name of the engine profile.
pub(crate) const PUBLISHED: [(&str, EngineSpeed); 3] = [
    // Dynamo's profile of Llama-3.1-8B-FP8 on an H200.
    ("8b-h200", speed([4.4, 0.01594, 3.74e-7, 0.045, 3.1e-5], 945_029.0, 131_072.0)),
    // Qwen3-32B on two H100: peak rate and KV size published by llm-d.
    ("32b-h100x2", speed([15.0, 0.0417, 8.7e-7, 0.05, 5.6e-5], 307_328.0, 262_144.0)),
    // Llama-2-70B on four H100: the tables of Splitwise.
    ("70b-h100x4", speed([29.0, 0.1105, 6.6e-7, 0.25, 3.5e-5], 448_000.0, 327_680.0)),
];

/// The names of the engine profiles with a published speed, for a pod's `engine`.
pub const SPEEDS: [&str; 3] = [PUBLISHED[0].0, PUBLISHED[1].0, PUBLISHED[2].0];

/// Bytes per millisecond from each tier before a pod's own loads have shown more: from host memory as
/// measured on one H200, from one NVMe drive on PCIe 4 as in data sheets, and from a store behind a
/// link of 100 Gb/s.
const HOST: f64 = 55.3e6;
const DISK: f64 = 7e6;
const REMOTE: f64 = 12.5e6;

const fn speed(
    [base, token, pair, sequence, context]: [f64; 5],
    kv_tokens: f64,
    token_bytes: f64,
) -> EngineSpeed {
    EngineSpeed {
        base,
        token,
        pair,
        sequence,
        context,
        kv_tokens,
        step_tokens: 8192.0,
        host: token_bytes / HOST,
        disk: token_bytes / DISK,
        remote: token_bytes / REMOTE,
    }
}

static NOMINAL: [(&str, EngineSpeed); 3] = PUBLISHED;

impl EngineSpeed {
    /// The published speed of a pod's engine profile, or the default one: the same for all equal
    /// pods, whatever was measured.
    fn nominal(pod: &FleetPod) -> &'static Self {
        let engine = pod.facts().engine.as_ref();
        let named = NOMINAL.iter().find(|(name, _)| engine.is_some_and(|engine| *engine == **name));
        &named.unwrap_or(&NOMINAL[0]).1
    }

    /// The published speed of a pod's engine profile, to compare its answers with.
    pub(crate) fn published(pod: &FleetPod) -> PublishedSpeed {
        let speed = Self::nominal(pod);
        PublishedSpeed {
            base: speed.base,
            token: speed.token,
            pair: speed.pair,
            sequence: speed.sequence,
            context: speed.context,
            step_tokens: speed.step_tokens,
            kv_tokens: pod.facts().kv_tokens.map_or(speed.kv_tokens, |tokens| tokens as f64),
        }
    }

    /// The figure of that name, for a profile to override.
    pub(crate) fn field(&mut self, name: &str) -> Option<&mut f64> {
        Some(match name {
            "base" => &mut self.base,
            "token" => &mut self.token,
            "pair" => &mut self.pair,
            "sequence" => &mut self.sequence,
            "context" => &mut self.context,
            "kv_tokens" => &mut self.kv_tokens,
            "step_tokens" => &mut self.step_tokens,
            "host" => &mut self.host,
            "disk" => &mut self.disk,
            "remote" => &mut self.remote,
            _ => return None,
        })
    }

    /// Milliseconds to prefill `tokens`; `pairs` is twice the number of attended pairs.
    #[inline]
    pub(crate) fn prefill(&self, tokens: f64, pairs: f64) -> f64 {
        self.token * tokens + self.pair * pairs
    }

    /// Milliseconds that measured work should have taken.
    #[inline]
    fn time(&self, work: &PrefillWork) -> f64 {
        self.prefill(work.tokens, work.pairs)
            + self.base * work.steps
            + self.sequence * work.sequences
            + self.context * work.contexts
    }

    /// Milliseconds of prefill that the pod has pending.
    ///
    /// Engines report progress late: when a prompt or one of its blocks is computed. Between
    /// reports the backlog shrinks by the time that has passed, less the share that decoding takes.
    /// It never shrinks to zero, because the engine would have reported the end of its work.
    #[inline]
    pub(crate) fn backlog(&self, pod: &FleetPod, slowdown: Slowdown, now: Moment) -> f64 {
        /// The rough share of an engine's time that prefill gets.
        const PREFILL_SHARE: f64 = 0.8;
        /// The share of the sent work that stays pending until the next report.
        const MIN_PENDING_SHARE: f64 = 0.3;
        let pod_state = pod.state();
        let work =
            self.prefill(pod_state.prefill_tokens() as f64, pod_state.prefill_pairs() as f64);
        let sent = slowdown.prefill * work;
        let passed = pod_state.computing(now).as_secs_f64() * 1e3;
        (sent - PREFILL_SHARE * passed).max(MIN_PENDING_SHARE * sent)
    }

    /// Milliseconds to load these cached tokens to the GPU of a pod.
    pub(crate) fn loading(&self, pod: &FleetPod, tokens: &LoadedTokens) -> f64 {
        let rate = |tier| match tier {
            Tier::Gpu => 0.0,
            Tier::Host => pod.state().load_rate(tier, self.host),
            Tier::Disk => pod.state().load_rate(tier, self.disk),
            Tier::Other => pod.state().load_rate(tier, self.remote),
        };
        let loads = Tier::ALL.into_iter().zip(tokens).filter(|(_, tokens)| **tokens > 0);
        loads.map(|(tier, tokens)| rate(tier) * *tokens as f64).sum()
    }

    /// The names that [`Self::field`] accepts.
    pub(crate) const FIELDS: [&str; 10] = [
        "base",
        "token",
        "pair",
        "sequence",
        "context",
        "kv_tokens",
        "step_tokens",
        "host",
        "disk",
        "remote",
    ];
}

/// Whether measured requests correct the configured speeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EngineRates {
    /// The configured speeds apply as they are.
    Fixed,
    /// Each pod's measured slowdown applies.
    Learnt,
}

/// How many times longer a pod takes than its engine profile says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Slowdown {
    /// For prefill.
    pub(crate) prefill: f64,
    /// For the rest of a step's time.
    pub(crate) steps: f64,
}

/// The speed of every engine profile, found by a pod's `engine`.
#[derive(Clone, Debug)]
pub(crate) struct PodSpeeds {
    named: [(Name, EngineSpeed); 3],
    default: EngineSpeed,
    /// Whether `default` was given for the pods that name no engine, not assumed.
    is_default_known: bool,
    rates: EngineRates,
}

impl PodSpeeds {
    /// The published speeds, and `default` for pods that name none of them.
    pub(crate) fn new(default: Option<EngineSpeed>, rates: EngineRates) -> Self {
        Self {
            named: PUBLISHED.map(|(name, speed)| (name.into(), speed)),
            is_default_known: default.is_some(),
            default: default.unwrap_or(PUBLISHED[0].1),
            rates,
        }
    }

    /// Whether the pod's engine profile was given. The speed of other pods is a guess until it is
    /// measured.
    #[inline]
    fn is_told(&self, pod: &FleetPod) -> bool {
        let is_named = |engine: &Name| self.named.iter().any(|(name, _)| name == engine);
        self.is_default_known || pod.facts().engine.as_ref().is_some_and(is_named)
    }

    /// Whether the pod's speed was given or measured.
    #[inline]
    pub(crate) fn is_known(&self, pod: &FleetPod) -> bool {
        self.is_told(pod) || pod.state().is_speed_known()
    }

    /// The pod's slowdown against `speed`; 1 while nothing was measured.
    #[inline]
    pub(crate) fn slowdown(&self, pod: &FleetPod, speed: &EngineSpeed) -> Slowdown {
        let measured = |part| match self.rates {
            EngineRates::Fixed if self.is_told(pod) => 1.0,
            _ => pod.state().slowness(part, |work| speed.time(work)),
        };
        Slowdown {
            prefill: measured(MeasuredPrefill::Prefill),
            steps: measured(MeasuredPrefill::Steps),
        }
    }

    #[inline]
    pub(crate) fn of(&self, engine: Option<&Name>) -> &EngineSpeed {
        engine
            .and_then(|engine| self.named.iter().find(|(name, _)| name == engine))
            .map_or(&self.default, |(_, speed)| speed)
    }
}

/// The engine speeds that the parameters [`ENGINE`], [`SPEED`] and [`RATES`] set.
pub(super) fn speeds(assembly: &mut Assembly<'_>) -> Result<PodSpeeds, AssemblyRefused> {
    let engine = assembly.maybe::<&str>("engine");
    let published = PUBLISHED.iter().find(|(name, _)| Some(*name) == engine);
    let mut speed = published.map_or(PUBLISHED[0].1, |(_, speed)| *speed);
    let figures = assembly.maybe::<Vec<(String, f64)>>("speed");
    let is_known = engine.is_some() || figures.is_some();
    for (name, value) in figures.unwrap_or_default() {
        let Some(field) = speed.field(&name) else {
            let cure = format!("use {}", EngineSpeed::FIELDS.join(", "));
            return Err(assembly.refuse("speed", &format!("unknown speed figure `{name}`"), &cure));
        };
        *field = value;
    }
    if speed.step_tokens < 1.0 {
        let message = format!("`step_tokens` is {}, below 1", speed.step_tokens);
        return Err(assembly.refuse("speed", &message, "give at least 1"));
    }
    let rates = match assembly.get::<&str>("rates") {
        "fixed" => EngineRates::Fixed,
        _ => EngineRates::Learnt,
    };
    Ok(PodSpeeds::new(is_known.then_some(speed), rates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_speed_of_the_engine_it_names_and_every_figure_can_be_set() {
        let speeds = PodSpeeds::new(Some(PUBLISHED[0].1), EngineRates::Learnt);
        assert_eq!(speeds.of(Some(&"70b-h100x4".into())), &PUBLISHED[2].1);
        assert_eq!(speeds.of(Some(&"unknown".into())), &PUBLISHED[0].1);
        assert_eq!(speeds.of(None), &PUBLISHED[0].1);
        let mut speed = PUBLISHED[0].1;
        assert!(EngineSpeed::FIELDS.iter().all(|field| speed.field(field).is_some()));
        assert!(speed.field("speed").is_none());
    }
}
