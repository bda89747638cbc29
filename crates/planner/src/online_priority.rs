//! How many requests offline work may have on each pod beside clients' own.
//!
//! Every request that decodes slows a client's, and every prompt that is computed makes one wait for a step's end. So
//! while clients come, some pods are left to them: as many as they keep busy, and one as long as they come at all. The
//! router finds those pods the fastest and sends clients there; offline work has the others. From a pod to which a
//! client comes nevertheless it leaves at once, and comes back only after a while without any: clients' requests
//! come in bursts. Where clients need all pods, that is all there is.
//!
//! One offline request stays everywhere, so that nothing stands still for ever; its prompt is computed during a
//! small part of its time.
//!
//! The limits of this: who comes after a long silence finds full pods, and a single pod cannot be left to anybody.

use std::collections::BTreeMap;
use std::time::Duration;

/// Offline requests beside a client's, on a pod that is not left to clients.
const FEW: usize = 4;
/// Clients' requests at once, on average, for which a pod is left to them.
const CLIENTS_PER_POD: f64 = 1.5;
/// Over about so long is that average taken.
const MEMORY: Duration = Duration::from_secs(20);
/// So long after the last client no pod is left to them any more.
const SILENCE: Duration = Duration::from_secs(300);
/// So long without a client there is more offline work on a pod again.
const QUIET: Duration = Duration::from_secs(20);
/// Then it may double so often.
const STEP: Duration = Duration::from_millis(500);
/// A pod of which nothing was heard for so long has gone.
const GONE: Duration = Duration::from_secs(5);

/// How many offline requests each pod may have. `P` is what pods are called.
#[derive(Clone, PartialEq, Debug)]
pub struct OnlinePriority<P> {
    most: usize,
    leaves_pods: bool,
    pods: BTreeMap<P, YieldingPod>,
    /// When a client was last seen.
    visited: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct YieldingPod {
    ceiling: usize,
    /// When there may be more.
    grows: Duration,
    /// Clients' requests at once, averaged.
    clients: f64,
    is_left: bool,
    heard: Duration,
}

impl<P: Ord + Copy> OnlinePriority<P> {
    /// For pods that may have `most` when no client wants them.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { most, leaves_pods: true, pods: BTreeMap::new(), visited: None }
    }

    /// The same, but all pods are shared: what leaving some to clients is measured against.
    #[must_use]
    pub const fn on_all_pods(most: usize) -> Self {
        Self { most, leaves_pods: false, pods: BTreeMap::new(), visited: None }
    }

    /// Takes in how many requests of clients a pod has now; to be called about twice a second for each.
    pub fn observe(&mut self, now: Duration, pod: P, clients: usize) {
        let most = self.most;
        let new = || YieldingPod {
            ceiling: most.min(FEW),
            // Work that begins on idle pods need not wait for long.
            grows: now + 2 * STEP,
            clients: 0.0,
            is_left: false,
            heard: now,
        };
        let seen = self.pods.entry(pod).or_insert_with(new);
        let weight = (now.saturating_sub(seen.heard).as_secs_f64() / MEMORY.as_secs_f64()).min(1.0);
        seen.clients += (clients as f64 - seen.clients) * weight;
        seen.heard = now;
        if let Some(few) = FEW.checked_div(clients) {
            (seen.ceiling, seen.grows) = (few.clamp(1, most), now + QUIET);
            self.visited = Some(now);
        } else if seen.is_left {
            (seen.ceiling, seen.grows) = (1, now + STEP);
        } else if now >= seen.grows {
            (seen.ceiling, seen.grows) = ((2 * seen.ceiling).min(most), now + STEP);
        }
        self.leave_some(now);
    }

    /// The most offline requests at once on a pod.
    #[must_use]
    pub fn ceiling(&self, pod: P) -> usize {
        let all_are_left = self.pods.values().all(|pod| pod.is_left);
        match self.pods.get(&pod) {
            None => self.most.min(FEW),
            Some(pod) if pod.is_left && !all_are_left => 1,
            Some(pod) => pod.ceiling,
        }
    }

