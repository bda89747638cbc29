//! Tests of decisions as a whole, against a real index.

use std::time::Duration;
use wornpath_index::Moment;

use wornpath_index::{Location, PodId, Tier};

use super::*;
use crate::fleet::{PodFacts, Reservation};
use crate::name::{Name, Role};
use crate::plan::{CacheHint, CacheRun, Mutation, RoutingPlan, Start};
use crate::request::Request;
use crate::rng::Rng;
use crate::testing::{BLOCK, TestBench};
use crate::transfer::Transfer;

mod given_away;
mod speculative;

const CACHE_AFFINITY: &str = "\
prepare: [tokenize, block_hash]
filter: [healthy]
score:
  - cache_affinity: {weight: 2}
  - least_load
pick: max_score
";

const PREFILL_DECODE: &str = "\
prepare: [tokenize, block_hash]
selectors:
  prefill:
    score: [cache_affinity]
    pick: max_score
  decode:
    score:
      - locality: {step: prefill}
    pick: max_score
workflow:
  prefill_decode:
    min_uncached_tokens: 8
    prefill: {then: skip, deadline: 20s, lease: 30s, attempts: 2}
";

fn prompt(seed: u32, blocks: usize) -> Vec<u32> {
    (0..(blocks * BLOCK) as u32).map(|token| seed * 1_000_000 + token).collect()
}

/// Two prefill pods and two decode pods; `p2` stands beside `p0`, `p3` beside `p1`.
fn two_by_two() -> TestBench {
    TestBench::with(4, |at, facts: &mut PodFacts| {
        facts.roles = vec![Role::named(if at < 2 { Role::PREFILL } else { Role::DECODE })];
        facts.topology.host = Some(["h0", "h1"][at % 2].into());
    })
}

fn names(bench: &TestBench, pods: impl IntoIterator<Item = PodId>) -> Vec<String> {
    let name = |pod| bench.fleet[bench.fleet.find(pod).unwrap()].facts().name.to_string();
    pods.into_iter().map(name).collect()
}

#[test]
fn a_request_goes_where_its_prefix_is_and_the_plan_says_what_is_held_on_which_tier() {
    let mut bench = TestBench::with_pods(4);
    let tokens = prompt(1, 4);
    bench.cache(2, &tokens[..8], Tier::Gpu);
    bench.cache(3, &tokens[..4], Tier::Gpu);
    let profile = bench.profile(CACHE_AFFINITY);
    let plan = bench.plan(&profile, TestBench::request(&tokens));
    let step = &plan.steps[0];
    assert_eq!(names(&bench, step.pod), ["p2"]);
    assert_eq!(names(&bench, step.fallbacks.clone())[0], "p3", "the next best holds some of it");
    let run = CacheRun { blocks: 2, tier: Tier::Gpu, location: None::<Location> };
    assert_eq!(
        step.cache,
        CacheHint { tokens: 8, unique_tokens: 4, runs: vec![run], speculative: None, best: None }
    );
    assert_eq!(bench.pod(2).state().prefill_tokens(), 8, "what is not cached is pending");
    drop(plan);
    assert_eq!(bench.pod(2).state().prefill_tokens(), 0);
    assert_eq!(bench.pod(2).state().requests(), 0);
}

#[test]
fn the_plan_says_on_which_tier_each_run_of_blocks_begins_where() {
    let mut bench = TestBench::with_pods(1);
    let tokens = prompt(1, 3);
    let places = [7_u64, 8, 9].map(|offset| Location { offset, length: 64, device: 2 });
    bench.cache_at(0, &tokens, Tier::Disk, &places);
    bench.cache(0, &tokens[..4], Tier::Gpu);
    let profile = bench.profile(CACHE_AFFINITY);
    let plan = bench.plan(&profile, TestBench::request(&tokens));
    let runs = vec![
        CacheRun { blocks: 1, tier: Tier::Gpu, location: None },
        CacheRun { blocks: 2, tier: Tier::Disk, location: Some(places[1]) },
    ];
    assert_eq!(
        plan.steps[0].cache,
        CacheHint { tokens: 8, unique_tokens: 8, runs, speculative: None, best: None },
        "the last token is computed anew"
    );
}

