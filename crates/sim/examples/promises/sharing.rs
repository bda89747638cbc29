//! Prefixes that requests share, on eight pods: how much of the prompts each policy finds cached.

use crate::{Outcome, Row};
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_routing::Rng;
use wornpath_sim::EngineProfile;
use wornpath_sim::replay::{
    ProfileText, ReplayFleet, Summary, Trace, TraceStart, TraceTurn, replay,
};

const BLOCK: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
const PODS: usize = 8;
/// Tokens that requests share, and tokens of each alone.
const PREFIX: usize = 10_240;
const OWN: usize = 512;
const OUTPUT_TOKENS: usize = 100;
/// Between two requests: about half of what eight pods can compute without any cache.
const GAP: Duration = Duration::from_millis(60);

const RANDOM: ProfileText<'_> =
    ProfileText { name: "random", yaml: "filter: [healthy, model]\npick: weighted_random\n" };
const ROUND_ROBIN: ProfileText<'_> = ProfileText {
    name: "round-robin",
    yaml: include_str!("../../../../profiles/round-robin.yaml"),
};
const DEFAULT: ProfileText<'_> = ProfileText {
    name: "cache-aware",
    yaml: include_str!("../../../../profiles/cache-aware.yaml"),
};

/// So many prefixes, each used so often, in random order.
fn requests(prefixes: usize, uses: usize) -> Trace {
    let mut rng = Rng::new(1);
    let mut order: Vec<usize> = (0..prefixes * uses).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at + 1));
    }
    let mut at = Duration::ZERO;
    let turns = order.into_iter().map(|number| {
        let prefix = number % prefixes;
        let id = |block: usize| match block < PREFIX / BLOCK {
            true => (prefix as u64) << 32 | block as u64,
            false => ((prefixes + number) as u64) << 32 | block as u64,
        };
        at += GAP.mul_f64(-(1.0 - rng.unit()).ln());
        TraceTurn {
            start: TraceStart::At(at),
            prompt_tokens: PREFIX + OWN,
            output_tokens: OUTPUT_TOKENS,
            blocks: (0..(PREFIX + OWN) / BLOCK.get()).map(id).collect(),
            session: None,
            tenant: None,
        }
    });
    Trace { block_size: BLOCK, turns: turns.collect() }
}

/// The hit rates of the three policies, and the most that one engine with all of them could find.
fn hit_rates(trace: &Trace) -> Outcome<([f64; 3], f64)> {
    let fleet = ReplayFleet::new(EngineProfile::built_in("8b-h200")?, PODS, 1);
    let mut rates = [0.0; 3];
    for (rate, profile) in rates.iter_mut().zip([RANDOM, ROUND_ROBIN, DEFAULT]) {
        let records = replay(trace, profile, &fleet).map_err(|problems| problems.to_string())?;
        let summary = Summary::of(trace, &records, PODS);
        if summary.failures > 0 {
            return Err(format!("{}: {} requests failed", profile.name, summary.failures).into());
        }
        *rate = summary.hit_rate;
    }
    Ok((rates, trace.ideal_hit_tokens() as f64 / trace.prompt_tokens() as f64))
}

fn row(claim: &'static str, trace: &Trace) -> Outcome<Row> {
    let (rates, most) = hit_rates(trace)?;
    let [random, round_robin, default] = rates;
    Ok(Row {
        claim,
        measured: format!(
            "hit rate {default:.3} of {most:.3} possible; random {random:.3}, round-robin {round_robin:.3}"
        ),
        bar: "at least 0.99 of what is possible".to_owned(),
        passes: default >= 0.99 * most,
        note: None,
    })
}

pub(crate) fn prefixes() -> Outcome<Row> {
    row(
        "400 prefixes of 10k tokens used twice, on 8 pods: what is shared is found",
        &requests(400, 2),
    )
}

pub(crate) fn contexts() -> Outcome<Row> {
    row(
        "RAG, 50 contexts of 10k tokens with 20 questions each, on 8 pods: each context once",
        &requests(50, 20),
    )
}
