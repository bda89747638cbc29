//! Prefill and decode on different pods, on the two kinds of traffic that the field names.

use crate::traffic::Traffic;
use crate::{Outcome, Row};
use std::time::Duration;
use wornpath_routing::Role;
use wornpath_sim::EngineProfile;
use wornpath_sim::replay::{Percentiles, ProfileText, ReplayFleet, Trace, replay};

const PODS: usize = 4;
const OUTPUT_TOKENS: usize = 200;
const REQUESTS: usize = 1_500;
/// Requests that fill the caches and do not count.
const WARM_UP: usize = REQUESTS / 5;

const WHOLE: &str = include_str!("../../../../profiles/cache-aware.yaml");
const BY_RULE: &str = include_str!("../../../../profiles/prefill-decode.yaml");

/// The times of requests to their first token and between tokens.
struct Times {
    ttft: Percentiles,
    tpot: Percentiles,
}

fn run(trace: &Trace, engine: &EngineProfile, yaml: &str, is_split: bool) -> Outcome<Times> {
    let half = PODS / 2;
    let roles = [(Role::named(Role::PREFILL), half), (Role::named(Role::DECODE), half)];
    let fleet = ReplayFleet::new(engine.clone(), PODS, 1);
    let fleet = if is_split { fleet.with_roles(&roles) } else { fleet };
    let profile = ProfileText { name: "split", yaml };
    let records = replay(trace, profile, &fleet).map_err(|problems| problems.to_string())?;
    let mut ttft: Vec<Duration> = Vec::new();
    let mut tpot = Vec::new();
    for record in &records[WARM_UP..] {
        let first = record.first_token.ok_or("a request failed")?;
        let end = record.end.ok_or("a request failed")?;
        ttft.push(first - record.arrival);
        tpot.push((end - first).div_f64((OUTPUT_TOKENS - 1) as f64));
    }
    Ok(Times { ttft: Percentiles::of(ttft), tpot: Percentiles::of(tpot) })
}

/// Each pod does both; every request is split; requests are split by the rule of the profile.
fn compare(prompt_tokens: usize, shared: f64, load: f64) -> Outcome<[Times; 3]> {
    let engine = EngineProfile::built_in("8b-h200")?;
    let traffic = Traffic { prompt_tokens, output_tokens: OUTPUT_TOKENS, shared, load };
    let trace = traffic.requests(&engine, PODS, REQUESTS, 1);
    let line = BY_RULE.lines().find(|line| line.trim().starts_with("min_uncached_tokens:"));
    let line = line.ok_or("the profile has no threshold")?;
    let always = BY_RULE.replace(line, "    min_uncached_tokens: 1");
    Ok([
        run(&trace, &engine, WHOLE, false)?,
        run(&trace, &engine, &always, true)?,
        run(&trace, &engine, BY_RULE, true)?,
    ])
}

pub(crate) fn long_cold() -> Outcome<Row> {
    let [whole, always, _] = compare(16_384, 0.0, 0.6)?;
    Ok(Row {
        claim: "prefill and decode apart: long prompts do not stall decoding",
        measured: format!(
            "16,384 new tokens each: TPOT p95 {:.1} ms, apart {:.1} ms; TTFT p95 {:.0} ms, apart {:.0} ms",
            whole.tpot.p95, always.tpot.p95, whole.ttft.p95, always.ttft.p95
        ),
        bar: "TPOT p95 apart at most 0.6".to_owned(),
        passes: always.tpot.p95 <= 0.6 * whole.tpot.p95,
        note: Some("the price is the first token: half of the pods compute prompts.".to_owned()),
    })
}

pub(crate) fn short_hot() -> Outcome<Row> {
    let [whole, always, by_rule] = compare(2_048, 0.9, 0.4)?;
    let lost = |times: &Times| times.ttft.p50 - whole.ttft.p50;
    Ok(Row {
        claim: "only prompts that are worth it are split",
        measured: format!(
            "2,048 tokens each, 90 % cached: TTFT p50 {:.1} ms, always split {:.1} ms, by the rule {:.1} ms",
            whole.ttft.p50, always.ttft.p50, by_rule.ttft.p50
        ),
        bar: "the rule loses at most 0.2 of what splitting loses".to_owned(),
        passes: lost(&by_rule) <= 0.2 * lost(&always),
        note: None,
    })
}
