//! The axes along which real fleets and their traffic differ, drawn at random from a seed.

use crate::distribution::log_uniform;
use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_routing::Rng;
use wornpath_sim::replay::ReplayFleet;
use wornpath_sim::{EngineProfile, EngineProfileError};

/// Tokens of a block of every trace.
pub(super) const BLOCK: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// A fleet, its routers, and the traffic that they get.
#[derive(Clone, Debug)]
pub(crate) struct Axes {
    pub(crate) seed: u64,
    pub(crate) pods: usize,
    engine: &'static str,
    /// Whether the routers know the engine; else they assume their default.
    is_engine_known: bool,
    /// The share of the engine's KV cache that the pods have.
    kv_share: f64,
    /// How many times longer every step takes than the engine's profile says, unknown to routers.
    slowdown: f64,
    /// Whether a quarter of the pods is twice as slow as the others.
    is_mixed: bool,
    routers: usize,
    events_delay: Duration,
    /// The share of the fleet's capacity that the traffic needs.
    pub(crate) load: f64,
    /// Standard deviation of the logarithm of the arrival rate, from second to second.
    pub(crate) burstiness: f64,
    /// How many times the highest arrival rate of a day is the lowest.
    pub(crate) ramp: f64,
    /// The share of the requests that are about one new document, all within a moment.
    pub(crate) flash_crowd: f64,
    pub(crate) tenants: usize,
    /// Zipf's exponent of the tenants' popularity.
    pub(crate) skew: f64,
    /// Tokens that all tenants' prompts begin with.
    pub(crate) common_tokens: f64,
    /// The median of the tokens that a tenant's prompts begin with.
    pub(crate) tenant_tokens: f64,
    /// LoRA adapters: blocks of different adapters are never equal.
    pub(crate) adapters: usize,
    /// The median of an answer's tokens.
    pub(crate) output_tokens: f64,
    pub(crate) kinds: Vec<Kind>,
}

/// A kind of traffic.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Kind {
    /// Prompts without a later turn, of very different lengths.
    Single {
        tokens: f64,
    },
    Chat {
        turns: f64,
        added: f64,
        think: f64,
    },
    /// Sessions with short pauses for tools, which may call sub-agents.
    Agents {
        turns: f64,
        added: f64,
        think: f64,
        fan_out: usize,
    },
    /// Questions about several documents in any order.
    Documents {
        documents: usize,
        tokens: f64,
        each: usize,
    },
}

fn one_of<T: Copy>(rng: &mut Rng, values: &[T]) -> T {
    values[rng.below(values.len())]
}

