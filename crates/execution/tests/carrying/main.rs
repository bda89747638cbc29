//! Plans carried out against engines that fail in every way: who is asked how often, what is judged, whose load counts.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod engine;
mod kv_load;
mod world;

use engine::{ANSWERS, Act};
use std::time::Duration;
use tokio::net::TcpListener;
use world::{Step, World, step};
use wornpath_execution::{CallError, CallFailure, CallOutcome};
use wornpath_routing::{AfterFailure, BreakerState, FailurePolicy, Mutation, Start, Transfer};

const MS: Duration = Duration::from_millis(1);
const FAILS: Act = Act::Says(500, "", "{}");

fn policy(attempts: u32, then: AfterFailure) -> FailurePolicy {
    FailurePolicy { attempts, then }
}

/// Two steps that start together.
fn pair(gives: &[usize], takes: &[usize]) -> [Step; 2] {
    [step("prefill", gives), Step { start: Start::Together, ..step("decode", takes) }]
}

#[tokio::test]
async fn a_request_that_a_kept_connection_swallowed_is_not_sent_there_again() {
    let swallows = [ANSWERS, Act::Closes(300 * MS), ANSWERS];
    let world = World::new(&[&swallows, &[ANSWERS]], &[step("answer", &[0, 1])]).await;
    world.whole().await;
    let carried = world.run().await.unwrap();
    assert_eq!((world.asked(), carried.retries), (vec![2, 1], 1));
    assert_eq!(world.pods[0].breaker(), BreakerState::Open, "it was judged");
}

#[tokio::test]
async fn a_connection_that_is_closed_while_it_is_taken_up_says_nothing_of_its_pod() {
    let closes = [ANSWERS, Act::Closes(Duration::ZERO), ANSWERS];
    let world = World::new(&[&closes, &[ANSWERS]], &[step("answer", &[0, 1])]).await;
    world.whole().await;
    let carried = world.run().await.unwrap();
    assert_eq!((world.asked(), carried.retries), (vec![3, 0], 0));
    assert_eq!(world.pods[0].breaker(), BreakerState::Closed);
}

#[tokio::test]
async fn clients_that_leave_a_pod_which_streams_to_others_are_no_blame() {
    let acts = [Act::Streams(100 * MS), Act::Hangs];
    let world = World::new(&[&acts], &[step("answer", &[0])]).await;
    let carried = world.run().await.unwrap();
    let streaming = tokio::spawn(carried.answer.whole(9999));
    tokio::time::sleep(100 * MS).await;
    let leave = || tokio::time::timeout(1200 * MS, world.run());
    let left = tokio::join!(leave(), leave(), leave(), leave(), leave());
    assert!(left.0.is_err() && left.4.is_err());
    assert_eq!(world.pods[0].breaker(), BreakerState::Closed);
    streaming.abort();
    let _aborted = streaming.await;
    let left = tokio::join!(leave(), leave(), leave(), leave(), leave());
    assert!(left.0.is_err() && left.4.is_err());
    assert_eq!(world.pods[0].breaker(), BreakerState::Open, "now it answers nobody");
}

#[tokio::test]
async fn a_pod_that_refused_or_failed_has_no_load_when_another_is_chosen() {
    let closes = [Act::Closes(Duration::ZERO)];
    let engines: [&[Act]; 3] = [&[Act::Says(503, "", "busy")], &closes, &[ANSWERS]];
    let world = World::new(&engines, &[step("answer", &[0, 1, 2])]).await;
    assert_eq!(world.whole().await.0, 200);
    assert_eq!(*world.loads.lock().unwrap(), [[0, 0, 0], [0, 0, 0]]);
}

#[tokio::test]
async fn if_all_refuse_the_last_refusal_is_the_answer() {
    let engines: [&[Act]; 2] = [&[Act::Says(503, "", "a")], &[Act::Says(503, "", "b")]];
    let world = World::new(&engines, &[step("answer", &[0, 1])]).await;
    assert_eq!(world.whole().await, (503, "b".into()));
}

#[tokio::test]
async fn what_ran_beside_a_failed_step_has_no_load_when_the_plan_is_made_again() {
    let engines: [&[Act]; 4] = [&[Act::Hangs], &[FAILS], &[ANSWERS], &[ANSWERS]];
    let mut steps = pair(&[0], &[1, 2]);
    steps[1].failure = policy(1, AfterFailure::Restart);
    let world = World::new(&engines, &steps).await;
    world.run().await.unwrap();
    assert_eq!(world.loads.lock().unwrap()[0], [0; 4]);
}

#[tokio::test]
async fn a_step_that_begins_and_hangs_or_lacks_what_is_needed_counts_against_its_pod() {
    for acts in [[Act::Begins], [ANSWERS]] {
        let mut prefill = step("prefill", &[0]);
        prefill.failure = policy(1, AfterFailure::Skip);
        prefill.mutations = vec![Mutation::OfferKv(Transfer::Nixl)];
        let steps = [prefill, step("decode", &[1])];
        let mut world = World::new(&[&acts, &[ANSWERS]], &steps).await;
        world.timeouts.between_bytes = 20 * MS;
        for _ in 0..5 {
            assert_eq!(world.pods[0].breaker(), BreakerState::Closed);
            assert!(world.run().await.unwrap().is_degraded);
        }
        assert_eq!(world.pods[0].breaker(), BreakerState::Open, "{acts:?}");
    }
}

