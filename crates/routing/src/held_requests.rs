//! Held requests: the wait queue, driven by the profiles that decide its requests.
//!
//! The gateway and the simulator both call [`HeldRequests::poll`] when a request ends, when load or
//! events change, and at [`HeldRequests::next_wakeup`]. A request is prepared once: only filters,
//! scorers and the picker run again, so its pod is bound at the last moment.

use std::sync::Arc;

use wornpath_index::{Moment, PodId};

use crate::decide::Retry;
use crate::decision_state::DecisionEnv;
use crate::fleet::{BreakerState, Fleet, FleetPod, Health, HeldWork};
use crate::name::Name;
use crate::plan::{AwaitedPod, Outcome, RoutingPlan};
use crate::profile::Profile;
use crate::request::Request;
use crate::slot::RoutingContext;
use crate::stage::{Rejection, RejectionCause};
use crate::wait_queue::{
    Enqueued, Priority, QueueEntry, QueueFull, QueueRules, QueueRulesError, Ticket, WaitQueue,
};

/// A request that waits, with what the caller needs to resume it.
#[derive(Debug)]
pub struct HeldRequest<T> {
    /// The profile that decides it.
    pub profile: Arc<Profile>,
    /// Its prepared context, made by that profile.
    pub context: RoutingContext,
    /// The part of the plan that is decided.
    pub again: Redecision,
    /// The caller's own data.
    pub item: T,
}

/// The part of a plan that is decided when a pod may have room: by default all of it, with any pod.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Redecision {
    /// Only this step, which failed on another pod.
    pub step: Option<Name>,
    /// Pods that must not be chosen again.
    pub excluded: Vec<PodId>,
}

/// How a wait ended.
#[derive(Debug)]
pub enum Dequeued {
    /// With a plan, whose load is reserved.
    Plan(RoutingPlan),
    /// With a rejection: no pod can serve it any more, or its deadline has passed.
    Reject(Rejection),
}

/// The requests that wait for a pod, of all profiles.
#[derive(Debug)]
pub struct HeldRequests<T> {
    queue: WaitQueue<HeldRequest<T>>,
    /// The work of the requests that the last poll refused, on the pods that they wait for. While a
    /// poll runs, only that of the requests offered before: those that will be served earlier.
    work: Vec<HeldWork>,
}

