//! Whether an endpoint's recent failures keep requests away from it.
//!
//! A pod that refuses or resets connections is gone: it is cut off at once. One that answers with errors
//! or lets requests time out may have had bad luck: it is cut off after a few failures in a row. One that
//! from which another pod could not load what it computed may be dead: that is a failure, and a probe finds out at once. One that
//! says it is busy is healthy; it is left alone for as long as it asked, and that is no failure. Who does not say for how
//! long is left alone for a moment, and longer the more often: what is refused at once makes it look idle, and all that
//! comes would go there.
//! Cut off means that a probe, not a request, finds out when it is back; then one request at a time may
//! try, and the first success lets all in again.
//!
//! A state machine: time is an argument.

use crate::budget::pause;
use std::time::Duration;
use wornpath_index::Moment;
use wornpath_routing::BreakerState as Seen;

/// What a call said about its endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallOutcome {
    /// It answered, and what it answered is not its fault.
    Good,
    /// It is busy, and may have said for how long.
    Busy(Option<Duration>),
    /// What happened says nothing about it.
    Neutral,
    /// An error of its own, or a timeout.
    Failed,
    /// Another pod could not load what this one computed for it: it may be dead.
    Suspect,
    /// It could not be reached, or broke off.
    Gone,
}

/// When a breaker opens and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BreakerRules {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open before the first probe; doubled each time it opens again.
    pub first_pause: Duration,
    /// The longest time that a busy endpoint is left alone.
    pub longest_rest: Duration,
}

impl Default for BreakerRules {
    fn default() -> Self {
        Self {
            failures: 5,
            first_pause: Duration::from_millis(100),
            longest_rest: Duration::from_secs(10),
        }
    }
}