#[tokio::test]
async fn a_companion_that_begins_and_hangs_counts_against_its_pod() {
    let engines: [&[Act]; 2] = [&[Act::Begins], &[Act::SaysAfter(100 * MS, "{}")]];
    let mut steps = pair(&[0], &[1]);
    steps[0].failure = policy(1, AfterFailure::Skip);
    let mut world = World::new(&engines, &steps).await;
    world.timeouts.between_bytes = 20 * MS;
    for _ in 0..5 {
        assert!(world.run().await.unwrap().is_degraded);
    }
    assert_eq!(world.pods[0].breaker(), BreakerState::Open);
}

#[tokio::test]
async fn a_companion_under_way_is_a_trial_of_its_pod() {
    let engines: [&[Act]; 2] = [&[Act::Hangs], &[ANSWERS]];
    let world = World::new(&engines, &pair(&[0], &[1])).await;
    let endpoint = &world.pods[0].endpoint;
    let at = Duration::from_secs;
    endpoint.judge(CallOutcome::Gone, at(0));
    endpoint.probed(CallOutcome::Good, at(1));
    assert_eq!(world.pods[0].breaker(), BreakerState::HalfOpen);
    world.run().await.unwrap();
    while world.pods[0].engine.asked() == 0 {
        tokio::task::yield_now().await;
    }
    endpoint.probed(CallOutcome::Good, at(5));
    assert_eq!(world.pods[0].breaker(), BreakerState::HalfOpen, "nobody knows yet");
}

#[tokio::test]
async fn a_body_that_no_step_can_change_is_tried_nowhere_else() {
    for steps in [vec![step("answer", &[0, 1])], pair(&[0, 1], &[1]).to_vec()] {
        let set = Mutation::Set { field: "stream".to_owned(), value: true.into() };
        let mut steps = steps;
        steps[0].mutations = vec![set];
        let mut world = World::new(&[&[ANSWERS], &[ANSWERS]], &steps).await;
        world.body = "[]";
        let failure = world.run().await.unwrap_err();
        assert_eq!(failure.status().as_u16(), 400);
        assert!(world.loads.lock().unwrap().is_empty(), "nobody else was looked for");
    }
}

#[tokio::test]
async fn to_connect_takes_no_longer_than_the_step_may() {
    // One that never accepts: what the kernel accepts for it is soon full.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener: TcpListener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(50 * MS, tokio::net::TcpStream::connect(address)).await
    {
        held.push(stream);
    }
    let steps = [Step { deadline: Some(100 * MS), ..step("answer", &[0]) }];
    let mut world = World::new(&[&[ANSWERS]], &steps).await;
    world.move_to(0, address.port());
    let failed = tokio::time::timeout(1000 * MS, world.run()).await.expect("in time");
    let cause = failed.unwrap_err();
    assert!(
        matches!(&cause, CallFailure::Step { cause: CallError::ConnectTimeout(time), .. } if *time == 100 * MS),
        "{cause}"
    );
}

#[tokio::test]
async fn a_plan_that_was_begun_again_and_left_nothing_out_is_not_degraded() {
    let engines: [&[Act]; 4] = [&[FAILS], &[ANSWERS], &[FAILS], &[ANSWERS]];
    let mut steps = [step("prefill", &[0, 1]), step("decode", &[2, 3])];
    steps[0].failure = policy(1, AfterFailure::Skip);
    steps[1].failure = policy(1, AfterFailure::Restart);
    let world = World::new(&engines, &steps).await;
    assert!(!world.run().await.unwrap().is_degraded);
    assert_eq!(world.asked(), [1, 1, 1, 1]);
}

#[tokio::test]
async fn steps_beside_one_that_does_not_answer_are_waited_for() {
    let engines: [&[Act]; 3] = [&[Act::SaysAfter(200 * MS, "{}")], &[ANSWERS], &[ANSWERS]];
    let [first, second] = pair(&[0], &[1]);
    let world = World::new(&engines, &[first, second, step("answer", &[2])]).await;
    world.run().await.unwrap();
    assert_eq!((world.asked(), world.pods[0].engine.left()), (vec![1, 1, 1], 0));

    let engines: [&[Act]; 3] = [&[FAILS], &[Act::SaysAfter(100 * MS, "{}")], &[ANSWERS]];
    let [mut first, second] = pair(&[0], &[1]);
    first.failure = policy(1, AfterFailure::Fail);
    let world = World::new(&engines, &[first, second, step("answer", &[2])]).await;
    assert_eq!(world.run().await.unwrap_err().status().as_u16(), 502);
    assert_eq!(world.asked()[2], 0, "what it needs is not there");

    let engines: [&[Act]; 3] = [&[Act::Hangs], &[FAILS], &[ANSWERS]];
    let [first, mut second] = pair(&[0], &[1]);
    second.failure = policy(1, AfterFailure::Fail);
    let world = World::new(&engines, &[first, second, step("answer", &[2])]).await;
    let ended = tokio::time::timeout(5000 * MS, world.run()).await;
    assert!(ended.expect("nobody waits for what is of no use").is_err());
}
