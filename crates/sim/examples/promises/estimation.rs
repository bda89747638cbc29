//! Cache events against estimation: predictions on small caches that evict all the time.

use crate::{Outcome, Row};
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_routing::Rng;
use wornpath_sim::EngineProfile;
use wornpath_sim::replay::{ProfileText, ReplayFleet, Trace, TraceStart, TraceTurn, replay};

const BLOCK: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
const PODS: usize = 4;
const KV_TOKENS: usize = 20_000;
const DOCUMENTS: usize = 40;
const REQUESTS: usize = 400;
/// The exponent of the law by which documents are popular.
const ZIPF: f64 = 0.7;
const GAP: Duration = Duration::from_millis(400);

const DEFAULT: ProfileText<'_> = ProfileText {
    name: "cache-aware",
    yaml: include_str!("../../../../profiles/cache-aware.yaml"),
};

/// Questions about documents of 1,000 to 5,000 tokens.
fn questions() -> Trace {
    let mut rng = Rng::new(1);
    let lengths: Vec<usize> = (0..DOCUMENTS).map(|_| 1_000 + rng.below(4_000)).collect();
    let weights: Vec<f64> = (1..=DOCUMENTS).map(|rank| (rank as f64).powf(-ZIPF)).collect();
    let all: f64 = weights.iter().sum();
    let mut at = Duration::ZERO;
    let turns = (0..REQUESTS).map(|number| {
        let mut left = rng.unit() * all;
        let passed = |weight: &&f64| {
            left -= **weight;
            left > 0.0
        };
        let document = weights.iter().take_while(passed).count().min(DOCUMENTS - 1);
        let prompt_tokens = lengths[document] + 50 + rng.below(200);
        let id = |block: usize| match block < lengths[document] / BLOCK {
            true => (document as u64) << 32 | block as u64,
            false => ((DOCUMENTS + number) as u64) << 32 | block as u64,
        };
        at += GAP.mul_f64(-(1.0 - rng.unit()).ln());
        TraceTurn {
            start: TraceStart::At(at),
            prompt_tokens,
            output_tokens: 50 + rng.below(150),
            blocks: (0..prompt_tokens / BLOCK).map(id).collect(),
            session: None,
            tenant: None,
        }
    });
    Trace { block_size: BLOCK, turns: turns.collect() }
}

/// How many predictions are not what the engine found, to the token.
fn wrong(trace: &Trace, estimated_tokens: Option<usize>) -> Outcome<usize> {
    let fleet = ReplayFleet {
        kv_tokens: Some(KV_TOKENS),
        estimated_tokens: estimated_tokens.map(|tokens| tokens as u64),
        ..ReplayFleet::new(EngineProfile::built_in("8b-h200")?, PODS, 1)
    };
    let records = replay(trace, DEFAULT, &fleet).map_err(|problems| problems.to_string())?;
    if let Some(failed) = records.iter().find(|record| record.end.is_none()) {
        return Err(format!("a request failed: {failed:?}").into());
    }
    let wrong = records.iter().filter(|one| one.predicted_tokens != one.cached_tokens as u64);
    Ok(wrong.count())
}

pub(crate) fn estimation() -> Outcome<Row> {
    let trace = questions();
    let events = wrong(&trace, None)?;
    let right = wrong(&trace, Some(KV_TOKENS))?;
    let large = wrong(&trace, Some(4 * KV_TOKENS))?;
    Ok(Row {
        claim: "what is cached is known from events and need not be guessed: 4 engines with 20k KV tokens, 40 documents",
        measured: format!(
            "{events} of {REQUESTS} predictions wrong with events; estimated {right}, and {large} where the cache is taken for four times \
             as large"
        ),
        bar: "at most 4 with events, and fewer than estimated".to_owned(),
        passes: events <= REQUESTS / 100 && events < right && right < large,
        note: None,
    })
}
