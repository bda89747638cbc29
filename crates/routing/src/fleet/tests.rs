//! Tests of the fleet: who is found where, and load that comes back to zero.

use std::time::Duration;
use wornpath_index::Moment;

use wornpath_index::{Index, IndexLimits};

use super::*;

fn figures(pod_state: &PodState) -> (u32, u32, u64, u64) {
    (
        pod_state.requests(),
        pod_state.decoding(),
        pod_state.prefill_tokens(),
        pod_state.decode_tokens(),
    )
}

#[test]
fn load_follows_a_request_and_comes_back_to_zero() {
    let pod_state = std::sync::Arc::new(PodState::default());
    let mut reservation = Reservation::new(&pod_state, 1_000, 600);
    assert_eq!(figures(&pod_state), (1, 0, 600, 0));
    assert_eq!(pod_state.prefill_pairs(), 1_000 * 1_000 - 400 * 400);
    reservation.computed(200);
    assert_eq!(figures(&pod_state), (1, 0, 400, 0));
    assert_eq!(pod_state.prefill_pairs(), 1_000 * 1_000 - 600 * 600);
    reservation.first_token();
    reservation.first_token();
    reservation.decoded(7);
    assert_eq!(figures(&pod_state), (1, 1, 0, 1_007));
    let waiting = Reservation::new(&pod_state, 10, 10);
    drop(reservation);
    assert_eq!(figures(&pod_state), (1, 0, 10, 0));
    drop(waiting);
    assert_eq!((figures(&pod_state), pod_state.prefill_pairs()), ((0, 0, 0, 0), 0));
}

#[test]
fn a_pod_learns_how_long_answers_are_from_those_that_ended() {
    let pod_state = std::sync::Arc::new(PodState::default());
    let answer = |tokens: u64| {
        let mut reservation = Reservation::new(&pod_state, 10, 10);
        reservation.first_token();
        reservation.decoded(tokens);
    };
    answer(0);
    assert_eq!(pod_state.answer_tokens(), None, "nothing was said of its length");
    answer(100);
    assert_eq!(pod_state.answer_tokens(), Some(100.0));
    (0..200).for_each(|_| answer(900));
    let learnt = pod_state.answer_tokens().unwrap();
    assert!((890.0..900.0).contains(&learnt), "{learnt}");
}

/// A model in which a prompt token takes 0.01 ms and a step 10 ms.
fn model(work: &PrefillWork) -> f64 {
    0.01 * work.tokens + 10.0 * work.steps
}

/// A request of so many uncached tokens that gets its first token after so many milliseconds, and
/// then fifty more in as many steps of `step` milliseconds.
fn answered(pod_state: &std::sync::Arc<PodState>, from: u64, tokens: u64, first: u64, step: u64) {
    let at = |ms: u64| Moment::from_millis(from + ms);
    let mut load = Reservation::new(pod_state, tokens, tokens).sent_at(at(0));
    load.first_token_at(at(first));
    load.decoded(50);
    load.ended_at(at(first + 50 * step));
}

#[test]
fn a_pods_pace_is_learnt_from_its_requests_and_forgotten_when_it_changes() {
    let pod_state = std::sync::Arc::new(PodState::default());
    assert_eq!(pod_state.slowness(MeasuredPrefill::Prefill, model), 1.0, "nothing was seen");
    // 8,192 tokens in two and a half steps: 106.92 ms by the model, and twice that in truth.
    (0..100).for_each(|at| answered(&pod_state, at * 10_000, 8192, 214, 20));
    let paces = || {
        [MeasuredPrefill::Prefill, MeasuredPrefill::Steps]
            .map(|paced| pod_state.slowness(paced, model))
    };
    assert_eq!(paces(), [2.0, 2.0]);
    (100..400).for_each(|at| answered(&pod_state, at * 10_000, 8192, 107, 10));
    assert_eq!(paces(), [1.0, 1.0]);
    (400..700).for_each(|at| answered(&pod_state, at * 10_000, 8192, 119, 11));
    assert_eq!(paces(), [1.0, 1.0], "a tenth is within what the model leaves out");
}

