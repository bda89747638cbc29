//! Retries: what follows a failed step, and how many retries the router may make.
//!
//! [`RetryState`] is a state machine of one request. It knows what was tried, and says what follows
//! a failure: another pod, the next step, a restart of the plan, or the end.
//!
//! [`RetryBudget`] is shared by all requests. Retries help when one pod fails and harm when all do:
//! then they multiply the load of a fleet that is already too slow. So they are a share of the
//! requests, plus a few per second so that a quiet router can retry at all. A request without a
//! retry costs one relaxed addition. With tenants, each has a smaller budget of its own, so that a
//! tenant whose requests always fail leaves the others their retries.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wornpath_index::{Moment, PodId};
use wornpath_routing::{AfterFailure, FailurePolicy};

/// The most restarts of one plan.
const MAX_RESTARTS: u32 = 2;

/// The rest of a lease that is not relied on: the engine's clock differs from the router's, and a
/// request that waits in the engine's queue loads the KV cache later than it was sent.
const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// The attempts of one request so far.
#[derive(Clone, Debug, Default)]
pub struct RetryState {
    excluded: Vec<PodId>,
    /// The excluded pods from which KV cache could not be loaded: they may be alive.
    suspects: Vec<PodId>,
    /// Attempts of the current step.
    tried: u32,
    /// Failures of steps on which a concurrent or later step depended.
    dependency_failures: u32,
    restarts: u32,
    retries: u32,
}

/// A step that produced KV cache for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Producer {
    /// The pod that computed the KV cache.
    pub pod: Option<PodId>,
    /// The step's failure policy.
    pub failure: FailurePolicy,
}

/// What follows a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryDecision {
    /// The same step on another pod.
    OtherPod,
    /// The next step, which does the work of this one too.
    Skip,
    /// A new decision for the whole plan.
    Restart,
    /// The plan fails.
    GiveUp,
}

impl RetryState {
    /// A step begins.
    pub const fn begin_step(&mut self) {
        self.tried = 0;
    }

    /// The step failed on a pod. `may_retry` is called only if the policy wants a retry.
    pub fn failed(
        &mut self,
        pod: Option<PodId>,
        policy: FailurePolicy,
        mut may_retry: impl FnMut() -> bool,
    ) -> RetryDecision {
        self.excluded.extend(pod);
        self.tried += 1;
        if self.tried < policy.attempts && may_retry() {
            self.retries += 1;
            return RetryDecision::OtherPod;
        }
        self.exhausted(policy.then, may_retry)
    }

    /// A step failed on which another one depends: the plan restarts, or the other step does its
    /// work too.
    pub fn dependency_failed(
        &mut self,
        pod: Option<PodId>,
        policy: FailurePolicy,
        mut may_retry: impl FnMut() -> bool,
    ) -> RetryDecision {
        self.excluded.extend(pod);
        self.dependency_failures += 1;
        let then = if self.dependency_failures < policy.attempts {
            AfterFailure::Restart
        } else {
            policy.then
        };
        match self.exhausted(then, &mut may_retry) {
            RetryDecision::GiveUp if policy.then == AfterFailure::Skip => RetryDecision::Skip,
            next => next,
        }
    }

    /// A step could not load the KV cache of `producer`, which counts as a failure of the producer.
    /// `consumer` is the policy of the step that was to load it.
    pub fn load_failed(
        &mut self,
        producer: Producer,
        consumer: AfterFailure,
        may_retry: impl FnMut() -> bool,
    ) -> RetryDecision {
        let Producer { pod, mut failure } = producer;
        if (failure.then, consumer) == (AfterFailure::Fail, AfterFailure::Restart) {
            failure.then = consumer;
        }
        self.suspects.extend(pod);
        self.dependency_failed(pod, failure, may_retry)
    }

    /// Readmits the pods from which KV cache could not be loaded. Returns whether there were any.
    pub fn readmit_suspects(&mut self) -> bool {
        let suspects = std::mem::take(&mut self.suspects);
        self.excluded.retain(|pod| !suspects.contains(pod));
        !suspects.is_empty()
    }

    /// Restarts the plan, unless that was done often enough.
    pub const fn restart(&mut self) -> RetryDecision {
        if self.restarts >= MAX_RESTARTS {
            return RetryDecision::GiveUp;
        }
        self.restarts += 1;
        self.tried = 0;
        RetryDecision::Restart
    }

