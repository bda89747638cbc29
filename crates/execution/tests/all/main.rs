//! Plans executed against engines that fail in every way: which pod is called how often, which
//! breaker opens, and which load counts.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod connections;
mod engine;
mod kv_load;
mod usage;
mod world;

use engine::{ANSWERS, Act};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpListener;
use world::{Step, World, step};
use wornpath_execution::{CallError, CallFailure, CallOutcome};
use wornpath_index::Moment;
use wornpath_routing::{AfterFailure, BreakerState, FailurePolicy, Mutation, Start, Transfer};

const MS: Duration = Duration::from_millis(1);
const FAILS: Act = Act::Says(500, "", "{}");

fn policy(attempts: u32, then: AfterFailure) -> FailurePolicy {
    FailurePolicy { attempts, then }
}

/// Two concurrent steps.
fn pair(prefill: &[usize], decode: &[usize]) -> [Step; 2] {
    [step("prefill", prefill), Step { start: Start::Together, ..step("decode", decode) }]
}

#[tokio::test]
async fn a_request_lost_late_on_a_reused_connection_is_not_sent_there_again() {
    let swallows = [ANSWERS, Act::Closes(300 * MS), Act::Closes(300 * MS)];
    let world = World::new(&[&swallows, &[ANSWERS]], &[step("answer", &[0, 1])]).await;
    world.whole().await;
    let response = world.run().await.unwrap();
    assert_eq!((world.requests(), response.retries), (vec![2, 1], 1));
    assert_eq!(world.pods[0].breaker(), BreakerState::Closed, "one request proves nothing");
    assert!(world.pods[0].endpoint.tick(Moment::ZERO), "but it is probed at once");
    world.run().await.unwrap();
    assert_eq!(world.pods[0].breaker(), BreakerState::Open, "another request was lost too");
}

#[tokio::test]
async fn a_request_that_breaks_engines_is_tried_on_two_and_opens_no_breaker() {
    let closes = [Act::Closes(Duration::ZERO)];
    let mut world = World::new(&[&closes, &closes, &closes], &[step("answer", &[0, 1, 2])]).await;
    for request in [Some(1), Some(2)] {
        world.request = request;
        let failure = world.run().await.unwrap_err();
        assert!(failure.to_string().contains("failed on 2 pods"), "{failure}");
    }
    assert_eq!(world.requests(), [2, 2, 0]);
    for _ in 0..9 {
        world.request = None;
        world.run().await.unwrap_err();
    }
    for pod in &world.pods {
        assert_eq!(pod.breaker(), BreakerState::Closed);
        pod.endpoint.probed(CallOutcome::Good, Moment::ZERO);
        assert!(!pod.endpoint.tick(Moment::ZERO), "the probe found it healthy");
    }
}

#[tokio::test]
async fn a_request_that_every_pod_answers_with_an_error_opens_no_breaker_and_rests_no_pod_for_long()
{
    for status in [500, 503] {
        let acts = [Act::Says(status, "retry-after: 9\r\n", "no")];
        let mut world = World::new(&[&acts, &acts], &[step("answer", &[0, 1])]).await;
        world.request = Some(1);
        for _ in 0..9 {
            assert_eq!(world.whole().await.0, status);
        }
        for pod in &world.pods {
            assert_eq!(pod.breaker(), BreakerState::Closed, "{status}");
        }
        world.request = None;
        assert_eq!(world.whole().await.0, status);
        for pod in &world.pods {
            pod.endpoint.tick(Moment::from_secs(3600));
            assert_eq!(pod.breaker(), BreakerState::Closed, "{status}");
        }
    }
}

#[tokio::test]
async fn a_stale_reused_connection_is_replaced_without_blame_for_its_pod() {
    let closes = [ANSWERS, Act::Closes(Duration::ZERO), ANSWERS];
    let world = World::new(&[&closes, &[ANSWERS]], &[step("answer", &[0, 1])]).await;
    world.whole().await;
    let response = world.run().await.unwrap();
    assert_eq!((world.requests(), response.retries), (vec![3, 0], 0));
    assert_eq!(world.pods[0].breaker(), BreakerState::Closed);
}