impl Axes {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Rng::new(seed.wrapping_mul(0x9E37_79B9).wrapping_add(77));
        let rng = &mut random;
        let engines = [
            "8b-h200",
            "8b-h200",
            "32b-h100x2",
            "70b-h100x4",
            "8b-h200-measured",
            "32b-h200-measured",
        ];
        let first = Kind::draw(rng);
        let second = (rng.unit() < 0.4).then(|| Kind::draw(rng));
        Self {
            seed,
            pods: one_of(rng, &[4, 4, 8, 8, 8, 8, 16, 16, 32, 64, 128, 256]),
            engine: one_of(rng, &engines),
            is_engine_known: rng.unit() < 0.8,
            kv_share: one_of(rng, &[1.0, 1.0, 0.5, 0.25]),
            slowdown: one_of(rng, &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.5]),
            is_mixed: rng.unit() < 0.15,
            routers: one_of(rng, &[1, 1, 1, 1, 1, 1, 2, 4]),
            events_delay: Duration::from_millis(one_of(rng, &[0, 0, 20, 100, 100, 1000])),
            load: 0.5 + 0.7 * rng.unit(),
            burstiness: one_of(rng, &[0.0, 0.3, 0.8]),
            ramp: one_of(rng, &[1.0, 1.0, 2.0, 4.0]),
            flash_crowd: if rng.unit() < 0.15 { 0.03 + 0.12 * rng.unit() } else { 0.0 },
            tenants: log_uniform(rng, 1.0, 200.0) as usize,
            skew: 1.2 * rng.unit(),
            common_tokens: one_of(rng, &[0.0, 300.0, 1500.0, 6000.0]),
            tenant_tokens: log_uniform(rng, 100.0, 16_000.0),
            adapters: one_of(rng, &[1, 1, 1, 4, 16]),
            output_tokens: log_uniform(rng, 20.0, 700.0),
            kinds: [Some(first), second].into_iter().flatten().collect(),
        }
    }

    /// The fleet, with `seed` for the routers' random choices.
    pub(crate) fn fleet(&self) -> Result<ReplayFleet, EngineProfileError> {
        let engine = self.profile()?;
        let kv_tokens = (engine.kv_tokens() as f64 * self.kv_share) as usize;
        let mut fleet = ReplayFleet::new(engine, self.pods, self.seed);
        fleet.kv_tokens = Some(kv_tokens);
        fleet.is_engine_known = self.is_engine_known;
        let slow = |pod: usize| {
            let factor = if self.is_mixed && pod % 4 == 0 { 2.0 } else { 1.0 };
            (pod, self.slowdown * factor)
        };
        fleet.slow = (0..self.pods).map(slow).filter(|(_, factor)| *factor != 1.0).collect();
        fleet.routers = self.routers;
        fleet.events_delay = self.events_delay;
        Ok(fleet)
    }

    pub(crate) fn profile(&self) -> Result<EngineProfile, EngineProfileError> {
        EngineProfile::built_in(self.engine)
    }

    /// How many times longer the fleet takes than its profile says, in the mean of its pods' rates.
    pub(crate) fn mean_slowdown(&self) -> f64 {
        self.slowdown / if self.is_mixed { 0.875 } else { 1.0 }
    }

    /// Requests that keep a replay short, and still load every pod of a large fleet.
    pub(crate) fn requests(&self) -> usize {
        (1000 + 12 * self.pods).min(3000)
    }
}

impl Kind {
    fn draw(rng: &mut Rng) -> Self {
        let between = log_uniform;
        match rng.below(4) {
            0 => Self::Single { tokens: between(rng, 100.0, 8000.0) },
            1 => Self::Chat {
                turns: between(rng, 2.0, 10.0),
                added: between(rng, 50.0, 2000.0),
                think: between(rng, 3.0, 60.0),
            },
            2 => Self::Agents {
                turns: between(rng, 8.0, 30.0),
                added: between(rng, 200.0, 4000.0),
                think: between(rng, 0.5, 10.0),
                fan_out: one_of(rng, &[0, 0, 2, 6]),
            },
            _ => Self::Documents {
                documents: between(rng, 30.0, 1000.0) as usize,
                tokens: between(rng, 300.0, 4000.0),
                each: one_of(rng, &[1, 3, 8]),
            },
        }
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, pods, engine, kv_share, slowdown, routers, load, .. } = self;
        let known = if self.is_engine_known { "" } else { " unknown" };
        let mixed = if self.is_mixed { " mixed" } else { "" };
        write!(
            f,
            "#{seed} {pods} pods {engine}{known}{mixed} kv {kv_share} slow {slowdown}, {routers} routers, events {:?}, load {load:.2}, \
             bursts {}, ramp {}, crowd {:.2}, {} tenants of {:.0} tokens after {}, skew {:.1}, {} adapters, \
             outputs {:.0}",
            self.events_delay,
            self.burstiness,
            self.ramp,
            self.flash_crowd,
            self.tenants,
            self.tenant_tokens,
            self.common_tokens,
            self.skew,
            self.adapters,
            self.output_tokens,
        )?;
        for kind in &self.kinds {
            match kind {
                Kind::Single { tokens } => write!(f, ", single {tokens:.0}")?,
                Kind::Chat { turns, added, think } => {
                    write!(f, ", chat {turns:.0}x{added:.0} think {think:.0}")?;
                }
                Kind::Agents { turns, added, think, fan_out } => {
                    write!(f, ", agents {turns:.0}x{added:.0} think {think:.1} fan {fan_out}")?;
                }
                Kind::Documents { documents, tokens, each } => {
                    write!(f, ", documents {documents}x{tokens:.0} each {each}")?;
                }
            }
        }
        Ok(())
    }
}
