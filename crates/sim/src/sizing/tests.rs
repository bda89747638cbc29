//! A sizing agrees with trying everything.

use super::*;
use std::fmt::Write;
use std::num::NonZeroUsize;
use wornpath_routing::Rng;

const CACHE_AWARE: ProfileText<'_> = ProfileText {
    name: "cache-aware",
    yaml: include_str!("../../../../profiles/cache-aware.yaml"),
};
const MOST: usize = 6;

/// Requests at random times, with a few shared prefixes.
fn traffic(seed: u64) -> Trace {
    let mut rng = Rng::new(seed);
    let mut text = String::new();
    for number in 0..60_u64 {
        let time = rng.below(4_000);
        let family = rng.below(4) as u64;
        let shared = (0..8).map(|block| 100 * family + block);
        let own = (0..1 + rng.below(24) as u64).map(|block| 10_000 + 100 * number + block);
        let ids: Vec<u64> = shared.chain(own).collect();
        let length = 512 * ids.len();
        let output = 1 + rng.below(80);
        writeln!(
            text,
            "{{\"timestamp\": {time}, \"input_length\": {length}, \"output_length\": {output}, \"hash_ids\": {ids:?}}}"
        )
        .unwrap();
    }
    Trace::read("generated", &text, NonZeroUsize::new(512).unwrap()).unwrap()
}

fn sizing(seed: u64, objectives: &[&str]) -> Sizing<'static> {
    Sizing {
        runs: vec![traffic(seed), traffic(seed).jittered(Duration::from_secs(1), seed)],
        profile: CACHE_AWARE,
        engine: EngineProfile::built_in("8b-h200").unwrap(),
        objectives: objectives.iter().map(|text| text.parse().unwrap()).collect(),
    }
}

#[test]
fn the_search_finds_what_trying_every_count_finds() {
    let mut answers = Vec::new();
    for seed in 1..=4 {
        for objectives in [
            &["p95 ttft 400ms"][..],
            &["p95 ttft 800ms", "p99 tpot 30ms"],
            &["p100 ttft 1500ms"],
            &["p50 ttft 10ms"],
        ] {
            let sizing = sizing(seed, objectives);
            let size = |pods| FleetSize { pods, kv_tokens: sizing.engine.kv_tokens() };
            let figures = |pods| {
                sizing.measure(size(pods), Effort::Whole, &mut |_| {}).unwrap().figures.unwrap()
            };
            // By percentiles of whole replays, where the search counts misses until it knows.
            let is_met = |pods: &usize| {
                let values = figures(*pods).values;
                let limits = sizing.objectives.iter().map(Objective::limit);
                values.iter().zip(limits).all(|(value, limit)| value.is_some_and(|it| it <= limit))
            };
            let tried = |effort| {
                let sizing = &sizing;
                move |pods| {
                    let measured = sizing.measure(size(pods), effort, &mut |_| {})?;
                    Ok::<_, Problems>(if measured.is_met { Tried::Met } else { Tried::Missed })
                }
            };
            let mut search = CountSearch::up_to(MOST);
            let found = search.run(tried(Effort::Whole), tried(Effort::Verdict)).unwrap();
            let brute_force = (1..=MOST).find(is_met);
            assert_eq!(found.map(|found| found.least), brute_force, "{seed} {objectives:?}");
            answers.push(brute_force);
        }
    }
    answers.sort_unstable();
    answers.dedup();
    assert!(answers.contains(&None) && answers.len() > 3, "the cases are too alike: {answers:?}");
}

#[test]
fn a_verdict_on_an_overloaded_fleet_is_cheaper_than_its_figures_and_the_same() {
    let sizing = sizing(1, &["p95 ttft 100ms"]);
    let size = FleetSize { pods: 1, kv_tokens: sizing.engine.kv_tokens() };
    let whole = sizing.measure(size, Effort::Whole, &mut |_| {}).unwrap();
    let verdict = sizing.measure(size, Effort::Verdict, &mut |_| {}).unwrap();
    assert!(!whole.is_met && !verdict.is_met);
    assert!((whole.ended - 1.0).abs() < 1e-9 && verdict.ended < 0.5, "{verdict:?}");
    assert!(whole.figures.is_some() && verdict.figures.is_none());
}

#[test]
fn a_failed_request_is_later_than_any_limit() {
    let sizing = sizing(1, &["p100 e2e 1000s", "p50 e2e 1000s"]);
    let size = FleetSize { pods: 2, kv_tokens: 30 * 512 };
    assert!(sizing.longest_request() > size.kv_tokens);
    let measured = sizing.measure(size, Effort::Whole, &mut |_| {}).unwrap();
    let figures = measured.figures.unwrap();
    assert!(!measured.is_met && figures.failures > 0);
    assert!(figures.values[0].is_none() && figures.values[1].is_some(), "{figures:?}");
}
