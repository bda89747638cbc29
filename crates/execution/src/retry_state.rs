//! What comes after a failure: another pod, the next step, the plan from its beginning, or the end.
//!
//! A state machine of one request. It knows what was tried; whether a retry may be made at all, the
//! budget says.

use std::time::Duration;
use wornpath_index::PodId;
use wornpath_routing::{AfterFailure, FailurePolicy};

/// How often a plan is begun again.
const MOST_RESTARTS: u32 = 2;

/// What is left of a lease when it is no more relied on: an engine's clock is not ours, and a request
/// that waits in its queue arrives later than we sent it.
const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// The course of one request so far.
#[derive(Clone, Debug, Default)]
pub struct RetryState {
    excluded: Vec<PodId>,
    /// Those of them from which KV cache could not be loaded: they may be alive.
    suspects: Vec<PodId>,
    /// Tries of the step that is under way.
    tried: u32,
    /// Failures of steps while others relied on them.
    fallen: u32,
    restarts: u32,
    retries: u32,
}

/// A step that produced KV cache for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Producer {
    /// Its pod.
    pub pod: Option<PodId>,
    /// What to do if it fails.
    pub failure: FailurePolicy,
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryDecision {
    /// The same step on another pod.
    OtherPod,
    /// The next step, which does the work of this one too.
    Skip,
    /// The plan from its beginning.
    Restart,
    /// Nothing more.
    GiveUp,
}

impl RetryState {
    /// A step begins.
    pub const fn begin_step(&mut self) {
        self.tried = 0;
    }

    /// The step failed on a pod. `may_retry` is asked only if a retry is wanted.
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
        self.after_all(policy.then, may_retry)
    }

    /// A step failed on a pod while another one relied on it: both begin again, or the other one does its work.
    pub fn failed_beside(
        &mut self,
        pod: Option<PodId>,
        policy: FailurePolicy,
        mut may_retry: impl FnMut() -> bool,
    ) -> RetryDecision {
        self.excluded.extend(pod);
        self.fallen += 1;
        let then = if self.fallen < policy.attempts { AfterFailure::Restart } else { policy.then };
        match self.after_all(then, &mut may_retry) {
            RetryDecision::GiveUp if policy.then == AfterFailure::Skip => RetryDecision::Skip,
            next => next,
        }
    }

    /// A step could not load what `producer` had computed for it, which so has failed. `consumer` says what comes when the
    /// step that was to load it fails.
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
        self.failed_beside(pod, failure, may_retry)
    }

    /// Excludes no longer the pods from which KV cache could not be loaded; whether there were any.
    pub fn readmit_suspects(&mut self) -> bool {
        let suspects = std::mem::take(&mut self.suspects);
        self.excluded.retain(|pod| !suspects.contains(pod));
        !suspects.is_empty()
    }

    /// The whole plan once more, unless that was done often enough.
    pub const fn begin_again(&mut self) -> RetryDecision {
        if self.restarts >= MOST_RESTARTS {
            return RetryDecision::GiveUp;
        }
        self.restarts += 1;
        self.tried = 0;
        RetryDecision::Restart
    }

    /// Nobody is left for the step.
    pub fn after_all(
        &mut self,
        then: AfterFailure,
        mut may_retry: impl FnMut() -> bool,
    ) -> RetryDecision {
        match then {
            AfterFailure::Skip => RetryDecision::Skip,
            AfterFailure::Restart if self.restarts < MOST_RESTARTS && may_retry() => {
                self.retries += 1;
                self.begin_again()
            }
            AfterFailure::Restart | AfterFailure::Fail => RetryDecision::GiveUp,
        }
    }

    /// There was nobody to try again with.
    pub const fn not_retried(&mut self) {
        self.retries = self.retries.saturating_sub(1);
    }

    /// Pods that must not be chosen again.
    #[must_use]
    pub fn excluded(&self) -> &[PodId] {
        &self.excluded
    }

    /// How often something was tried again.
    #[must_use]
    pub const fn retries(&self) -> u32 {
        self.retries
    }

    /// Pods tried for the step that is under way.
    #[must_use]
    pub const fn tried(&self) -> u32 {
        self.tried
    }
}

