//! How many retries there may be, over all requests.
//!
//! Retries help when one pod fails and harm when all do: then they multiply the load of a fleet that is
//! already too slow. So they are a share of the requests, plus a few per second so that a quiet router
//! can retry at all. The way of a request that needs none is one relaxed addition.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wornpath_index::Moment;

/// What a budget allows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BudgetRules {
    /// Retries per request.
    pub share: f64,
    /// Retries per second besides.
    pub per_second: f64,
    /// How many may be saved up.
    pub most: f64,
}

impl Default for BudgetRules {
    fn default() -> Self {
        Self { share: 0.2, per_second: 10.0, most: 100.0 }
    }
}

/// The retries that are left.
#[derive(Debug)]
pub struct RetryBudget {
    rules: BudgetRules,
    requests: AtomicU64,
    spent: AtomicU64,
    refused: AtomicU64,
    saved: Mutex<RetryTokens>,
}

#[derive(Debug)]
struct RetryTokens {
    retries: f64,
    at: Moment,
}

impl RetryBudget {
    /// Starts at `now` with the retries of a second.
    #[must_use]
    pub fn new(rules: BudgetRules, now: Moment) -> Self {
        let saved = Mutex::new(RetryTokens { retries: rules.per_second.min(rules.most), at: now });
        let zero = || AtomicU64::new(0);
        Self { rules, requests: zero(), spent: zero(), refused: zero(), saved }
    }

    /// A request came.
    pub fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Takes one retry, if one is left.
    pub fn spend(&self, now: Moment) -> bool {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = self.requests.swap(0, Relaxed) as f64;
        let passed = now.saturating_sub(saved.at).as_secs_f64();
        let earned = requests * self.rules.share + passed * self.rules.per_second;
        saved.retries = (saved.retries + earned).min(self.rules.most);
        saved.at = saved.at.max(now);
        let has_one = saved.retries >= 1.0;
        if has_one {
            saved.retries -= 1.0;
        }
        let counter = if has_one { &self.spent } else { &self.refused };
        counter.fetch_add(1, Relaxed);
        has_one
    }

    /// A retry that was taken could not be made: another request may have it.
    pub fn give_back(&self) {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        saved.retries = (saved.retries + 1.0).min(self.rules.most);
    }

    /// Retries that were taken.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent.load(Relaxed)
    }

    /// Retries that were not made because none was left.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

/// How long to wait before the pod is tried again that failed so many times in a row: doubled each time,
/// half a minute at most.
pub(crate) fn pause(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(Duration::from_secs(30))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Moment {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_quiet_router_may_retry_as_often_per_second_as_it_is_allowed() {
        let budget = RetryBudget::new(BudgetRules::default(), at(5.0));
        let now = |seconds| (0..20).filter(|_| budget.spend(at(seconds))).count();
        assert_eq!(now(5.0), 10);
        assert_eq!(now(5.5), 5);
        assert_eq!(now(4.0), 0, "a clock that goes back gives nothing");
        assert_eq!((budget.spent(), budget.refused()), (15, 45));
    }

    #[test]
    fn a_fifth_of_the_requests_may_be_retried_and_no_more_is_saved_than_the_cap() {
        let budget = RetryBudget::new(BudgetRules::default(), at(0.0));
        (0..100).for_each(|_| budget.request());
        assert_eq!((0..200).filter(|_| budget.spend(at(0.0))).count(), 30);
        (0..100_000).for_each(|_| budget.request());
        assert_eq!((0..200).filter(|_| budget.spend(at(0.0))).count(), 100);
    }

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let first = Duration::from_millis(250);
        let pauses: Vec<_> =
            [1, 2, 3, 50].map(|failures| pause(first, failures).as_millis()).into();
        assert_eq!(pauses, [250, 500, 1000, 30_000]);
    }
}