#[test]
fn a_pod_is_told_what_it_is_believed_to_hold_where_the_profile_asks_for_it() {
    let mut bench = TestBench::with_pods(2);
    let tokens = prompt(1, 4);
    bench.cache(1, &tokens[..8], Tier::Host);
    let told = "workflow: {single: {cache_hint: kv_hint}}\n";
    let profile = bench.profile(&format!("{CACHE_AFFINITY}{told}"));
    let plan = bench.plan(&profile, TestBench::request(&tokens));
    let runs = serde_json::json!([{"blocks": 2, "tier": "host", "location": null}]);
    let value = serde_json::json!({"tokens": 8, "runs": runs});
    let expected = [Mutation::Set { field: "kv_hint".to_owned(), value }];
    assert_eq!(plan.steps[0].mutations, expected);
    assert!(profile.printed().contains("cache_hint: kv_hint"), "{}", profile.printed());
}

#[test]
fn a_step_can_be_narrowed_to_pods_that_play_another_role_too() {
    let mut bench = TestBench::with(3, |at, facts| {
        let more = ["prefill", "decode", "serve"][at];
        facts.roles = [Role::SERVE, more].map(Role::named).to_vec();
    });
    let profile = bench.profile("filter: [role: {any_of: [decode]}]\npick: round_robin\n");
    for _ in 0..3 {
        assert_eq!(bench.chosen(&profile, TestBench::request(&[])), 1);
    }
    let dropped = bench.kept("role: {any_of: [decode]}", TestBench::request(&[]));
    assert_eq!(dropped[0], Err("has roles serve, prefill; needs one of decode".to_owned()));
}