/// One endpoint's breaker.
#[derive(Clone, Debug, Default)]
pub struct CircuitBreaker {
    rules: BreakerRules,
    state: BreakerPhase,
    /// Failures in a row.
    failures: u32,
    /// Times it opened without a success between.
    openings: u32,
    opened: u64,
    /// Requests that try whether it is back.
    trials: u32,
    /// Rests that it did not ask for, without a success between.
    rests: u32,
    /// Whether a probe is to find out if it is dead, though it takes requests.
    is_suspect: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum BreakerPhase {
    #[default]
    Closed,
    /// Busy until then.
    Resting(Moment),
    /// Not to be probed before then.
    Open(Moment),
    /// A probe was answered then.
    HalfOpen(Moment),
}

/// How long one that is busy and does not say for how long is left alone at first.
const FIRST_REST: Duration = Duration::from_millis(100);

/// A half-open breaker that nobody tried closes when probes were answered for this long.
const TRUSTED_AFTER: Duration = Duration::from_secs(2);

impl CircuitBreaker {
    /// A closed one.
    #[must_use]
    pub fn new(rules: BreakerRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// How decisions see it.
    #[must_use]
    pub const fn seen(&self) -> Seen {
        match self.state {
            BreakerPhase::Closed => Seen::Closed,
            BreakerPhase::Resting(_) => Seen::Resting,
            BreakerPhase::Open(_) => Seen::Open,
            BreakerPhase::HalfOpen(_) => Seen::HalfOpen,
        }
    }

    /// A request's call begins; whether it is a trial, whose end is to be told too.
    pub fn begins(&mut self) -> bool {
        let is_trial = matches!(self.state, BreakerPhase::HalfOpen(_));
        self.trials += u32::from(is_trial);
        is_trial
    }

    /// A trial is over, whatever came of it.
    pub const fn trial_ended(&mut self) {
        self.trials = self.trials.saturating_sub(1);
    }

    /// A request's call ended.
    pub fn judge(&mut self, verdict: CallOutcome, now: Moment) {
        match verdict {
            CallOutcome::Good => {
                (self.failures, self.rests) = (0, 0);
                // Requests that were under way when it opened or said that it is busy prove nothing about new
                // ones.
                if !matches!(self.state, BreakerPhase::Open(_) | BreakerPhase::Resting(_)) {
                    self.close();
                }
            }
            CallOutcome::Busy(rest) => {
                if self.state == BreakerPhase::Closed {
                    let rest = rest.unwrap_or_else(|| {
                        self.rests += 1;
                        pause(FIRST_REST, self.rests)
                    });
                    self.state = BreakerPhase::Resting(now + rest.min(self.rules.longest_rest));
                }
            }
            CallOutcome::Neutral => {}
            CallOutcome::Failed => self.fail(now),
            CallOutcome::Suspect => {
                self.is_suspect =
                    matches!(self.state, BreakerPhase::Closed | BreakerPhase::Resting(_));
                self.fail(now);
            }
            CallOutcome::Gone => self.open(now),
        }
    }

    /// A client left an endpoint that was silent meanwhile. That may be the client's haste: it counts as a failure,
    /// but ends no trial.
    pub fn left(&mut self, now: Moment) {
        self.failures += 1;
        if self.failures >= self.rules.failures {
            self.open(now);
        } else if matches!(self.state, BreakerPhase::HalfOpen(_)) {
            // Probes were answered, and requests were not.
            self.state = BreakerPhase::HalfOpen(now);
        }
    }

    /// Lets the time pass; whether a probe is due now.
    pub fn tick(&mut self, now: Moment) -> bool {
        match self.state {
            BreakerPhase::Closed => self.is_suspect,
            BreakerPhase::Resting(until) => {
                if now >= until {
                    self.state = BreakerPhase::Closed;
                }
                self.is_suspect
            }
            BreakerPhase::Open(until) => now >= until,
            BreakerPhase::HalfOpen(_) => true,
        }
    }

    /// A probe was answered, or not.
    pub fn probed(&mut self, verdict: CallOutcome, now: Moment) {
        match (self.state, verdict) {
            (BreakerPhase::Open(_), CallOutcome::Good) => self.state = BreakerPhase::HalfOpen(now),
            (BreakerPhase::HalfOpen(since), CallOutcome::Good)
                if now >= since + TRUSTED_AFTER && self.trials == 0 =>
            {
                self.close();
            }
            (
                BreakerPhase::Open(_) | BreakerPhase::HalfOpen(_),
                CallOutcome::Failed | CallOutcome::Gone,
            ) => {
                self.open(now);
            }
            (
                BreakerPhase::Closed | BreakerPhase::Resting(_),
                CallOutcome::Failed | CallOutcome::Gone,
            ) if self.is_suspect => {
                self.open(now);
            }
            (_, CallOutcome::Good) => self.is_suspect = false,
            _ => {}
        }
    }

    /// Whether anything happened that a success would make it forget.
    #[must_use]
    pub fn remembers(&self) -> bool {
        self.state != BreakerPhase::Closed || self.failures > 0 || self.rests > 0 || self.is_suspect
    }

    /// Until when it rests, if it does.
    #[must_use]
    pub const fn rests_until(&self) -> Option<Moment> {
        if let BreakerPhase::Resting(until) = self.state { Some(until) } else { None }
    }

    /// How often it opened.
    #[must_use]
    pub const fn opened(&self) -> u64 {
        self.opened
    }

    fn fail(&mut self, now: Moment) {
        self.failures += 1;
        if self.failures >= self.rules.failures || matches!(self.state, BreakerPhase::HalfOpen(_)) {
            self.open(now);
        }
    }

    fn close(&mut self) {
        self.state = BreakerPhase::Closed;
        self.openings = 0;
    }

    fn open(&mut self, now: Moment) {
        // Several requests of one crash are one opening.
        if let BreakerPhase::Open(until) = self.state
            && now < until
        {
            return;
        }
        self.openings += 1;
        self.opened += 1;
        (self.failures, self.is_suspect) = (0, false);
        let pause = pause(self.rules.first_pause, self.openings).min(Duration::from_secs(1));
        self.state = BreakerPhase::Open(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Moment {
        Duration::from_millis(millis)
    }

    fn after(verdicts: &[CallOutcome]) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::default();
        verdicts.iter().for_each(|verdict| breaker.judge(*verdict, at(0)));
        breaker
    }

    #[test]
    fn who_refuses_is_cut_off_at_once_and_who_errs_after_some_time() {
        assert_eq!(after(&[CallOutcome::Gone]).seen(), Seen::Open);
        assert_eq!(after(&[CallOutcome::Failed; 4]).seen(), Seen::Closed);
        assert_eq!(after(&[CallOutcome::Failed; 5]).seen(), Seen::Open);
        let mut mixed = [CallOutcome::Failed; 9];
        mixed[4] = CallOutcome::Good;
        assert_eq!(after(&mixed).seen(), Seen::Closed, "only failures in a row count");
    }

    #[test]
    fn a_suspect_is_probed_at_once_and_cut_off_only_if_the_probe_fails_or_it_fails_often() {
        for (probe, seen) in [
            (CallOutcome::Good, Seen::Closed),
            (CallOutcome::Gone, Seen::Open),
            (CallOutcome::Failed, Seen::Open),
        ] {
            let mut breaker = after(&[CallOutcome::Suspect]);
            assert_eq!(breaker.seen(), Seen::Closed);
            assert!(breaker.tick(at(0)) && breaker.remembers());
            // A prompt that it computes meanwhile proves nothing: it may have been sent before.
            breaker.judge(CallOutcome::Good, at(1));
            assert!(breaker.tick(at(1)) && breaker.remembers());
            breaker.probed(probe, at(2));
            assert_eq!(breaker.seen(), seen, "{probe:?}");
            assert!(!breaker.tick(at(3)), "one probe is enough");
        }
        let mut healthy = CircuitBreaker::default();
        healthy.probed(CallOutcome::Gone, at(0));
        assert_eq!(healthy.seen(), Seen::Closed, "a probe that nobody asked for says nothing");
        assert_eq!(after(&[CallOutcome::Suspect; 4]).seen(), Seen::Closed);
        assert_eq!(after(&[CallOutcome::Suspect; 5]).seen(), Seen::Open);
    }

    #[test]
    fn who_is_busy_and_does_not_say_for_how_long_is_left_alone_for_longer_and_longer() {
        let mut breaker = CircuitBreaker::default();
        let mut now = at(0);
        let mut rested = Vec::new();
        for _ in 0..9 {
            breaker.judge(CallOutcome::Busy(None), now);
            breaker.judge(CallOutcome::Busy(None), now);
            let until = breaker.rests_until().expect("it rests");
            rested.push((until - now).as_millis());
            now = until;
            breaker.tick(now);
            assert_eq!(breaker.seen(), Seen::Closed);
        }
        assert_eq!(rested, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert!(breaker.remembers());
        breaker.judge(CallOutcome::Good, now);
        breaker.judge(CallOutcome::Busy(None), now);
        assert_eq!(breaker.rests_until(), Some(now + at(100)));
    }

    #[test]
    fn a_busy_endpoint_rests_as_long_as_it_asked_and_is_never_a_failure() {
        let mut breaker = after(&[CallOutcome::Neutral; 100]);
        assert_eq!(breaker.seen(), Seen::Closed);
        breaker.judge(CallOutcome::Busy(Some(at(1000))), at(0));
        assert_eq!(breaker.seen(), Seen::Resting);
        breaker.judge(CallOutcome::Good, at(500));
        assert_eq!(
            breaker.seen(),
            Seen::Resting,
            "an older request's answer is no end of its rest"
        );
        assert!(!breaker.tick(at(999)) && breaker.seen() == Seen::Resting);
        assert!(!breaker.tick(at(1000)) && breaker.seen() == Seen::Closed);
        breaker.judge(CallOutcome::Busy(Some(Duration::from_secs(3600))), at(1000));
        breaker.tick(at(11_000));
        assert_eq!(breaker.seen(), Seen::Closed, "nobody can send us away for an hour");
    }

    #[test]
    fn a_probe_half_opens_it_and_the_first_success_closes_it() {
        let mut breaker = after(&[CallOutcome::Gone]);
        assert!(!breaker.tick(at(99)) && breaker.tick(at(100)));
        breaker.probed(CallOutcome::Busy(None), at(100));
        assert_eq!(breaker.seen(), Seen::Open, "a probe that was never sent says nothing");
        breaker.probed(CallOutcome::Good, at(100));
        assert_eq!(breaker.seen(), Seen::HalfOpen);
        breaker.judge(CallOutcome::Good, at(101));
        assert_eq!(breaker.seen(), Seen::Closed);
    }

    #[test]
    fn a_late_success_of_an_old_request_does_not_close_it_and_a_failed_try_opens_it_again() {
        let mut breaker = after(&[CallOutcome::Gone, CallOutcome::Good]);
        assert_eq!(breaker.seen(), Seen::Open);
        breaker.probed(CallOutcome::Good, at(100));
        breaker.judge(CallOutcome::Failed, at(101));
        assert_eq!(breaker.seen(), Seen::Open);
        assert!(
            !breaker.tick(at(300)) && breaker.tick(at(301)),
            "the second pause is twice the first"
        );
        breaker.probed(CallOutcome::Gone, at(301));
        assert!(!breaker.tick(at(700)) && breaker.tick(at(701)));
        assert_eq!(breaker.opened(), 3);
    }

    #[test]
    fn a_client_that_leaves_a_trial_neither_opens_it_again_nor_lets_probes_close_it() {
        let mut breaker = after(&[CallOutcome::Gone]);
        breaker.probed(CallOutcome::Good, at(100));
        for left in 1..5 {
            breaker.left(at(1000 * left));
            breaker.probed(CallOutcome::Good, at(1000 * left + 999));
            assert_eq!(breaker.seen(), Seen::HalfOpen);
        }
        breaker.left(at(5000));
        assert_eq!(breaker.seen(), Seen::Open, "so many are no coincidence");
    }

    #[test]
    fn many_requests_of_one_crash_are_one_opening() {
        assert_eq!(after(&[CallOutcome::Gone; 64]).opened(), 1);
    }

    #[test]
    fn an_endpoint_that_answers_probes_comes_back_even_if_no_request_tries() {
        let mut breaker = after(&[CallOutcome::Gone]);
        breaker.probed(CallOutcome::Good, at(100));
        breaker.probed(CallOutcome::Good, at(2000));
        assert_eq!(breaker.seen(), Seen::HalfOpen);
        breaker.probed(CallOutcome::Good, at(2100));
        assert_eq!(breaker.seen(), Seen::Closed);
    }

    #[test]
    fn as_long_as_a_request_tries_probes_do_not_let_others_in() {
        let mut breaker = after(&[CallOutcome::Gone]);
        assert!(!breaker.begins(), "nobody may try yet");
        breaker.probed(CallOutcome::Good, at(100));
        assert!(breaker.begins());
        breaker.probed(CallOutcome::Good, at(9000));
        assert_eq!(breaker.seen(), Seen::HalfOpen, "it may hang");
        breaker.trial_ended();
        breaker.probed(CallOutcome::Good, at(9100));
        assert_eq!(breaker.seen(), Seen::Closed);
    }
}
