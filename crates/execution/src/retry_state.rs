//! What follows a failed step: another pod, the next step, a restart of the plan, or the end.
//!
//! A state machine of one request. It knows what was tried; the retry budget decides whether a
//! retry is allowed.

use std::time::Duration;
use wornpath_index::PodId;
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
}
