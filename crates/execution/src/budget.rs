//! The retry budget of the router, over all requests.
//!
//! Retries help when one pod fails and harm when all do: then they multiply the load of a fleet
//! that is already too slow. So they are a share of the requests, plus a few per second so that a
//! quiet router can retry at all. A request without a retry costs one relaxed addition.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use wornpath_index::Moment;

/// The rates of a retry budget.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BudgetRules {
    /// Retries per request.
    pub share: f64,
    /// Further retries per second.
    pub per_second: f64,
    /// The most unused retries that accumulate.
    pub most: f64,
}

impl Default for BudgetRules {
    fn default() -> Self {
        Self { share: 0.2, per_second: 10.0, most: 100.0 }
    }
}

/// A token bucket of retries.
#[derive(Debug)]
pub struct RetryBudget {
    rules: BudgetRules,
    requests: AtomicU64,
    spent: AtomicU64,
    refused: AtomicU64,
    tokens: Mutex<RetryTokens>,
}

#[derive(Debug)]
struct RetryTokens {
    retries: f64,
    at: Moment,
}

impl RetryBudget {
    /// A budget that holds the retries of one second at `now`.
    #[must_use]
    pub fn new(rules: BudgetRules, now: Moment) -> Self {
        let tokens = Mutex::new(RetryTokens { retries: rules.per_second.min(rules.most), at: now });
        let zero = || AtomicU64::new(0);
        Self { rules, requests: zero(), spent: zero(), refused: zero(), tokens }
    }

    /// Counts a request, which earns its share of a retry.
    pub fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Takes one retry, if one is left.
    pub fn spend(&self, now: Moment) -> bool {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = self.requests.swap(0, Relaxed) as f64;
        let passed = now.saturating_sub(tokens.at).as_secs_f64();
        let earned = requests * self.rules.share + passed * self.rules.per_second;
        tokens.retries = (tokens.retries + earned).min(self.rules.most);
        tokens.at = tokens.at.max(now);
        let has_one = tokens.retries >= 1.0;
        if has_one {
            tokens.retries -= 1.0;
        }
        let counter = if has_one { &self.spent } else { &self.refused };
        counter.fetch_add(1, Relaxed);
        has_one
    }

    /// Returns a retry that was taken and found no pod.
    pub fn give_back(&self) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retries = (tokens.retries + 1.0).min(self.rules.most);
    }

    /// Retries that were taken.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent.load(Relaxed)
    }

    /// Retries that were wanted while the budget was empty.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: f64) -> Moment {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_quiet_router_has_the_retries_per_second() {
        let budget = RetryBudget::new(BudgetRules::default(), at(5.0));
        let now = |seconds| (0..20).filter(|_| budget.spend(at(seconds))).count();
        assert_eq!(now(5.0), 10);
        assert_eq!(now(5.5), 5);
        assert_eq!(now(4.0), 0, "a clock that goes back gives nothing");
        assert_eq!((budget.spent(), budget.refused()), (15, 45));
    }

    #[test]
    fn a_fifth_of_the_requests_may_be_retried_and_unused_retries_are_capped() {
        let budget = RetryBudget::new(BudgetRules::default(), at(0.0));
        (0..100).for_each(|_| budget.request());
        assert_eq!((0..200).filter(|_| budget.spend(at(0.0))).count(), 30);
        (0..100_000).for_each(|_| budget.request());
        assert_eq!((0..200).filter(|_| budget.spend(at(0.0))).count(), 100);
    }
}
