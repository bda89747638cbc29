//! The index against the naive model, by random operations from printed seeds.
//!
//! `WORNPATH_OPS` sets the number of operations per run (a release run does twenty million in all),
//! and `WORNPATH_GENERATIONS` how often the content of a full cache is replaced.

mod churn;
mod speculative;
mod streams;
mod world;

use std::env;

/// The number in an environment variable, or the default.
fn number(name: &str, default: usize) -> usize {
    env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Operations per run, and the seeds of the runs.
fn plan() -> (usize, std::ops::Range<u64>) {
    let operations = number("WORNPATH_OPS", 20_000);
    let seeds = number("WORNPATH_SEEDS", 6) as u64;
    (operations, 0..seeds)
}

#[test]
fn lookups_after_any_stream_of_events_equal_a_naive_scan() {
    let (operations, seeds) = plan();
    for seed in seeds {
        streams::run(seed, operations);
    }
}

#[test]
fn speculative_blocks_count_until_they_are_confirmed_or_expire() {
    let (operations, seeds) = plan();
    for seed in seeds {
        speculative::run(seed, operations);
    }
}

#[test]
fn full_caches_of_every_number_of_blocks_up_to_5000_take_few_steps_per_block() {
    let is_thorough = std::env::var_os("WORNPATH_THOROUGH").is_some();
    churn::run(1..=5_000, number("WORNPATH_GENERATIONS", if is_thorough { 5 } else { 2 }));
}

/// At these sizes, a few percent below a growth of the alias table, the table once lost its bound.
#[test]
fn full_caches_just_below_a_growth_take_few_steps_per_block_after_500_generations() {
    let sizes = [26, 50, 52, 104, 105, 188, 195, 196, 340, 354, 630, 1115, 1850, 1955];
    churn::run(sizes.into_iter(), number("WORNPATH_GENERATIONS", 500));
}
