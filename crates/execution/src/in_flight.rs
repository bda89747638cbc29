//! A call in flight, and what it tells of its endpoint if its client gives up.
//!
//! Clients mostly give up long before the first-byte timeout. Without this, an endpoint that hangs
//! would never be judged by them, and since a request that its client left is no load, it would
//! look idle and get ever more.

use crate::breaker::CallOutcome;
use crate::endpoint::Endpoint;
use std::time::Duration;
use tokio::time::Instant;
use wornpath_index::Moment;

/// A client that gives up sooner says nothing about the endpoint.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

/// Who can cancel a call before its response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CancelledBy {
    /// Only the client.
    Client,
    /// Also the failure of a concurrent step, which says nothing about this endpoint.
    ConcurrentStep,
}

pub(crate) struct InFlight<'a> {
    endpoint: &'a Endpoint,
    began: Moment,
    started: Instant,
    is_trial: bool,
    /// Whether its end still has to be judged when it is dropped.
    is_judged_on_drop: bool,
}

impl<'a> InFlight<'a> {
    /// Registers a call that begins now.
    pub(crate) fn begin(endpoint: &'a Endpoint, now: Moment, cancelled_by: CancelledBy) -> Self {
        let is_trial = endpoint.begin_call();
        let is_judged_on_drop = cancelled_by == CancelledBy::Client;
        Self { endpoint, began: now, started: Instant::now(), is_trial, is_judged_on_drop }
    }

    /// The call has its response, or has failed.
    pub(crate) fn finish(mut self, outcome: CallOutcome, now: Moment) {
        self.is_judged_on_drop = false;
        self.endpoint.record_outcome(outcome, now);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let waited = self.started.elapsed();
        if self.is_judged_on_drop
            && waited >= CLIENT_PATIENCE
            && !self.endpoint.was_active_since(self.started)
        {
            self.endpoint.abandoned(self.began + waited);
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
    use wornpath_routing::BreakerState;

    const NOW: Moment = Duration::from_secs(9);

    async fn abandon_after(endpoint: &Endpoint, waited: Duration, cancelled_by: CancelledBy) {
        let in_flight = InFlight::begin(endpoint, NOW, cancelled_by);
        tokio::time::sleep(waited).await;
        drop(in_flight);
    }

    fn endpoint() -> Endpoint {
        Endpoint::new("http://127.0.0.1:1", BreakerRules::default(), 1).expect("an address")
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_give_up_open_the_breaker_of_an_endpoint_that_hangs() {
        let hung = endpoint();
        for _ in 0..4 {
            abandon_after(&hung, CLIENT_PATIENCE, CancelledBy::Client).await;
        }
        assert_eq!(hung.breaker().0, BreakerState::Closed);
        abandon_after(&hung, CLIENT_PATIENCE, CancelledBy::Client).await;
        assert_eq!(hung.breaker().0, BreakerState::Open);
    }

    #[tokio::test(start_paused = true)]
    async fn impatience_a_concurrent_step_and_responses_to_others_are_no_blame() {
        let slow = endpoint();
        for _ in 0..9 {
            abandon_after(&slow, CLIENT_PATIENCE / 2, CancelledBy::Client).await;
            abandon_after(&slow, CLIENT_PATIENCE * 2, CancelledBy::ConcurrentStep).await;
        }
        for _ in 0..9 {
            let in_flight = InFlight::begin(&slow, NOW, CancelledBy::Client);
            tokio::time::sleep(CLIENT_PATIENCE).await;
            // A chunk for another client.
            slow.record_activity(Instant::now());
            tokio::time::sleep(CLIENT_PATIENCE).await;
            drop(in_flight);
        }
        assert_eq!(slow.breaker().0, BreakerState::Closed);
    }
}
