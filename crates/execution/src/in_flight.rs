//! A call that has not been answered yet, and what it says of its endpoint if nobody waits for it any more.
//!
//! Clients mostly give up long before the time for a first byte has passed. An endpoint that hangs would never be
//! judged by them, and since what left is no load, it would look idle and get ever more.

use crate::breaker::CallOutcome;
use crate::endpoint::Endpoint;
use std::time::Duration;
use tokio::time::Instant;
use wornpath_index::Moment;

/// A client that leaves sooner says nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who ends a call that is not waited for any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deadline {
    /// Nobody but its client.
    Client,
    /// Perhaps a companion, without which it cannot go on.
    Companion,
}

/// A call under way.
pub(crate) struct InFlight<'a> {
    endpoint: &'a Endpoint,
    began: Moment,
    started: Instant,
    is_trial: bool,
    /// Whether it is judged, or not to be.
    is_over: bool,
}

impl<'a> InFlight<'a> {
    pub(crate) fn new(
        endpoint: &'a Endpoint,
        began: Moment,
        is_trial: bool,
        ends_by: Deadline,
    ) -> Self {
        let is_over = ends_by == Deadline::Companion;
        Self { endpoint, began, started: Instant::now(), is_trial, is_over }
    }

    /// It has been answered, or has failed.
    pub(crate) fn judged(mut self, verdict: CallOutcome, now: Moment) {
        self.is_over = true;
        self.endpoint.judge(verdict, now);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let waited = self.started.elapsed();
        if !self.is_over && waited >= PATIENCE && !self.endpoint.was_heard_since(self.started) {
            self.endpoint.left(self.began + waited);
        }
        if self.is_trial {
            self.endpoint.trial_ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::BreakerRules;
    use wornpath_routing::BreakerState as Seen;

    async fn leave_after(endpoint: &Endpoint, waited: Duration, ends_by: Deadline) {
        let waiting = endpoint.begins(Duration::from_secs(9), ends_by);
        tokio::time::sleep(waited).await;
        drop(waiting);
    }

    fn endpoint() -> Endpoint {
        Endpoint::new("http://127.0.0.1:1", BreakerRules::default(), 1).expect("an address")
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_answers_nobody_is_cut_off_by_clients_that_leave() {
        let hung = endpoint();
        for _ in 0..4 {
            leave_after(&hung, PATIENCE, Deadline::Client).await;
        }
        assert_eq!(hung.breaker().0, Seen::Closed);
        leave_after(&hung, PATIENCE, Deadline::Client).await;
        assert_eq!(hung.breaker().0, Seen::Open);
    }

    #[tokio::test(start_paused = true)]
    async fn haste_a_companion_and_others_answers_are_no_blame() {
        let slow = endpoint();
        for _ in 0..9 {
            leave_after(&slow, PATIENCE / 2, Deadline::Client).await;
            leave_after(&slow, PATIENCE * 2, Deadline::Companion).await;
        }
        for _ in 0..9 {
            let waiting = slow.begins(Duration::from_secs(9), Deadline::Client);
            tokio::time::sleep(PATIENCE).await;
            // Of somebody else's answer.
            slow.heard(Instant::now());
            tokio::time::sleep(PATIENCE).await;
            drop(waiting);
        }
        assert_eq!(slow.breaker().0, Seen::Closed);
    }
}