/// Whether what a step left behind `age` ago is surely still there.
pub(crate) fn is_held(lease: Option<Duration>, age: Duration) -> bool {
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
        let mut course = RetryState::default();
        let next: Vec<_> = pods
            .iter()
            .map(|pod| course.failed(Some(*pod), policy(3, AfterFailure::Fail), || true))
            .collect();
        assert_eq!(next, [RetryDecision::OtherPod, RetryDecision::OtherPod, RetryDecision::GiveUp]);
        assert_eq!((course.excluded(), course.retries()), (&pods[..], 2));
    }

    #[test]
    fn without_budget_nothing_is_tried_again_but_a_step_may_still_be_skipped() {
        let mut course = RetryState::default();
        assert_eq!(
            course.failed(None, policy(3, AfterFailure::Fail), || false),
            RetryDecision::GiveUp
        );
        assert_eq!(
            course.failed(None, policy(3, AfterFailure::Restart), || false),
            RetryDecision::GiveUp
        );
        assert_eq!(
            course.failed(None, policy(3, AfterFailure::Skip), || false),
            RetryDecision::Skip
        );
    }

    #[test]
    fn a_plan_is_not_begun_again_for_ever() {
        let mut course = RetryState::default();
        let mut next = || course.failed(None, policy(1, AfterFailure::Restart), || true);
        assert_eq!(
            [next(), next(), next()],
            [RetryDecision::Restart, RetryDecision::Restart, RetryDecision::GiveUp]
        );
    }

    #[test]
    fn what_failed_beside_another_step_is_begun_again_and_then_left_out_however_often_steps_begin()
    {
        let mut course = RetryState::default();
        let skip = policy(2, AfterFailure::Skip);
        assert_eq!(course.failed_beside(None, skip, || true), RetryDecision::Restart);
        course.begin_step();
        assert_eq!(course.failed_beside(None, skip, || true), RetryDecision::Skip);
        assert_eq!(course.retries(), 1);
        let mut course = RetryState::default();
        assert_eq!(
            course.failed_beside(None, skip, || false),
            RetryDecision::Skip,
            "without budget"
        );
        let mut next = || course.failed_beside(None, policy(9, AfterFailure::Fail), || true);
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
            let mut course = RetryState::default();
            let next = pods.map(|pod| {
                course.load_failed(Producer { pod: Some(pod), failure }, consumer, || true)
            });
            assert_eq!(course.excluded(), pods);
            assert!(course.readmit_suspects() && course.excluded().is_empty());
            assert!(!course.readmit_suspects(), "each is readmitted once");
            next
        };
        let [again, alone, over] =
            [RetryDecision::Restart, RetryDecision::Skip, RetryDecision::GiveUp];
        assert_eq!(
            all(policy(2, AfterFailure::Skip), AfterFailure::Restart),
            [again, alone, alone]
        );
        assert_eq!(all(policy(2, AfterFailure::Fail), AfterFailure::Fail), [again, over, over]);
        assert_eq!(all(policy(1, AfterFailure::Fail), AfterFailure::Restart), [again, again, over]);
        let mut course = RetryState::default();
        course.failed(Some(pods[0]), policy(3, AfterFailure::Fail), || true);
        course.load_failed(
            Producer { pod: Some(pods[1]), failure: policy(2, AfterFailure::Fail) },
            AfterFailure::Fail,
            || true,
        );
        course.readmit_suspects();
        assert_eq!(course.excluded(), [pods[0]], "a pod that failed itself stays excluded");
    }

    #[test]
    fn a_lease_is_relied_on_until_shortly_before_it_ends() {
        let lease = Some(Duration::from_secs(30));
        assert!(is_held(lease, Duration::from_secs(24)));
        assert!(!is_held(lease, Duration::from_secs(25)));
        assert!(is_held(Some(Duration::from_secs(2)), Duration::from_millis(900)));
        assert!(!is_held(Some(Duration::from_secs(2)), Duration::from_secs(1)));
        assert!(is_held(None, Duration::MAX));
    }
}