    /// Leaves to clients as many pods as they need: those that they use the most.
    fn leave_some(&mut self, now: Duration) {
        self.pods.retain(|_, pod| now.saturating_sub(pod.heard) < GONE);
        let is_visited = self.visited.is_some_and(|visited| now.saturating_sub(visited) < SILENCE);
        let clients: f64 = self.pods.values().map(|pod| pod.clients).sum();
        let wanted = match self.leaves_pods && is_visited && self.pods.len() > 1 {
            true => ((clients / CLIENTS_PER_POD).ceil() as usize).max(1),
            false => 0,
        };
        let mut by_use: Vec<_> = self.pods.values_mut().collect();
        by_use.sort_by(|one, other| other.clients.total_cmp(&one.clients));
        for (place, pod) in by_use.into_iter().enumerate() {
            pod.is_left = place < wanted;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks twice a second at as many pods as have clients, and says what each may have in the end.
    fn seen<const N: usize>(
        courtesy: &mut OnlinePriority<usize>,
        seconds: std::ops::Range<u64>,
        clients: [usize; N],
    ) -> [usize; N] {
        for look in 2 * seconds.start..2 * seconds.end {
            for (pod, clients) in clients.into_iter().enumerate() {
                courtesy.observe(look as u32 * STEP, pod, clients);
            }
        }
        std::array::from_fn(|pod| courtesy.ceiling(pod))
    }

    #[test]
    fn alone_on_its_pod_it_leaves_at_once_and_comes_back_after_a_while() {
        let mut courtesy = OnlinePriority::new(100);
        assert_eq!(seen(&mut courtesy, 0..1, [0]), [4]);
        assert_eq!(seen(&mut courtesy, 1..2, [0]), [16], "nobody is there");
        assert_eq!(seen(&mut courtesy, 2..5, [0]), [100]);
        assert_eq!(seen(&mut courtesy, 5..6, [1]), [4]);
        assert_eq!(seen(&mut courtesy, 6..7, [20]), [1]);
        assert_eq!(seen(&mut courtesy, 7..26, [0]), [1], "somebody may come");
        assert_eq!(seen(&mut courtesy, 26..29, [0]), [32]);
    }

    #[test]
    fn the_pod_that_clients_use_is_left_to_them_and_the_others_are_not() {
        let mut courtesy = OnlinePriority::new(100);
        assert_eq!(seen(&mut courtesy, 0..10, [0, 0, 0]), [100, 100, 100]);
        assert_eq!(seen(&mut courtesy, 10..20, [0, 1, 0]), [100, 1, 100]);
        assert_eq!(seen(&mut courtesy, 20..300, [0, 0, 0]), [100, 1, 100], "they may come again");
        assert_eq!(seen(&mut courtesy, 300..330, [0, 0, 0]), [100, 100, 100]);
    }

    #[test]
    fn busier_clients_have_more_pods_and_in_the_end_all() {
        let mut courtesy = OnlinePriority::new(100);
        assert_eq!(seen(&mut courtesy, 0..100, [2, 0, 0]), [1, 1, 100]);
        assert_eq!(seen(&mut courtesy, 100..200, [3, 3, 3]), [1, 1, 1]);
        assert_eq!(seen(&mut courtesy, 200..201, [1, 2, 3]), [4, 2, 1], "beside each a few");
    }

    #[test]
    fn a_pod_that_has_gone_is_not_what_is_left_to_clients() {
        let mut courtesy = OnlinePriority::new(100);
        assert_eq!(seen(&mut courtesy, 0..30, [0, 0, 1]), [100, 100, 1]);
        let [first, second] = seen(&mut courtesy, 30..60, [0, 0]);
        assert_eq!((first.min(second), first.max(second)), (1, 100));
    }
}
