//! What opens the breaker, what it avoids, and what closes it again.

use super::*;

const fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn after(outcomes: &[CallOutcome]) -> CircuitBreaker {
    let mut breaker = CircuitBreaker::default();
    for (number, outcome) in outcomes.iter().enumerate() {
        breaker.record_outcome(*outcome, request(number as u64), at(0));
    }
    breaker
}

fn request(number: u64) -> Option<RequestFingerprint> {
    Some(RequestFingerprint(number))
}

#[test]
fn an_unreachable_endpoint_opens_it_at_once_and_errors_open_it_after_five() {
    assert_eq!(after(&[CallOutcome::Gone]).state(), BreakerState::Open);
    assert_eq!(after(&[CallOutcome::Failed; 4]).state(), BreakerState::Closed);
    assert_eq!(after(&[CallOutcome::Failed; 5]).state(), BreakerState::Open);
    let mut mixed = [CallOutcome::Failed; 9];
    mixed[4] = CallOutcome::Good;
    assert_eq!(after(&mixed).state(), BreakerState::Closed, "only failures in a row count");
}

#[test]
fn a_suspect_is_probed_at_once_and_opens_it_only_if_the_probe_fails_or_it_fails_often() {
    for (probe, state) in [
        (CallOutcome::Good, BreakerState::Closed),
        (CallOutcome::Gone, BreakerState::Open),
        (CallOutcome::Failed, BreakerState::Open),
    ] {
        let mut breaker = after(&[CallOutcome::Suspect]);
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.tick(at(0)) && breaker.is_troubled());
        // A success meanwhile proves nothing: the request may have been sent before.
        breaker.record_outcome(CallOutcome::Good, request(77), at(1));
        assert!(breaker.tick(at(1)) && breaker.is_troubled());
        breaker.probed(probe, at(2));
        assert_eq!(breaker.state(), state, "{probe:?}");
        assert!(!breaker.tick(at(3)), "one probe is enough");
    }
    let mut healthy = CircuitBreaker::default();
    healthy.probed(CallOutcome::Gone, at(0));
    assert_eq!(healthy.state(), BreakerState::Closed, "a probe that was not due says nothing");
    assert_eq!(after(&[CallOutcome::Suspect; 4]).state(), BreakerState::Closed);
    assert_eq!(after(&[CallOutcome::Suspect; 5]).state(), BreakerState::Open);
}

#[test]
fn an_endpoint_in_whose_place_a_proxy_answers_is_probed_at_once_and_avoided_meanwhile() {
    let once = after(&[CallOutcome::Unanswered]);
    assert_eq!(once.state(), BreakerState::Closed, "one request may be to blame");
    for (probe, state) in
        [(CallOutcome::Good, BreakerState::Avoided), (CallOutcome::Gone, BreakerState::Open)]
    {
        let mut breaker = after(&[CallOutcome::Unanswered; 2]);
        assert_eq!(breaker.state(), BreakerState::Avoided);
        assert!(breaker.tick(at(0)), "a probe is due");
        breaker.probed(probe, at(1));
        assert_eq!(breaker.state(), state, "{probe:?}");
    }
}

