//! Circuit breaker: whether an endpoint's recent failures keep requests away from it.
//!
//! A failure may be the fault of the request: one that crashes engines, or that they answer with
//! 503, must not take the fleet out. So the breaker counts what cannot be the request's fault:
//!
//! - A pod that cannot be connected is gone: the breaker opens at once.
//! - A pod that loses a connection after the request was sent is probed at once, and the breaker
//!   opens if the probe fails. It also opens after two distinct requests that another pod then
//!   answered.
//! - A pod that answers with an error status has failed if another pod then answers the same
//!   request. The breaker opens after a few such failures in a row.
//! - A pod that times out may have had bad luck: the breaker opens after a few failures in a row,
//!   of at least two distinct requests.
//! - A pod from which another pod could not load KV cache may be dead: that counts as a failure,
//!   and a probe finds out at once.
//! - A pod that is busy (429, 503) is healthy. It is avoided after two distinct requests in a row
//!   that it refused, with a backoff, because what it refuses at once would make it look idle and
//!   attract every request. If another pod then answers such a request, it rests for its
//!   `Retry-After`, and gets none at all.
//! - A pod in whose place a proxy answers (502, 503, 504) may be dead, busy, or out of the proxy's
//!   reach: it is probed at once, and avoided like a busy one.
//!
//! While the breaker is open, a probe and not a request finds out when the endpoint is back. Then
//! the breaker is half-open: one request at a time may try, and the first success closes it.
//!
//! A state machine: time is an argument.

use crate::poison::RequestFingerprint;
use std::time::Duration;
use wornpath_index::Moment;
use wornpath_routing::BreakerState;
use wornpath_time::Backoff;

/// What a call tells about its endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallOutcome {
    /// It responded, and an error in the response is not its fault.
    Good,
    /// It is busy, for the time of its `Retry-After` if it sent one.
    Busy(Option<Duration>),
    /// Nothing about the endpoint.
    Neutral,
    /// A timeout, or a response that cannot be used.
    Failed,
    /// An error status. The request may have caused it.
    Errored,
    /// Another pod could not load the KV cache that this one computed, or a proxy passed it over:
    /// it may be dead.
    Suspect,
    /// A proxy answered in its place.
    Unanswered,
    /// The connection was lost after the request was sent. The request may have caused it.
    Lost,
    /// It cannot be connected.
    Gone,
}

impl CallOutcome {
    /// Whether it counts against the endpoint only, or more, if another pod answers the request.
    pub(crate) const fn needs_confirmation(self) -> bool {
        matches!(self, Self::Busy(_) | Self::Errored | Self::Lost)
    }
}

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BreakerRules {
    /// Failures in a row that open it.
    pub failures: u32,
    /// The time it stays open before the first probe; it doubles each time the breaker opens again.
    pub first_pause: Duration,
    /// The longest time that a busy endpoint rests.
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

/// The circuit breaker of one endpoint.
#[derive(Clone, Debug, Default)]
pub struct CircuitBreaker {
    rules: BreakerRules,
    phase: BreakerPhase,
    /// Failures in a row.
    failures: u32,
    /// The requests that failed in a row.
    failed: DistinctRequests,
    /// The requests in a row that it was too busy for.
    refused: DistinctRequests,
    /// Openings without a success in between, for the backoff.
    openings: u32,
    /// Openings in total.
    opened: u64,
    /// Requests in flight that began while it was half-open.
    trials: u32,
    /// Rests without a `Retry-After` and without a success in between, for the backoff.
    rests: u32,
    /// Whether another pod answered a request that it refused since its rest began.
    is_rest_confirmed: bool,
    /// Whether a probe is to find out if it is dead while it still gets requests.
    is_suspect: bool,
}

/// Whether the failures since the last success are of more than one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum DistinctRequests {
    #[default]
    None,
    /// One request; none is a call that no request can be blamed for.
    One(Option<RequestFingerprint>),
    Several,
}