#[test]
fn a_request_waits_no_longer_than_it_says_itself() {
    let mut bench = TestBench::with_pods(1);
    let _busy = Reservation::new(bench.pod(0).state(), 0, 0);
    let profile = bench.profile(
        "prepare: [attributes: {headers: [deadline_ms=x-deadline-ms]}]\npick: max_score\n\
         hold: {unless: [concurrency: {requests: 1}], deadline: 30s, order: deadline}\n",
    );
    let mut deadline = |header: Option<&str>| {
        let mut request = TestBench::request(&[]);
        request.arrival = Moment::from_secs(5);
        request.headers.extend(header.map(|value| ("x-deadline-ms".into(), value.into())));
        match bench.decide(&profile, request) {
            Outcome::Hold(hold) => hold.class.deadline - Duration::from_secs(5),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(deadline(Some("250")), Moment::from_millis(250));
    for says_no_less in [None, Some("3600000"), Some("soon"), Some("-1")] {
        assert_eq!(deadline(says_no_less), Moment::from_secs(30), "{says_no_less:?}");
    }
}

#[test]
fn an_infinite_cost_without_weight_adds_nothing() {
    let mut bench = TestBench::with_pods(1);
    let profile = bench.profile(
        "score:\n  - expression: {cost: '2.0'}\n  - expression: {cost: 1.0 / 0.0, weight: 0}\npick: max_score\n",
    );
    let (_, explanation) = bench.explain(&profile, TestBench::request(&[]));
    let pod = &explanation.steps[0].candidates[0];
    assert_eq!((pod.scores[1], pod.contributions[1]), (f64::INFINITY, 0.0));
    assert_eq!(pod.total, Some(-2.0));
}

#[test]
fn the_chosen_pod_must_have_room_or_the_request_waits_and_is_bound_later() {
    let mut bench = TestBench::with_pods(2);
    let tokens = prompt(1, 4);
    bench.cache(1, &tokens, Tier::Gpu);
    let hold = "hold: {unless: [{concurrency: {requests: 1}}], deadline: 5s}\n";
    let profile = bench.profile(&format!("{CACHE_AFFINITY}{hold}"));
    let busy = bench.plan(&profile, TestBench::request(&tokens));
    let mut request = TestBench::request(&tokens);
    request.arrival = Moment::from_secs(1);
    let mut context = bench.prepared(&profile, request);
    let TestBench { fleet, state, rng, .. } = &mut bench;
    let mut env = DecisionEnv { fleet, state, now: Moment::from_secs(1), rng };
    match profile.decide(&mut context, &mut env) {
        Outcome::Hold(hold) => assert_eq!(hold.deadline(), Moment::from_secs(6)),
        other => panic!("p1 holds it and is busy, p0 must not get it: {other:?}"),
    }
    drop(busy);
    assert!(matches!(profile.decide(&mut context, &mut env), Outcome::Plan(_)));
}

#[test]
fn a_filter_that_drops_every_pod_rejects_holds_or_is_skipped_as_the_profile_says() {
    let mut bench = TestBench::with_pods(1);
    let _load = Reservation::new(bench.pod(0).state(), 1, 1);
    let mut outcome = |on_empty: &str| {
        let yaml = format!(
            "filter: [{{concurrency: {{requests: 1, on_empty: {on_empty}}}}}]\npick: max_score\n"
        );
        let profile = bench.profile(&yaml);
        bench.decide(&profile, TestBench::request(&[]))
    };
    assert!(matches!(outcome("reject"), Outcome::Reject(rejection) if rejection.status == 429));
    assert!(matches!(outcome("hold"), Outcome::Hold(_)));
    match outcome("skip") {
        Outcome::Plan(plan) => assert_eq!(
            plan.marks,
            [Mark::FilterSkipped { step: "serve".into(), filter: "concurrency" }]
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_long_cold_prompt_is_prefilled_beside_the_pod_that_will_decode_it() {
    let mut bench = two_by_two();
    let tokens = prompt(1, 4);
    bench.cache(1, &tokens[..4], Tier::Gpu);
    let profile = bench.profile(PREFILL_DECODE);
    let plan = bench.plan(&profile, TestBench::request(&tokens));
    let [prefill, decode] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(names(&bench, [prefill.pod.unwrap(), decode.pod.unwrap()]), ["p1", "p3"]);
    assert_eq!(
        prefill.mutations,
        [Mutation::PrefillOnly, Mutation::OfferKv(Transfer::named("nixl").unwrap())]
    );
    assert_eq!(decode.mutations, [Mutation::TakeKv(Transfer::named("nixl").unwrap())]);
    assert_eq!((prefill.failure.attempts, prefill.failure.then), (2, AfterFailure::Skip));
    assert_eq!(prefill.lease, Some(Duration::from_secs(30)));
    assert_eq!(bench.pod(1).state().requests(), 1);
    assert_eq!(bench.pod(3).state().requests(), 1);
}

#[test]
fn a_prompt_that_the_decode_pod_mostly_holds_stays_with_one_step() {
    let mut bench = two_by_two();
    let tokens = prompt(1, 4);
    for at in [2, 3] {
        bench.cache(at, &tokens[..12], Tier::Gpu);
    }
    let profile = bench.profile(PREFILL_DECODE);
    let plan = bench.plan(&profile, TestBench::request(&tokens));
    let [decode] = &plan.steps[..] else { panic!("{plan:?}") };
    assert!(decode.mutations.is_empty(), "there is nothing to take over");
    assert_eq!(plan.marks[0].to_string(), "prefill: left out: only 4 tokens are uncached");
    assert_eq!(bench.pod(0).state().requests() + bench.pod(1).state().requests(), 0);
}

#[test]
fn without_a_prefill_pod_the_profile_may_go_on_with_decode_alone() {
    let mut bench = TestBench::with(1, |_, facts| facts.roles = vec![Role::named(Role::DECODE)]);
    let profile = bench.profile(PREFILL_DECODE);
    let plan = bench.plan(&profile, TestBench::request(&prompt(1, 4)));
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.marks[0].to_string(), "prefill: left out: no pod can serve it");
    let strict = bench.profile(&PREFILL_DECODE.replace("then: skip", "then: fail"));
    let outcome = bench.decide(&strict, TestBench::request(&prompt(2, 4)));
    assert!(matches!(outcome, Outcome::Reject(rejection) if rejection.status == 503));
}

#[test]
fn concurrent_protocols_start_both_steps_together_and_only_sglangs_prefill_is_not_cut_short() {
    for (transfer, only) in [
        (Transfer::named("bootstrap").unwrap(), None),
        (Transfer::named("mooncake").unwrap(), Some(Mutation::PrefillOnly)),
    ] {
        let mut bench = two_by_two();
        let transfers = format!("transfer: {}", transfer.word());
        let yaml = PREFILL_DECODE.replace("min_uncached_tokens: 8", &transfers);
        let yaml = yaml.replace("prefill: {", "prefill: {min_uncached_tokens: 1, ");
        let profile = bench.profile(&yaml);
        let plan = bench.plan(&profile, TestBench::request(&prompt(1, 4)));
        assert_eq!(plan.steps[1].start, Start::Together);
        let told: Vec<_> = only.into_iter().chain([Mutation::OfferKv(transfer)]).collect();
        assert_eq!(plan.steps[0].mutations, told);
    }
}

#[test]
fn several_prompts_stay_with_one_step_because_one_hand_over_cannot_be_for_all() {
    let mut bench = two_by_two();
    let profile = bench.profile(PREFILL_DECODE);
    let request = Request { has_prompt_list: true, ..TestBench::request(&prompt(1, 4)) };
    let plan = bench.plan(&profile, request);
    let [decode] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!((decode.name.as_str(), &decode.mutations[..]), ("decode", &[][..]));
    assert_eq!(
        plan.marks[0].to_string(),
        "prefill: left out: it cannot transfer the KV of several prompts"
    );
}

#[test]
fn any_number_of_steps_comes_from_yaml_alone_and_late_ones_are_bound_when_they_start() {
    let mut bench = TestBench::with(6, |at, facts| {
        facts.roles = vec![Role::named(["preprocess", "prefill", "decode"][at / 2])];
        facts.topology.host = Some(["h0", "h1"][at % 2].into());
    });
    let profile = bench.profile(
        "prepare: [tokenize, block_hash]
selectors:
  any: {pick: max_score}
  near: {score: [{locality: {step: prefill}}], pick: max_score}
workflow:
  steps:
    - preprocess: {selector: any, set: {stream: false, mode: draft}}
    - prefill: {selector: any, prefill_only: true, offers: nixl}
    - decode: {selector: near, takes: nixl, bind: late}
",
    );
    let request = TestBench::request(&prompt(1, 4));
    let mut context = bench.prepared(&profile, request);
    let TestBench { fleet, state, rng, .. } = &mut bench;
    let mut env = DecisionEnv { fleet, state, now: Moment::ZERO, rng };
    let Outcome::Plan(plan) = profile.decide(&mut context, &mut env) else { panic!() };
    let pods: Vec<_> = plan.steps.iter().map(|step| step.pod).collect();
    assert!(pods[0].is_some() && pods[1].is_some() && pods[2].is_none());
    assert_eq!(
        plan.steps[0].mutations,
        [
            Mutation::Set { field: "stream".into(), value: false.into() },
            Mutation::Set { field: "mode".into(), value: "draft".into() },
        ]
    );
    let retry = Retry { step: Some(&plan.steps[2].name), excluded: &[] };
    let Outcome::Plan(late) = profile.replan(&mut context, &mut env, retry) else { panic!() };
    let host = |pod| fleet[fleet.find(pod).unwrap()].facts().topology.host.clone();
    assert_eq!(late.steps.len(), 1);
    assert_eq!(host(late.steps[0].pod.unwrap()), host(pods[1].unwrap()), "beside the prefill pod");
    assert_eq!(late.steps[0].mutations, [Mutation::TakeKv(Transfer::named("nixl").unwrap())]);
}

#[test]
fn after_a_failure_the_failed_pods_are_not_chosen_again() {
    let mut bench = TestBench::with_pods(3);
    let profile = bench.profile("pick: max_score\n");
    let mut context = bench.prepared(&profile, TestBench::request(&[1]));
    let TestBench { fleet, state, rng, .. } = &mut bench;
    let mut env = DecisionEnv { fleet, state, now: Moment::ZERO, rng };
    let mut excluded = Vec::new();
    for _ in 0..3 {
        let retry = Retry { step: None, excluded: &excluded };
        let Outcome::Plan(plan) = profile.replan(&mut context, &mut env, retry) else { panic!() };
        let pod = plan.steps[0].pod.unwrap();
        assert!(!excluded.contains(&pod) && !plan.steps[0].fallbacks.contains(&pod));
        excluded.push(pod);
    }
    let retry = Retry { step: None, excluded: &excluded };
    let outcome = profile.replan(&mut context, &mut env, retry);
    assert!(matches!(outcome, Outcome::Reject(rejection) if rejection.status == 503));
}

/// Two hundred requests of ten prefixes on a fleet whose load changes as they come and go.
fn transcript(seed: u64, yaml: &str) -> String {
    let mut bench = TestBench::with_pods(7);
    bench.rng = Rng::new(seed);
    let profile = bench.profile(yaml);
    let mut running = std::collections::VecDeque::new();
    let mut transcript = String::new();
    for number in 0..200_u32 {
        bench.now = Moment::from_millis(u64::from(number) * 10);
        let plan = bench.plan(&profile, TestBench::request(&prompt(number % 10, 6)));
        let name = |pod| names(&bench, [pod]).remove(0);
        transcript.push_str(&plan.to_json(name).to_string());
        running.push_back(plan);
        if running.len() > 12 {
            running.pop_front();
        }
    }
    transcript
}

#[test]
fn the_same_seed_fleet_and_requests_give_the_same_plans_byte_for_byte() {
    let weighted = CACHE_AFFINITY.replace("pick: max_score", "pick: weighted_random");
    for yaml in [CACHE_AFFINITY, &weighted, "score: [least_load]\npick: power_of_two\n"] {
        assert_eq!(transcript(3, yaml), transcript(3, yaml));
        assert_ne!(transcript(3, yaml), transcript(4, yaml), "chance plays a part");
    }
}

#[test]
fn an_explanation_adds_up_and_changes_nothing() {
    let tokens = prompt(1, 4);
    let env = || {
        let bench = TestBench::with_pods(5);
        bench.cache(2, &tokens[..8], Tier::Gpu);
        bench.pod(4).state().set_health(crate::fleet::Health::Down);
        bench
    };
    let mut plain = env();
    let mut explained = env();
    let load = [plain.pod(1), explained.pod(1)].map(|pod| Reservation::new(pod.state(), 9, 9));
    let profile = plain.profile(CACHE_AFFINITY);
    let plan = plain.plan(&profile, TestBench::request(&tokens));
    let (outcome, explanation) = explained.explain(&profile, TestBench::request(&tokens));
    let Outcome::Plan(same) = outcome else { panic!() };
    let json =
        |plan: &RoutingPlan, bench: &TestBench| plan.to_json(|pod| names(bench, [pod]).remove(0));
    assert_eq!(json(&plan, &plain), json(&same, &explained));
    let step = &explanation.steps[0];
    assert_eq!(step.candidates[4].dropped, Some(("healthy", "down".to_owned())));
    for pod in &step.candidates[..4] {
        assert_eq!(pod.contributions.iter().sum::<f64>(), pod.total.unwrap());
        assert_eq!(pod.contributions[0], 2.0 * pod.scores[0]);
    }
    assert_eq!((step.candidates[2].blocks, step.candidates[2].scores[0]), (2, 0.5));
    assert_eq!(step.pick.as_ref().unwrap().ties, 1);
    assert_eq!(explanation.prepare.len(), 2);
    drop(load);
}

#[test]
#[should_panic(expected = "the context was made by another profile")]
fn a_context_of_another_profile_is_refused() {
    let mut bench = TestBench::with_pods(1);
    let one = bench.profile("pick: max_score\n");
    let other = bench.profile("pick: max_score\n");
    let mut context = bench.prepared(&one, TestBench::request(&[]));
    let TestBench { fleet, state, rng, .. } = &mut bench;
    other.decide(&mut context, &mut DecisionEnv { fleet, state, now: Moment::ZERO, rng });
}

#[test]
fn contexts_are_reused_without_a_trace_of_the_last_request() {
    let mut bench = TestBench::with_pods(2);
    let tokens = prompt(1, 4);
    bench.cache(1, &tokens, Tier::Gpu);
    let profile = bench.profile(CACHE_AFFINITY);
    let mut context = bench.prepared(&profile, TestBench::request(&tokens));
    let last = context.reuse(Request { ..TestBench::request(&prompt(2, 1)) });
    assert_eq!(last, TestBench::request(&tokens));
    profile.prepare(&mut context).unwrap();
    let TestBench { fleet, state, rng, .. } = &mut bench;
    let mut env = DecisionEnv { fleet, state, now: Moment::ZERO, rng };
    let Outcome::Plan(plan) = profile.decide(&mut context, &mut env) else { panic!() };
    assert_eq!(plan.steps[0].cache, CacheHint::default());
}

/// No plugin asks what pods hold; the workflow does.
const BLIND: &str = "\
prepare: [tokenize, block_hash]
selectors:
  prefill: {filter: [healthy], pick: max_score}
  decode: {filter: [healthy], pick: max_score}
workflow:
  prefill_decode: {min_uncached_tokens: 8}
speculate: off
";

#[test]
fn a_step_is_left_out_by_what_is_held_although_no_plugin_asks() {
    let mut bench = two_by_two();
    let tokens = prompt(1, 4);
    bench.cache(2, &tokens, Tier::Gpu);
    bench.cache(3, &tokens, Tier::Gpu);
    let profile = bench.profile(BLIND);
    let plan = bench.plan(&profile, TestBench::request(&tokens));
    let steps: Vec<_> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(steps, ["decode"]);
    assert_eq!(plan.steps[0].cache.tokens, 12, "the last block is computed anew");
    let cold = bench.plan(&profile, TestBench::request(&prompt(2, 4)));
    assert_eq!(cold.steps.len(), 2);
}

#[test]
fn a_needless_step_without_candidates_does_not_reject_the_request() {
    let mut bench = two_by_two();
    let tokens = prompt(1, 4);
    for at in 0..2 {
        bench.pod(at).state().set_health(crate::fleet::Health::Down);
        bench.cache(at + 2, &tokens, Tier::Gpu);
    }
    let profile = bench.profile(BLIND);
    let plan = bench.plan(&profile, TestBench::request(&tokens));
    assert_eq!(plan.steps.len(), 1, "decode alone: {plan:?}");
    match bench.decide(&profile, TestBench::request(&prompt(2, 4))) {
        Outcome::Reject(rejection) => assert_eq!(rejection.status, 503, "prefill is needed"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_explanation_names_the_filter_that_makes_a_request_wait() {
    let mut bench = TestBench::with_pods(1);
    let _load = Reservation::new(bench.pod(0).state(), 1, 1);
    let judged = "pick: max_score\nhold: {unless: [healthy, {concurrency: {requests: 1}}]}\n";
    let profile = bench.profile(judged);
    let (outcome, explanation) = bench.explain(&profile, TestBench::request(&[]));
    assert!(matches!(outcome, Outcome::Hold(_)));
    let said: Vec<_> =
        explanation.hold.iter().map(|judge| (judge.name, judge.objection.is_some())).collect();
    assert_eq!(said, [("healthy", false), ("concurrency", true)]);
    let shown = explanation.to_string();
    assert!(shown.contains("hold unless concurrency: the request waits, because p0"), "{shown}");
    assert_eq!(explanation.to_json()["hold"][1]["name"], "concurrency");

    let emptied = "filter: [{concurrency: {requests: 1, on_empty: hold}}]\npick: max_score\n";
    let profile = bench.profile(emptied);
    let (outcome, explanation) = bench.explain(&profile, TestBench::request(&[]));
    assert!(matches!(outcome, Outcome::Hold(_)));
    let shown = explanation.to_string();
    assert!(shown.contains("filter concurrency: dropped 1, no pod left: the request waits"));
    assert_eq!(explanation.to_json()["steps"][0]["filters"][0]["on_empty"], "hold");
}

#[test]
fn a_tenant_waits_with_the_share_that_the_profile_gives_it() {
    let mut bench = TestBench::with_pods(1);
    let _load = Reservation::new(bench.pod(0).state(), 1, 1);
    let hold = "hold: {unless: [{concurrency: {requests: 1}}], shares: {acme: 3}}";
    let profile = bench.profile(&format!("pick: max_score\n{hold}\n"));
    for (tenant, share) in [(Some("acme"), 3), (Some("other"), 1), (None, 1)] {
        let request = Request { tenant: tenant.map(Name::from), ..TestBench::request(&[]) };
        let Outcome::Hold(hold) = bench.decide(&profile, request) else { panic!() };
        assert_eq!(hold.class.weight, share, "{tenant:?}");
    }
}

#[test]
fn hold_concerns_whole_requests_and_a_filter_that_holds_also_single_steps() {
    let mut bench = TestBench::with_pods(1);
    let _load = Reservation::new(bench.pod(0).state(), 1, 1);
    let mut again = |yaml: &str| {
        let profile = bench.profile(yaml);
        let mut context = bench.prepared(&profile, TestBench::request(&[]));
        let TestBench { fleet, state, rng, .. } = &mut bench;
        let mut env = DecisionEnv { fleet, state, now: Moment::ZERO, rng };
        let step = Name::from("serve");
        profile.replan(&mut context, &mut env, Retry { step: Some(&step), excluded: &[] })
    };
    let room = "concurrency: {requests: 1";
    let judged = again(&format!("pick: max_score\nhold: {{unless: [{{{room}}}}}]}}\n"));
    assert!(matches!(judged, Outcome::Plan(_)), "{judged:?}");
    let emptied = again(&format!("filter: [{{{room}, on_empty: hold}}}}]\npick: max_score\n"));
    assert!(matches!(emptied, Outcome::Hold(_)), "{emptied:?}");
}

#[test]
fn the_graph_as_data_has_every_slot_that_the_drawing_has() {
    let bench = two_by_two();
    let hold = "hold: {unless: [{kv_headroom: {}}]}\n";
    let profile = bench.profile(&format!("{PREFILL_DECODE}{hold}"));
    let graph = profile.graph().to_json();
    let picker = graph["steps"][0]["plugins"].as_array().unwrap().last().unwrap();
    assert_eq!(picker["writes"], serde_json::json!(["Picked(prefill)"]));
    assert_eq!(graph["hold"][0]["reads"], serde_json::json!(["BlockHashes"]));
    let drawn = profile.graph().to_string();
    assert!(drawn.contains("locality × 1") && drawn.contains("← Picked(prefill)"), "{drawn}");
    assert!(drawn.contains("→ Picked(decode)"), "{drawn}");
    assert!(drawn.contains("hold unless the chosen pod passes\n  filter  kv_headroom"), "{drawn}");
}
