//! Prefill pods that crash before the decode pod has loaded their KV cache: which pod is blamed,
//! and what follows.

use crate::engine::{ANSWERS, Act, PREFILLS, PREFILLS_AND_DIES};
use crate::world::{Step, World, step};
use crate::{FAILS, MS, policy};
use std::time::Duration;
use wornpath_execution::{BudgetRules, CallError, CallFailure, CallOutcome, RetryBudget};
use wornpath_index::Moment;
use wornpath_routing::{AfterFailure, BreakerState, Mutation, Start, Transfer};

const JSON: &str = "content-type: application/json\r\n";
const EVENTS: &str = "content-type: text/event-stream; charset=utf-8\r\n";

/// The response of vLLM 0.32, verbatim.
const NOT_LOADED: Act = Act::Says(
    500,
    JSON,
    r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#,
);
const LOADS: Act = Act::Loads(&NOT_LOADED);

/// A prefill step on these pods and a decode step on those, as the shipped profile has them.
fn steps(prefill: &[usize], decode: &[usize]) -> [Step; 2] {
    let mut steps = [step("prefill", prefill), step("decode", decode)];
    steps[0].failure = policy(2, AfterFailure::Skip);
    steps[0].mutations = vec![Mutation::OfferKv(Transfer::named("nixl").unwrap())];
    steps[1].failure = policy(2, AfterFailure::Restart);
    steps[1].mutations = vec![Mutation::TakeKv(Transfer::named("nixl").unwrap())];
    steps
}

/// Whether the pod is to be probed by now.
fn is_probed(world: &World, pod: usize) -> bool {
    world.pods[pod].endpoint.tick(Moment::from_secs(3600))
}

fn cause(failure: CallFailure) -> CallError {
    match failure {
        CallFailure::Step { cause, .. } => cause,
        CallFailure::Rejected(rejection) => panic!("{}", rejection.reason),
    }
}

#[tokio::test]
async fn eight_requests_whose_prefill_pod_died_are_answered_and_the_decode_pod_is_not_blamed() {
    let engines: [&[Act]; 3] = [&[PREFILLS_AND_DIES], &[PREFILLS], &[LOADS]];
    let mut world = World::new(&engines, &steps(&[0, 1], &[2])).await;
    let one = || async {
        let response = world.run().await.unwrap();
        (response.answer.head.status.as_u16(), response.retries, response.is_degraded)
    };
    let all = tokio::join!(one(), one(), one(), one(), one(), one(), one(), one());
    let all = [all.0, all.1, all.2, all.3, all.4, all.5, all.6, all.7];
    assert_eq!(all, [(200, 1, false); 8]);
    assert_eq!(world.requests(), [8, 8, 16]);
    assert_eq!(world.pods[2].endpoint.breaker(), (BreakerState::Closed, 0));
    assert!(!is_probed(&world, 2) && !is_probed(&world, 1));
    assert!(is_probed(&world, 0), "it may be dead");
    let prefill = &world.pods[0].endpoint;
    prefill.probed(CallOutcome::Gone, Moment::from_secs(3600));
    assert_eq!(prefill.breaker().0, BreakerState::Open);
    // Another request, which needs no prefill.
    world.steps = vec![step("answer", &[2])];
    assert_eq!(world.whole().await.0, 200);
}

#[tokio::test]
async fn a_stream_that_fails_before_its_first_token_is_retried_too() {
    const ROLE: &str = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"completion_tokens":0}}"#;
    let error = r#"data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}"#;
    let usage = r#"data: {"choices":[],"usage":{"completion_tokens":0}}"#;
    let messages = [
        r#"event: message_start
data: {"type":"message_start","message":{"id":"a","content":[]}}"#,
        r#"event: error
data: {"type":"error","error":{"type":"internal_error","message":"2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required [type=missing, input_value={'error': {'message': 'In...am': None, 'code': 500}}, input_type=dict]"}}"#,
    ];
    let streams = [
        // vLLM 0.32: completions, chats, Anthropic's messages.
        vec![error, "data: [DONE]", ""],
        vec![ROLE, error, "data: [DONE]", ""],
        vec![messages[0], messages[1], ""],
        // vLLM 0.28 and before.
        vec!["data: [DONE]", ""],
        vec![ROLE, usage, "data: [DONE]", ""],
    ];
    for stream in streams {
        let stream: &'static str = stream.join("\n\n").leak();
        let fails: &'static Act = Box::leak(Box::new(Act::Says(200, EVENTS, stream)));
        let loads = Act::Loads(fails);
        let engines: [&[Act]; 3] = [&[PREFILLS_AND_DIES], &[PREFILLS], &[loads]];
        let world = World::new(&engines, &steps(&[0, 1], &[2])).await;
        assert_eq!(world.whole().await, (200, "{}".into()), "{stream}");
        assert_eq!(world.requests(), [1, 1, 2], "{stream}");
        assert!(is_probed(&world, 0) && !is_probed(&world, 2), "{stream}");
    }
}