impl DistinctRequests {
    /// Adds a request; none is different from every other. Returns whether there are several.
    fn add(&mut self, request: Option<RequestFingerprint>) -> bool {
        *self = match *self {
            Self::None => Self::One(request),
            Self::One(first) if first.is_some() && first == request => Self::One(first),
            Self::One(_) | Self::Several => Self::Several,
        };
        *self == Self::Several
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum BreakerPhase {
    #[default]
    Closed,
    /// Busy until this time.
    Resting(Moment),
    /// Not probed before this time.
    Open(Moment),
    /// A probe succeeded at this time.
    HalfOpen(Moment),
}

/// The first rest of a busy endpoint that sent no `Retry-After`.
const FIRST_REST: Duration = Duration::from_millis(100);
/// The longest rest without a `Retry-After`, whatever the rules allow.
const LONGEST_UNREQUESTED_REST: Duration = Duration::from_secs(30);

/// The longest time between an opening and its first probe.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A half-open breaker that no request has tried closes after probes have succeeded for this long.
const TRUSTED_AFTER: Duration = Duration::from_secs(2);

impl CircuitBreaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(rules: BreakerRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// The state as routing decisions see it.
    #[must_use]
    pub const fn state(&self) -> BreakerState {
        match self.phase {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::Resting(_) if self.is_rest_confirmed => BreakerState::Resting,
            BreakerPhase::Resting(_) => BreakerState::Avoided,
            BreakerPhase::Open(_) => BreakerState::Open,
            BreakerPhase::HalfOpen(_) => BreakerState::HalfOpen,
        }
    }

    /// A request's call begins. Returns whether it is a trial, whose end [`Self::trial_ended`] must
    /// report.
    pub fn begin_call(&mut self) -> bool {
        let is_trial = matches!(self.phase, BreakerPhase::HalfOpen(_));
        self.trials += u32::from(is_trial);
        is_trial
    }

    /// A trial is over, with any outcome.
    pub const fn trial_ended(&mut self) {
        self.trials = self.trials.saturating_sub(1);
    }

    /// A call ended, for which `request` may be to blame if it failed.
    pub fn record_outcome(
        &mut self,
        outcome: CallOutcome,
        request: Option<RequestFingerprint>,
        now: Moment,
    ) {
        match outcome {
            CallOutcome::Good => {
                self.failures = 0;
                self.failed = DistinctRequests::None;
                self.refused = DistinctRequests::None;
                self.rests = 0;
                // Requests that were in flight when it opened or began to rest prove nothing about
                // new ones.
                if !matches!(self.phase, BreakerPhase::Open(_) | BreakerPhase::Resting(_)) {
                    self.close();
                }
            }
            CallOutcome::Busy(asked) => self.refuse(asked, request, now),
            CallOutcome::Neutral | CallOutcome::Errored => {}
            CallOutcome::Failed => self.fail(request, now),
            CallOutcome::Unanswered => {
                self.suspect();
                self.refuse(None, request, now);
            }
            CallOutcome::Suspect => {
                self.suspect();
                self.fail(request, now);
            }
            CallOutcome::Lost => self.suspect(),
            CallOutcome::Gone => self.open(now),
        }
    }

    /// Another pod has answered the request of a call that ended so: the request is not to blame.
    pub fn confirm_outcome(
        &mut self,
        outcome: CallOutcome,
        request: Option<RequestFingerprint>,
        now: Moment,
    ) {
        match outcome {
            CallOutcome::Errored => self.fail(request, now),
            CallOutcome::Lost => {
                self.fail(request, now);
                if self.failed == DistinctRequests::Several {
                    self.open(now);
                }
            }
            CallOutcome::Busy(asked) => {
                let may_rest =
                    matches!(self.phase, BreakerPhase::Closed | BreakerPhase::Resting(_));
                if may_rest && self.refused == DistinctRequests::Several {
                    let rest = asked.unwrap_or(FIRST_REST).min(self.rules.longest_rest);
                    let until = self.rests_until().unwrap_or(now).max(now + rest);
                    self.phase = BreakerPhase::Resting(until);
                    self.is_rest_confirmed = true;
                }
            }
            CallOutcome::Good
            | CallOutcome::Neutral
            | CallOutcome::Failed
            | CallOutcome::Suspect
            | CallOutcome::Unanswered
            | CallOutcome::Gone => {}
        }
    }

    /// A client gave up on an endpoint that was silent meanwhile. The client may have been
    /// impatient: it counts as a failure, but does not fail a trial.
    pub fn abandoned(&mut self, request: Option<RequestFingerprint>, now: Moment) {
        if self.count_failure(request) {
            self.open(now);
        } else if matches!(self.phase, BreakerPhase::HalfOpen(_)) {
            // Probes succeeded and requests did not.
            self.phase = BreakerPhase::HalfOpen(now);
        }
    }

    /// Advances the time. Returns whether a probe is due.
    pub fn tick(&mut self, now: Moment) -> bool {
        match self.phase {
            BreakerPhase::Closed => self.is_suspect,
            BreakerPhase::Resting(until) => {
                if now >= until {
                    self.phase = BreakerPhase::Closed;
                }
                self.is_suspect
            }
            BreakerPhase::Open(until) => now >= until,
            BreakerPhase::HalfOpen(_) => true,
        }
    }

    /// A probe has ended.
    pub fn probed(&mut self, outcome: CallOutcome, now: Moment) {
        let outcome = match outcome {
            CallOutcome::Lost | CallOutcome::Errored => CallOutcome::Failed,
            outcome => outcome,
        };
        match (self.phase, outcome) {
            (BreakerPhase::Open(_), CallOutcome::Good) => self.phase = BreakerPhase::HalfOpen(now),
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

    /// Whether there is any state that a success would clear.
    #[must_use]
    pub fn is_troubled(&self) -> bool {
        self.phase != BreakerPhase::Closed
            || self.failures > 0
            || self.refused != DistinctRequests::None
            || self.is_suspect
    }

    /// When its rest ends, if it rests.
    #[must_use]
    pub const fn rests_until(&self) -> Option<Moment> {
        if let BreakerPhase::Resting(until) = self.phase { Some(until) } else { None }
    }

    /// How often it opened.
    #[must_use]
    pub const fn opened(&self) -> u64 {
        self.opened
    }

    /// Avoids it for a while if this is the second distinct request in a row that it refused.
    fn refuse(
        &mut self,
        asked: Option<Duration>,
        request: Option<RequestFingerprint>,
        now: Moment,
    ) {
        if self.phase == BreakerPhase::Closed && self.refused.add(request) {
            self.rests += 1;
            let longest = self.rules.longest_rest.min(LONGEST_UNREQUESTED_REST);
            let rest = Backoff::new(FIRST_REST, longest).delay_after(self.rests);
            let rest = asked.map_or(rest, |asked| asked.min(rest));
            self.phase = BreakerPhase::Resting(now + rest);
            self.is_rest_confirmed = false;
        }
    }

    fn fail(&mut self, request: Option<RequestFingerprint>, now: Moment) {
        if self.count_failure(request) || matches!(self.phase, BreakerPhase::HalfOpen(_)) {
            self.open(now);
        }
    }

    /// Returns whether there are too many failures.
    fn count_failure(&mut self, request: Option<RequestFingerprint>) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failed.add(request) && self.failures >= self.rules.failures
    }

    /// Lets a probe find out whether it is dead.
    fn suspect(&mut self) {
        self.is_suspect = matches!(self.phase, BreakerPhase::Closed | BreakerPhase::Resting(_));
    }

    fn close(&mut self) {
        self.phase = BreakerPhase::Closed;
        self.openings = 0;
    }

    fn open(&mut self, now: Moment) {
        // All requests that fail by one crash are one opening.
        if let BreakerPhase::Open(until) = self.phase
            && now < until
        {
            return;
        }
        self.openings += 1;
        self.opened += 1;
        self.failures = 0;
        self.failed = DistinctRequests::None;
        self.is_suspect = false;
        let backoff = Backoff::new(self.rules.first_pause, LONGEST_PAUSE);
        self.phase = BreakerPhase::Open(now + backoff.delay_after(self.openings));
    }
}

#[cfg(test)]
mod tests;
