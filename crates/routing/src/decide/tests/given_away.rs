//! What plans give away, and decisions without effects.

use super::*;
use crate::decision_state::DecisionState;
use crate::fleet::Health;
use crate::plan::PassedOver;
use crate::request::AllowedPods;

const BY_LOAD: &str = "\
prepare: [tokenize, block_hash]
filter:
  - healthy
  - model
  - concurrency: {requests: 2, on_empty: hold}
score:
  - least_load
  - cache_affinity: {weight: 0.01}
pick: max_score
";

/// What the plan of the prompt gives away: the pod, the tokens, and the reason.
fn given_away(bench: &mut TestBench, request: Request) -> Option<(String, u64, PassedOver)> {
    let profile = bench.profile(BY_LOAD);
    let best = bench.plan(&profile, request).steps[0].cache.best?;
    Some((names(bench, [best.pod]).remove(0), best.tokens, best.why))
}

#[test]
fn a_plan_names_the_pod_with_the_most_cached_tokens_and_why_it_was_passed_over() {
    let mut bench = TestBench::with_pods(3);
    // Otherwise the first plan lets the index expect the prompt on its pod.
    bench.state = DecisionState::rehearsing(&bench.index);
    let tokens = prompt(1, 4);
    bench.cache(0, &tokens[..12], Tier::Gpu);
    bench.cache(1, &tokens[..4], Tier::Gpu);
    let request = || TestBench::request(&tokens);
    assert_eq!(given_away(&mut bench, request()), None, "the first pod is idle and holds most");

    let busy = Reservation::new(bench.pod(0).state(), 100, 100);
    let expected = |why| Some(("p0".to_owned(), 12, why));
    assert_eq!(given_away(&mut bench, request()), expected(PassedOver::Load));
    let full = Reservation::new(bench.pod(0).state(), 100, 100);
    assert_eq!(given_away(&mut bench, request()), expected(PassedOver::Hold));
    drop((busy, full));

    bench.pod(0).state().set_health(Health::Down);
    assert_eq!(given_away(&mut bench, request()), expected(PassedOver::Health));
    bench.pod(0).state().set_health(Health::Up);

    let allowed = Some(AllowedPods::These([bench.pod(1).id()].into()));
    let subset = Request { allowed, ..request() };
    assert_eq!(given_away(&mut bench, subset), expected(PassedOver::Subset));

    let profile = bench.profile(BY_LOAD);
    let mut context = bench.prepared(&profile, request());
    let excluded = [bench.pod(0).id()];
    let TestBench { fleet, state, rng, now, .. } = &mut bench;
    let mut env = DecisionEnv { fleet, state, now: *now, rng };
    let retry = Retry { step: None, excluded: &excluded };
    let Outcome::Plan(plan) = profile.replan(&mut context, &mut env, retry) else { panic!() };
    assert_eq!(plan.steps[0].cache.best.map(|best| best.why), Some(PassedOver::Excluded));
}

#[test]
fn a_pod_of_another_role_gives_away_by_its_role_and_one_of_another_model_nothing() {
    let mut bench = TestBench::with(3, |at, facts| match at {
        0 => facts.roles = vec![Role::named(Role::DECODE)],
        1 => facts.models = vec!["other".into()],
        _ => {}
    });
    let tokens = prompt(1, 4);
    bench.cache(0, &tokens[..8], Tier::Gpu);
    bench.cache(1, &tokens, Tier::Gpu);
    let given_away = given_away(&mut bench, TestBench::request(&tokens));
    assert_eq!(given_away, Some(("p0".to_owned(), 8, PassedOver::Role)));
}

#[test]
fn a_rehearsed_decision_reserves_no_load_and_inserts_nothing() {
    let mut bench = TestBench::with_pods(2);
    let tokens = prompt(1, 4);
    let profile = bench.profile(CACHE_AFFINITY);
    let mut context = bench.prepared(&profile, TestBench::request(&tokens));
    let mut rehearsing = DecisionState::rehearsing(&bench.index);
    let TestBench { fleet, rng, now, .. } = &mut bench;
    let mut env = DecisionEnv { fleet, state: &mut rehearsing, now: *now, rng };
    let Outcome::Plan(plan) = profile.decide(&mut context, &mut env) else { panic!() };
    let step = &plan.steps[0];
    assert!(step.pod.is_some() && step.reservation.is_none() && !step.is_expected);
    assert!(rehearsing.take_pending().is_none());
    assert_eq!(bench.pod(0).state().requests() + bench.pod(1).state().requests(), 0);
}

#[test]
fn a_survey_has_the_cached_tokens_and_the_predicted_first_token_of_every_pod() {
    let mut bench = TestBench::with_pods(2);
    let tokens = prompt(1, 4);
    bench.cache(1, &tokens, Tier::Gpu);
    let profile = bench
        .profile("prepare: [tokenize, block_hash]\nscore: [predicted_ttft]\npick: max_score\n");
    let mut context = bench.prepared(&profile, TestBench::request(&tokens));
    let TestBench { fleet, state, rng, now, .. } = &mut bench;
    let found = profile.survey(&mut context, &mut DecisionEnv { fleet, state, now: *now, rng });
    let cached: Vec<_> = found.iter().map(|pod| pod.cached_tokens).collect();
    assert_eq!(cached, [Some(0), Some(12)], "the last token is computed anew");
    assert!(found[1].first_token.unwrap() < found[0].first_token.unwrap());
}
