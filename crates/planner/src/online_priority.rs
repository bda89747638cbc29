//! Online priority: how many offline requests a pod may run beside the requests of clients.
//!
//! Each decoding request slows a client's request down, and each prefill makes one wait for the end
//! of a step. So while clients send requests, some pods are reserved for them: as many as they keep
//! busy, and at least one while any client is active. The router finds those pods the fastest and
//! sends clients there; offline work gets the others. From a pod that gets a client's request
//! anyway, offline work backs off at once and returns only after a quiet period, because requests
//! of clients come in bursts. Where clients need all pods, that is all there is.
//!
//! One offline request stays on every pod, so that offline work always makes progress; its prefill
//! takes a small part of its time.
//!
//! Limits: a client that comes after a long silence finds full pods, and a single pod cannot be
//! reserved.

use std::collections::BTreeMap;
use std::time::Duration;

use wornpath_time::Moment;

/// Offline requests beside one request of a client, on a pod that is not reserved.
const SHARED_CEILING: usize = 4;
/// Average concurrent requests of clients for which one pod is reserved.
const CLIENTS_PER_POD: f64 = 1.5;
/// The time constant of that average.
const AVERAGE_OVER: Duration = Duration::from_secs(20);
/// No pod stays reserved this long after the last request of a client.
const RESERVE_FOR: Duration = Duration::from_secs(300);
/// The ceiling of a pod grows again after this long without a client's request.
const QUIET: Duration = Duration::from_secs(20);
/// The ceiling then doubles once per step.
const STEP: Duration = Duration::from_millis(500);
/// A pod without an observation for this long is gone.
const GONE: Duration = Duration::from_secs(5);

/// How many offline requests each pod may run. `P` identifies a pod.
#[derive(Clone, PartialEq, Debug)]
pub struct OnlinePriority<P> {
    max: usize,
    reserves_pods: bool,
    pods: BTreeMap<P, SharedPod>,
    /// When a request of a client was last observed.
    last_client: Option<Moment>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct SharedPod {
    ceiling: usize,
    /// When the ceiling may grow.
    grows_at: Moment,
    /// Concurrent requests of clients, averaged.
    clients: f64,
    is_reserved: bool,
    observed_at: Moment,
}

impl<P: Ord + Copy> OnlinePriority<P> {
    /// Allows `max` offline requests on a pod that no client uses.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { max, reserves_pods: true, pods: BTreeMap::new(), last_client: None }
    }

    /// The same without reserved pods: the baseline to measure reserving against.
    #[must_use]
    pub const fn on_all_pods(max: usize) -> Self {
        Self { max, reserves_pods: false, pods: BTreeMap::new(), last_client: None }
    }

    /// Observes how many requests of clients a pod has now. To be called about twice a second for
    /// each pod.
    pub fn observe(&mut self, now: Moment, pod: P, clients: usize) {
        let max = self.max;
        let new = || SharedPod {
            ceiling: max.min(SHARED_CEILING),
            // Work that begins on idle pods need not wait for long.
            grows_at: now + 2 * STEP,
            clients: 0.0,
            is_reserved: false,
            observed_at: now,
        };
        let seen = self.pods.entry(pod).or_insert_with(new);
        let elapsed = now.since(seen.observed_at).as_secs_f64();
        let weight = (elapsed / AVERAGE_OVER.as_secs_f64()).min(1.0);
        seen.clients += (clients as f64 - seen.clients) * weight;
        seen.observed_at = now;
        if let Some(ceiling) = SHARED_CEILING.checked_div(clients) {
            seen.ceiling = ceiling.clamp(1, max);
            seen.grows_at = now + QUIET;
            self.last_client = Some(now);
        } else if seen.is_reserved {
            seen.ceiling = 1;
            seen.grows_at = now + STEP;
        } else if now >= seen.grows_at {
            seen.ceiling = (2 * seen.ceiling).min(max);
            seen.grows_at = now + STEP;
        }
        self.reserve(now);
    }