#[test]
fn a_busy_endpoint_without_retry_after_rests_with_a_backoff() {
    let mut breaker = CircuitBreaker::default();
    let mut now = at(0);
    let mut rested = Vec::new();
    for _ in 0..9 {
        breaker.record_outcome(CallOutcome::Busy(None), request(1), now);
        breaker.record_outcome(CallOutcome::Busy(None), request(2), now);
        let until = breaker.rests_until().expect("it rests");
        rested.push((until - now).as_millis());
        now = until;
        breaker.tick(now);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
    assert_eq!(rested, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    assert!(breaker.is_troubled());
    breaker.record_outcome(CallOutcome::Good, request(77), now);
    breaker.record_outcome(CallOutcome::Busy(None), request(1), now);
    breaker.record_outcome(CallOutcome::Busy(None), request(1), now);
    assert_eq!(breaker.rests_until(), None, "it may be the request's fault");
    breaker.record_outcome(CallOutcome::Busy(None), request(2), now);
    assert_eq!(breaker.rests_until(), Some(now + Duration::from_millis(100)));
}

/// Refuses two requests that another pod then answers.
fn refuse(breaker: &mut CircuitBreaker, asked: Duration, now: Moment) {
    for number in 0..2 {
        breaker.record_outcome(CallOutcome::Busy(Some(asked)), request(number), now);
        breaker.confirm_outcome(CallOutcome::Busy(Some(asked)), request(number), now);
    }
}

#[test]
fn a_busy_endpoint_rests_for_its_retry_after_and_is_never_a_failure() {
    let mut breaker = after(&[CallOutcome::Neutral; 100]);
    assert_eq!(breaker.state(), BreakerState::Closed);
    refuse(&mut breaker, Duration::from_millis(1000), at(0));
    assert_eq!(breaker.state(), BreakerState::Resting);
    breaker.record_outcome(CallOutcome::Good, request(7), at(500));
    assert_eq!(
        breaker.state(),
        BreakerState::Resting,
        "the response to an older request does not end its rest"
    );
    assert!(!breaker.tick(at(999)) && breaker.state() == BreakerState::Resting);
    assert!(!breaker.tick(at(1000)) && breaker.state() == BreakerState::Closed);
    refuse(&mut breaker, Duration::from_secs(3600), at(1000));
    breaker.tick(at(11_000));
    assert_eq!(breaker.state(), BreakerState::Closed, "no `Retry-After` lasts for an hour");
}

#[test]
fn a_retry_after_that_no_other_pod_contradicts_is_approached_by_a_backoff() {
    let mut breaker = CircuitBreaker::default();
    let asked = CallOutcome::Busy(Some(Duration::from_secs(9)));
    breaker.record_outcome(asked, request(1), at(0));
    assert_eq!(breaker.state(), BreakerState::Closed);
    breaker.record_outcome(asked, request(2), at(0));
    assert_eq!(breaker.rests_until(), Some(at(100)));
    assert_eq!(breaker.state(), BreakerState::Avoided);
    breaker.tick(at(100));
    breaker.record_outcome(asked, request(2), at(100));
    assert_eq!(breaker.rests_until(), Some(at(300)), "and each rest is longer");
}

#[test]
fn one_request_alone_never_opens_it_and_never_lets_it_rest() {
    let outcomes = [
        CallOutcome::Busy(Some(Duration::from_secs(9))),
        CallOutcome::Busy(None),
        CallOutcome::Failed,
        CallOutcome::Errored,
        CallOutcome::Suspect,
        CallOutcome::Lost,
    ];
    for outcome in outcomes {
        let mut breaker = CircuitBreaker::default();
        for _ in 0..99 {
            breaker.record_outcome(outcome, request(1), at(0));
            breaker.confirm_outcome(outcome, request(1), at(0));
        }
        assert_eq!(breaker.state(), BreakerState::Closed, "{outcome:?}");
    }
}

#[test]
fn a_failure_that_the_request_may_have_caused_counts_once_another_pod_has_answered_it() {
    for (outcome, needed) in [(CallOutcome::Lost, 2), (CallOutcome::Errored, 5)] {
        assert_eq!(after(&[outcome; 99]).state(), BreakerState::Closed, "{outcome:?}");
        let mut breaker = CircuitBreaker::default();
        for number in 1..=needed {
            assert_eq!(breaker.state(), BreakerState::Closed, "{outcome:?}");
            breaker.record_outcome(outcome, request(number), at(0));
            breaker.confirm_outcome(outcome, request(number), at(0));
        }
        assert_eq!(breaker.state(), BreakerState::Open, "{outcome:?}");
    }
    let mut lost = after(&[CallOutcome::Lost]);
    assert!(lost.tick(at(0)), "but a probe is due at once");
    lost.probed(CallOutcome::Lost, at(1));
    assert_eq!(lost.state(), BreakerState::Open);
}

#[test]
fn a_probe_half_opens_it_and_the_first_success_closes_it() {
    let mut breaker = after(&[CallOutcome::Gone]);
    assert!(!breaker.tick(at(99)) && breaker.tick(at(100)));
    breaker.probed(CallOutcome::Busy(None), at(100));
    assert_eq!(breaker.state(), BreakerState::Open, "a probe that was never sent says nothing");
    breaker.probed(CallOutcome::Good, at(100));
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    breaker.record_outcome(CallOutcome::Good, request(77), at(101));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_late_success_of_an_old_request_does_not_close_it_and_a_failed_trial_opens_it_again() {
    let mut breaker = after(&[CallOutcome::Gone, CallOutcome::Good]);
    assert_eq!(breaker.state(), BreakerState::Open);
    breaker.probed(CallOutcome::Good, at(100));
    breaker.record_outcome(CallOutcome::Failed, request(7), at(101));
    assert_eq!(breaker.state(), BreakerState::Open);
    assert!(!breaker.tick(at(300)) && breaker.tick(at(301)), "the second pause is twice the first");
    breaker.probed(CallOutcome::Gone, at(301));
    assert!(!breaker.tick(at(700)) && breaker.tick(at(701)));
    assert_eq!(breaker.opened(), 3);
}

#[test]
fn a_client_that_gives_up_a_trial_neither_opens_it_again_nor_lets_probes_close_it() {
    let mut breaker = after(&[CallOutcome::Gone]);
    breaker.probed(CallOutcome::Good, at(100));
    for client in 1..5 {
        breaker.abandoned(request(client), at(1000 * client));
        breaker.probed(CallOutcome::Good, at(1000 * client + 999));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }
    breaker.abandoned(request(5), at(5000));
    assert_eq!(breaker.state(), BreakerState::Open, "so many are no coincidence");
}

#[test]
fn many_requests_of_one_crash_are_one_opening() {
    assert_eq!(after(&[CallOutcome::Gone; 64]).opened(), 1);
}

#[test]
fn successful_probes_close_it_even_if_no_request_tries() {
    let mut breaker = after(&[CallOutcome::Gone]);
    breaker.probed(CallOutcome::Good, at(100));
    breaker.probed(CallOutcome::Good, at(2000));
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    breaker.probed(CallOutcome::Good, at(2100));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn probes_do_not_close_it_while_a_trial_is_in_flight() {
    let mut breaker = after(&[CallOutcome::Gone]);
    assert!(!breaker.begin_call(), "it is not half-open yet");
    breaker.probed(CallOutcome::Good, at(100));
    assert!(breaker.begin_call());
    breaker.probed(CallOutcome::Good, at(9000));
    assert_eq!(breaker.state(), BreakerState::HalfOpen, "it may hang");
    breaker.trial_ended();
    breaker.probed(CallOutcome::Good, at(9100));
    assert_eq!(breaker.state(), BreakerState::Closed);
}