    /// No pod is left for the step.
    pub fn exhausted(
        &mut self,
        then: AfterFailure,
        mut may_retry: impl FnMut() -> bool,
    ) -> RetryDecision {
        match then {
            AfterFailure::Skip => RetryDecision::Skip,
            AfterFailure::Restart if self.restarts < MAX_RESTARTS && may_retry() => {
                self.retries += 1;
                self.restart()
            }
            AfterFailure::Restart | AfterFailure::Fail => RetryDecision::GiveUp,
        }
    }

    /// The last retry found no pod, so it was not made.
    pub const fn not_retried(&mut self) {
        self.retries = self.retries.saturating_sub(1);
    }

    /// Pods that must not be chosen again.
    #[must_use]
    pub fn excluded(&self) -> &[PodId] {
        &self.excluded
    }

    /// The number of retries.
    #[must_use]
    pub const fn retries(&self) -> u32 {
        self.retries
    }

    /// The number of pods tried for the current step.
    #[must_use]
    pub const fn tried(&self) -> u32 {
        self.tried
    }
}

/// Whether an engine surely still holds the KV cache that it computed `age` ago.
pub(crate) fn is_lease_valid(lease: Option<Duration>, age: Duration) -> bool {
    lease.is_none_or(|lease| age < lease.saturating_sub(LEASE_MARGIN.min(lease / 2)))
}

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

impl BudgetRules {
    /// The rules of one tenant: half of what does not depend on its requests.
    #[must_use]
    pub fn of_tenant(self) -> Self {
        Self { per_second: self.per_second / 2.0, most: self.most / 2.0, ..self }
    }
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
        let passed = now.since(tokens.at).as_secs_f64();
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

/// The budgets that the retries of one request are taken from.
#[derive(Clone, Copy, Debug)]
pub struct RetryBudgets<'a> {
    /// Shared by all requests.
    pub router: &'a RetryBudget,
    /// Shared by the requests of one tenant.
    pub tenant: Option<&'a RetryBudget>,
}