    /// The most concurrent offline requests on a pod.
    #[must_use]
    pub fn ceiling(&self, pod: P) -> usize {
        let all_are_reserved = self.pods.values().all(|pod| pod.is_reserved);
        match self.pods.get(&pod) {
            None => self.max.min(SHARED_CEILING),
            Some(pod) if pod.is_reserved && !all_are_reserved => 1,
            Some(pod) => pod.ceiling,
        }
    }

    /// Reserves as many pods as clients need: those that they use the most.
    fn reserve(&mut self, now: Moment) {
        self.pods.retain(|_, pod| now.since(pod.observed_at) < GONE);
        let has_clients = self.last_client.is_some_and(|at| now.since(at) < RESERVE_FOR);
        let clients: f64 = self.pods.values().map(|pod| pod.clients).sum();
        let wanted = match self.reserves_pods && has_clients && self.pods.len() > 1 {
            true => ((clients / CLIENTS_PER_POD).ceil() as usize).max(1),
            false => 0,
        };
        let mut by_use: Vec<_> = self.pods.values_mut().collect();
        by_use.sort_by(|one, other| other.clients.total_cmp(&one.clients));
        for (rank, pod) in by_use.into_iter().enumerate() {
            pod.is_reserved = rank < wanted;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observes as many pods as `clients` has, twice a second, and returns their ceilings at the
    /// end.
    fn observed<const N: usize>(
        priority: &mut OnlinePriority<usize>,
        seconds: std::ops::Range<u64>,
        clients: [usize; N],
    ) -> [usize; N] {
        for look in 2 * seconds.start..2 * seconds.end {
            for (pod, clients) in clients.into_iter().enumerate() {
                priority.observe(Moment::at(look as u32 * STEP), pod, clients);
            }
        }
        std::array::from_fn(|pod| priority.ceiling(pod))
    }

    #[test]
    fn offline_work_leaves_a_single_pod_at_once_and_returns_after_a_quiet_period() {
        let mut priority = OnlinePriority::new(100);
        assert_eq!(observed(&mut priority, 0..1, [0]), [4]);
        assert_eq!(observed(&mut priority, 1..2, [0]), [16], "no client is active");
        assert_eq!(observed(&mut priority, 2..5, [0]), [100]);
        assert_eq!(observed(&mut priority, 5..6, [1]), [4]);
        assert_eq!(observed(&mut priority, 6..7, [20]), [1]);
        assert_eq!(observed(&mut priority, 7..26, [0]), [1], "clients may come back");
        assert_eq!(observed(&mut priority, 26..29, [0]), [32]);
    }

    #[test]
    fn only_the_pod_that_clients_use_is_reserved() {
        let mut priority = OnlinePriority::new(100);
        assert_eq!(observed(&mut priority, 0..10, [0, 0, 0]), [100, 100, 100]);
        assert_eq!(observed(&mut priority, 10..20, [0, 1, 0]), [100, 1, 100]);
        let quiet = observed(&mut priority, 20..300, [0, 0, 0]);
        assert_eq!(quiet, [100, 1, 100], "clients may come back");
        assert_eq!(observed(&mut priority, 300..330, [0, 0, 0]), [100, 100, 100]);
    }

    #[test]
    fn busier_clients_get_more_pods_and_in_the_end_all() {
        let mut priority = OnlinePriority::new(100);
        assert_eq!(observed(&mut priority, 0..100, [2, 0, 0]), [1, 1, 100]);
        assert_eq!(observed(&mut priority, 100..200, [3, 3, 3]), [1, 1, 1]);
        let shared = observed(&mut priority, 200..201, [1, 2, 3]);
        assert_eq!(shared, [4, 2, 1], "each pod runs a few beside its clients");
    }

    #[test]
    fn a_pod_that_is_gone_is_not_the_reserved_one() {
        let mut priority = OnlinePriority::new(100);
        assert_eq!(observed(&mut priority, 0..30, [0, 0, 1]), [100, 100, 1]);
        let [first, second] = observed(&mut priority, 30..60, [0, 0]);
        assert_eq!((first.min(second), first.max(second)), (1, 100));
    }
}
