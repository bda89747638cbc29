//! Speculative inserts: who sees them, how long they last, and which plans rest on them.

use wornpath_index::Moment;

use wornpath_index::Tier;

use super::{CACHE_AFFINITY, prompt};
use crate::decision_state::DecisionState;
use crate::fleet::EventTrust;
use crate::plan::CacheHint;
use crate::rng::Rng;
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
    assert!(!bench.state.is_confirmed(pod, last));

    bench.cache(0, &tokens[..8], Tier::Gpu);
    assert_eq!(found(&mut bench).speculative, Some(last), "half of it is");
    assert!(!bench.state.is_confirmed(pod, last));

    bench.cache(0, &tokens, Tier::Gpu);
    assert!(bench.state.is_confirmed(pod, last), "also for who was sent there before");
    let CacheHint { tokens: real, speculative, .. } = found(&mut bench);
    assert_eq!((real, speculative), (16, None));

    bench.pod(0).state().set_trust(EventTrust::Guessed);
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

#[test]
fn a_burst_with_one_new_prefix_follows_its_first_request_until_the_insert_expires() {
    let mut bench = TestBench::with_pods(8);
    let profile = bench.profile(&format!("{CACHE_AFFINITY}speculate: 2s\n"));
    let first = bench.chosen(&profile, TestBench::request(&prompt(1, 8)));
    for _ in 0..20 {
        assert_eq!(bench.chosen(&profile, TestBench::request(&prompt(1, 8))), first);
    }
    bench.state.expire(Moment::from_secs(3));
    let answer = {
        let mut answer = wornpath_index::Depths::default();
        let context = bench.prepared(&profile, TestBench::request(&prompt(1, 8)));
        let blocks = context.slots.read(profile.blocks.as_ref().unwrap()).unwrap();
        bench.index.reader().lookup(&blocks.chain, &mut answer);
        answer
    };
    assert!(answer.deepest().is_none(), "no event confirmed it");
}

#[test]
fn other_threads_see_an_insert_once_it_is_committed() {
    let mut bench = TestBench::with_pods(8);
    let profile = bench.profile(CACHE_AFFINITY);
    let first = bench.chosen(&profile, TestBench::request(&prompt(1, 8)));
    bench.state.commit_pending();
    bench.state = DecisionState::new(&bench.index);
    assert_eq!(bench.chosen(&profile, TestBench::request(&prompt(1, 8))), first);
}

#[test]
fn of_two_concurrent_decisions_the_later_commit_loses_the_race_and_follows() {
    for seed in 0..20 {
        let mut bench = TestBench::with_pods(8);
        let profile = bench.profile(CACHE_AFFINITY);
        let mut other = TestBench { rng: Rng::new(seed), ..TestBench::with_pods(8) };
        other.state = DecisionState::new(&bench.index);
        let first = bench.chosen(&profile, TestBench::request(&prompt(1, 8)));
        let mut longer = prompt(1, 8);
        let mut elsewhere = prompt(2, 8);
        longer.extend(prompt(3, 2));
        other.chosen(&profile, TestBench::request(&longer));
        let one = bench.state.take_pending().unwrap();
        let another = other.state.take_pending().unwrap();
        assert_eq!(one.first_missing(), another.first_missing());
        assert!(!bench.state.has_lost_race(&one));
        bench.state.commit(one);
        assert!(other.state.has_lost_race(&another), "wherever it would go");
        assert_eq!(other.chosen(&profile, TestBench::request(&longer)), first);
        let following = other.state.take_pending().unwrap();
        assert!(!other.state.has_lost_race(&following));
        following.commit(&bench.index);
        elsewhere.truncate(longer.len());
        other.chosen(&profile, TestBench::request(&elsewhere));
        bench.chosen(&profile, TestBench::request(&longer));
        let elsewhere = other.state.take_pending().unwrap();
        assert!(!other.state.has_lost_race(&elsewhere), "another prefix is no race");
    }
}

#[test]
fn without_speculation_nothing_is_inserted() {
    let mut bench = TestBench::with_pods(8);
    let profile = bench.profile(&format!("{CACHE_AFFINITY}speculate: off\n"));
    bench.plan(&profile, TestBench::request(&prompt(1, 8)));
    bench.state.commit_pending();
    assert_eq!(bench.index.stats().blocks, 0);
}

#[test]
fn an_insert_that_is_dropped_never_reaches_the_index_and_a_committed_one_can_be_rolled_back() {
    let mut bench = TestBench::with_pods(1);
    let profile = bench.profile(CACHE_AFFINITY);
    let pod = bench.pod(0).id();
    let request = TestBench::request(&prompt(1, 4));
    let context = bench.prepared(&profile, request.clone());
    let chain = profile.prompt_blocks(&context).unwrap().chain.clone();

    bench.plan(&profile, request.clone());
    drop(bench.state.take_pending().unwrap());
    assert_eq!(bench.index.stats().blocks, 0);

    bench.plan(&profile, request);
    let insert = bench.state.take_pending().unwrap();
    assert!(bench.state.take_pending().is_none());
    bench.state.commit(insert);
    assert_eq!(bench.index.stats().blocks, chain.len());

    bench.state.committed(pod, &chain).rollback(&bench.index);
    assert_eq!(bench.index.stats().blocks, 0);
}
