//! Whether the cached prefix of a plan rests on blocks that no event has confirmed yet.

use wornpath_index::Tier;

use super::{CACHE_AFFINITY, prompt};
use crate::fleet::EventTrust;
use crate::plan::CacheHint;
use crate::testing::TestBench;

#[test]
fn a_plan_says_that_what_it_found_is_speculative_until_events_confirm_it() {
    let mut bench = TestBench::with_pods(1);
    let profile = bench.profile(CACHE_AFFINITY);
    let tokens = prompt(1, 4);
    let asked = [&tokens[..], &[1]].concat();
    let pod = bench.fleet.pods()[0].id();
    let found = |bench: &mut TestBench| {
        let mut plan = bench.plan(&profile, TestBench::request(&asked));
        std::mem::take(&mut plan.steps[0].cache)
    };
    assert_eq!(found(&mut bench), CacheHint::default(), "nothing was sent there yet");
    let CacheHint { tokens: expected, speculative, .. } = found(&mut bench);
    let last = speculative.unwrap();
    assert_eq!(expected, 16);
    assert!(!bench.desk.is_confirmed(pod, last));

    bench.cache(0, &tokens[..8], Tier::Gpu);
    assert_eq!(found(&mut bench).speculative, Some(last), "half of it is");
    assert!(!bench.desk.is_confirmed(pod, last));

    bench.cache(0, &tokens, Tier::Gpu);
    assert!(bench.desk.is_confirmed(pod, last), "also for who was sent there before");
    let CacheHint { tokens: real, speculative, .. } = found(&mut bench);
    assert_eq!((real, speculative), (16, None));

    bench.pod(0).vitals().set_trust(EventTrust::Guessed);
    let other = [&prompt(2, 4)[..], &[1]].concat();
    bench.plan(&profile, TestBench::request(&other));
    let plan = bench.plan(&profile, TestBench::request(&other));
    assert_eq!((plan.steps[0].cache.tokens, plan.steps[0].cache.speculative), (16, None));
}

#[test]
fn a_prefix_is_not_speculative_for_a_block_that_is_computed_anyway() {
    let mut bench = TestBench::with_pods(1);
    let profile = bench.profile(CACHE_AFFINITY);
    let tokens = prompt(1, 4);
    bench.cache(0, &tokens[..12], Tier::Gpu);
    bench.plan(&profile, TestBench::request(&tokens));
    let plan = bench.plan(&profile, TestBench::request(&tokens));
    assert_eq!((plan.steps[0].cache.tokens, plan.steps[0].cache.speculative), (12, None));
}