#[tokio::test]
async fn a_responses_stream_that_ends_before_its_first_token_is_retried_too() {
    // vLLM 0.32 begins the stream before it loads, and closes the connection without an error.
    const BEGUN: Act = Act::Cuts(
        EVENTS,
        "event: response.created\ndata: {\"type\":\"response.created\"}\n\n\
         event: response.in_progress\ndata: {\"type\":\"response.in_progress\"}\n\n",
    );
    let engines: [&[Act]; 3] = [&[PREFILLS_AND_DIES], &[PREFILLS], &[Act::Loads(&BEGUN)]];
    let world = World::new(&engines, &steps(&[0, 1], &[2])).await;
    assert_eq!(world.whole().await.0, 200);
    assert_eq!(world.pods[2].endpoint.breaker(), (BreakerState::Closed, 0));
    assert!(is_probed(&world, 0));
}

#[tokio::test]
async fn of_two_concurrent_steps_the_one_that_cannot_load_is_not_blamed_either() {
    let dies = Act::Says(200, JSON, r#"{"0": {"engine_id": "gone"}}"#);
    let lives = Act::Says(200, JSON, r#"{"0": {"engine_id": "here"}}"#);
    let mut steps = steps(&[0, 1], &[2]);
    steps[0].mutations = vec![Mutation::OfferKv(Transfer::named("mooncake").unwrap())];
    steps[1].mutations = vec![Mutation::TakeKv(Transfer::named("mooncake").unwrap())];
    steps[1].start = Start::Together;
    let world = World::new(&[&[dies], &[lives], &[LOADS]], &steps).await;
    let response = world.run().await.unwrap();
    assert!(response.answer.head.status.is_success() && !response.is_degraded);
    assert_eq!(world.requests()[2], 2);
    assert_eq!(world.pods[2].endpoint.breaker(), (BreakerState::Closed, 0));
    assert!(is_probed(&world, 0) && !is_probed(&world, 1));
}

#[tokio::test]
async fn an_inspected_stream_is_passed_on_byte_for_byte() {
    let token = r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}"#;
    let other = r#"data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}"#;
    let role =
        r#"data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
    let ended = r#"data: {"choices":[{"text":"","finish_reason":"stop"}]}"#;
    let long = format!(": {}", "x".repeat(200_000));
    for stream in [
        vec![role, token, "data: [DONE]", ""],
        vec![": ping", other, "data: [DONE]", ""],
        vec![ended, "data: [DONE]", ""],
        vec![&long, "data: [DONE]", ""],
        vec!["not an event"],
        vec![""],
    ] {
        let stream: &'static str = stream.join("\n\n").leak();
        let streams = Act::Says(200, EVENTS, stream);
        let world = World::new(&[&[PREFILLS], &[streams]], &steps(&[0], &[1])).await;
        assert_eq!(world.whole().await, (200, stream.into()));
        assert_eq!(world.requests(), [1, 1]);
    }
}

#[tokio::test]
async fn without_another_prefill_pod_the_decode_pod_computes_the_prompt_if_the_profile_allows() {
    let engines: [&[Act]; 2] = [&[PREFILLS_AND_DIES], &[LOADS]];
    let world = World::new(&engines, &steps(&[0], &[1])).await;
    let response = world.run().await.unwrap();
    assert!(response.answer.head.status.is_success() && response.is_degraded);
    assert_eq!(world.requests(), [1, 2]);
    assert_eq!(world.pods[1].engine.load_requests(), 1, "and then from no other pod");
}

#[tokio::test]
async fn after_the_last_attempt_of_the_prefill_step_the_decode_pod_computes_the_prompt() {
    let dies = [PREFILLS_AND_DIES];
    let engines: [&[Act]; 4] = [&dies, &dies, &dies, &[LOADS]];
    let world = World::new(&engines, &steps(&[0, 1, 2], &[3])).await;
    let response = world.run().await.unwrap();
    assert!(response.answer.head.status.is_success() && response.is_degraded);
    assert_eq!((world.requests(), world.pods[3].pod_state.requests()), (vec![1, 1, 0, 3], 1));
    assert_eq!(world.pods[3].engine.load_requests(), 2);
    drop(response);
    assert_eq!(world.pods[3].pod_state.requests(), 0);
}

#[tokio::test]
async fn without_another_prefill_pod_the_same_one_computes_the_prompt_again_if_it_is_alive() {
    for (then, is_alive) in [(PREFILLS, true), (Act::Closes(Duration::ZERO), false)] {
        let prefill = [PREFILLS_AND_DIES, then];
        let mut steps = steps(&[0], &[1]);
        steps[0].failure = policy(2, AfterFailure::Fail);
        let world = World::new(&[&prefill, &[LOADS]], &steps).await;
        match world.run().await {
            Ok(response) => assert!(is_alive && !response.is_degraded),
            Err(failure) => {
                assert!(!is_alive && matches!(cause(failure), CallError::Broken(_)));
            }
        }
        assert_eq!(world.pods[1].endpoint.breaker(), (BreakerState::Closed, 0));
    }
}

#[tokio::test]
async fn a_plan_restarts_at_most_twice_and_only_within_the_budget() {
    for (per_second, plans) in [(10.0, 3), (0.0, 1)] {
        let dies = [PREFILLS_AND_DIES];
        let engines: [&[Act]; 6] = [&dies, &dies, &dies, &dies, &dies, &[LOADS]];
        let mut steps = steps(&[0, 1, 2, 3, 4], &[5]);
        steps[0].failure = policy(9, AfterFailure::Fail);
        let mut world = World::new(&engines, &steps).await;
        let rules = BudgetRules { per_second, ..BudgetRules::default() };
        world.budget = RetryBudget::new(rules, Moment::from_secs(9));
        let failure = world.run().await.unwrap_err();
        assert_eq!(failure.status().as_u16(), 502);
        assert!(matches!(cause(failure), CallError::KvLoad));
        assert_eq!(world.requests()[5], plans);
        assert_eq!(world.pods[5].endpoint.breaker(), (BreakerState::Closed, 0));
    }
}

#[tokio::test]
async fn an_error_of_the_decode_pod_itself_counts_against_it() {
    let plain = Act::Says(500, "content-type: text/plain\r\n", "Internal Server Error");
    for fails in [FAILS, plain] {
        let engines: [&[Act]; 3] = [&[PREFILLS], &[fails], &[ANSWERS]];
        let world = World::new(&engines, &steps(&[0], &[1, 2])).await;
        for _ in 0..5 {
            assert_eq!(world.pods[1].breaker(), BreakerState::Closed);
            assert_eq!(world.whole().await.0, 200);
        }
        assert_eq!(world.pods[1].breaker(), BreakerState::Open);
        assert!(!is_probed(&world, 0), "its KV cache was loaded");
    }
    let closes = Act::Closes(20 * MS);
    let engines: [&[Act]; 3] = [&[PREFILLS], &[closes], &[ANSWERS]];
    let world = World::new(&engines, &steps(&[0], &[1, 2])).await;
    assert_eq!(world.whole().await.0, 200);
    assert!(is_probed(&world, 1) && !is_probed(&world, 0));
    assert_eq!(world.whole().await.0, 200);
    assert_eq!((world.pods[1].breaker(), is_probed(&world, 0)), (BreakerState::Open, false));
}

#[tokio::test]
async fn a_pod_that_had_nothing_to_load_is_blamed_whatever_its_error() {
    let world = World::new(&[&[NOT_LOADED], &[ANSWERS]], &[step("answer", &[0, 1])]).await;
    for _ in 0..5 {
        assert_eq!(world.whole().await.0, 200);
    }
    assert_eq!(world.pods[0].breaker(), BreakerState::Open);
}

#[tokio::test]
async fn a_step_without_another_pod_restarts_the_plan_if_its_policy_says_so() {
    let engines: [&[Act]; 3] = [&[PREFILLS], &[FAILS], &[ANSWERS]];
    let mut steps = steps(&[0], &[1]);
    steps[1].by_whole_plan = vec![2];
    let world = World::new(&engines, &steps).await;
    let response = world.run().await.unwrap();
    assert_eq!((response.answer.head.status.as_u16(), response.retries), (200, 1));
    assert_eq!(world.requests(), [2, 1, 1]);
    assert_eq!(world.budget.spent(), 2, "of which one was given back");
}