#[test]
fn what_a_pod_is_told_to_be_counts_until_it_shows_what_it_is() {
    let pod_state = std::sync::Arc::new(PodState::default());
    pod_state.set_slowdown(2.0);
    assert_eq!(pod_state.slowness(MeasuredPrefill::Prefill, model), 2.0);
    (0..100).for_each(|at| answered(&pod_state, at * 10_000, 8192, 107, 10));
    assert_eq!(pod_state.slowness(MeasuredPrefill::Prefill, model), 1.0);
    pod_state.set_slowdown(1e9);
    assert!(
        pod_state.slowness(MeasuredPrefill::Steps, model) <= 8.0,
        "no pace is believed that cannot be"
    );
}

#[test]
fn short_prompts_and_engines_that_queue_teach_nothing() {
    let pod_state = std::sync::Arc::new(PodState::default());
    (0..100).for_each(|at| answered(&pod_state, at * 10_000, 100, 900, 10));
    assert_eq!(pod_state.slowness(MeasuredPrefill::Prefill, model), 1.0);
    pod_state.report(9, 1.0);
    (0..100).for_each(|at| answered(&pod_state, at * 10_000, 8192, 9_000, 10));
    assert_eq!(pod_state.slowness(MeasuredPrefill::Prefill, model), 1.0, "they waited for memory");
}

#[test]
fn progress_counts_from_the_last_news_of_it() {
    let pod_state = std::sync::Arc::new(PodState::default());
    let ms = Duration::from_millis;
    let mut first = Reservation::new(&pod_state, 9_000, 9_000).sent_at(Moment::from_millis(100));
    let _second = Reservation::new(&pod_state, 9_000, 9_000).sent_at(Moment::from_millis(150));
    assert_eq!(
        pod_state.computing(Moment::from_millis(170)),
        ms(70),
        "since the first was sent to an idle pod"
    );
    first.computed_at(4_000, Moment::from_millis(180));
    assert_eq!(pod_state.computing(Moment::from_millis(200)), ms(20));
    first.first_token_at(Moment::from_millis(210));
    assert_eq!(pod_state.computing(Moment::from_millis(200)), Duration::ZERO);
}

#[test]
fn a_new_incarnation_in_the_same_slot_is_another_pod() {
    let index = Index::new(IndexLimits::default(), 1);
    let first = index.add_pod().unwrap();
    let fleet = Fleet::new(vec![FleetPod::new(first, PodFacts::serving("a", "m"))]);
    let found = fleet.find(first).unwrap();
    assert!(fleet[found].facts().name == *"a");
    index.remove_pod(first);
    while index.writer().sweep(100) == wornpath_index::Swept::Partly {}
    let second = index.add_pod().unwrap();
    assert_eq!(first.slot(), second.slot());
    assert_eq!(fleet.find(second), None);
}

#[test]
fn silence_counts_from_the_last_sign_of_life() {
    let pod_state = PodState::default();
    assert_eq!(pod_state.silence(Moment::from_secs(9)), None);
    pod_state.heard_at(Moment::ZERO);
    assert_eq!(pod_state.silence(Moment::from_secs(9)), Some(Duration::from_secs(9)));
    pod_state.heard_at(Moment::from_secs(10));
    assert_eq!(pod_state.silence(Moment::from_secs(9)), Some(Duration::ZERO));
}

#[test]
fn an_engine_that_reports_nonsense_is_taken_at_the_nearer_end() {
    let pod_state = PodState::default();
    pod_state.report(3, 7.0);
    assert_eq!((pod_state.waiting(), pod_state.kv_usage()), (3, 1.0));
    pod_state.report(0, f64::NAN);
    assert_eq!(pod_state.kv_usage(), 0.0);
}

#[test]
fn what_a_silent_pod_holds_is_believed_less_and_less() {
    let pod_state = PodState::default();
    assert_eq!(pod_state.fresh_part(1000), 1000);
    for (freshness, believed) in [(0.5, 498), (0.0, 0), (1.0, 1000), (-3.0, 0), (f64::NAN, 1000)] {
        pod_state.set_freshness(freshness);
        assert_eq!(pod_state.fresh_part(1000), believed, "{freshness}");
    }
}