impl<T> HeldRequests<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// If no queue can work by the rules.
    pub fn new(rules: QueueRules) -> Result<Self, QueueRulesError> {
        Ok(Self { queue: WaitQueue::new(rules)?, work: Vec::new() })
    }

    /// Adds a request whose decision was to hold it.
    ///
    /// # Errors
    /// Gives it back if the queue is full and no other request is dropped for it.
    pub fn hold(
        &mut self,
        now: Moment,
        class: QueueEntry,
        held: HeldRequest<T>,
    ) -> Result<Enqueued<HeldRequest<T>>, Box<QueueFull<HeldRequest<T>>>> {
        self.queue.push(now, class, held)
    }

    /// Removes a request whose client has disconnected.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<HeldRequest<T>> {
        let cancelled = self.queue.cancel(ticket);
        if self.queue.is_empty() {
            self.work.clear();
        }
        cancelled
    }

    /// Decides waiting requests again, in order, and appends those whose wait has ended.
    ///
    /// A plan reserves its load at once, so the next request already sees it.
    pub fn poll(
        &mut self,
        env: &mut DecisionEnv<'_>,
        settled: &mut Vec<(HeldRequest<T>, Dequeued)>,
    ) {
        while let Some(held) = self.queue.pop_expired(env.now) {
            let rejection = expired(held.context.request(), env.fleet);
            settled.push((held, Dequeued::Reject(rejection)));
        }
        self.work.clear();
        let work = &mut self.work;
        self.queue.poll(env.now, settled, |held| {
            let Redecision { step, excluded } = &held.again;
            let retry = Retry { step: step.as_ref(), excluded };
            match held.profile.replan(&mut held.context, env, retry) {
                Outcome::Plan(plan) => Some(Dequeued::Plan(plan)),
                Outcome::Reject(rejection) => Some(Dequeued::Reject(rejection)),
                Outcome::Hold(hold) => {
                    // Later requests in the queue see the pod as busy with this one, so that they
                    // do not all wait for the same pod.
                    if let Some(awaited) = hold.awaited
                        && let Some(pod) = env.fleet.find(awaited.pod)
                    {
                        let AwaitedPod { prompt_tokens, uncached_tokens, .. } = awaited;
                        let state = env.fleet[pod].state();
                        work.push(HeldWork::new(state, prompt_tokens, uncached_tokens));
                    }
                    None
                }
            }
        });
    }

    /// When to poll even if nothing changes.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Moment> {
        self.queue.next_wakeup()
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The highest priority of the waiting requests, promotions included.
    #[must_use]
    pub fn highest(&self) -> Option<Priority> {
        self.queue.highest()
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// The rejection of a request whose deadline has passed: pods are busy, or none serves it any more.
fn expired(request: &Request, fleet: &Fleet) -> Rejection {
    let serves = |pod: &FleetPod| {
        let pod_state = pod.state();
        let models = &pod.facts().models;
        let is_up = pod_state.health() == Health::Up && pod_state.breaker() != BreakerState::Open;
        is_up && (models.is_empty() || models.contains(&request.model.base))
    };
    let why = "no pod had room before the deadline";
    if !fleet.pods().iter().any(serves) {
        return Rejection::unavailable(why);
    }
    Rejection { cause: RejectionCause::Expired, ..Rejection::busy(why) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fleet::Reservation;
    use crate::testing::TestBench;

    /// A test bench with held requests.
    struct HoldBench {
        bench: TestBench,
        held: HeldRequests<&'static str>,
        profile: Arc<Profile>,
    }

    impl HoldBench {
        fn new(pods: usize, yaml: &str) -> Self {
            let bench = TestBench::with_pods(pods);
            let profile = Arc::new(bench.profile(yaml));
            Self { held: HeldRequests::new(profile.queue_rules()).unwrap(), bench, profile }
        }

        /// Decides a request with a prompt of so many tokens; if the outcome is a hold, it waits.
        fn arrive(&mut self, item: &'static str, tokens: usize) -> Option<RoutingPlan> {
            let profile = Arc::clone(&self.profile);
            let mut request = TestBench::request(&vec![7; tokens]);
            request.arrival = self.bench.now;
            let mut context = self.bench.prepared(&profile, request);
            let TestBench { fleet, state, rng, now, .. } = &mut self.bench;
            let mut env = DecisionEnv { fleet, state, now: *now, rng };
            match profile.decide(&mut context, &mut env) {
                Outcome::Plan(plan) => Some(plan),
                Outcome::Hold(hold) => {
                    let held = HeldRequest { profile, context, again: Redecision::default(), item };
                    self.held.hold(*now, hold.class, held).unwrap();
                    None
                }
                Outcome::Reject(rejection) => panic!("{rejection:?}"),
            }
        }

        fn poll(&mut self) -> Vec<(&'static str, Dequeued)> {
            let TestBench { fleet, state, rng, now, .. } = &mut self.bench;
            let mut settled = vec![];
            self.held.poll(&mut DecisionEnv { fleet, state, now: *now, rng }, &mut settled);
            settled.into_iter().map(|(held, settled)| (held.item, settled)).collect()
        }
    }

    fn pod_of(plan: &RoutingPlan) -> wornpath_index::PodId {
        plan.steps[0].pod.unwrap()
    }

    #[test]
    fn a_held_request_is_bound_to_the_pod_that_gets_room_first() {
        let yaml = "filter:\n  - concurrency: {requests: 1}\npick: max_score\n";
        let mut bench = HoldBench::new(2, yaml);
        let plans = [bench.arrive("a", 4).unwrap(), bench.arrive("b", 4).unwrap()];
        assert!(bench.arrive("c", 4).is_none(), "both pods are at their cap");
        assert!(bench.poll().is_empty() && bench.held.len() == 1);
        let [_a, b] = plans;
        let freed = pod_of(&b);
        drop(b);
        let settled = bench.poll();
        let [("c", Dequeued::Plan(plan))] = &settled[..] else { panic!("{settled:?}") };
        assert_eq!(pod_of(plan), freed, "bound when a pod had room, to that pod");
        assert!(bench.held.is_empty());
    }

    #[test]
    fn a_request_that_failed_on_a_pod_does_not_wait_for_that_pod() {
        let yaml = "filter:\n  - concurrency: {requests: 1}\npick: max_score\n";
        let mut bench = HoldBench::new(2, yaml);
        let [a, b] = [bench.arrive("a", 4).unwrap(), bench.arrive("b", 4).unwrap()];
        let profile = Arc::clone(&bench.profile);
        let context = bench.bench.prepared(&profile, TestBench::request(&[7; 4]));
        let again = Redecision { step: None, excluded: vec![pod_of(&a)] };
        let class = QueueEntry {
            tenant: crate::wait_queue::Tenant(0),
            weight: 1,
            priority: Priority::NORMAL,
            cost: Duration::ZERO,
            deadline: Moment::from_secs(9),
        };
        let held = HeldRequest { profile, context, again, item: "again" };
        bench.held.hold(bench.bench.now, class, held).unwrap();
        drop(a);
        assert!(bench.poll().is_empty(), "the freed pod is the one that failed");
        let other = pod_of(&b);
        drop(b);
        let settled = bench.poll();
        let [("again", Dequeued::Plan(plan))] = &settled[..] else { panic!("{settled:?}") };
        assert_eq!(pod_of(plan), other);
    }

    #[test]
    fn a_free_slot_serves_one_request_and_the_shortest_first() {
        let yaml = "prepare: [tokenize, block_hash]\nfilter:\n  - concurrency: {requests: 1}\npick: max_score\n";
        let mut bench = HoldBench::new(1, yaml);
        let first = bench.arrive("first", 4).unwrap();
        assert!(bench.arrive("long", 4000).is_none() && bench.arrive("short", 8).is_none());
        drop(first);
        let settled = bench.poll();
        assert_eq!(settled.len(), 1, "the plan took the room that the next one would need");
        assert_eq!(settled[0].0, "short");
        drop(settled);
        assert_eq!(bench.poll()[0].0, "long");
    }

    #[test]
    fn a_request_waits_for_the_pod_it_wants_not_for_any() {
        // The best pod is chosen first, and only then asked whether it has room.
        let yaml = "score: [kv_usage]\npick: max_score\nhold: {unless: [concurrency: {prefill_tokens: 100}]}\n";
        let mut bench = HoldBench::new(2, yaml);
        bench.bench.pod(1).state().report(0, 0.5);
        let busy = Reservation::new(bench.bench.pod(0).state(), 100, 100);
        assert!(bench.arrive("a", 4).is_none(), "pod 0 is better, and busy");
        assert!(bench.poll().is_empty());
        drop(busy);
        let settled = bench.poll();
        let [(_, Dequeued::Plan(plan))] = &settled[..] else { panic!("{settled:?}") };
        assert_eq!(pod_of(plan), bench.bench.pod(0).id());
    }

    #[test]
    fn requests_that_wait_for_one_pod_make_it_busy_for_those_behind_them() {
        // Pod 0 is better by less than three waiting prompts.
        let yaml = "prepare: [tokenize, block_hash]\n\
                    score:\n  - expression: {cost: \"250 * pod.kv_usage\"}\n  \
                    - predicted_ttft: {speed: {token: 1, pair: 0}, waiting: 0, eviction: 0, pressure_ms: 0}\n\
                    pick: max_score\nhold: {unless: [concurrency: {prefill_tokens: 100}]}\n";
        let mut bench = HoldBench::new(2, yaml);
        bench.bench.pod(1).state().report(0, 1.0);
        let _busy = Reservation::new(bench.bench.pod(0).state(), 100, 100);
        for item in ["a", "b", "c"] {
            assert!(bench.arrive(item, 100).is_none(), "{item} wants pod 0, which is busy");
        }
        let settled = bench.poll();
        let bound: Vec<_> = settled.iter().map(|(item, _)| *item).collect();
        assert_eq!(bound, ["c"], "two wait for pod 0, and the third goes to pod 1");
        let held = bench.bench.pod(0).state().held_tokens();
        assert_eq!(held, 200, "the work of those that still wait");
        drop(bench.held);
        assert_eq!(bench.bench.pod(0).state().held_tokens(), 0);
    }

    #[test]
    fn a_request_is_rejected_at_its_deadline_and_not_before() {
        let yaml =
            "filter:\n  - concurrency: {requests: 1}\npick: max_score\nhold: {deadline: 2s}\n";
        let mut bench = HoldBench::new(1, yaml);
        let _busy = bench.arrive("first", 4).unwrap();
        assert!(bench.arrive("late", 4).is_none());
        assert_eq!(bench.held.next_wakeup(), Some(Moment::from_secs(2)));
        bench.bench.now = Moment::from_millis(1999);
        assert!(bench.poll().is_empty());
        bench.bench.now = Moment::from_secs(2);
        let settled = bench.poll();
        let [("late", Dequeued::Reject(rejection))] = &settled[..] else { panic!("{settled:?}") };
        assert_eq!((rejection.status, rejection.retry_after.is_some()), (429, true));
        assert_eq!(bench.held.next_wakeup(), None);
    }

    #[test]
    fn a_request_held_for_pods_that_are_down_ends_with_503() {
        let yaml =
            "filter:\n  - healthy: {on_empty: hold}\npick: max_score\nhold: {deadline: 2s}\n";
        let mut bench = HoldBench::new(1, yaml);
        bench.bench.pod(0).state().set_health(Health::Down);
        assert!(bench.arrive("late", 4).is_none());
        bench.bench.now = Moment::from_secs(2);
        let settled = bench.poll();
        let [("late", Dequeued::Reject(rejection))] = &settled[..] else { panic!("{settled:?}") };
        assert_eq!(rejection.status, 503);
    }

    #[test]
    fn a_wait_ends_when_no_pod_can_serve_the_request_any_more() {
        let yaml = "filter:\n  - healthy\n  - concurrency: {requests: 1}\npick: max_score\n";
        let mut bench = HoldBench::new(1, yaml);
        let _busy = bench.arrive("first", 4).unwrap();
        assert!(bench.arrive("second", 4).is_none());
        bench.bench.pod(0).state().set_health(Health::Down);
        let settled = bench.poll();
        assert!(matches!(&settled[..], [("second", Dequeued::Reject(_))]), "{settled:?}");
    }
}