impl RetryBudgets<'_> {
    /// Counts a request, which earns its share of a retry.
    pub fn request(self) {
        self.router.request();
        self.tenant.iter().for_each(|tenant| tenant.request());
    }

    /// Takes one retry, if each budget has one left.
    #[must_use]
    pub fn spend(self, now: Moment) -> bool {
        if self.tenant.is_some_and(|tenant| !tenant.spend(now)) {
            return false;
        }
        let is_left = self.router.spend(now);
        if !is_left {
            self.tenant.iter().for_each(|tenant| tenant.give_back());
        }
        is_left
    }

    /// Returns a retry that was taken and found no pod.
    pub fn give_back(self) {
        self.router.give_back();
        self.tenant.iter().for_each(|tenant| tenant.give_back());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_index::{Index, IndexLimits};

    fn policy(attempts: u32, then: AfterFailure) -> FailurePolicy {
        FailurePolicy { attempts, then }
    }

    #[test]
    fn a_step_is_tried_on_as_many_pods_as_its_policy_says() {
        let index = Index::new(IndexLimits::default(), 1);
        let pods = [index.add_pod().unwrap(), index.add_pod().unwrap(), index.add_pod().unwrap()];
        let mut state = RetryState::default();
        let next: Vec<_> = pods
            .iter()
            .map(|pod| state.failed(Some(*pod), policy(3, AfterFailure::Fail), || true))
            .collect();
        assert_eq!(next, [RetryDecision::OtherPod, RetryDecision::OtherPod, RetryDecision::GiveUp]);
        assert_eq!((state.excluded(), state.retries()), (&pods[..], 2));
    }

    #[test]
    fn without_budget_there_is_no_retry_but_a_step_may_still_be_skipped() {
        let mut state = RetryState::default();
        assert_eq!(
            state.failed(None, policy(3, AfterFailure::Fail), || false),
            RetryDecision::GiveUp
        );
        assert_eq!(
            state.failed(None, policy(3, AfterFailure::Restart), || false),
            RetryDecision::GiveUp
        );
        assert_eq!(
            state.failed(None, policy(3, AfterFailure::Skip), || false),
            RetryDecision::Skip
        );
    }

    #[test]
    fn a_plan_restarts_at_most_twice() {
        let mut state = RetryState::default();
        let mut next = || state.failed(None, policy(1, AfterFailure::Restart), || true);
        assert_eq!(
            [next(), next(), next()],
            [RetryDecision::Restart, RetryDecision::Restart, RetryDecision::GiveUp]
        );
    }

    #[test]
    fn a_failed_dependency_restarts_the_plan_and_is_then_skipped_however_often_steps_begin() {
        let mut state = RetryState::default();
        let skip = policy(2, AfterFailure::Skip);
        assert_eq!(state.dependency_failed(None, skip, || true), RetryDecision::Restart);
        state.begin_step();
        assert_eq!(state.dependency_failed(None, skip, || true), RetryDecision::Skip);
        assert_eq!(state.retries(), 1);
        let mut state = RetryState::default();
        assert_eq!(
            state.dependency_failed(None, skip, || false),
            RetryDecision::Skip,
            "without budget"
        );
        let mut next = || state.dependency_failed(None, policy(9, AfterFailure::Fail), || true);
        assert_eq!(
            [next(), next(), next()],
            [RetryDecision::Restart, RetryDecision::Restart, RetryDecision::GiveUp]
        );
    }

    #[test]
    fn a_load_that_fails_is_a_failure_of_the_step_that_produced_the_kv_cache() {
        let index = Index::new(IndexLimits::default(), 1);
        let pods = [index.add_pod().unwrap(), index.add_pod().unwrap(), index.add_pod().unwrap()];
        let all = |failure: FailurePolicy, consumer: AfterFailure| {
            let mut state = RetryState::default();
            let next = pods.map(|pod| {
                state.load_failed(Producer { pod: Some(pod), failure }, consumer, || true)
            });
            assert_eq!(state.excluded(), pods);
            assert!(state.readmit_suspects() && state.excluded().is_empty());
            assert!(!state.readmit_suspects(), "each is readmitted once");
            next
        };
        let [restart, skip, give_up] =
            [RetryDecision::Restart, RetryDecision::Skip, RetryDecision::GiveUp];
        assert_eq!(
            all(policy(2, AfterFailure::Skip), AfterFailure::Restart),
            [restart, skip, skip]
        );
        assert_eq!(
            all(policy(2, AfterFailure::Fail), AfterFailure::Fail),
            [restart, give_up, give_up]
        );
        assert_eq!(
            all(policy(1, AfterFailure::Fail), AfterFailure::Restart),
            [restart, restart, give_up]
        );
        let mut state = RetryState::default();
        state.failed(Some(pods[0]), policy(3, AfterFailure::Fail), || true);
        state.load_failed(
            Producer { pod: Some(pods[1]), failure: policy(2, AfterFailure::Fail) },
            AfterFailure::Fail,
            || true,
        );
        state.readmit_suspects();
        assert_eq!(state.excluded(), [pods[0]], "a pod whose own call failed stays excluded");
    }

    #[test]
    fn a_lease_is_valid_until_shortly_before_it_expires() {
        let lease = Some(Duration::from_secs(30));
        assert!(is_lease_valid(lease, Duration::from_secs(24)));
        assert!(!is_lease_valid(lease, Duration::from_secs(25)));
        assert!(is_lease_valid(Some(Duration::from_secs(2)), Duration::from_millis(900)));
        assert!(!is_lease_valid(Some(Duration::from_secs(2)), Duration::from_secs(1)));
        assert!(is_lease_valid(None, Duration::MAX));
    }

    fn at(seconds: f64) -> Moment {
        Moment::at(Duration::from_secs_f64(seconds))
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
    fn a_tenant_whose_requests_always_fail_leaves_the_others_their_retries() {
        let rules = BudgetRules::default();
        let router = RetryBudget::new(rules, at(0.0));
        let noisy = RetryBudget::new(rules.of_tenant(), at(0.0));
        let other = RetryBudget::new(rules.of_tenant(), at(0.0));
        let of = |tenant| RetryBudgets { router: &router, tenant: Some(tenant) };
        assert_eq!((0..99).filter(|_| of(&noisy).spend(at(0.0))).count(), 5);
        assert_eq!((0..99).filter(|_| of(&other).spend(at(0.0))).count(), 5);
        let third = RetryBudget::new(rules.of_tenant(), at(0.0));
        assert!(!of(&third).spend(at(0.0)), "the router has none left");
        assert!(of(&third).spend(at(0.1)), "and took none from the tenant");
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