#[tokio::test]
async fn clients_that_give_up_on_a_pod_which_streams_to_others_are_no_blame() {
    let acts = [Act::Streams(100 * MS), Act::Hangs];
    let world = World::new(&[&acts], &[step("answer", &[0])]).await;
    let response = world.run().await.unwrap();
    let streaming = tokio::spawn(response.answer.whole(9999));
    let leave = || tokio::time::timeout(1200 * MS, world.run());
    let left = tokio::join!(leave(), leave(), leave(), leave(), leave());
    assert!(left.0.is_err() && left.4.is_err());
    assert_eq!(world.pods[0].breaker(), BreakerState::Closed);
    streaming.abort();
    let _aborted = streaming.await;
    let left = tokio::join!(leave(), leave(), leave(), leave(), leave());
    assert!(left.0.is_err() && left.4.is_err());
    assert_eq!(world.pods[0].breaker(), BreakerState::Open, "now it responds to no client");
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
async fn if_all_pods_refuse_the_client_gets_the_last_refusal() {
    let engines: [&[Act]; 2] = [&[Act::Says(503, "", "a")], &[Act::Says(503, "", "b")]];
    let world = World::new(&engines, &[step("answer", &[0, 1])]).await;
    assert_eq!(world.whole().await, (503, "b".into()));
}

#[tokio::test]
async fn a_concurrent_step_of_a_failed_one_has_no_load_when_the_plan_restarts() {
    let engines: [&[Act]; 4] = [&[Act::Hangs], &[FAILS], &[ANSWERS], &[ANSWERS]];
    let mut steps = pair(&[0], &[1, 2]);
    steps[1].failure = policy(1, AfterFailure::Restart);
    let world = World::new(&engines, &steps).await;
    world.run().await.unwrap();
    assert_eq!(world.loads.lock().unwrap()[0], [0; 4]);
}

#[tokio::test]
async fn a_prefill_response_that_stalls_or_lacks_its_field_counts_against_its_pod() {
    for acts in [[Act::Begins], [ANSWERS]] {
        let mut prefill = step("prefill", &[0]);
        prefill.failure = policy(1, AfterFailure::Skip);
        prefill.mutations = vec![Mutation::OfferKv(Transfer::named("nixl").unwrap())];
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
async fn a_concurrent_step_that_stalls_counts_against_its_pod() {
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
async fn a_concurrent_step_in_flight_is_a_trial_of_its_pod() {
    let engines: [&[Act]; 2] = [&[Act::Hangs], &[ANSWERS]];
    let world = World::new(&engines, &pair(&[0], &[1])).await;
    let endpoint = &world.pods[0].endpoint;
    let at = Moment::from_secs;
    endpoint.record_outcome(CallOutcome::Gone, None, at(0));
    endpoint.probed(CallOutcome::Good, at(1));
    assert_eq!(world.pods[0].breaker(), BreakerState::HalfOpen);
    world.run().await.unwrap();
    while world.pods[0].engine.requests() == 0 {
        tokio::task::yield_now().await;
    }
    endpoint.probed(CallOutcome::Good, at(5));
    assert_eq!(world.pods[0].breaker(), BreakerState::HalfOpen, "the trial is in flight");
}

#[tokio::test]
async fn a_body_that_cannot_be_edited_is_not_retried() {
    for steps in [vec![step("answer", &[0, 1])], pair(&[0, 1], &[1]).to_vec()] {
        let set = Mutation::Set { field: "stream".to_owned(), value: true.into() };
        let mut steps = steps;
        steps[0].mutations = vec![set];
        let mut world = World::new(&[&[ANSWERS], &[ANSWERS]], &steps).await;
        world.body = "[]";
        let failure = world.run().await.unwrap_err();
        assert_eq!(failure.status().as_u16(), 400);
        assert!(world.loads.lock().unwrap().is_empty(), "no other pod was chosen");
    }
}

#[tokio::test]
async fn the_connect_timeout_is_at_most_the_deadline_of_the_step() {
    // It never accepts, and the backlog of the kernel is soon full.
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
async fn a_restarted_plan_without_a_skipped_step_is_not_degraded() {
    let engines: [&[Act]; 4] = [&[FAILS], &[ANSWERS], &[FAILS], &[ANSWERS]];
    let mut steps = [step("prefill", &[0, 1]), step("decode", &[2, 3])];
    steps[0].failure = policy(1, AfterFailure::Skip);
    steps[1].failure = policy(1, AfterFailure::Restart);
    let world = World::new(&engines, &steps).await;
    assert!(!world.run().await.unwrap().is_degraded);
    assert_eq!(world.requests(), [1, 1, 1, 1]);
}

#[tokio::test]
async fn a_group_before_the_last_ends_with_its_last_step() {
    let engines: [&[Act]; 3] = [&[Act::SaysAfter(200 * MS, "{}")], &[ANSWERS], &[ANSWERS]];
    let [first, second] = pair(&[0], &[1]);
    let world = World::new(&engines, &[first, second, step("answer", &[2])]).await;
    world.run().await.unwrap();
    assert_eq!((world.requests(), world.pods[0].engine.cancelled()), (vec![1, 1, 1], 0));

    let engines: [&[Act]; 3] = [&[FAILS], &[Act::SaysAfter(100 * MS, "{}")], &[ANSWERS]];
    let [mut first, second] = pair(&[0], &[1]);
    first.failure = policy(1, AfterFailure::Fail);
    let world = World::new(&engines, &[first, second, step("answer", &[2])]).await;
    assert_eq!(world.run().await.unwrap_err().status().as_u16(), 502);
    assert_eq!(world.requests()[2], 0, "its input is missing");

    let engines: [&[Act]; 3] = [&[Act::Hangs], &[FAILS], &[ANSWERS]];
    let [first, mut second] = pair(&[0], &[1]);
    second.failure = policy(1, AfterFailure::Fail);
    let world = World::new(&engines, &[first, second, step("answer", &[2])]).await;
    let ended = tokio::time::timeout(5000 * MS, world.run()).await;
    assert!(ended.expect("the failure cancels the other step").is_err());
}

#[tokio::test]
async fn the_router_is_notified_of_a_sent_request_before_the_engine_responds() {
    let world = World::new(&[&[Act::Hangs]], &[step("answer", &[0])]).await;
    let mut run = pin!(world.run());
    let is_pending = poll_fn(|context| Poll::Ready(run.as_mut().poll(context).is_pending())).await;
    assert!(is_pending);
    assert_eq!(world.requests_sent(), 1, "the first poll ends with the notification");
}

#[tokio::test]
async fn the_router_is_notified_once_per_call() {
    let engines: [&[Act]; 3] = [&[FAILS], &[FAILS], &[ANSWERS]];
    let world = World::new(&engines, &[step("answer", &[0, 1, 2])]).await;
    assert_eq!(world.whole().await.0, 200);
    assert_eq!(world.requests_sent(), 3);
}
