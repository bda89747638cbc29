//! The index against the naive model, by random operations from printed seeds.
//!
//! `WORNPATH_OPS` sets the number of operations per run (a release run does twenty million in all).

#![cfg(not(any(loom, shuttle)))]

mod expectations;
mod streams;
mod world;

use std::env;

/// Operations per run, and the seeds of the runs.
fn plan() -> (usize, std::ops::Range<u64>) {
    let number =
        |name, default| env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default);
    let operations = number("WORNPATH_OPS", 20_000);
    let seeds = number("WORNPATH_SEEDS", 6) as u64;
    (operations, 0..seeds)
}

#[test]
fn any_stream_of_events_gives_the_answers_of_a_naive_scan() {
    let (operations, seeds) = plan();
    for seed in seeds {
        streams::run(seed, operations);
    }
}

#[test]
fn expectations_count_until_they_are_confirmed_or_expire() {
    let (operations, seeds) = plan();
    for seed in seeds {
        expectations::run(seed, operations);
    }
}
