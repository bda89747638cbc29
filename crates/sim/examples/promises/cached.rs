//! A long prompt again: all of it cached, and three quarters of it.

use crate::{Outcome, Row};
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_sim::replay::{ProfileText, ReplayFleet, Trace, TraceStart, TraceTurn, replay};
use wornpath_sim::{EngineProfile, StepLoad};

const BLOCK: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
const PROMPT: usize = 100_000;
const DEFAULT: ProfileText<'_> = ProfileText {
    name: "cache-aware",
    yaml: include_str!("../../../../profiles/cache-aware.yaml"),
};

/// The times to the first token of a long prompt, and a minute later of one that begins with as
/// many of its tokens, on one pod.
fn first_tokens(engine: &EngineProfile, shared: usize) -> Outcome<[Duration; 2]> {
    let turn = |number: u64| {
        let id = |block: usize| {
            let owner = if block < shared / BLOCK { 0 } else { number };
            owner << 32 | block as u64
        };
        TraceTurn {
            start: TraceStart::At(Duration::from_secs(60 * number)),
            prompt_tokens: PROMPT,
            output_tokens: 20,
            blocks: (0..PROMPT.div_ceil(BLOCK.get())).map(id).collect(),
            session: None,
            tenant: None,
        }
    };
    let trace = Trace { block_size: BLOCK, turns: vec![turn(0), turn(1)] };
    let records = replay(&trace, DEFAULT, &ReplayFleet::new(engine.clone(), 1, 1))
        .map_err(|problems| problems.to_string())?;
    let time = |at: usize| {
        let first = records[at].first_token.ok_or("the request failed")?;
        Outcome::Ok(first - records[at].arrival)
    };
    Ok([time(0)?, time(1)?])
}

/// The time that the engine's steps take for the tokens after `cached` ones, whatever a router
/// does.
fn prefill(engine: &EngineProfile, cached: usize) -> Duration {
    let mut done = cached;
    let mut time = engine.request_time();
    while done < PROMPT {
        let chunk = engine.max_step_tokens().min(PROMPT - done);
        let mut load = StepLoad::default();
        load.add_chunk(done, chunk);
        time += engine.step_cost().of(&load);
        done += chunk;
    }
    time
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(crate) fn same_prompt() -> Outcome<Row> {
    let engine = EngineProfile::built_in("8b-h200")?;
    let [cold, cached] = first_tokens(&engine, PROMPT)?.map(milliseconds);
    Ok(Row {
        claim: "the same prompt of 100k tokens twice: seconds become milliseconds",
        measured: format!("TTFT {cold:.0} ms, then {cached:.0} ms"),
        bar: "then at most 1 %".to_owned(),
        passes: cached <= cold / 100.0,
        note: None,
    })
}

pub(crate) fn mostly_cached() -> Outcome<Row> {
    let engine = EngineProfile::built_in("8b-h200")?;
    let shared = PROMPT / 4 * 3;
    let [cold, cached] = first_tokens(&engine, shared)?.map(milliseconds);
    let least = milliseconds(prefill(&engine, shared));
    let pairs = {
        let tokens = (PROMPT - shared) as f64;
        engine.step_cost().per_pair * tokens * (shared as f64 + tokens / 2.0)
    };
    Ok(Row {
        claim: "75k of 100k tokens cached: milliseconds",
        measured: format!(
            "TTFT {cold:.0} ms, then {cached:.0} ms, where the engine's own steps take {least:.0} ms"
        ),
        bar: "then at most 1.02 of these steps".to_owned(),
        passes: cached <= 1.02 * least,
        note: Some(format!(
            "not milliseconds: the last 25k tokens attend to all before them, which is {pairs:.0} of these {least:.0} ms. A cache \
             saves what is cached, and no router computes the rest faster."
        )),
    })
}
